"""Where the rate of a run stands among rates that were tried on its model and its rows.

What it finds. With `preflight --steps`: a rate at which the run's own first updates raise the loss,
or lower it by less than a smaller one does; a rate so near to that limit that a whole run may not
hold; and one that is far below the one to use, or so far that the whole run does less than the few
updates of the test.

Why it matters. What is a usual rate is known from other models and other rows. Half a minute with
the real ones tells more, and saves the run.

How it is measured. At each of some rates the run's first updates are made from its own start, with
mlx-lm's own loss, batches and optimiser, and the loss of fixed rows is compared with that of the
untouched model. The largest rate that learns is tried again with the batches in another order.

When it is wrong. A few updates are no run: the advised rate is lower than the largest by what whole
runs of 12 pairs of models and data needed (reports/preflight-rates.md, where it was measured).

What to do. Take the advised rate.
"""

from collections.abc import Iterator

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.exhibits import RateCurve
from mlxdoctor.finding import Measurement, Seen, Sign, Symptom
from mlxdoctor.measure.rate_range import RateRange

_EXPECTED = "a rate at which the first updates lower the loss"
_FIX = "[set learning_rate to {advised_learning_rate:g}]"
_LARGEST = (
    "[ The largest rate that learns is about {largest:.2g}: {updates} updates took the loss of "
    "{rows} {split} rows from {untouched:.2f} to {loss:.2f}.]"
)


@check(
    codes={
        "too-high": Symptom.error(
            "the first updates at this rate harm the model",
            _EXPECTED,
            _FIX,
            says="[The configured rate, {learning_rate:.2g}, is {times_largest:.2g} times the "
            "largest that learns.|No rate tried learns, and {learning_rate:.2g}, the configured "
            f"one, does harm.]{_LARGEST}",
        ),
        "near-the-limit": Symptom.warning(
            "a little more than this rate harms the model",
            _EXPECTED,
            _FIX,
            says="The configured rate, {learning_rate:.2g}, is so near the largest that it may not "
            f"hold.{_LARGEST}",
        ),
        "too-low": Symptom.error(
            "the whole run moves the model less than a few updates at a better rate",
            _EXPECTED,
            _FIX,
            says="The configured rate, {learning_rate:.2g}, is {times_lower:,.0f} times lower than "
            "the one to use: {planned_updates:,} updates at it move the model less than "
            f"{{updates}} at that one.{_LARGEST}",
        ),
        "low": Symptom.warning(
            "a higher rate would learn far faster",
            _EXPECTED,
            _FIX,
            says="The configured rate, {learning_rate:.2g}, is {times_lower:,.0f} times lower than "
            f"the one to use.{_LARGEST}",
        ),
    },
)
def rate_range(rates: RateRange) -> Iterator[Sign | Seen | RateCurve]:
    """Hold the configured rate against those that were tried."""
    points = [point for point in rates.points if not point.reversed]
    if points:
        yield RateCurve(
            rates=tuple(point.rate for point in points),
            losses=tuple(point.loss for point in points),
            noise=tuple(point.noise for point in points),
            untouched=rates.untouched,
            configured=rates.configured,
            advised=rates.advised,
            largest=rates.largest,
            updates=rates.updates,
        )
    largest, advised, configured = rates.largest, rates.advised, rates.configured
    if rates.place == "unknown" or configured <= 0:
        raise Inconclusive(rates.untold or "the rates tried do not tell")
    measured: dict[str, Measurement] = {
        "learning_rate": configured,
        "updates": rates.updates,
        "planned_updates": rates.planned_updates,
        "rows": rates.rows,
        "split": rates.split,
        "untouched": rates.untouched,
        "largest": largest,
        "loss": None if largest is None else rates.after(largest).loss,
        "times_largest": None if largest is None else configured / largest,
        "times_lower": None if advised is None else advised / configured,
        "advised_learning_rate": advised,
    }
    if rates.place == "sound":
        yield Seen(
            f"The configured rate, {{learning_rate:.2g}}, is one that learns.{_LARGEST}", measured
        )
    else:
        yield Sign(rates.place, measured, where="learning_rate")
