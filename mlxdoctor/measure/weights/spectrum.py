"""Norms and singular values of a LoRA update, without ever forming it.

The update of a module is scale · A·B (transposed, which changes no norm), with
A of (in, r) and B of (r, out). Its squared Frobenius norm is
trace((AᵀA)(BBᵀ)), and its singular values are those of an r × r product of
square roots of the two Gram matrices, so that the cost is linear in in + out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import nan
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.safety.reading_limits import current, exceeded

#: How A relates to the uniform draw within ±1/sqrt(in) that mlx-lm and PEFT start from: still
#: that draw; the draw made smaller, which weight decay alone does; with elements beyond its
#: bound, so that something moved them; or none of these.
Draw = Literal["drawn", "shrunk", "beyond", "other"]

#: How far the largest |A| may lie over 1/sqrt(in) for A to be as it was drawn:
#: bfloat16 rounds by up to 2^-8.
_INITIAL_BOUND_SLACK = 1.005
#: How many standard errors the mean square of A may lie off that of the draw.
_INITIAL_STANDARD_ERRORS = 5.0


@dataclass(frozen=True)
class ModuleStatistics:
    """One module's factors in numbers, at scale 1. NaN where a factor is not finite.

    Attributes:
        a_norm: Frobenius norm of A.
        b_norm: Frobenius norm of B.
        a_nonfinite: NaN or infinite elements of A.
        b_nonfinite: NaN or infinite elements of B.
        b_is_zero: every element of B is exactly zero.
        a_is_zero: every element of A is exactly zero.
        a_draw: how A relates to the draw it started from.
        singular_values: of A·B, falling, (r,); with experts those of all, (E·r,).
    """

    a_norm: float
    b_norm: float
    a_nonfinite: int
    b_nonfinite: int
    b_is_zero: bool
    a_is_zero: bool
    a_draw: Draw
    singular_values: tuple[float, ...]

    @property
    def a_is_initial(self) -> bool:
        """A still looks as it was drawn: uniform within ±1/sqrt(in)."""
        return self.a_draw == "drawn"

    @property
    def is_finite(self) -> bool:
        """No element of either factor is NaN or infinite, and neither norm overflows."""
        return bool(np.isfinite(self.a_norm) and np.isfinite(self.b_norm))

    @property
    def frobenius(self) -> float:
        """The Frobenius norm of A·B; multiply by the scale for that of the update."""
        return float(np.linalg.norm(self.singular_values)) if self.is_finite else nan

    @property
    def spectral(self) -> float:
        """The largest singular value of A·B."""
        if not self.is_finite:
            return nan
        return self.singular_values[0] if self.singular_values else 0.0

    @property
    def stable_rank(self) -> float:
        """‖·‖_F²/σ1²: how many directions share the update; 0 for no update."""
        if not self.is_finite:
            return nan
        return (self.frobenius / self.spectral) ** 2 if self.spectral > 0 else 0.0

    @property
    def effective_rank(self) -> float:
        """exp of the entropy of σ/Σσ (Roy and Vetterli 2007); 0 for no update."""
        if not self.is_finite:
            return nan
        values = np.array([value for value in self.singular_values if value > 0])
        if values.size == 0:
            return 0.0
        share = values / values.sum()
        return float(np.exp(-(share * np.log(share)).sum()))


@lru_cache(maxsize=16)  # several checks ask for those of one adapter
def adapter_statistics(adapter: Adapter) -> tuple[ModuleStatistics, ...]:
    """The norms and spectrum of every module at scale 1, in the order of `adapter.modules`.

    Reads every factor.

    Raises:
        InputError: the file changed or cannot be read, or a rank is over the limit.
    """
    return tuple(factor_statistics(*module.factors()) for module in adapter.modules)


def factor_statistics(a: NDArray[np.float64], b: NDArray[np.float64]) -> ModuleStatistics:
    """Norms and spectrum of a pair of factors.

    Args:
        a: (in, r) or (E, in, r), float64.
        b: (r, out) or (E, r, out), float64.

    Raises:
        InputError: the rank is over the limit: its square is computed with.
    """
    if a.shape[-1] > current().rank:
        raise exceeded(None, f"a module has factors of rank {a.shape[-1]:,}", "rank")
    a_experts, b_experts = (a, b) if a.ndim == 3 else (a[None], b[None])
    # A product that overflows is reported by its counts below, not by a warning.
    with np.errstate(over="ignore", invalid="ignore"):
        gram_a = np.swapaxes(a_experts, -1, -2) @ a_experts
        gram_b = b_experts @ np.swapaxes(b_experts, -1, -2)
    a_square, b_square = _trace(gram_a), _trace(gram_b)
    a_nonfinite = 0 if np.isfinite(a_square) else int(np.count_nonzero(~np.isfinite(a)))
    b_nonfinite = 0 if np.isfinite(b_square) else int(np.count_nonzero(~np.isfinite(b)))
    finite = bool(np.isfinite(a_square) and np.isfinite(b_square))
    b_is_zero = b_square == 0 and not b.any()
    a_is_zero = a_square == 0 and not a.any()
    return ModuleStatistics(
        a_norm=float(np.sqrt(a_square)),
        b_norm=float(np.sqrt(b_square)),
        a_nonfinite=a_nonfinite,
        b_nonfinite=b_nonfinite,
        b_is_zero=b_is_zero,
        a_is_zero=a_is_zero,
        a_draw=_draw(a_experts, a_square),
        singular_values=_singular_values(gram_a, gram_b) if finite else (),
    )


def _trace(gram: NDArray[np.float64]) -> float:
    return float(np.trace(gram, axis1=-2, axis2=-1).sum())


def _singular_values(gram_a: NDArray[np.float64], gram_b: NDArray[np.float64]) -> tuple[float, ...]:
    product = np.swapaxes(_root(gram_a), -1, -2) @ _root(gram_b)
    values = np.linalg.svd(product, compute_uv=False)
    return tuple(float(value) for value in np.sort(values.ravel())[::-1])


def _root(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """R with R·Rᵀ = gram, for a symmetric gram of (E, r, r)."""
    values, vectors = np.linalg.eigh(gram)
    # Rounding can leave an eigenvalue of a singular matrix just below zero.
    root: NDArray[np.float64] = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    return root


def _draw(a: NDArray[np.float64], square: float) -> Draw:
    """How A (E, in, r) relates to its draw.

    mlx-lm and PEFT both draw A uniformly within ±1/sqrt(in): mean square 1/(3 in),
    whose standard error over n elements is sqrt(4/45)/in/sqrt(n).
    """
    if a.size == 0 or not np.isfinite(square):
        return "other"
    inputs = a.shape[1]
    peak = max(a.max(), -a.min()) * np.sqrt(inputs)
    if peak > _INITIAL_BOUND_SLACK:
        return "beyond"
    mean_square = square / a.size * inputs
    tolerance = _INITIAL_STANDARD_ERRORS * np.sqrt(4 / 45 / a.size)
    if abs(mean_square - 1 / 3) <= tolerance:
        return "drawn"
    # The same shape of distribution, within the bound that its own largest element sets.
    if peak > 0 and abs(mean_square / peak**2 - 1 / 3) <= tolerance:
        return "shrunk"
    return "other"
