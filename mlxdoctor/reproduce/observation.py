"""What one rerun showed, as a value that can be written down and read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Sample:
    """One prompt, and what the base model and the rerun's model answer."""

    prompt: str
    base: str | None
    tuned: str


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
        samples: the first few answers.
        seconds: training and examination together.
        steps: iterations made.
    """

    findings: tuple[tuple[str, str], ...]
    looked: tuple[str, ...]
    base_loss: float | None
    loss: float | None
    iterations: tuple[int, ...]
    losses: tuple[float, ...]
    samples: tuple[Sample, ...]
    seconds: float
    steps: int

    @property
    def errors(self) -> tuple[str, ...]:
        """The codes that are errors."""
        return tuple(code for code, severity in self.findings if severity == "error")

    def to_dict(self) -> dict[str, Any]:
        """The observation as plain dictionaries and lists."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Observation:
        """What `to_dict` gave, after a journey through JSON ("NaN" as a text included).

        Raises:
            KeyError, TypeError, ValueError: it is not that.
        """
        return cls(
            findings=tuple((str(code), str(severity)) for code, severity in values["findings"]),
            looked=tuple(map(str, values["looked"])),
            base_loss=_number(values["base_loss"]),
            loss=_number(values["loss"]),
            iterations=tuple(map(int, values["iterations"])),
            losses=tuple(map(float, values["losses"])),
            samples=tuple(Sample(**one) for one in values["samples"]),
            seconds=float(values["seconds"]),
            steps=int(values["steps"]),
        )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
