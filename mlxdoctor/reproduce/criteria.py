"""What an experiment has to show, and how long one lasts."""

from __future__ import annotations

from dataclasses import dataclass

from mlxdoctor.check import limit


@dataclass(frozen=True)
class Limits:
    """Lengths of reruns, and when one counts as cured or as the same failure."""

    shortest: int = limit(50, unit="iterations", source="seed 000: 20 to 50 steps decide")
    usual: int = limit(
        100, unit="iterations", source="a loss that never moves is not judged earlier (loss-trend)"
    )
    longest: int = limit(200, unit="iterations", source="minutes, not hours, on a laptop")
    longest_overfitting: int = limit(
        600, unit="iterations", source="a validation loss has to fall before it can rise"
    )
    past_onset: int = limit(
        3, unit="times the onset", source="the onset is the first report that shows it"
    )
    past_minimum: int = limit(
        4, unit="times the onset", source="loss-trend wants four validations, and a clear rise"
    )
    better: float = limit(
        0.1,
        unit="share of the rerun's held-out loss",
        source="two seeds of a sound fixture run differ by under 0.05 of theirs",
    )
    better_earlier: float = limit(
        0.02, unit="as `better`, for fewer iterations", source="the minimum itself is shallow"
    )
    recreated: float = limit(
        0.5,
        unit="share of the recorded kinds of error",
        source="a shortened run shows fewer symptoms than a whole one",
    )
    margin: float = limit(
        2.2,
        unit="log-odds",
        source="ln 9, as for a headline that says the cause without `probable`",
    )
    same_step: float = limit(
        0.002,
        unit="nats, of a reported training loss",
        source="reruns of sound runs are within 0.0005 of their logs (rounding); those of faulty "
        "trainers differ by 0.05 and more, by 0.004 where only norms are trained besides",
    )
    same_loss: float = limit(
        0.02, unit="share of the loss", source="figures are rounded to two or three digits"
    )


def needed(seeds: int) -> int:
    """How many of that many seeds have to agree: two thirds, and two at the least."""
    return max(2, -(-2 * seeds // 3))
