"""What fusing did to each module: the update in the fused weights against the adapter's.

Everything is read in blocks of rows, so that the memory needed does not grow with a
tensor's size.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.adapter import Adapter, LoraModule
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.quantized import QuantizedTensor
from mlxdoctor.evidence.tensor import TensorRef
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.measure.weights.adapter_facts import module_scale

#: Weights that share a scale where `mlx_lm.convert -q` is not told otherwise.
QUANTIZED_GROUP = 64
#: Modules that are compared at a time.
THREADS = 2
#: Elements of a weight that are held at once by each: they fit into a core's cache.
BLOCK_ELEMENTS = 1 << 18

Matrix = TensorRef | QuantizedTensor


@dataclass(frozen=True)
class ModuleFusion:
    """One module's update as it was meant and as it is in the fused weights.

    Attributes:
        name: the module.
        intended: Frobenius norm of the update that the adapter stands for.
        realised: Frobenius norm of fused weight less base weight.
        inner: the inner product of the two.
        weight: Frobenius norm of the base weight.
        rounding: the norm that rounding to the fused weight's quantisation step adds
            on average; 0 where the fused weight is not quantised.
    """

    name: str
    intended: float
    realised: float
    inner: float
    weight: float
    rounding: float

    @property
    def gain(self) -> float:
        """How much of the update is in the fused weight: 1 fused once, 0 not at all."""
        return self.inner / self.intended**2

    @property
    def cosine(self) -> float:
        """The cosine between the two updates; 0 where the weight did not change."""
        return self.inner / (self.intended * self.realised) if self.realised else 0.0

    @property
    def noise(self) -> float:
        """Norm of what changed besides the update."""
        return sqrt(max(self.realised**2 - (self.gain * self.intended) ** 2, 0.0))


def fusions(
    adapter: Adapter, config: TrainingConfig, base: BaseModel, tuned: TunedModel
) -> tuple[ModuleFusion, ...]:
    """Every module of the adapter that both models hold in the same shape.

    Modules whose update is zero or not finite are left out.

    Raises:
        InputError: a file changed or cannot be read.
    """
    from threadpoolctl import threadpool_limits

    # numpy lets go of the interpreter's lock while it reads and multiplies. BLAS would wake
    # threads of its own for each small product, which takes longer than the product.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(THREADS) as threads:
        found = threads.map(lambda module: _fusion(module, config, base, tuned), adapter.modules)
        return tuple(module for module in found if module is not None)


def _fusion(
    module: LoraModule, config: TrainingConfig, base: BaseModel, tuned: TunedModel
) -> ModuleFusion | None:
    if (pair := _both(base, tuned, module.name)) is None:
        return None
    before, after = pair
    update = _Update.of(module, config)
    if update.shape != before.shape:
        return None
    sums = _sums(update, before, after)
    if not 0 < sums.intended < float("inf"):
        return None
    return ModuleFusion(
        name=module.name,
        intended=sqrt(sums.intended),
        realised=sqrt(sums.realised),
        inner=sums.inner,
        weight=sqrt(sums.weight),
        rounding=_rounding(after),
    )


@dataclass(frozen=True)
class _Sums:
    """Squared norms of the update as meant, of the change and of the weight; the inner product."""

    intended: float
    realised: float
    inner: float
    weight: float


def _sums(update: _Update, before: Matrix, after: Matrix) -> _Sums:
    intended, realised, inner, size = update.square, 0.0, 0.0, 0.0
    # ⟨L·R, C⟩ = ⟨R, Lᵀ·C⟩: the update itself is never made, but for DoRA.
    projected = np.zeros(update.right.shape, np.float32)
    for expert, start, stop in _blocks(before.shape):
        weight = before.rows(start, stop).astype(np.float32, copy=False)
        change = after.rows(start, stop).astype(np.float32, copy=False)
        np.subtract(change, weight, out=change)
        realised += float(np.vdot(change, change))
        size += float(np.vdot(weight, weight))
        first = start - expert * before.shape[-2]
        left = update.left[expert, first : first + stop - start]
        if update.magnitude is None:
            projected[expert] += left.T @ change
            continue
        total = weight + left @ update.right[expert]
        norms = np.linalg.norm(total, axis=1)
        meant = (update.magnitude[start:stop] / norms)[:, None] * total - weight
        intended += float(np.vdot(meant, meant))
        inner += float(np.vdot(meant, change))
    inner += float(np.vdot(update.right, projected))
    return _Sums(intended, realised, inner, size)


def predicted_rounding(
    base: BaseModel, module: str, bits: int, group_size: int = QUANTIZED_GROUP
) -> float | None:
    """The norm that quantising a module's weight to so many bits adds on average.

    MLX's affine mode: a group of weights in a row shares a step, its range over 2ᵇⁱᵗˢ − 1, and
    each is off by a squared step over 12 on average. From a sample of the rows; the update
    changes the range too little to matter. None where the width is no multiple of the group.

    Raises:
        InputError: the module has no weight, or it cannot be read.
    """
    square, total, seen = 0.0, 0, 0
    for values, rows in base.sampled_rows(module):
        if values.shape[1] % group_size:
            return None
        groups = values.reshape(-1, group_size)
        steps = (groups.max(axis=1) - groups.min(axis=1)) / (2**bits - 1)
        square += float(steps @ steps) * group_size / 12
        total, seen = rows, seen + len(values)
    return sqrt(square * total / seen) if seen else None


def weight_of(model: BaseModel | TunedModel, module: str) -> Matrix | None:
    """A module's weight with readable values, or None where the model has none."""
    quantized = model.quantized.get(module)
    if quantized is not None:
        return quantized
    tensor = model.tensors.get(f"{module}.weight")
    return tensor if tensor is not None and tensor.is_float else None


def _both(base: BaseModel, tuned: TunedModel, module: str) -> tuple[Matrix, Matrix] | None:
    """The two models' weights of a module, where both have one and of the same shape."""
    before, after = weight_of(base, module), weight_of(tuned, module)
    if before is None or after is None or before.shape != after.shape:
        return None
    return before, after


def _rounding(matrix: Matrix) -> float:
    return matrix.rounding() if isinstance(matrix, QuantizedTensor) else 0.0


@dataclass(frozen=True)
class _Update:
    """An adapter's update of one weight, a block of rows at a time.

    Attributes:
        shape: of the weight: (..., out, in), or (rows, width) for an embedding.
        left, right: (E, rows, r) and (E, r, columns); their product is the update.
        magnitude: DoRA's norms of the rows, or None.
    """

    shape: tuple[int, ...]
    left: NDArray[np.float32]
    right: NDArray[np.float32]
    magnitude: NDArray[np.float32] | None

    @classmethod
    def of(cls, module: LoraModule, config: TrainingConfig) -> _Update:
        scale = module_scale(module, config)
        a, b = module.factors()
        if "embed" in module.projection:
            left, right = scale * a, b
        else:
            left, right = scale * np.swapaxes(b, -1, -2), np.swapaxes(a, -1, -2)
        shape = (*left.shape[:-1], right.shape[-1])
        if left.ndim == 2:
            left, right = left[None], right[None]
        magnitude = None if module.magnitude is None else module.magnitude.load().ravel()
        return cls(shape, left.astype(np.float32), right.astype(np.float32), magnitude)

    @property
    def square(self) -> float:
        """The squared norm, from r x r products; 0 with a magnitude, which needs the weight."""
        if self.magnitude is not None:
            return 0.0
        left, right = self.left.astype(np.float64), self.right.astype(np.float64)
        grams = np.swapaxes(left, -1, -2) @ left, right @ np.swapaxes(right, -1, -2)
        return float((grams[0] * grams[1]).sum())


def _blocks(shape: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """(expert, first row, row after the last), the rows of all experts after each other."""
    size = shape[-2]
    step = max(BLOCK_ELEMENTS // max(shape[-1], 1), 1)
    for expert in range(prod(shape[:-2])):
        for start in range(0, size, step):
            yield expert, expert * size + start, expert * size + min(start + step, size)
