"""What a training log says, as values: series, segments and the events around them."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.engines.series import SeriesFacts, describe
from mlxdoctor.evidence.logs.text_stream import is_count, to_number
from mlxdoctor.safety.errors import InputError

Axis = Literal["iteration", "step", "row", "epoch"]

#: Entries of a header that are kept.
MAX_HEADER = 80
#: In which lines may differ that say the same.
_FIGURE = re.compile(r"\d+(?:[.,]\d+)*")
#: What a run can be said to have of iterations.
MAX_ITERATIONS = 2.0**62
_OF_PREFERENCE = frozenset(
    ("reward", "rewards", "margin", "margins", "chosen", "rejected", "accuracies", "win")
)
#: A distance from the first model, which a loss on rows may have as well; and what that is called.
_DISTANCE, _OF_ROWS = "kl", frozenset(("ce", "xent", "nll", "cross", "sft"))


@dataclass(frozen=True)
class Series:
    """One metric as it was reported.

    Attributes:
        iterations: int64 (n,), where each value was reported, in the order of the log.
        values: float64 (n,); NaN and infinities are what the log says, never a gap.
    """

    iterations: NDArray[np.int64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def facts(self) -> SeriesFacts:
        """What the values say."""
        return describe(self.iterations, self.values)

    @cached_property
    def finite(self) -> "Series":
        """The reports whose value is finite."""
        known = np.isfinite(self.values)
        return self if known.all() else Series(self.iterations[known], self.values[known])


def is_preference(metrics: Iterable[str]) -> bool:
    """Whether these are metrics of training on a reward or on preferences."""
    words = {word for name in metrics for word in name.split("_")}
    is_kept_near = _DISTANCE in words and _OF_ROWS.isdisjoint(words)
    return is_kept_near or not _OF_PREFERENCE.isdisjoint(words)


@dataclass(frozen=True)
class Segment:
    """One run, or one column of runs, of a log.

    Attributes:
        series: metric name -> its values. Canonical names are train_loss, val_loss,
            learning_rate, grad_norm, tokens_per_second, iterations_per_second,
            trained_tokens, peak_memory_gb, val_seconds, skipped and epoch; a metric
            that is none of these keeps its own name in snake case.
        announced_iterations: how long the run was to be, where the log says so.
        axis: what `iterations` counts. "row" where the log names no iteration: the
            first report is 1, the next 2.
        reports: how many rows it was made from.
        repeats: how many more there were that print the same once more, and were left out.
    """

    series: Mapping[str, Series]
    first_line: int
    last_line: int
    announced_iterations: int | None = None
    axis: Axis = "iteration"
    name: str = ""
    reports: int = 0
    repeats: int = 0

    def get(self, name: str) -> Series | None:
        """The series of that name, or None where the log has none."""
        return self.series.get(name)

    def finite(self, name: str) -> Series:
        """The finite reports of that name; an empty series where the log has none."""
        series = self.series.get(name)
        return series.finite if series is not None else Series(np.zeros(0, np.int64), np.zeros(0))

    @property
    def unit(self) -> str:
        """What `iterations` counts, in a word: that of the log, or "report" where it has none."""
        return "report" if self.axis == "row" else self.axis

    @property
    def is_counted(self) -> bool:
        """Whether `iterations` counts updates, or the batches that these are made of."""
        return self.axis in ("iteration", "step")

    @property
    def first(self) -> int | None:
        """Where the first report of all was made; None without one."""
        return min((int(each.iterations[0]) for each in self.series.values()), default=None)

    @property
    def last(self) -> int | None:
        """Where the last report of all was made; None without one."""
        return max((int(each.iterations[-1]) for each in self.series.values()), default=None)

    @property
    def is_preference(self) -> bool:
        """Whether a reward or preference is trained: its loss is not a cross-entropy."""
        return is_preference(self.series)

    @property
    def base_val_loss(self) -> float | None:
        """Validation loss before the first update, in nats a token.

        The trainer reports it at iteration 1 on its screen and at 0 through its
        callback. None where the log starts later.
        """
        losses, epochs = self.get("val_loss"), self.get("epoch")
        if self.axis == "row" and losses is not None and epochs is not None and len(losses):
            # Of a trainer that counts epochs alone; or before all reports that name one.
            is_first = losses.iterations[0] == epochs.iterations[0] and epochs.values[0] == 0.0
            is_first |= losses.iterations[0] == 0 < epochs.iterations[0]
            return float(losses.values[0]) if is_first else None
        # Trainers that count steps evaluate after the step, so theirs begins at 0.
        latest = {"iteration": 1, "step": 0}.get(self.axis)
        if losses is None or latest is None or losses.iterations[0] > latest:
            return None
        return float(losses.values[0])

    @property
    def shows_start(self) -> bool:
        """Whether the log shows where the run began."""
        losses = self.get("train_loss")
        if losses is None or self.base_val_loss is not None:
            return losses is not None
        first = int(losses.iterations[0])
        if self.axis == "row":
            epochs = self.get("epoch")
            # One that is named later says nothing of the beginning.
            is_told = epochs is not None and len(epochs) and epochs.iterations[0] <= first
            if epochs is None or not is_told:
                return True
            # Of a trainer that reports every few epochs the first report is after as many.
            begun, *later = epochs.values[:2].tolist()
            return begun <= 1.0 or any(3.0 * begun <= 2.0 * second for second in later)
        interval = int(losses.iterations[1]) - first if len(losses) > 1 else first
        return first <= max(2 * interval, 1)


@dataclass(frozen=True)
class Save:
    """A save the log mentions: when (None for the final one), and to which files."""

    iteration: int | None
    files: tuple[str, ...]


@dataclass(frozen=True)
class Trainable:
    """The line on trainable parameters: percent, and both counts in millions.

    Where the log does not say how many there are in all, percent is 0.
    """

    percent: float
    trainable_millions: float
    total_millions: float | None


@dataclass(frozen=True)
class LogFailure:
    """A line that says the run broke off.

    Attributes:
        line_number: from 1.
        kind: out-of-memory, traceback, killed, aborted, gpu-error or interrupted.
        text: the line, at most 300 characters; for a traceback its last line.
        place: `file:line` of the innermost frame in the user's own code, else of the innermost;
            empty where none is shown.
        code: the source line there, if it is the user's own and the log shows it.
        functions: the names of a traceback's functions, outermost first.
        is_of_thread: whether it ended a thread alone, and not the program.
    """

    line_number: int
    kind: str
    text: str
    place: str = ""
    code: str = ""
    functions: tuple[str, ...] = ()
    is_of_thread: bool = False


#: Levels that programs log at, the worst first, from a warning on.
LEVELS = ("CRITICAL", "ERROR", "WARNING")


@dataclass
class Remark:
    """What lines that differ in their figures alone say: the first of them, the last, and where.

    Attributes:
        most: the figures of the one in which they are highest, what it says, and its line.
        level: at which it was logged; empty where no program did.
    """

    first: str
    text: str
    lines: list[int]
    level: str = ""
    most: tuple[tuple[float, ...], str, int] = ((), "", 0)


@dataclass
class Notes:
    """What a log says beside its reports.

    Attributes:
        header: what the trainer said about itself: model, type, dataset, optimizer, ...
        restated: what it said once more, otherwise: line, entry of the header and value.
        trainable: the line on trainable parameters.
        announced: (line, iterations) where a run said how long it is to be.
        run_marks: lines at which a trainer said that it starts.
        targetless: numbers of the lines that say a batch had nothing to learn.
        copied: numbers of the lines that say that the training rows are validated on.
        cut: numbers of the lines that say that rows were cut.
        ended: numbers of the lines that say that the training is over.
        kept_best: numbers of the lines that say that the best save was gone back to.
        cells: numbers of the lines at which a cell of a notebook ended.
        warnings: what was logged as a warning or worse, by its text without figures.
        scores, skips, repetitive: lines that are no reports, by their text without figures: with
            scores, on something that was skipped, and such that repeat themselves.
        headings: lines that may name the run below them: number and text.
        mean_losses: means over whole runs that a trainer sums them up with, nats a token.
        bars: how many steps a progress bar has -> how far it came, and the line that says so.
        clocks: the same -> its steps, and the seconds that it had then taken.
        versions: package -> version.
        test_losses: of test runs, in nats a token.
        formats: format -> how many lines or reports it read.
        problems: the limits at which reading ended, where a log goes beyond them.
        unread: numbers of the lines that may be reports and could not be read.
    """

    header: dict[str, str] = field(default_factory=dict)
    restated: list[tuple[int, str, str]] = field(default_factory=list)
    trainable: Trainable | None = None
    announced: list[tuple[int, int]] = field(default_factory=list)
    run_marks: list[int] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    failures: list[LogFailure] = field(default_factory=list)
    targetless: list[int] = field(default_factory=list)
    copied: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    kept_best: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    warnings: dict[str, Remark] = field(default_factory=dict)
    scores: dict[str, Remark] = field(default_factory=dict)
    skips: dict[str, Remark] = field(default_factory=dict)
    repetitive: dict[str, Remark] = field(default_factory=dict)
    headings: list[tuple[int, str]] = field(default_factory=list)
    mean_losses: list[float] = field(default_factory=list)
    bars: dict[int, tuple[int, int]] = field(default_factory=dict)
    clocks: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    test_losses: list[float] = field(default_factory=list)
    formats: Counter[str] = field(default_factory=Counter)
    problems: list[InputError] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)

    @property
    def tell_of_training(self) -> bool:
        """Whether they show a log of training that has no report."""
        return bool(self.failures or self.trainable or self.mean_losses or self.test_losses)

    @property
    def tell_of_a_run(self) -> bool:
        """Whether they tell of one at all, be it that it began or ended: other texts do, too."""
        return self.tell_of_training or bool(self.run_marks or self.ended)

    def announce(self, line: int, iterations: float) -> None:
        """A run was to have so many iterations; what can be no such count is left out."""
        if is_count(iterations) and iterations < MAX_ITERATIONS:
            self.announced.append((line, int(iterations)))

    def remark(self, known: dict[str, Remark], line: int, said: str, level: str = "") -> None:
        """Add what a line says to its like among the known ones, of which so many are kept."""
        form, text = _FIGURE.sub("", said), said.strip()
        if form in known:
            known[form].lines.append(line)
            known[form].text = text
        elif len(known) < MAX_HEADER:
            known[form] = Remark(text, text, [line], level)
        else:
            return
        figures = tuple(to_number(figure) or 0.0 for figure in _FIGURE.findall(said))
        most = known[form].most[0]
        # Of others of as many a count is not more.
        if not most or (figures[:1] > most[:1] and figures[1:] == most[1:]):
            known[form].most = (figures, text, line)

    def add(self, other: "Notes") -> None:
        """Those of another file, which follows this one."""
        for one in fields(self):
            mine, more = getattr(self, one.name), getattr(other, one.name)
            if isinstance(mine, list):
                mine.extend(more)
            elif isinstance(mine, dict):
                mine.update(more)
            elif more is not None:
                setattr(self, one.name, more)
