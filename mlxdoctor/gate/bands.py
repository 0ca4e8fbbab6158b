"""Figures of healthy runs that a policy can hold later runs to.

Each is measured by the check that will judge it, with the threshold moved to where the check
always speaks: so that a band and its verdict can't rest on two kinds of arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mlxdoctor.check import Check, EvidenceSource, with_thresholds
from mlxdoctor.evidence.base_model import BaseModel

T = TypeVar("T")

#: How much wider than what was seen a band is, either way (ratio). Of 42 sound runs of five base
#: models that differ by their seed only, none is outside a band learned from another of its
#: base (356 pairs; they are within 1.14 of each other); of 118 sound ones with other settings,
#: 58 of 990 pairs are, by the size of the update. A band is one of a recipe.
WIDENED = 2.0


@dataclass(frozen=True, eq=False)
class Quantity:
    """A figure, and the thresholds that bound it.

    Attributes:
        check: who measures it.
        label: what it is.
        measured: its name in the finding's figures.
        upper: the threshold above which the check speaks, and its code; None for no such one.
        lower: the same below.
        speaks: thresholds with which the check always reports it.
        without_base: it is what is measured where the base model is not at hand.
    """

    check: str
    label: str
    measured: str
    upper: tuple[str, str] | None
    lower: tuple[str, str] | None
    speaks: Mapping[str, float]
    without_base: bool = False


QUANTITIES = (
    Quantity(
        check="weight-drift",
        label="size of the update over that of the weights, median over modules",
        measured="median_relative_norm",
        upper=("large", "weight-drift.large"),
        lower=("negligible", "weight-drift.negligible"),
        speaks={"large": 0.0},
    ),
    Quantity(
        check="weight-drift",
        label="the size of the update, without the base model, against weights of the usual size",
        measured="median_nominal_norm",
        upper=("nominal_large", "weight-drift.large"),
        lower=("nominal_negligible", "weight-drift.negligible"),
        speaks={"nominal_large": 0.0},
        without_base=True,
    ),
    Quantity(
        check="loss-trend",
        label="how far the loss fell, as a share of where it began",
        measured="learned",
        upper=None,
        lower=("unmoved", "loss-trend.never-learned"),
        speaks={"unmoved": 1.01},
    ),
)


@dataclass(frozen=True)
class Band:
    """What a quantity was in healthy runs, and the thresholds that follow.

    Attributes:
        quantity: the quantity.
        low, high: the least and the greatest value seen.
        runs: how many runs it was measured in.
        thresholds: threshold -> value, those that are stricter than what ships.
        codes: what the check reports beyond them.
    """

    quantity: Quantity
    low: float
    high: float
    runs: int
    thresholds: Mapping[str, float]
    codes: tuple[str, ...]


class _WithoutBase:
    """A run whose base model is not at hand."""

    def __init__(self, run: EvidenceSource) -> None:
        self._run = run

    def get(self, kind: type[T]) -> T | None:
        """As the run gives it, but for the base model."""
        return None if kind is BaseModel else self._run.get(kind)

    def why_missing(self, kind: type[Any]) -> str:
        """As the run says it."""
        return self._run.why_missing(kind)


def measure(quantity: Quantity, check: Check, run: EvidenceSource) -> float | None:
    """The quantity in a run; None where the check can't measure it there."""
    [speaking] = with_thresholds([check], {check.name: quantity.speaks})
    source = _WithoutBase(run) if quantity.without_base else run
    for finding in speaking.run(source).findings:
        value = finding.measured.get(quantity.measured)
        if isinstance(value, int | float) and math.isfinite(value) and value > 0:
            return float(value)
    return None


def band(quantity: Quantity, check: Check, values: Sequence[float]) -> Band | None:
    """The band of what was seen in healthy runs; None where what ships is as strict."""
    low, high = min(values), max(values)
    thresholds: dict[str, float] = {}
    codes = []
    if quantity.upper is not None:
        name, code = quantity.upper
        if (value := _rounded(high * WIDENED, up=True)) < getattr(check.limits, name):
            thresholds[name] = value
            codes.append(code)
    if quantity.lower is not None:
        name, code = quantity.lower
        if (value := _rounded(low / WIDENED, up=False)) > getattr(check.limits, name):
            thresholds[name] = value
            codes.append(code)
    if not thresholds:
        return None
    return Band(quantity, low, high, len(values), thresholds, tuple(codes))


def _rounded(value: float, *, up: bool) -> float:
    """To two significant digits, away from the band."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{(math.ceil if up else math.floor)(value / unit) * unit:.3g}")
