"""Where the rate of a planned run stands among rates that were tried on its model and its rows.

What it finds. With `preflight --steps`: a rate at which the run's own first updates raise the loss,
or lower it by less than a smaller one does; a rate so near to that limit that a whole run may not
hold; and one that changes nothing visibly.

Why it matters. What is a usual rate is known from other models and other rows. Half a minute with
the real ones tells more, and saves the run.

How it is measured. At each of some rates the run's first updates are made from its own start, with
mlx-lm's own loss, batches and optimiser, and the loss of fixed rows is compared with that of the
untouched model. The largest rate that learns is tried again with the batches in another order.

When it is wrong. A few updates are no run: the advised rate is lower than the largest by what whole
runs of 12 pairs of models and data needed (reports/preflight-rates.md, where it was measured). A
rate that changes nothing in so few updates may do so in hundreds.

What to do. Take the advised rate.
"""

from collections.abc import Iterator

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.exhibits import RateCurve
from mlxdoctor.finding import Seen, Sign, Symptom
from mlxdoctor.measure.rate_range import RateRange

_EXPECTED = "a rate at which the first updates lower the loss"


@check(
    codes={
        "too-high": Symptom.error("the first updates at this rate harm the model", _EXPECTED),
        "near-the-limit": Symptom.warning(
            "a little more than this rate harms the model", _EXPECTED
        ),
        "too-low": Symptom.warning("the first updates at this rate change nothing", _EXPECTED),
        "low": Symptom.info("a higher rate would learn faster", _EXPECTED),
    },
)
def planned_rate(rates: RateRange) -> Iterator[Sign | Seen | RateCurve]:
    """Hold the configured rate against those that were tried."""
    if rates.points:
        tried = [one for one in rates.points if not one.other_order]
        yield RateCurve(
            rates=tuple(one.rate for one in tried),
            losses=tuple(one.loss for one in tried),
            noise=tuple(one.noise for one in tried),
            untouched=rates.untouched,
            configured=rates.configured,
            advised=rates.advised,
            largest=rates.largest_that_learns,
            updates=rates.updates,
        )
    said = rates.conclusions[-1] if rates.conclusions else ""
    measured = {
        "learning_rate": rates.configured,
        "largest_that_learns": rates.largest_that_learns,
        "updates": rates.updates,
    }
    symptom = {
        "too-high": "too-high",
        "near-limit": "near-the-limit",
        "too-low": "too-low",
        "low": "low",
    }.get(rates.place)
    if symptom is not None and said:
        advised, largest = rates.advised, rates.largest_that_learns
        yield Sign(
            symptom,
            # The first says what the largest is, and by what that was seen.
            said if largest is None else f"{said} {rates.conclusions[0]}",
            measured if advised is None else {**measured, "advised_learning_rate": advised},
            where="learning_rate",
            fix="" if advised is None else f"set learning_rate to {advised:g}",
        )
    elif rates.place == "sound" and said:
        yield Seen(said, measured)
    if rates.place == "unknown":
        raise Inconclusive(rates.untold.rstrip(".") or "the rates tried do not tell")
