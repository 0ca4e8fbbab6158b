"""What tensors show: one description of an adapted module, and of a changed weight.

The update of a module is scale · A·B and is never formed: its squared norm is trace((AᵀA)(BBᵀ)), so
that the cost is linear in the sizes of A and B.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, nan, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

#: Values at the beginning of a factor that stand for all of it where every one would cost too much.
FIRST_VALUES = 1024
#: Values of A that are kept, to tell the starts of two runs apart.
_START_VALUES = 256
#: mlx-lm and PEFT draw A uniformly within ±1/sqrt(inputs); bfloat16 rounds by up to 2⁻⁸.
_DRAW_SLACK = 1.005
#: Standard errors that the mean square of such a draw may lie off its expectation.
_DRAW_ERRORS = 5.0
#: The momenta of Adam and AdamW where a configuration states no others.
_BETA1, _BETA2 = 0.9, 0.999
#: Columns of a factor that are taken to float64 at a time: they stay in the processor's cache.
_COLUMNS = 1 << 10


@dataclass(frozen=True)
class FactorFacts:
    """One factor in figures.

    Attributes:
        norm: its Frobenius norm; NaN or infinite where a value is, or where squares overflow.
        peak: the largest absolute value; NaN where a value is.
        levels: different values among the first 1,024.
        nonzero: values other than zero among them.
        rarer_sign: the share of the rarer sign among those.
        fingerprint: two factors with the same one have the same shape and the same values.
    """

    size: int
    norm: float
    peak: float
    nonfinite: int
    levels: int
    nonzero: int
    rarer_sign: float
    fingerprint: int

    @property
    def is_finite(self) -> bool:
        """No value is NaN or infinite, and the norm does not overflow."""
        return isfinite(self.norm)

    @property
    def is_zero(self) -> bool:
        return self.peak == 0

    @property
    def rms(self) -> float:
        """Root mean square of the values."""
        return self.norm / sqrt(max(self.size, 1))


@dataclass(frozen=True, eq=False)
class ModuleFacts:
    """One adapted module in figures. Norms are Frobenius norms, NaN where a factor is not finite.

    Attributes:
        layer: its layer; None outside the layers.
        width: min(inputs, outputs), with experts times their number.
        a_is_drawn: A looks as it was drawn: uniform within ±1/sqrt(inputs).
        a_left_draw: A has values outside of that draw, so that something moved it.
        start: the first values of A, float32 (256,) at most.
        product_norm: ‖A·B‖.
        spectral_norm: the largest singular value of A·B; NaN where it was not asked for.
        scale: what A·B is multiplied by; NaN where nothing states it.
        base_norm: of the weight that the update is added to; None where it is not at hand.
    """

    name: str
    layer: int | None
    width: int
    a: FactorFacts
    b: FactorFacts
    a_is_drawn: bool
    a_left_draw: bool
    start: NDArray[np.float32] = field(repr=False)
    product_norm: float
    spectral_norm: float = nan
    scale: float = nan
    base_norm: float | None = None

    @property
    def is_finite(self) -> bool:
        """No value of either factor is NaN or infinite, and neither norm overflows."""
        return self.a.is_finite and self.b.is_finite

    @property
    def update_norm(self) -> float:
        """‖ΔW‖ = |scale|·‖A·B‖."""
        return abs(self.scale) * self.product_norm

    @property
    def relative(self) -> float | None:
        """‖ΔW‖/‖W‖; None without the base weight."""
        return self.update_norm / self.base_norm if self.base_norm else None


def describe(
    name: str, a: NDArray[Any], b: NDArray[Any], *, layer: int | None = None, spectrum: bool = False
) -> ModuleFacts:
    """One adapted module in figures, without a scale and the base's norm.

    Args:
        a: (inputs, r), or (E, inputs, r) with experts; any floating-point type.
        b: (r, outputs), or (E, r, outputs).
    """
    experts_a, experts_b = (x if x.ndim == 3 else x[None] for x in (a, b))
    experts, inputs, _ = experts_a.shape
    # What overflows or is no number is counted, and no reason for a warning.
    with np.errstate(all="ignore"):
        gram_a, gram_b = _gram(np.swapaxes(experts_a, -1, -2)), _gram(experts_b)
        facts_a, facts_b = _factor(a, gram_a), _factor(b, gram_b)
        product_norm = largest = nan
        if facts_a.is_finite and facts_b.is_finite:
            # Of factors of norm 1: the squares of two large ones might overflow.
            sizes = facts_a.norm or 1.0, facts_b.norm or 1.0
            unit_a, unit_b = gram_a / sizes[0] ** 2, gram_b / sizes[1] ** 2
            # The trace of their product: both are symmetric.
            product_norm = sizes[0] * sizes[1] * sqrt(max(float((unit_a * unit_b).sum()), 0.0))
            if spectrum:
                # Its square is the largest eigenvalue of (AᵀA)·(BBᵀ), with experts of any of them.
                eigenvalues = np.linalg.eigvals(gram_a @ gram_b).real
                largest = sqrt(max(float(eigenvalues.max(initial=0.0)), 0.0))
        peak = facts_a.peak * sqrt(inputs)
        # The mean square of the draw is 1/(3 inputs), with standard error sqrt(4/45/n)/inputs.
        excess = abs(facts_a.rms**2 * inputs - 1 / 3)
        return ModuleFacts(
            name=name,
            layer=layer,
            width=min(inputs, experts_b.shape[-1]) * experts,
            a=facts_a,
            b=facts_b,
            a_is_drawn=peak <= _DRAW_SLACK
            and excess <= _DRAW_ERRORS * sqrt(4 / 45 / max(facts_a.size, 1)),
            a_left_draw=peak > _DRAW_SLACK,
            start=a.flat[:_START_VALUES].astype(np.float32),
            product_norm=product_norm,
            spectral_norm=largest,
        )


def _gram(rows: NDArray[Any]) -> NDArray[np.float64]:
    """The inner products of the rows of (E, r, n), float64 (E, r, r), some columns at a time."""
    grams = np.zeros((len(rows), rows.shape[1], rows.shape[1]))
    for expert in range(len(rows)):
        for start in range(0, rows.shape[2], _COLUMNS):
            wide = rows[expert, :, start : start + _COLUMNS].astype(np.float64)
            grams[expert] += wide @ wide.T
    return grams


def _factor(values: NDArray[Any], gram: NDArray[np.float64]) -> FactorFacts:
    first = values.flat[:FIRST_VALUES]
    # Not a set of them, nor np.unique, which loads masked arrays: both take longer than the rest.
    ordered = np.sort(first)
    below, above = int(np.count_nonzero(first < 0)), int(np.count_nonzero(first > 0))
    norm = float(np.sqrt(np.trace(gram, axis1=-2, axis2=-1).sum()))
    return FactorFacts(
        size=values.size,
        norm=norm,
        peak=float(max(values.max(), -values.min())) if values.size else 0.0,
        nonfinite=0 if isfinite(norm) else int(np.count_nonzero(~np.isfinite(values))),
        levels=int(np.count_nonzero(ordered[1:] != ordered[:-1])) + bool(first.size),
        nonzero=int(np.count_nonzero(first)),
        rarer_sign=min(below, above) / max(below + above, 1),
        fingerprint=hash((values.shape, norm, first.tobytes())),
    )


def straight_way(updates: int, *, bias_correction: bool = False) -> float:
    """How far Adam takes a number under a gradient that never changes, over its rate."""
    if bias_correction:
        return float(updates)
    steps = np.arange(1, updates + 1)
    return float(((1 - _BETA1**steps) / np.sqrt(1 - _BETA2**steps)).sum())


#: What the size of an update is given in: ‖ΔW‖/‖W‖; ‖ΔW‖/sqrt(min(in, out)), which stands in for
#: it without the base model; or ‖A·B‖/sqrt(min(in, out)), where the scale is not known.
Quantity = Literal["relative", "nominal", "unscaled"]
#: What they are called in a table or a figure.
QUANTITIES: Mapping[Quantity, str] = {
    "relative": "‖ΔW‖/‖W‖",
    "nominal": "‖ΔW‖/usual ‖W‖",
    "unscaled": "‖A·B‖/usual ‖W‖, scale not known",
}


#: Share of the usual norm of a weight below which it is no measure of what is added to it: two
#: bases that weight decay had emptied have 0.0002 to 0.23 of it, three others 0.56 and more.
LEAST_SHARE = 0.25


def quantity_of(modules: Sequence[ModuleFacts]) -> Quantity:
    """The best quantity that is known for all of the modules."""
    if not all(isfinite(module.scale) for module in modules):
        return "unscaled"
    is_known = all(
        (module.base_norm or 0.0) >= LEAST_SHARE * sqrt(module.width) for module in modules
    )
    return "relative" if is_known else "nominal"


def size_of(module: ModuleFacts, quantity: Quantity) -> float:
    """The size of a module's update: 0 where B is zero, NaN where it is not finite."""
    # A weight of rms 1/sqrt(inputs) has the norm sqrt(min(in, out)), which stands in for ‖W‖:
    # trained matrices have between about a third and three times that norm.
    norm = module.product_norm if quantity == "unscaled" else module.update_norm
    whole = module.base_norm if quantity == "relative" else sqrt(module.width)
    return norm / whole if whole else 0.0


def sharing(facts: Sequence[ModuleFacts], letter: str) -> frozenset[str]:
    """The modules whose factor A or B another module has as well, but for those of one value."""
    groups: dict[int, list[str]] = defaultdict(list)
    for module in facts:
        factor = module.a if letter == "A" else module.b
        if factor.is_finite and factor.levels > 1:
            groups[factor.fingerprint].append(module.name)
    return frozenset(name for names in groups.values() if len(names) > 1 for name in names)


@dataclass(frozen=True)
class Change:
    """What a part of a weight W and of its later state W' add up to.

    Attributes:
        square: the sum of squares of W' − W; infinite where W' is not finite.
        base_square: the sum of squares of the finite values of W.
        nonfinite: NaN or infinite values of W'.
    """

    square: float = 0.0
    base_square: float = 0.0
    nonfinite: int = 0

    def __add__(self, other: "Change") -> "Change":
        return Change(
            self.square + other.square,
            self.base_square + other.base_square,
            self.nonfinite + other.nonfinite,
        )

    @property
    def relative(self) -> float:
        """‖W' − W‖/‖W‖; infinite where W is zero or W' not finite."""
        if not self.square:
            return 0.0
        is_measured = self.base_square and isfinite(self.square)
        return sqrt(self.square / self.base_square) if is_measured else inf


def change(before: NDArray[Any], after: NDArray[Any]) -> Change:
    """How far a block of floating-point values moved, both flat."""
    with np.errstate(all="ignore"):
        square, base_square = (
            float(np.einsum("i,i", values, values, dtype=np.float64))
            for values in (after - before, before)
        )
        if isfinite(square + base_square):
            return Change(square, base_square)
        old, new = before.astype(np.float64), after.astype(np.float64)
        square = float(np.square(np.where(old == new, 0.0, new - old)).sum())
        finite = np.where(np.isfinite(old), old, 0.0)
        return Change(
            square if isfinite(square) else inf,
            float(np.square(finite).sum()),
            int(np.count_nonzero(~np.isfinite(new))),
        )
