"""What a run reports: a record a step, a record a validation, and the result."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Ending = Literal["finished", "diverged", "no-improvement", "too-many-skipped", "stopped"]


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
        skipped_this: whether this batch was one of them.
        seconds: wall-clock time of the iteration, batch included.
        peak_memory: the most memory MLX has held so far, GB (1e9 bytes).
        module_norms: module -> L2 norm of its gradient; None where not asked for.
    """

    iteration: int
    train_loss: float
    learning_rate: float
    grad_norm: float | None
    supervised_tokens: int
    trained_tokens: int
    skipped: int
    skipped_this: bool
    seconds: float
    peak_memory: float
    module_norms: Mapping[str, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The record as a line of `metrics.jsonl` has it; what is None is left out."""
        return {
            "iteration": self.iteration,
            "train_loss": self.train_loss,
            "learning_rate": self.learning_rate,
            **({} if self.grad_norm is None else {"grad_norm": self.grad_norm}),
            "supervised_tokens": self.supervised_tokens,
            "trained_tokens": self.trained_tokens,
            "skipped": self.skipped,
            "seconds": round(self.seconds, 6),
            "peak_memory": round(self.peak_memory, 6),
            **({} if self.module_norms is None else {"grad_norms": dict(self.module_norms)}),
        }


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

    def to_dict(self) -> dict[str, Any]:
        """The record as a line of `metrics.jsonl` has it."""
        return {
            "iteration": self.iteration,
            "val_loss": self.val_loss,
            "val_seconds": round(self.val_seconds, 6),
        }


@dataclass(frozen=True)
class TrainingResult:
    """What a run came to.

    Attributes:
        ending: why it ended; `finished` when every iteration was made.
        reason: that as a sentence.
        steps: a record an iteration of this run (a resumed run has its own only).
        validations: the validations, in order.
        test_loss: mean loss on the test split, nats; None where it was not asked for.
        adapter_path: the folder that was written.
        seconds: wall-clock time of the loop.
    """

    ending: Ending
    reason: str
    steps: tuple[StepRecord, ...]
    validations: tuple[ValidationRecord, ...]
    test_loss: float | None
    adapter_path: Path
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Supervised tokens over the time of the steps alone; NaN without steps."""
        seconds = sum(step.seconds for step in self.steps)
        return sum(step.supervised_tokens for step in self.steps) / seconds if seconds else math.nan


def to_line(record: Mapping[str, Any]) -> str:
    """A line of JSON; NaN and infinities become texts, which JSON has no numbers for."""

    def finite(value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        if isinstance(value, Mapping):
            return {key: finite(one) for key, one in value.items()}
        return value

    return json.dumps(finite(record), allow_nan=False) + "\n"
