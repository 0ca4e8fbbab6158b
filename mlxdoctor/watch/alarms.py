"""What the watch gives out: alarms, what stopping saves, and the best validation."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from mlxdoctor.finding import Measurement
from mlxdoctor.formats.strict_json import strict
from mlxdoctor.template import duration


class AlarmKind(StrEnum):
    """What an alarm says of the training."""

    DIVERGING = "diverging"
    NON_FINITE = "non-finite"
    FROZEN = "frozen"
    EXACT_ZERO = "exact-zero"
    SWAPPING = "swapping"
    NOT_IMPROVING = "not-improving"


@dataclass(frozen=True)
class Best:
    """The validation that was best so far.

    Attributes:
        val_loss: in nats.
        validations_since: how many finite validations came after it.
        last_val_loss: the last of them; `val_loss` where none came.
        save: iteration of the save that is nearest to it; None where the log names none.
        unit: what the log counts.
    """

    val_loss: float
    step: int
    validations_since: int
    last_val_loss: float
    save: int | None = None
    unit: str = "iteration"

    def __str__(self) -> str:
        text = f"the validation loss was lowest at {self.unit} {self.step:,} ({self.val_loss:.4g})"
        if count := self.validations_since:
            times = f"{count} validations" if count > 1 else "one validation"
            text += f" and has not improved in {times} since; the last is {self.last_val_loss:.4g}"
        if self.save is not None:
            text += f"; the save nearest to it is that of {self.unit} {self.save:,}"
        return text


@dataclass(frozen=True)
class Alarm:
    """The training is beyond doubt not going where it should.

    Attributes:
        step: of the report at which that was beyond doubt.
        onset: of the first report that shows it.
        message, advice: sentences; `measured` has the figures.
        saved_steps: iterations that stopping now spares; None where the length is not known.
        saved_seconds: how long they would take at the present speed; None where that is not known.
        unit: what the log counts.
    """

    verdict: AlarmKind
    step: int
    onset: int
    message: str
    advice: str
    measured: Mapping[str, Measurement] = field(default_factory=dict)
    saved_steps: int | None = None
    saved_seconds: float | None = None
    unit: str = "iteration"

    @property
    def savings(self) -> str:
        """What stopping now spares, as a clause."""
        if self.saved_steps is None:
            return "how long it would go on is not known"
        about = f", about {duration(self.saved_seconds)}" if self.saved_seconds is not None else ""
        return f"{self.saved_steps:,} of its {self.unit}s are saved{about}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON: every number finite, or spelled out as text."""
        told: dict[str, Any] = strict(asdict(self))
        told["saved_iterations"] = told.pop("saved_steps")
        return told
