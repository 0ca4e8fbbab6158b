"""What differs between a model's weights and its base's, and what of it is an adapter's update.

Both files are read in blocks, by two threads; a tensor that is the same byte for byte costs no
arithmetic. The memory needed does not grow with the models.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import inf, prod, sqrt

import numpy as np

from mlxdoctor.engines.tensors import Change, change
from mlxdoctor.evidence.adapter import Adapter, LoraModule
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.quantized import QuantizedTensor, Stored, stored
from mlxdoctor.evidence.tensor import TensorRef
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.measure.weights.adapter_facts import module_scale

_THREADS = 2
#: Elements of either tensor that a thread holds at once; fewer cost more in calls than in sums.
_BLOCK_ELEMENTS = 1 << 20
_BLOCK_BYTES = 1 << 21
#: Elements of a weight that are held at once where it is multiplied: they fit into a core's cache.
_CACHED_ELEMENTS = 1 << 18
#: Modules, and other weights, that tell whose model it is; and how much of the update of a module a
#: model holds that was fused from it, be it at another scale or from an earlier save.
_FEW, _HELD = 8, 0.2


@dataclass(frozen=True)
class WeightChange:
    """One tensor of a model beside the base's. A quantised matrix counts as one tensor.

    Attributes:
        shape: of the values it stands for.
        before, after: how base and tuned model store it ("BF16", "4-bit affine/64").
        status: "same", bit for bit, or "changed".
        relative: ‖W' − W‖/‖W‖, by Frobenius norms; infinite where a value of W' is not finite or
            W is zero; None where there is nothing to compare, or no floating-point numbers.
        nonfinite: NaN or infinite values of W', where it was changed.
        rounding: what rounding to the codes of a quantised W' explains of `relative`, on average.
    """

    name: str
    shape: tuple[int, ...]
    before: str
    after: str
    status: str
    relative: float | None = None
    nonfinite: int = 0
    rounding: float = 0.0

    @property
    def is_requantized(self) -> bool:
        """Whether one side is quantised and the other is not, or is in another way."""
        return self.before != self.after and any(
            "-bit " in stored for stored in (self.before, self.after)
        )


def weight_changes(
    base: BaseModel, tuned: TunedModel, leave_out: Collection[str] = ()
) -> Iterator[WeightChange]:
    """Compare every tensor that both have in one shape, in the order of the tuned model.

    Quantised matrices are compared by the values they stand for, under the name of their
    `weight`. The tensors named in `leave_out` are not read.

    Raises:
        InputError: a file changed or cannot be read, or a matrix is quantised in an
            unknown mode.
    """
    from concurrent.futures import ThreadPoolExecutor

    # A single file describes no quantisation; its matrices are the base's.
    new = stored(tuned.tensors, base.config) if tuned.from_adapter else tuned.stored
    old = base.stored
    names = [
        name
        for name, tensor in new.items()
        if name in old and old[name].shape == tensor.shape and name not in leave_out
    ]
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="weights")
    try:
        yield from pool.map(lambda name: _compared(name, old[name], new[name]), names)
    finally:
        pool.shutdown(cancel_futures=True)


def change_of(old: Stored, new: Stored) -> Change:
    """How far all values of two tensors of one shape are apart, added up block by block.

    Raises:
        InputError: a file changed or cannot be read.
    """
    is_plain = isinstance(old, TensorRef) and isinstance(new, TensorRef)
    width = 1 if is_plain else max(old.shape[-1], 1)
    step = max(_BLOCK_ELEMENTS // width, 1) * width
    parts = (
        change(old.elements(span), new.elements(span)) for span in _ranges(prod(old.shape), step)
    )
    return sum(parts, Change())


def _compared(name: str, old: Stored, new: Stored) -> WeightChange:
    change = WeightChange(name, new.shape, old.dtype, new.dtype, "changed")
    if old.dtype == new.dtype and _is_same(old, new):
        return replace(change, status="same", relative=0.0)
    if not (old.is_float and new.is_float):
        return change
    moved = change_of(old, new)
    norm = sqrt(moved.base_square)
    return replace(
        change,
        relative=moved.relative,
        nonfinite=moved.nonfinite,
        rounding=new.rounding() / norm if norm and isinstance(new, QuantizedTensor) else 0.0,
    )


def _is_same(old: Stored, new: Stored) -> bool:
    """Whether all stored bytes are the same; read up to the first block that differs."""
    ours, theirs = _parts(old), _parts(new)
    return len(ours) == len(theirs) and all(
        (our.dtype, our.nbytes) == (their.dtype, their.nbytes)
        and all(
            np.array_equal(our.read(span), their.read(span))
            for span in _ranges(our.nbytes, _BLOCK_BYTES)
        )
        for our, their in zip(ours, theirs, strict=True)
    )


def _parts(tensor: Stored) -> list[TensorRef]:
    if isinstance(tensor, TensorRef):
        return [tensor]
    return [part for part in (tensor.weight, tensor.scales, tensor.biases) if part is not None]


def _ranges(count: int, step: int) -> Iterator[tuple[int, int]]:
    """0 to `count` in steps."""
    return pairwise((*range(0, count, max(step, 1)), count)) if count else iter(())


@dataclass(frozen=True)
class ModuleFusion:
    """One module's update as it was meant and as it is in the fused weights. Frobenius norms.

    Attributes:
        intended: of the update that the adapter stands for.
        realised: of fused weight less base weight; `inner` is the inner product of the two.
        weight: of the base weight.
        rounding: what rounding to the codes of a quantised fused weight adds on average.
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
    from concurrent.futures import ThreadPoolExecutor

    from threadpoolctl import threadpool_limits

    # numpy lets go of the interpreter's lock while it reads and multiplies. BLAS would wake
    # threads of its own for each small product, which takes longer than the product.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(_THREADS) as threads:
        fused = threads.map(lambda module: _fusion(module, config, base, tuned), adapter.modules)
        return tuple(module for module in fused if module is not None)


def may_be_fused(
    adapter: Adapter, config: TrainingConfig, base: BaseModel, tuned: TunedModel
) -> bool:
    """Whether a model may be base and adapter: not where most differs, and not by the update.

    A few modules and a few other weights tell: a teacher, or the model of another run.

    Raises:
        InputError: a file changed or cannot be read.
    """
    few = replace(adapter, modules=adapter.modules[:: _stride(adapter.modules)])
    gains = [module.gain for module in fusions(few, config, base, tuned)]
    covered = {f"{module.name}.weight" for module in adapter.modules}
    shared = base.stored.keys() & tuned.stored.keys() - covered
    others = [
        tuned.stored[name].dtype == base.stored[name].dtype
        and _is_same(base.stored[name], tuned.stored[name])
        for name in sorted(shared)[:: _stride(shared)]
    ]
    return not gains or not others or max(gains) >= _HELD or 2 * sum(others) >= len(others)


def _stride(items: Collection[object]) -> int:
    """Every how many of these are few in all."""
    return max(len(items) // _FEW, 1)


def _fusion(
    module: LoraModule, config: TrainingConfig, base: BaseModel, tuned: TunedModel
) -> ModuleFusion | None:
    before, after = (model.stored.get(f"{module.name}.weight") for model in (base, tuned))
    left, right = module.factors()
    if "embed" not in module.projection:
        # A weight is (..., out, in), that of an embedding (rows, width).
        left, right = right.swapaxes(-1, -2), left.swapaxes(-1, -2)
    shape = (*left.shape[:-1], right.shape[-1])
    if before is None or after is None or not shape == before.shape == after.shape:
        return None
    if not (before.is_float and after.is_float):
        return None
    left, right = left.reshape(-1, *left.shape[-2:]), right.reshape(-1, *right.shape[-2:])
    magnitude = None if module.magnitude is None else module.magnitude.load().ravel()
    scale = np.float32(module_scale(module, config))
    intended, realised, inner, size = 0.0, 0.0, 0.0, 0.0
    experts, rows, columns = (1, *shape)[-3:]
    blocks = list(_ranges(rows, _CACHED_ELEMENTS // max(columns, 1)))
    for expert, (start, stop) in product(range(experts), blocks):
        span = expert * rows + start, expert * rows + stop
        weight = before.rows(span).astype(np.float32, copy=False)
        moved = after.rows(span).astype(np.float32, copy=False)
        moved -= weight
        realised += float(np.vdot(moved, moved))
        size += float(np.vdot(weight, weight))
        ours, theirs = scale * left[expert, start:stop], right[expert]
        if magnitude is None:
            # ⟨L·R, C⟩ = ⟨R, Lᵀ·C⟩: the update itself is never made, but for DoRA.
            intended += float(np.vdot(ours.T @ ours, theirs @ theirs.T))
            inner += float(np.vdot(theirs, ours.T @ moved))
            continue
        total = weight + ours @ theirs
        update = (magnitude[start:stop] / np.linalg.norm(total, axis=1))[:, None] * total - weight
        intended += float(np.vdot(update, update))
        inner += float(np.vdot(update, moved))
    if not 0 < intended < inf:
        return None
    rounding = after.rounding() if isinstance(after, QuantizedTensor) else 0.0
    return ModuleFusion(module.name, sqrt(intended), sqrt(realised), inner, sqrt(size), rounding)
