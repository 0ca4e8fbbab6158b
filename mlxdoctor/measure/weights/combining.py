"""What several adapters would make together: their updates added up, or averaged.

Everything comes from products of the factors: with updates Δᵢ = scaleᵢ·Aᵢ·Bᵢ, the inner
product of two is scaleᵢ·scaleⱼ·Σ (Aᵢᵀ·Aⱼ) ∘ (Bᵢ·Bⱼᵀ), r × r matrices; ‖Δ₁ + … + Δₖ‖² is the
sum of all k × k of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.adapter import Adapter, LoraModule
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.measure.weights.drift import module_scale

Factors = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True)
class Combination:
    """One module that some of the adapters change. Norms are Frobenius norms.

    Attributes:
        module: its name in the base model.
        norms: ‖Δᵢ‖ of each adapter, in their order; None where it does not change the module
            or where the norm is not finite.
        cosine: the mean cosine between the updates of two adapters; None with fewer than two.
        stacked: the norm of the sum of the updates.
        averaged: the norm of their mean over all adapters, those without one counted as zero.
        factor_error: what averaging A and B instead of the updates would be off by, over
            `averaged`; None unless all have the module at one rank and one scale.
    """

    module: str
    norms: tuple[float | None, ...]
    cosine: float | None
    stacked: float | None
    averaged: float | None
    factor_error: float | None


def combine(paths: Sequence[Path]) -> tuple[Combination, ...]:
    """Every module that one of the adapters changes, in the order of the first that does.

    DoRA's magnitudes are left out: their effect depends on the base model's weights.

    Args:
        paths: the adapters' folders or files, two at least.

    Raises:
        InputError: an adapter or its configuration cannot be used.
    """
    adapters = [Adapter.read(path) for path in paths]
    configs = [TrainingConfig.beside(one.path) for one in adapters]
    modules = [{module.name: module for module in one.modules} for one in adapters]
    names = dict.fromkeys(name for one in modules for name in one)
    return tuple(_combination(name, [one.get(name) for one in modules], configs) for name in names)


def _combination(
    name: str, modules: Sequence[LoraModule | None], configs: Sequence[TrainingConfig | None]
) -> Combination:
    found = [
        (place, *_factors(module, config))
        for place, (module, config) in enumerate(zip(modules, configs, strict=True))
        if module is not None
    ]
    products = _products([factors for _, _, factors in found])
    norms: list[float | None] = [None] * len(modules)
    if products is None:
        for place, scale, factors in found:
            norms[place] = _norm(_products([factors]), scale)
        return Combination(name, tuple(norms), None, None, None, None)
    scales = np.array([scale for _, scale, _ in found])
    gram = products * np.outer(scales, scales)
    for row, (place, _, _) in enumerate(found):
        norms[place] = _root(gram[row, row])
    stacked = _root(float(gram.sum()))
    averaged = None if stacked is None else stacked / len(modules)
    return Combination(
        name,
        tuple(norms),
        _cosine(gram),
        stacked,
        averaged,
        _factor_error(found, gram, averaged) if len(found) == len(modules) else None,
    )


def _factors(module: LoraModule, config: TrainingConfig | None) -> tuple[float, Factors]:
    a, b = module.factors()
    return module_scale(module, config), (a, b)


def _products(factors: Sequence[Factors]) -> NDArray[np.float64] | None:
    """⟨AᵢBᵢ, AⱼBⱼ⟩, float64 (k, k); None where the updates have different shapes."""
    shapes = {(*a.shape[:-1], b.shape[-1]) for a, b in factors}
    if len(shapes) != 1:
        return None
    count = len(factors)
    gram = np.empty((count, count))
    for i, (a, b) in enumerate(factors):
        for j, (other_a, other_b) in enumerate(factors[: i + 1]):
            left = np.swapaxes(a, -1, -2) @ other_a
            right = b @ np.swapaxes(other_b, -1, -2)
            gram[i, j] = gram[j, i] = float((left * right).sum())
    return gram


def _factor_error(
    found: Sequence[tuple[int, float, Factors]],
    gram: NDArray[np.float64],
    averaged: float | None,
) -> float | None:
    scale = found[0][1]
    shapes = {tuple(one.shape for one in factors) for _, _, factors in found}
    if len(shapes) != 1 or any(one != scale for _, one, _ in found) or not averaged:
        return None
    count = len(found)
    mean = (
        np.mean([a for _, _, (a, _) in found], axis=0),
        np.mean([b for _, _, (_, b) in found], axis=0),
    )
    products = _products([mean, *(factors for _, _, factors in found)])
    if products is None:
        return None
    # ‖mean(A)·mean(B) − mean(A·B)‖² from inner products alone.
    square = products[0, 0] - 2 * products[0, 1:].sum() / count
    square = scale**2 * square + gram.sum() / count**2
    error = _root(max(float(square), 0.0))
    return None if error is None else error / averaged


def _cosine(gram: NDArray[np.float64]) -> float | None:
    if len(gram) < 2:
        return None
    lengths = np.sqrt(np.diag(gram))
    with np.errstate(divide="ignore", invalid="ignore"):
        cosines = gram / np.outer(lengths, lengths)
    mean = float(cosines[np.triu_indices(len(gram), k=1)].mean())
    return mean if isfinite(mean) else None


def _norm(products: NDArray[np.float64] | None, scale: float) -> float | None:
    return None if products is None else _root(scale**2 * float(products[0, 0]))


def _root(square: float) -> float | None:
    # Rounding may leave a sum that cancels a little below zero.
    return sqrt(max(square, 0.0)) if isfinite(square) else None
