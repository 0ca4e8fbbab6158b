"""What experiments said of a report's causes: one frozen dataclass for each kind of entry."""

from dataclasses import dataclass
from typing import Literal

from mlxdoctor.exhibits import Curve, SampleAnswer

Confirmation = Literal["confirmed", "refuted", "undecided"]


@dataclass(frozen=True, kw_only=True)
class CauseTried:
    """The verdict on a cause; `reason` is a sentence without its stop."""

    experiment: Literal["verdict"] = "verdict"
    cause: str
    title: str
    verdict: Confirmation
    reason: str


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """One rerun under one condition, which `label` says in words.

    Attributes:
        cause: that it was made for; None where it serves all.
        symptom: whether it shows what speaks for the cause, or any error of the run.
        errors: the codes of its errors.
        base_loss, loss: of the base model and of the rerun's on held-out answers, nats a token.
    """

    experiment: str
    cause: str | None
    label: str
    seed: int
    symptom: bool
    errors: tuple[str, ...]
    base_loss: float | None
    loss: float | None
    iterations: int
    seconds: float
    curve: Curve
    samples: tuple[SampleAnswer, ...]


Experiment = CauseTried | Rerun
