"""What experiments said of a report's causes: one frozen dataclass for each kind of entry."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

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
class Agreement:
    """How a rerun with the recorded seed compares with the log.

    Attributes:
        reports: how many reported losses the rerun reached.
        last: the last of their iterations.
        difference: the largest, in nats; infinite where one is finite and the other is not.
        iteration: where it is.
        recorded: the loss that was reported there.
        rerun: the rerun's, averaged over the same iterations.
        agrees: whether the difference is within the limit.
    """

    experiment: Literal["agreement"] = "agreement"
    reports: int
    last: int
    difference: float
    iteration: int
    recorded: float
    rerun: float
    agrees: bool

    @property
    def sentence(self) -> str:
        """What it says of the reproduction."""
        over = f"{self.reports} reports up to iteration {self.last:,}"
        if self.reports == 1:
            over = f"the report at iteration {self.last:,}"
        if self.agrees:
            return (
                "Rerun with the recorded seed, the training gives the recorded losses to within "
                f"{self.difference:.2g} nats ({over}): it is the same training, step for step."
            )
        return (
            "Rerun with the recorded seed, the losses are not the recorded ones: at iteration "
            f"{self.iteration:,} the log has {self.recorded:.3f} and the rerun {self.rerun:.3f} "
            f"({over} compared). The run's own trainer, another version or another machine "
            "makes the difference; what is shown here is the kind of failure, not the same steps."
        )

    def to_dict(self) -> dict[str, Any]:
        """The comparison as the JSON report shows it."""
        return {**asdict(self), "sentence": self.sentence}


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """One rerun under one condition.

    Attributes:
        experiment: the kind of condition.
        cause: that it was made for; None where it serves all.
        label: the condition, in words.
        seed: of the rerun.
        symptom: whether it shows what speaks for the cause, or any error of the run.
        errors: the codes of its errors.
        base_loss, loss: of the base model and of the rerun's on held-out answers, nats a token.
        iterations: that it trained for.
        seconds: that it took.
        curve: its training loss.
        samples: its first few answers.
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


Experiment = CauseTried | Agreement | Rerun
