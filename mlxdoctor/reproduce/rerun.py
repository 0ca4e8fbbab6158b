"""A run made again with one change, each rerun at most once: `rerun` is the one function."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from mlxdoctor.api import run_checks
from mlxdoctor.evidence.kind import Progress
from mlxdoctor.evidence.row_encoder import Role
from mlxdoctor.evidence.source import hash_file
from mlxdoctor.exhibits import SampleAnswer
from mlxdoctor.finding import Severity, Status
from mlxdoctor.formats import json_format
from mlxdoctor.formats.summary import slug
from mlxdoctor.installed import version_here
from mlxdoctor.models.generations import Generations
from mlxdoctor.models.losses import TokenLosses
from mlxdoctor.reproduce.recipe import Recipe
from mlxdoctor.reproduce.symptoms import symptom_checks
from mlxdoctor.run import Run
from mlxdoctor.safety.atomic import replace_file
from mlxdoctor.safety.errors import InputError

if TYPE_CHECKING:
    from mlxdoctor.train import Settings, TrainingResult
    from mlxdoctor.train.faults import Fault
    from mlxdoctor.train.parts import Parts

T = TypeVar("T")
Kind = Literal[
    "as recorded", "trial", "another order", "change", "repair", "random rows", "injection"
]
#: Answers that are kept for the report, and their length in characters.
SAMPLES, SAMPLE_LENGTH = 3, 240
#: Of the meaning of a stored result: those of another version are made again.
VERSION = 5
RESULT_FILE = "result.json"
#: Characters of the key in a folder's name.
KEY_LENGTH = 12
#: Folders that a rerun writes and that are not needed once it was examined; nor are weights.
_BULKY = ("data", "fused")


class BudgetSpent(Exception):  # noqa: N818 - an answer, not an error
    """Raised when the time that was given is over; its text is the experiment not made."""


@dataclass(frozen=True)
class Change:
    """What is different in one rerun.

    Attributes:
        kind: as recorded; a trial, a few iterations of that, for the time they take; a placebo
            (another order of the rows, or rows left out at random); one change of the
            configuration; the data repaired; or a fault put into the trainer.
        label: what it does, for people.
        iterations: how many to make.
        values: the configuration to train with; None: as recorded.
        fault: what is put into the trainer or the rows; None: nothing.
        severity: its severity.
    """

    kind: Kind
    label: str
    iterations: int
    values: Mapping[str, Any] | None = None
    fault: Fault | None = None
    severity: Any = None


@dataclass(frozen=True)
class Observation:
    """What the doctor's own checks, and a measure of our own, say of a rerun.

    Attributes:
        findings: (code, severity) of what the checks found, notes left out.
        looked: names of the checks that could look.
        base_loss: mean loss of the base model on the answers of held-out rows, nats a
            token, masked correctly whatever the trainer did; None without such rows.
        loss: likewise of the rerun's model; NaN where it gives none.
        iterations: of each training loss.
        losses: as the trainer saw them, nats a token.
        samples: the first few answers, their texts cut off.
        seconds: training and examination together.
        step_seconds: of the median step of training.
    """

    findings: tuple[tuple[str, str], ...]
    looked: tuple[str, ...]
    base_loss: float | None
    loss: float | None
    iterations: tuple[int, ...] = ()
    losses: tuple[float, ...] = ()
    samples: tuple[SampleAnswer, ...] = ()
    seconds: float = 0.0
    step_seconds: float = 0.0

    @property
    def errors(self) -> tuple[str, ...]:
        """The codes that are errors."""
        return tuple(code for code, severity in self.findings if severity == "error")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Observation:
        """What `asdict` gave, after a journey through JSON ("NaN" as a text included).

        Raises:
            KeyError, TypeError, ValueError: it is not that.
        """
        base_loss, loss = values["base_loss"], values["loss"]
        return cls(
            findings=tuple((str(code), str(severity)) for code, severity in values["findings"]),
            looked=tuple(map(str, values["looked"])),
            base_loss=None if base_loss is None else float(base_loss),
            loss=None if loss is None else float(loss),
            iterations=tuple(map(int, values["iterations"])),
            losses=tuple(map(float, values["losses"])),
            samples=tuple(SampleAnswer(**one) for one in values["samples"]),
            seconds=float(values["seconds"]),
            step_seconds=float(values["step_seconds"]),
        )


@dataclass(frozen=True)
class Laboratory:
    """Where the experiments of one run are made, and how long they may take.

    Attributes:
        recipe: the run.
        folder: everything is written below it.
        deadline: of `time.monotonic`; no experiment goes on after it.
        progress: called with what is being done.
        budget: seconds in all, by which the length of reruns is chosen.
    """

    recipe: Recipe
    folder: Path
    deadline: float = math.inf
    progress: Progress | None = None
    budget: float = math.inf

    def keep_within_time(self, label: str) -> None:
        """Go on only if there is time left.

        Raises:
            BudgetSpent: there is none.
        """
        if time.monotonic() > self.deadline:
            raise BudgetSpent(label)

    def within_time(self, batches: Iterable[T], label: str) -> Iterator[T]:
        """The same batches, for as long as there is time.

        Raises:
            BudgetSpent: there is none left.
        """
        for batch in batches:
            self.keep_within_time(label)
            yield batch

    def train(self, settings: Settings, label: str, parts: Parts | None = None) -> TrainingResult:
        """Train, with progress, for as long as there is time.

        Raises:
            InputError: training is not possible with these settings.
            BudgetSpent: the time was over before it was done.
        """
        from mlxdoctor.train import StepRecord, train

        def tell(record: Any) -> str | None:
            if not isinstance(record, StepRecord):
                return None
            if self.progress is not None:
                self.progress(label, record.iteration, settings.iters)
            return "the time is over" if time.monotonic() > self.deadline else None

        result = train(settings, parts=parts, tell=tell)
        if result.ending == "stopped" and len(result.steps) < settings.iters:
            raise BudgetSpent(label)
        return result

    def remembered(
        self,
        name: str,
        facts: Mapping[str, Any],
        label: str,
        make: Callable[[Path], T],
        read: Callable[[Mapping[str, Any]], T],
    ) -> T:
        """A result from its folder, or made now and kept there.

        Args:
            name: of the folder, before the key.
            facts: whatever the result depends on.
            label: what is made, for people.
            make: makes it in a folder; a dataclass with `seconds`.
            read: gives it back from the dictionary that `asdict` makes of it.

        Raises:
            InputError: it can't be made, or the folder can't be written.
            BudgetSpent: there was not enough time for it.
        """
        versions = [version_here(one) for one in ("mlxdoctor", "mlx", "mlx-lm")]
        folder = self.folder / f"{slug(name)}-{key_of({**facts, 'versions': versions})}"
        stored = read_result(folder)
        if stored is not None:
            try:
                return read(stored)
            except (KeyError, TypeError, ValueError, AttributeError):
                pass  # Damaged, or somebody else's: it is made again.
        self.keep_within_time(label)
        # What a reproduction left that was stopped half-way through this experiment.
        for path in (folder, *folder.parent.glob(f"{folder.name}-*")):
            shutil.rmtree(path, ignore_errors=True)
        started = time.perf_counter()
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise InputError(folder, f"cannot be made ({error.strerror})") from None
        made: Any = make(folder)
        made = replace(made, seconds=round(time.perf_counter() - started, 2))
        write_json(folder / RESULT_FILE, asdict(made))
        _discard(folder)
        result: T = made
        return result


def rerun(lab: Laboratory, change: Change, seed: int) -> Observation:
    """Make the run again with one change and one seed, and examine what came out.

    The result is kept in a folder of its own, and read from there the next time.

    Raises:
        InputError: training is not possible with this change.
        BudgetSpent: there was not enough time for it.
    """
    stated = lab.recipe.settings(Path("adapters"), change.iterations, seed, change.values)
    name = change.fault.id if change.fault is not None else None
    unwritten = {"adapter_path", "config"}
    facts = {
        "kind": change.kind,
        "fault": name,
        "severity": change.severity,
        "settings": {k: v for k, v in stated.stated().items() if k not in unwritten},
        "data": {
            path.name: hash_file(path).sha256 for path in sorted(Path(stated.data).glob("*.jsonl"))
        },
        "base": stamps(Path(stated.model)),
    }
    label = f"{change.label}, seed {seed}"

    def make(folder: Path) -> Observation:
        from mlxdoctor.train.parts import parts_of

        settings = lab.recipe.settings(folder, change.iterations, seed, change.values)
        parts, fault = parts_of(settings), change.fault
        if fault is not None:
            settings, parts = fault.inject(settings, change.severity, parts)
        result = lab.train(settings, label, parts)
        if fault is not None:
            fault.finish(folder, settings, change.severity)
        # A model is asked about the rows it was trained on: those of a repair, if any.
        own = folder / "data"
        data = own if own.is_dir() else Path(stated.data)
        return replace(
            examined(folder, base=Path(stated.model), data=data),
            iterations=tuple(one.iteration for one in result.steps),
            losses=tuple(one.train_loss for one in result.steps),
            step_seconds=median([one.seconds for one in result.steps] or [0.0]),
        )

    folder_name = "-".join(part for part in (change.kind, name, f"seed-{seed}") if part)
    return lab.remembered(folder_name, facts, label, make, Observation.from_dict)


def examined(folder: Path, *, base: Path, data: Path) -> Observation:
    """What the checks and the held-out loss say of an adapter folder; no curve, no cost.

    Args:
        folder: what a rerun wrote.
        base: the base model's folder.
        data: the rows that the model is asked about.
    """
    run = Run.discover([folder], base=base, data=data)
    outcomes = run_checks(symptom_checks(), run)
    base_loss, loss = held_out(run.get(TokenLosses))
    generations = run.get(Generations)
    items = generations.items[:SAMPLES] if generations is not None else ()
    return Observation(
        findings=tuple(
            (one.code, one.severity.value)
            for outcome in outcomes
            for one in outcome.findings
            if one.severity is not Severity.INFO
        ),
        looked=tuple(one.check for one in outcomes if one.status in (Status.PASSED, Status.FOUND)),
        base_loss=base_loss,
        loss=loss,
        samples=tuple(
            SampleAnswer(
                one.prompt[:SAMPLE_LENGTH],
                one.base[:SAMPLE_LENGTH] if one.base is not None else None,
                one.tuned[:SAMPLE_LENGTH],
            )
            for one in items
        ),
    )


def held_out(losses: TokenLosses | None) -> tuple[float | None, float | None]:
    """Mean loss of base and tuned model on the answers, nats a token; of the valid split if any."""
    base: list[Any] = []
    tuned: list[Any] = []
    rows = (losses.split("valid") or losses.rows) if losses is not None else ()
    for row in rows:
        roles = row.roles[1:]
        wanted = np.isin(roles, (Role.ANSWER, Role.END))
        wanted = wanted if wanted.any() else np.ones_like(wanted)
        base.append(row.base.next[wanted])
        if row.tuned is not None:
            tuned.append(row.tuned.next[wanted])
    return _mean(base), _mean(tuned)


def _mean(parts: Sequence[Any]) -> float | None:
    values = np.concatenate(parts) if parts else np.zeros(0)
    return float(values.astype(np.float64).mean()) if len(values) else None


def split_loss(
    lab: Laboratory, settings: Settings, model: Any, tokenizer: Any, label: str
) -> float | None:
    """Mean loss on the validation rows, nats a supervised token; None where there are none.

    Rows are masked as the settings say, and all of them count, whatever the batch size.

    Raises:
        BudgetSpent: the time was over before it was done.
    """
    from mlxdoctor.train.batches import exact_batches
    from mlxdoctor.train.masked_loss import evaluate, exact_loss
    from mlxdoctor.train.token_rows import encode_supervised

    rows = encode_supervised(settings, tokenizer).valid
    if not rows:
        return None
    batches = lab.within_time(exact_batches(settings).evaluation(rows, -1), label)
    return evaluate(model, batches, exact_loss)


def stamps(folder: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times: reading all of a base model would take longer than the rerun."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def key_of(facts: Mapping[str, Any]) -> str:
    """A name for an experiment that changes with whatever it depends on."""
    text = json.dumps({"version": VERSION, **facts}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


def read_result(folder: Path) -> dict[str, Any] | None:
    """The result in an experiment's folder; None where it was not finished, or is none."""
    try:
        result = json.loads((folder / RESULT_FILE).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return result if isinstance(result, dict) else None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON, at once or not at all.

    Raises:
        InputError: the file can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json_format.render(content).encode())
    except OSError as error:
        raise InputError(path, f"cannot be written ({error.strerror})") from None


def _discard(folder: Path) -> None:
    """Remove what is large; faults put altered data and base models beside the folder."""
    for path in folder.rglob("*.safetensors"):
        path.unlink()
    for path in (*folder.parent.glob(f"{folder.name}-*"), *map(folder.joinpath, _BULKY)):
        shutil.rmtree(path, ignore_errors=True)
