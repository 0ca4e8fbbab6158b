"""What checks measured that a report can show: the data of its figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from mlxdoctor.finding import Exhibit


@dataclass(frozen=True)
class Curve:
    """A series: `iterations` rising, `values` of the same length, NaN where reported so."""

    iterations: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Floor:
    """A loss that means something by itself, in nats: "uniform guess, ln(32,000)"."""

    label: str
    value: float


@dataclass(frozen=True)
class LossCurve(Exhibit):
    """The loss over the run, in nats a token.

    Attributes:
        train, val: the training and the validation loss.
        onset: where it begins to go wrong; several checks tell, and the report says it.
        floors: what it can be compared with.
        axis: what the iterations count.
    """

    train: Curve | None
    val: Curve | None
    onset: int | None
    floors: tuple[Floor, ...]
    axis: str


@dataclass(frozen=True)
class ReplayCurve(Exhibit):
    """The first losses of a run and the same computed again, nats a token; 0 is before training.

    `read` and `clause` are of the reading under which the log agrees; None and empty without one.
    """

    recorded: Curve
    computed: Curve
    read: Curve | None = None
    clause: str = ""


@dataclass(frozen=True)
class SampleAnswer(Exhibit):
    """One prompt and the answers to it; `base` is None where it is not known."""

    holds_text: ClassVar[bool] = True

    prompt: str
    base: str | None
    tuned: str


#: Name of a figure -> what it shows, in the order in which every report shows them.
FIGURES: Mapping[str, type[Exhibit]] = {
    "loss": LossCurve,
    "replay": ReplayCurve,
}
