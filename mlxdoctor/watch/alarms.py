"""What the watch gives out: alarms, what stopping saves, and the best validation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class AlarmKind(StrEnum):
    """What an alarm says of the training."""

    DIVERGING = "diverging"
    NON_FINITE = "non-finite"
    FROZEN = "frozen"
    EXACT_ZERO = "exact-zero"
    SWAPPING = "swapping"
    NOT_IMPROVING = "not-improving"


#: AlarmKind -> what to do about it.
ADVICE: Mapping[AlarmKind, str] = {
    AlarmKind.DIVERGING: (
        "stop it; take the last checkpoint before the onset, and lower the learning rate or the "
        "LoRA scale by a factor of 10, or add a warm-up"
    ),
    AlarmKind.NON_FINITE: (
        "stop it; nothing saved from here on is usable. Look for batches without a supervised "
        "token (0/0), a learning rate that is too high, or float16 that overflows"
    ),
    AlarmKind.FROZEN: (
        "stop it; no step changes the model. Look at the learning rate, at whether the LoRA "
        "layers were attached, and at what is trainable"
    ),
    AlarmKind.EXACT_ZERO: (
        "stop it; a loss of exactly zero means that no token is supervised. Look at the label "
        "mask and at the sequence limit with `mlxdoctor labels`"
    ),
    AlarmKind.SWAPPING: (
        "stop it, or close what else uses memory; resume from the last checkpoint with a smaller "
        "batch, a shorter sequence limit or gradient checkpointing"
    ),
    AlarmKind.NOT_IMPROVING: (
        "stop it, and use the save nearest to the best validation; train shorter, on more rows or "
        "at a lower learning rate"
    ),
}


@dataclass(frozen=True)
class Savings:
    """What stopping now spares.

    Attributes:
        steps: iterations that would still be made; None where the length is not known.
        seconds: how long they would take at the present speed; None where that is not known.
        unit: what the log counts.
    """

    steps: int | None = None
    seconds: float | None = None
    unit: str = "iteration"

    def __str__(self) -> str:
        if self.steps is None:
            return "how long it would go on is not known"
        text = f"{self.steps:,} of its {self.unit}s are saved"
        if self.seconds is None:
            return text
        return f"{text}, about {_duration(self.seconds)}"


@dataclass(frozen=True)
class Best:
    """The validation that was best so far.

    Attributes:
        loss: the validation loss, in nats.
        step: its iteration.
        since: how many finite validations came after it.
        last: the last of them; `loss` where none came.
        save: iteration of the save that is nearest to it; None where the log names none.
        unit: what the log counts.
    """

    loss: float
    step: int
    since: int
    last: float
    save: int | None = None
    unit: str = "iteration"

    def __str__(self) -> str:
        text = f"the validation loss was lowest at {self.unit} {self.step:,} ({self.loss:.4g})"
        if self.since:
            times = f"{self.since} validations" if self.since > 1 else "one validation"
            text += f" and has not improved in {times} since; the last is {self.last:.4g}"
        if self.save is not None:
            text += f"; the save nearest to it is that of {self.unit} {self.save:,}"
        return text

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "val_loss": json_number(self.loss),
            "step": self.step,
            "validations_since": self.since,
            "last_val_loss": json_number(self.last),
            "save": self.save,
        }


def _duration(seconds: float) -> str:
    if seconds < 1.5:
        return "a second"
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"


@dataclass(frozen=True)
class Alarm:
    """The training is beyond doubt not going where it should.

    Attributes:
        verdict: in what way.
        step: of the report at which that was beyond doubt.
        onset: of the first report that shows it.
        message: one sentence with the figures.
        measured: the figures by name.
        savings: what stopping now spares.
        run: the run's name where the log holds several.
        unit: what the log counts.
    """

    verdict: AlarmKind
    step: int
    onset: int
    message: str
    measured: Mapping[str, float] = field(default_factory=dict)
    savings: Savings = field(default_factory=Savings)
    run: str = ""
    unit: str = "iteration"

    @property
    def advice(self) -> str:
        """What to do."""
        return ADVICE[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        """For JSON: every number finite, or spelled out as text."""
        return {
            "verdict": self.verdict.value,
            "step": self.step,
            "onset": self.onset,
            "message": self.message,
            "advice": self.advice,
            "measured": {name: json_number(value) for name, value in self.measured.items()},
            "saved_iterations": self.savings.steps,
            "saved_seconds": self.savings.seconds,
            **({"run": self.run} if self.run else {}),
        }


def json_number(value: float) -> float | str:
    """The value, or "NaN", "Infinity", "-Infinity": JSON has no such numbers."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value
