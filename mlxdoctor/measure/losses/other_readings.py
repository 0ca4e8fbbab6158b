"""Which other reading of the rows accounts for the losses of a log."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from mlxdoctor.check import limit
from mlxdoctor.measure.losses.fit import USUAL_ENDS, Fit, Sample, best_fit, fits
from mlxdoctor.models.formats import PlainFormat
from mlxdoctor.models.readings import Reading, Until
from mlxdoctor.models.validation import ValidationRows

#: Ends of a row's targets that leave out what they must not.
WITHOUT_ENDS: tuple[Until, ...] = ("answer", "others", "others+padding")
#: Where any trainer might end them.
ALL_ENDS: tuple[Until, ...] = (*USUAL_ENDS, *WITHOUT_ENDS)


@dataclass(frozen=True)
class ReadingLimits:
    """When a reading of the rows has the losses of a log."""

    same: float = limit(
        0.02,
        unit="nats",
        source="rounding in half precision and in the log is below; 0.005 at most in sound runs",
        false_alarms="0 of 96 healthy runs of three base models",
    )
    errors: float = limit(
        4.0,
        unit="standard errors",
        source="rows are sampled, and losses have long tails",
        false_alarms="18 of 11,280 samples of 16 rows from sound runs; 2 told, by `share`",
    )
    explained: float = limit(
        0.03,
        unit="of the disagreement",
        source="the right reading leaves 1% of it, a wrong one at best 6%",
    )
    other_tokens: float = limit(
        0.15, unit="of the targets of a row", source="rows of two splits differ by less"
    )
    screened: int = limit(6, unit="rows", source="enough to leave all but a few formats out")


@dataclass(frozen=True)
class OtherReading:
    """A reading that makes both losses those of the log.

    Attributes:
        fit: of the rows so read.
        plain: how they were written; None for the chat template.
    """

    fit: Fit
    plain: PlainFormat | None = None


def other_reading(
    sample: Sample,
    validation: ValidationRows | None,
    usual: Fit,
    counted: float | None,
    limits: ReadingLimits,
) -> OtherReading | None:
    """The reading that makes both losses those of the log, if there is one.

    Args:
        sample: rows, and the logged losses.
        validation: to write the rows in other formats; None where there are none.
        usual: the fit that disagrees.
        counted: targets a row by the log, None where it does not say.
        limits: what explains a disagreement.
    """
    if not usual.is_complete:
        return None
    masks = (usual.reading.masks_prompt, not usual.reading.masks_prompt)
    shifts = [1, 0, 2, 3]
    if all(row.base.previous is not None for row in sample.rows):
        shifts.append(-1)
    others = [
        Reading(masked, until, shift) for shift, masked, until in product(shifts, masks, ALL_ENDS)
    ]
    other = best_fit(fits(sample, others, limits.same, limits.errors))
    if _is_explained(other, usual, counted, limits):
        return OtherReading(other)
    return _other_format(sample, validation, usual, counted, limits) if validation else None


def _other_format(
    sample: Sample,
    validation: ValidationRows,
    usual: Fit,
    counted: float | None,
    limits: ReadingLimits,
) -> OtherReading | None:
    # In another format the base model's loss is another, too. Without its end token a row's
    # is hardly: the base expects it less than the rest, or more, and it is one of many.
    formats = [one for one in validation.formats if one.pattern is None or not usual.base_agrees]

    def read(plain: PlainFormat, count: int) -> Fit | None:
        rows = validation.measure(plain, count)
        if len(rows) < min(count, limits.screened):
            return None
        readings = [Reading(*one) for one in product((False, True), ALL_ENDS)]
        return best_fit(fits(replace(sample, rows=rows), readings, limits.same, limits.errors))

    screened = {plain: read(plain, limits.screened) for plain in formats}
    known = [(one.misfit, str(plain), plain) for plain, one in screened.items() if one is not None]
    for _, _, plain in sorted(known, key=lambda one: one[:2])[:3]:
        other = read(plain, len(sample.rows))
        if other is not None and _is_explained(other, usual, counted, limits):
            return OtherReading(other, plain)
    return None


def _is_explained(other: Fit, usual: Fit, counted: float | None, limits: ReadingLimits) -> bool:
    """Whether another reading leaves next to nothing of a disagreement.

    A log that counts its targets must not have counted more than the reading has; fewer are
    counted where a batch is not full.

    Args:
        other: the fit of the other reading.
        usual: the fit that disagrees.
        counted: targets a row by the log, None where it does not say.
        limits: what may be left of it, and how far the counts may lie apart.
    """
    agrees = other.agrees and 3 * other.misfit <= usual.misfit
    if not other.is_complete or not (agrees or other.misfit <= limits.explained * usual.misfit):
        return False
    own = other.base.tokens / other.base.rows
    return counted is None or own / 2 <= counted <= (1 + limits.other_tokens) * own
