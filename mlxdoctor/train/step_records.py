"""What a run reports: a record a step, a record a validation, `metrics.jsonl`, and the result."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mlxdoctor.safety.atomic import replace_file
from mlxdoctor.safety.errors import InputError

if TYPE_CHECKING:
    from mlxdoctor.train.plan import Plan

Ending = Literal["finished", "diverged", "no-improvement", "too-many-skipped", "stopped"]
#: Figures of which six digits after the point are kept.
_ROUNDED = frozenset({"seconds", "val_seconds", "peak_memory"})


@dataclass(frozen=True)
class StepRecord:
    """One iteration: one batch, and perhaps an update of the weights.

    Attributes:
        iteration: from 1.
        train_loss: of this batch before the update, nats a token: the mean over its
            supervised tokens (over processes too; in parity their means' mean).
        learning_rate: the rate of the update just made, or of the last one.
        grad_norm: L2 norm of the update's gradient before clipping; None without an update.
        supervised_tokens: targets the loss was taken over, as the mask counts them.
        trained_tokens: their sum since the run began.
        skipped: batches left out so far because loss or gradient was not finite.
        seconds: wall-clock time of the iteration, batch included.
        peak_memory: the most memory MLX has held so far, GB (1e9 bytes).
        grad_norms: module -> L2 norm of its gradient; None where not asked for.
        skipped_this: whether this batch was left out; not in `metrics.jsonl`.
    """

    iteration: int
    train_loss: float
    learning_rate: float
    grad_norm: float | None
    supervised_tokens: int
    trained_tokens: int
    skipped: int
    seconds: float
    peak_memory: float
    grad_norms: Mapping[str, float] | None = None
    skipped_this: bool = False


@dataclass(frozen=True)
class ValidationRecord:
    """One validation.

    Attributes:
        iteration: iterations finished before it; 0 is the base model.
        val_loss: mean over the supervised tokens, nats; NaN where there are none.
        val_seconds: wall-clock time.
    """

    iteration: int
    val_loss: float
    val_seconds: float


@dataclass(frozen=True)
class TrainingResult:
    """What a run came to.

    Attributes:
        ending: why it ended; `finished` when every iteration was made.
        reason: that as a sentence.
        plan: what was known before the first step.
        steps: a record an iteration of this run (a resumed run has its own only).
        validations: the validations, in order.
        test_loss: mean loss on the test split, nats; None where it was not asked for.
        adapter_path: the folder that was written.
    """

    ending: Ending
    reason: str
    plan: Plan
    steps: tuple[StepRecord, ...] = ()
    validations: tuple[ValidationRecord, ...] = ()
    test_loss: float | None = None
    adapter_path: Path = Path()


def open_metrics(path: Path, after: int) -> FileIO:
    """A run's `metrics.jsonl`, to be continued after an iteration; 0 begins it anew.

    Raises:
        InputError: the file cannot be written.
    """
    keep_metrics(path, after)
    # Unbuffered: what is held back would fail once more when the file is closed.
    return path.open("ab", buffering=0)


def add_metrics(file: FileIO, record: StepRecord | ValidationRecord) -> None:
    """Add a record's line.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        file.write(to_line(record).encode())
    except OSError as error:
        raise InputError(str(file.name), f"cannot be written ({error.strerror})") from None


def keep_metrics(path: Path, until: int) -> None:
    """Drop the lines of a metrics file after iteration `until`; 0 drops them all.

    So are lines that are no records: a run that was killed may have left half of one.

    Raises:
        InputError: the file cannot be written.
    """
    kept: list[bytes] = []
    if until and path.is_file():
        for line in path.read_bytes().splitlines():
            if not line.startswith(b"{"):
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            iteration = record.get("iteration", 0) if isinstance(record, dict) else None
            if isinstance(iteration, int) and iteration <= until:
                kept.append(line + b"\n")
    try:
        replace_file(path, b"".join(kept))
    except OSError as error:
        raise InputError(path, f"cannot be written ({error.strerror})") from None


def to_line(record: StepRecord | ValidationRecord) -> str:
    """A line of JSON, without what is None; NaN and infinities, which JSON lacks, as texts."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: plain(one) for key, one in value.items()}
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    values = {
        name: plain(round(value, 6) if name in _ROUNDED else value)
        for name, value in vars(record).items()
        if value is not None and name != "skipped_this"
    }
    return json.dumps(values, allow_nan=False) + "\n"
