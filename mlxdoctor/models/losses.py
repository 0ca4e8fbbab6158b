"""What both models predict on the run's own rows, token by token, and mean losses of rows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, product, starmap
from typing import ClassVar, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.engines.text import evenly
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.kind import Missing, NoSuchThing, Progress, RunView
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.supervision import Role, SupervisedRow, SupervisedRows, build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models.forward import Floats, Predicted, Question, ask, require_tokens, told
from mlxdoctor.models.load import LoadedModels, Which, end_tokens, load
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.time_budget import TimeBudget, by_turns

Figures = NDArray[np.float64]
#: The last target of a row: the padding token after it, as in mlx-lm; the row's own last
#: token; or the end token, though the template writes more after it.
Until = Literal["padding", "row", "end"]
#: Rows are cut after this many tokens: what a run learned shows well before.
LONGEST_ROW = 1024
#: Rows of fewer tokens have no target at every shift.
SHORTEST_ROW = 3
#: How far ahead of its input a target may lie: the token just given, the next, and two after it.
SHIFTS = (0, 1, 2, 3)
#: Places after a row at which padding is tried.
PADDING_PLACES = 6
#: Rows a split that are looked at, and those on which padding ids other than mlx-lm's own are
#: tried.
ROWS, PADDING_ROWS = 16, 8
#: Rows of each split that are measured before more of the first split: fewer decide nothing, since
#: no sign test over them reaches `SIGNIFICANCE`.
ENOUGH_ROWS = 8
#: Of the time that is left, what these rows may take.
SHARE = 0.5


@dataclass(frozen=True)
class RowPass:
    """One model's losses on one row, in nats: minus the log-probability of each target.

    Attributes:
        shifted: shift -> float32 (n - shift,): position i against token i + shift.
        end_after_answer: of the end token there; NaN without an answer.
        padding: pad id -> float32 (p,), of that id at the p places after the row, each
            place having the same id before it. The first is what mlx-lm trains in every row.
        greedy_at_start, greedy_after_answer: the likeliest token there; None without an answer.
    """

    shifted: Mapping[int, Floats]
    end_after_answer: float
    padding: Mapping[int, Floats]
    greedy_at_start: int | None
    greedy_after_answer: int | None

    @property
    def next(self) -> Floats:
        """Of the next token, float32 (n - 1,): what a language model is trained on."""
        return self.shifted[1]


@dataclass(frozen=True)
class RowLosses:
    """Both models' losses on one row.

    Attributes:
        tokens: int32 (n,), as the trainer sees them.
        roles: int8 (n,), the region of each token, as in `SupervisedRow`.
        tuned: the tuned model's; None where it could not be made.
        prompt_length: tokens before the last answer; 0 for rows without a question.
        is_padded: whether mlx-lm also trains on the padding token after the row.
    """

    split: str
    index: int
    tokens: NDArray[np.int32]
    roles: NDArray[np.int8]
    base: RowPass
    tuned: RowPass | None
    prompt_length: int = 0
    is_padded: bool = True

    def of(self, which: Which) -> RowPass:
        """One model's losses, which there must be."""
        losses = self.base if which == "base" else self.tuned
        assert losses is not None, "the row was not measured with the tuned model"
        return losses

    def mean(self, which: Which, role: Role, shift: int = 1) -> float:
        """One model's mean loss at a shift over the targets of one role, nats; NaN without any."""
        at_shift = self.of(which).shifted[shift]
        roles = self.roles[shift : shift + len(at_shift)]
        chosen = at_shift[: len(roles)][roles == role]
        return float(chosen.mean(dtype=np.float64)) if len(chosen) else math.nan


@dataclass(frozen=True)
class TokenLosses:
    """Losses per token of base and tuned model, on rows of the run's own data.

    Attributes:
        totals: split -> how many rows it has, measured or not.
        mask_prompt: whether the run was configured to leave the prompt out of its loss.
        load_failure: why the adapter could not be put on the base model.
        test: rows of the test split, which are of no use but beside those of the others.
        left_out: how many of the rows were measured and why not all, as a clause; else empty.
    """

    kind: ClassVar[str] = "token losses"
    needs_models: ClassVar[bool] = True

    sources: tuple[Source, ...]
    rows: tuple[RowLosses, ...]
    vocab_size: int
    totals: Mapping[str, int] = field(default_factory=dict)
    end_token_ids: tuple[int, ...] = ()
    pad_ids: tuple[int, ...] = ()
    mask_prompt: bool = False
    load_failure: str | None = None
    test: tuple[RowLosses, ...] = ()
    left_out: str = ""

    def split(self, name: str) -> tuple[RowLosses, ...]:
        return tuple(row for row in self.rows if row.split == name)

    @property
    def compared(self) -> tuple[RowLosses, ...]:
        return tuple(row for row in self.rows if row.tuned is not None)

    @classmethod
    def find(cls, run: RunView) -> "TokenLosses":
        """Measured on training and validation rows."""
        return _measured_on_the_rows(run, run.need(LoadedModels), other_padding=True)


class LossesBeforeFusing(TokenLosses):
    """The losses with the adapter beside the base, of a run whose tuned model is a fused one."""

    kind: ClassVar[str] = "token losses before fusing"

    @classmethod
    def find(cls, run: RunView) -> "LossesBeforeFusing":
        """Measured as those of the fused model are, on the same rows."""
        adapter = run.files.adapter
        if run.files.tuned is None or adapter is None:
            raise NoSuchThing("there is no fused model with its adapter beside it")
        unfused = load(run.need(LoadedModels).base, adapter)
        return cls(**vars(_measured_on_the_rows(run, unfused)))


def _measured_on_the_rows(
    run: RunView, models: LoadedModels, *, other_padding: bool = False
) -> TokenLosses:
    tokenizer = run.need(Tokenizer)
    splits, dataset = [run.need(SupervisedRows)], run.need(Dataset).held_out
    if "valid" in dataset.splits and splits[0].split != "valid":
        splits.append(build(dataset, tokenizer, run.get(TrainingConfig), split="valid"))
        if "test" in dataset.splits and dataset.splits["test"].format == splits[0].format:
            splits.append(build(dataset, tokenizer, run.get(TrainingConfig), split="test"))
    meter = Meter(models, tokenizer, run.progress, run.budget)
    measured = meter.measure(splits, ROWS, other_padding=other_padding)
    rows = tuple(row for row in measured.rows if row.split != "test")
    return replace(measured, rows=rows, test=measured.split("test"))


@dataclass(frozen=True)
class _Job:
    """A row to measure, what is tried as padding after it, and the model's end tokens."""

    split: str
    row: SupervisedRow
    pad_ids: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def tokens(self) -> NDArray[np.int32]:
        """What is read of it, int32 (n,)."""
        return self.row.tokens[: min(self.row.length, LONGEST_ROW)]

    @cached_property
    def questions(self) -> list[Question]:
        """Every place of the row at every shift; of other padding, what comes after the row."""
        first, *others = (
            np.append(self.tokens, np.full(PADDING_PLACES, pad, np.int32)) for pad in self.pad_ids
        )
        ahead = np.append(first, np.zeros(max(SHIFTS), np.int32))
        targets = [ahead[shift : shift + len(first)] for shift in SHIFTS]
        ends = [np.full(len(first), end, np.int32) for end in self.ends]
        return [
            Question(first, np.stack([*targets, *ends], axis=1)),
            *(Question(padded[:-1], padded[-PADDING_PLACES:, None]) for padded in others),
        ]

    def losses(self, first: Predicted, *others: Predicted) -> RowPass:
        """What a model predicted, by what it says of the row."""
        n, row = len(self.tokens), self.row
        ahead = first.losses.T[: len(SHIFTS)]
        # Of any of the end tokens. A broken model's losses are NaN.
        with np.errstate(invalid="ignore"):
            end = -np.logaddexp.reduce(-first.losses[:, len(SHIFTS) :], axis=1, initial=-np.inf)
        # Position i predicts token i + 1: the last token of the row predicts the first pad.
        padding = [ahead[SHIFTS.index(1)][n - 1 : n - 1 + PADDING_PLACES]]
        padding += [other.losses[:, 0] for other in others]
        answer = np.flatnonzero(row.roles[:n] == Role.ANSWER)
        start = row.prompt_length - 1 if 0 < row.prompt_length < n else None
        over = int(answer[-1]) if len(answer) and n == len(row.tokens) else None
        return RowPass(
            shifted={
                shift: losses[: max(n - shift, 0)]
                for shift, losses in zip(SHIFTS, ahead, strict=True)
            },
            end_after_answer=math.nan if over is None else float(end[over]),
            padding=dict(zip(self.pad_ids, padding, strict=True)),
            greedy_at_start=None if start is None else int(first.greedy[start]),
            greedy_after_answer=None if over is None else int(first.greedy[over]),
        )


@dataclass(frozen=True)
class Meter:
    """Measures rows with both models: as many as the budget allows."""

    models: LoadedModels
    tokenizer: Tokenizer
    progress: Progress | None = None
    budget: TimeBudget = field(default_factory=TimeBudget)

    def measure(
        self,
        splits: Sequence[SupervisedRows],
        max_rows: int | None = None,
        *,
        other_padding: bool = False,
    ) -> TokenLosses:
        """Losses per token of both models; only of the base where the adapter could not be loaded.

        Args:
            max_rows: rows a split, evenly spaced; None for all.
            other_padding: also try, on a few rows, the other ids that rows may be padded with.

        Raises:
            InputError: there is no row to measure on, or a model cannot run on it.
            Missing: the budget was spent before.
        """
        ends = end_tokens(self.tokenizer, self.models.base)
        vocab_size = require_tokens(self.models.select("base"), 0)
        others = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id)
        by_split: list[list[_Job]] = []
        for rows in splits:
            # One split is enough to see which id is padding; the trainer's own is tried on all.
            named = (rows.pad_id, *(others if other_padding and not any(by_split) else ()))
            pads = tuple(dict.fromkeys(pad for pad in named if pad in range(vocab_size)))
            usable = [row for row in rows.rows if row.length >= SHORTEST_ROW]
            picked = [usable[i] for i in evenly(len(usable), max_rows or len(usable))]
            by_length = sorted(picked, key=lambda row: row.length)
            shortest = set(map(id, by_length[:PADDING_ROWS]))
            known = tuple(end for end in ends if end < vocab_size)
            by_split.append(
                [
                    _Job(rows.split, row, pads if id(row) in shortest else pads[:1], known)
                    for row in picked
                ]
            )
        jobs = [job for split in by_split for job in split]
        if not jobs:
            why = next((why for rows in splits for why in rows.refused.values()), "")
            problem = "the data has no row to measure on"
            problem = f"no row of the data can be measured: {why}" if why else problem
            raise InputError(None, problem, "name other data with --data")
        results = self._in_stages(jobs, by_turns([len(split) for split in by_split], ENOUGH_ROWS))
        sources = dict.fromkeys(source for rows in splits for source in rows.sources)
        return TokenLosses(
            sources=(*self.models.sources, *sources),
            rows=tuple(results[i] for i in sorted(results)),
            vocab_size=vocab_size,
            totals={rows.split: rows.total_rows for rows in splits},
            end_token_ids=ends,
            pad_ids=tuple(dict.fromkeys(pad for job in jobs for pad in job.pad_ids)),
            mask_prompt=any(rows.mask_prompt for rows in splits),
            load_failure=self.models.load_failure,
            left_out=self.budget.said(len(results), len(jobs), "rows were measured"),
        )

    def _in_stages(self, jobs: Sequence[_Job], order: Sequence[int]) -> dict[int, RowLosses]:
        """Place of a job -> its losses, of as many as the budget allows in that order."""
        results: dict[int, RowLosses] = {}

        def measure(places: Sequence[int]) -> None:
            asked = [jobs[i] for i in places]
            passes: list[list[RowPass]] = []
            questions = [question for job in asked for question in job.questions]
            for which in self.models.names:
                doing = f"measuring the {which} model"
                tell = told(self.progress, doing, len(results), len(jobs))
                answers = iter(ask(self.models, which, questions, tell))
                passes.append([job.losses(*islice(answers, len(job.pad_ids))) for job in asked])
            for i, job, base, *tuned in zip(places, asked, *passes, strict=True):
                results[i] = RowLosses(
                    split=job.split,
                    index=job.row.index,
                    tokens=job.tokens,
                    roles=job.row.roles[: len(job.tokens)],
                    base=base,
                    tuned=tuned[0] if tuned else None,
                    prompt_length=job.row.prompt_length,
                    is_padded=job.row.padded,
                )

        measure([i for i in order if all(map(self.models.has_answered, jobs[i].questions))])
        new = [i for i in order if i not in results]
        costs = [float(len(jobs[i].tokens) * len(jobs[i].pad_ids)) for i in new]
        for stage in self.budget.stages(costs, SHARE):
            measure([new[turn] for turn in stage])
        if not results:
            raise Missing(self.budget.spent)
        return results


class Targets(NamedTuple):
    """Which tokens of a row are targets.

    Attributes:
        masks_prompt: they begin with the answer, not with the row.
        until: the last of them.
    """

    masks_prompt: bool
    until: Until = "padding"


#: The answer of a row and its end token.
ANSWERS = Targets(masks_prompt=True, until="end")


@dataclass(frozen=True)
class MeanLoss:
    """A mean over the targets of some rows, as `mlx_lm.lora` reports it.

    Attributes:
        value: nats a target; NaN where there is none.
        spread: of a single row about it, nats: the standard error of `n` rows, drawn at
            random from many, is this over the root of `n`.
    """

    value: float
    spread: float
    rows: int

    def uncertainty(self, total: int) -> float:
        """The standard error of this mean beside that of all `total` rows (Cochran 1977)."""
        return self.spread * math.sqrt(max(1 / self.rows - 1 / max(total, self.rows), 0.0))


def usual_targets(config: TrainingConfig | None) -> list[Targets]:
    """The targets of sound trainers: mlx-lm's, and those that leave padding out."""
    is_stated = config is not None and not config.is_default("mask_prompt")
    masks = [bool(config.mask_prompt)] if config is not None and is_stated else [False, True]
    return list(starmap(Targets, product(masks, get_args(Until))))


def mean_loss(rows: Sequence[RowLosses], which: Which, targets: Targets) -> MeanLoss:
    """The loss of one model on some rows: over targets, not over rows."""
    is_measured = which == "base" or all(row.tuned is not None for row in rows)
    losses = [target_losses(row, which, targets) for row in rows] if is_measured else []
    losses = [values for values in losses if len(values)]
    if not losses:
        return MeanLoss(math.nan, math.nan, 0)
    sums = np.array([values.sum(dtype=np.float64) for values in losses])
    counts = np.array([float(len(values)) for values in losses])
    return MeanLoss(*ratio(sums, counts), len(losses))


def ratio(sums: Figures, counts: Figures) -> tuple[float, float]:
    """The mean of all that was counted, and the spread of a sum's mean about it (Cochran 1977)."""
    mean = float(sums.sum() / counts.sum())
    residuals = (sums - mean * counts) / counts.mean()
    return mean, math.sqrt(float((residuals**2).sum()) / max(len(sums) - 1, 1))


def target_losses(row: RowLosses, which: Which, targets: Targets) -> Floats:
    """One model's losses of a row's targets, in nats, float32 (targets,)."""
    losses = row.of(which)
    first = max(row.prompt_length if targets.masks_prompt else 0, 1)
    last = len(row.tokens)
    ends = np.flatnonzero(row.roles == Role.END)
    if targets.until == "end" and len(ends):
        last = int(ends[-1]) + 1
    chosen = losses.next[first - 1 : last - 1]
    if not row.is_padded or targets.until != "padding":
        return chosen
    pads = [after[:1] for after in losses.padding.values() if len(after)]
    return np.concatenate([chosen, *pads[:1]])
