"""Whether a run keeps what preflight promised of it, while it trains and afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from mlxdoctor.check import limit
from mlxdoctor.evidence.promise import Promise

#: What is promised.
Promised = Literal["memory", "pace", "loss"]


@dataclass(frozen=True)
class PromiseLimits:
    """When a promise was not kept."""

    memory: float = limit(
        1.3, unit="times the predicted peak", source="twice the 15% that it is predicted within"
    )
    pace: float = limit(
        1.5, unit="times the slowest pace promised", source="a busy machine is half as fast"
    )
    loss: float = limit(
        0.1,
        unit="of the promised training loss, either way",
        source="on the machine that preflight ran on they agree to the last digit printed; "
        "the rest is for other machines",
    )
    reports: int = limit(
        3, unit="reports of the pace", source="the first one has what is compiled in it"
    )


@dataclass(frozen=True)
class Compared:
    """One figure of a run, beside what was promised of it.

    Attributes:
        of: what it is of.
        is_kept: whether it is within the band of its promise.
        sentence: both figures in words.
        measured: both figures by name.
    """

    of: Promised
    is_kept: bool
    sentence: str
    measured: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"of": self.of, "is_kept": self.is_kept, **self.measured}


def compared(
    promise: Promise,
    *,
    peak_gb: float | None,
    seconds: float | None,
    reports: int,
    loss: float | None,
    limits: PromiseLimits,
) -> Iterator[Compared]:
    """Hold what a run's log says against what was promised, as far as it says something.

    Args:
        peak_gb: the highest peak of memory.
        seconds: what an iteration took.
        reports: on how many reports that rests.
        loss: the training loss that was reported at the iteration of the promise.
    """
    if peak_gb is not None:
        told = promise.peak / 1e9
        yield Compared(
            "memory",
            peak_gb <= limits.memory * told,
            f"The log's highest peak of memory is {peak_gb:.3g} GB; preflight promised "
            f"{told:.3g} GB.",
            {"peak_memory_gb": peak_gb, "promised_gb": told},
        )
    if seconds is not None and promise.seconds_an_iteration and reports >= limits.reports:
        low, high = promise.seconds_an_iteration
        yield Compared(
            "pace",
            seconds <= limits.pace * high,
            f"An iteration takes {seconds:.2g} s (median of {reports} reports); the steps that "
            f"preflight timed promised {low:.2g} to {high:.2g} s.",
            {"seconds": seconds, "promised_low": low, "promised_high": high},
        )
    if loss is not None and promise.loss is not None:
        at, expected = promise.loss
        yield Compared(
            "loss",
            abs(loss - expected) <= limits.loss * expected,
            f"At iteration {at} the log reports a training loss of {loss:.3f}; preflight promised "
            f"{expected:.3f}, by as many iterations of its own.",
            {"loss": loss, "promised_loss": expected},
        )


def seconds_an_iteration(
    speeds: Sequence[float], rates: Sequence[float], tokens: Sequence[tuple[int, float]]
) -> float | None:
    """What an iteration took, by its log; None where that does not say.

    Args:
        speeds: iterations a second, report by report; positive.
        rates: tokens a second, likewise.
        tokens: the first and the last iteration with the tokens trained by then: where a log has
            no speed, as the table of newer mlx-lm, these tell the tokens of an iteration.
    """
    if speeds:
        return 1 / median(speeds)
    if not rates or len(tokens) < 2:
        return None
    (first, before), (last, after) = tokens[0], tokens[-1]
    if last <= first or after <= before:
        return None
    return (after - before) / (last - first) / median(rates)
