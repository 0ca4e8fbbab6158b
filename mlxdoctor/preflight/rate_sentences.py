"""What a range test says, in sentences for a person who is no expert."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mlxdoctor.measure.rate_range import RatePoint, RateRange


def conclude(found: RateRange) -> RateRange:
    """The result with a sentence for each conclusion, and one on what could not be told."""
    return replace(found, conclusions=tuple(_sentences(found)), untold=_untold(found))


def _untold(found: RateRange) -> str:
    if found.untold:
        return f"The range test could not tell everything: {found.untold}."
    if found.largest_that_learns is None:
        low, high = (f"{one.rate:.2g}" for one in (found.points[0], found.points[-1]))
        return (
            f"No rate tried from {low} to {high} lowered the loss of the {found.measured_on} "
            f"visibly within {found.updates} updates: the largest could not be told."
        )
    return ""


def _sentences(found: RateRange) -> Iterator[str]:
    largest, advised = found.largest_that_learns, found.advised
    made = f"{found.updates} updates"
    if largest is not None and advised is not None:
        at_scale = "" if found.scale is None else f" at scale {found.scale:g}"
        point = _at(found, largest)
        yield (
            f"The largest rate that learns{at_scale} is about {largest:.2g}: {made} took the "
            f"loss of {found.rows} {found.measured_on} from {found.untouched:.2f} to "
            f"{point.loss:.2f}."
        )
        if found.fails_at is None:
            yield "Whether a higher one still learns was not seen."
        else:
            yield _failing(_at(found, found.fails_at))
        yield (
            f"Use {advised:.2g}, which is {largest / advised:.2g} times lower: a whole run is "
            "longer than this test."
        )
    if found.learns_from is not None:
        low = found.points[0]
        if low.effect == "still":
            yield (
                f"At {low.rate:.2g} {made} did not move the loss visibly; the lowest rate tried "
                f"that did is {found.learns_from:.2g}."
            )
        elif low.rate == found.learns_from:
            yield f"Even the lowest rate tried, {low.rate:.2g}, lowered the loss visibly."
    yield from _placed(found)


def _failing(point: RatePoint) -> str:
    rate = f"{point.rate:.2g}"
    if point.effect == "lost":
        return f"At {rate} the loss is not finite after {point.updates} updates."
    if point.effect == "harms":
        return f"At {rate} the loss rises to {point.loss:.2f}."
    if point.effect == "leaps":
        return (
            f"At {rate} the loss of {point.leaps} of {point.updates} batches is far above the "
            "untouched model's."
        )
    return f"At {rate} the loss only comes to {point.loss:.2f}."


def _placed(found: RateRange) -> Iterator[str]:
    rate, largest, advised = found.configured, found.largest_that_learns, found.advised
    if found.place == "too-high" and largest is not None:
        yield f"The configured rate, {rate:.2g}, is {rate / largest:.2g} times the largest."
    elif found.place == "too-high":
        yield f"No rate tried learns, and {rate:.2g}, the configured one, does harm."
    elif found.place == "near-limit":
        yield f"The configured rate, {rate:.2g}, is so near the largest that it may not hold."
    elif found.place == "sound" and largest is not None:
        yield (
            f"The configured rate, {rate:.2g}, is {largest / rate:.2g} times lower than the "
            "largest."
        )
    elif found.place == "too-low":
        yield f"At the configured rate, {rate:.2g}, so few updates change nothing visibly."
    elif found.place == "low" and advised is not None and rate:
        yield (
            f"The configured rate, {rate:.2g}, is {advised / rate:.2g} times lower than the one "
            "to use."
        )


def _at(found: RateRange, rate: float) -> RatePoint:
    """The point at a rate; of two, the worse."""
    return max(
        (one for one in found.points if one.rate == rate),
        key=lambda one: one.change if one.change == one.change else float("inf"),
    )
