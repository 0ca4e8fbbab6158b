"""Intruder dimensions: large new directions that an update put into a weight.

Shuttleworth et al. 2024 (arXiv 2410.21228), Algorithm 1: a singular vector among the first k
of the tuned weight is an intruder where its cosine with every singular vector of the base
weight is below ε. They found many after LoRA, few after full fine-tuning, and more forgetting
where there are more. A count is evidence of how a run learned, not of whether it failed: sound
LoRA runs on a model of half a million parameters have 4 to 7 of 10 on average, collapsed ones 8,
sound full fine-tunes of it 0 to 0.7.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite, prod

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.adapter import Adapter, LoraModule
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.measure.weights.drift import module_scale
from mlxdoctor.measure.weights.fused import weight_of

#: Singular vectors of the tuned weight that are examined: k in the paper.
EXAMINED = 10
#: The cosine below which one of them is new: ε in the paper.
NEW_BELOW = 0.5
#: Larger matrices are left out: their decomposition takes minutes.
MAX_SMALLER_SIZE = 2048
MAX_ELEMENTS = 2048 * 8192

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class ModuleIntruders:
    """The intruder dimensions of one module.

    Attributes:
        module: its name.
        cosines: for each of the tuned weight's first left singular vectors, its largest
            |cosine| with one of the base weight's; None where they were not computed.
        reason: why not; empty where they were.
    """

    module: str
    cosines: tuple[float, ...] | None
    reason: str = ""

    @property
    def count(self) -> int | None:
        """How many are intruders."""
        return None if self.cosines is None else sum(one < NEW_BELOW for one in self.cosines)


def module_intruders(
    adapter: Adapter, config: TrainingConfig | None, base: BaseModel
) -> Iterator[ModuleIntruders]:
    """The intruder dimensions of every module, in the adapter's order.

    Raises:
        InputError: a file changed or cannot be read.
    """
    for module in adapter.modules:
        weight = weight_of(base, module.name)
        if weight is None:
            yield ModuleIntruders(module.name, None, "the base has no readable weight for it")
            continue
        scale = module_scale(module, config)
        reason = _left_out(module, weight.shape, scale)
        if reason:
            yield ModuleIntruders(module.name, None, reason)
            continue
        before = weight.rows(0, weight.shape[0]).astype(np.float32)
        after = _updated(before, module, scale)
        if not np.isfinite(after).all():
            yield ModuleIntruders(module.name, None, "not every value is finite")
        else:
            yield ModuleIntruders(module.name, closest_cosines(before, after))


def closest_cosines(before: Matrix, after: Matrix, examined: int = EXAMINED) -> tuple[float, ...]:
    """For each of the first left singular vectors of `after`, how close one of `before`'s comes.

    Args:
        before: the base weight, (out, in).
        after: the tuned weight, of the same shape.
        examined: how many singular vectors of `after` are looked at, the largest first.

    Returns:
        The largest |cosine| of each, falling singular values first; 1 where it is an old one.
    """
    old = np.linalg.svd(before, full_matrices=False)[0]
    new = np.linalg.svd(after, full_matrices=False)[0][:, :examined]
    return tuple(float(one) for one in np.abs(old.T @ new).max(axis=0))


def _left_out(module: LoraModule, shape: tuple[int, ...], scale: float) -> str:
    """Why a module is not examined; empty where it can be."""
    if module.experts is not None or len(shape) != 2:
        return "its experts have no weight in common"
    if min(shape) > MAX_SMALLER_SIZE or prod(shape) > MAX_ELEMENTS:
        return f"larger than {MAX_SMALLER_SIZE:,} x {MAX_ELEMENTS // MAX_SMALLER_SIZE:,}"
    sizes = (module.in_features, module.out_features)
    if shape != (sizes if _is_embedding(module) else sizes[::-1]):
        return "its shape is not that of the base's weight"
    return "" if isfinite(scale) else "its scale is not stated"


def _is_embedding(module: LoraModule) -> bool:
    return "embed" in module.projection


def _updated(before: Matrix, module: LoraModule, scale: float) -> Matrix:
    """The weight with the update, as stored: (out, in), or (rows, width) of an embedding."""
    a, b = module.factors()
    # A linear layer's weight is transposed; an embedding's, whose inputs are its rows, is not.
    update = scale * (a @ b if _is_embedding(module) else (a @ b).T)
    after = before + update.astype(np.float32)
    if module.magnitude is not None:
        after *= (module.magnitude.load().ravel() / np.linalg.norm(after, axis=1))[:, None]
    return after
