"""What differs between a model's weights and its base's, tensor by tensor.

Both files are read once, in blocks, by two threads; what is the same byte for byte costs no
arithmetic. The memory needed does not grow with the models.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from mlxdoctor.evidence.base_model import EMBEDDING_NAMES, BaseModel
from mlxdoctor.evidence.quantized import QuantizedTensor, quantized_tensors
from mlxdoctor.evidence.tensor import TensorRef
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.measure.weights.sums import Stored, Sums, pair_of, steps, storage

_THREADS = 2


@dataclass(frozen=True)
class WeightChange:
    """One tensor of a model beside the base's. A quantised matrix counts as one tensor.

    Attributes:
        name: the tensor's name.
        shape: of the values it stands for, in the tuned model; the base's where it is missing.
        before: how the base stores it ("BF16", "4-bit affine/64"); None where the base has none.
        after: the same for the tuned model.
        status: "same", bit for bit; "changed"; "reshaped"; "missing" from the tuned model;
            or "extra", the base has none.
        relative: ‖W' − W‖/‖W‖, by Frobenius norms; infinite where a value of W' is not finite or
            W is zero; None where there is nothing to compare, or no floating-point numbers.
        nonfinite: NaN or infinite values of W', where it was changed.
    """

    name: str
    shape: tuple[int, ...]
    before: str | None
    after: str | None
    status: str
    relative: float | None = None
    nonfinite: int = 0

    @property
    def is_requantized(self) -> bool:
        """Whether one side is quantised and the other is not, or is in another way."""
        return self.before != self.after and any(
            stored is not None and "-bit " in stored for stored in (self.before, self.after)
        )


def weight_changes(
    base: BaseModel, tuned: TunedModel, leave_out: Collection[str] = ()
) -> Iterator[WeightChange]:
    """Compare every tensor, in the order of the tuned model; what it lacks comes last.

    Quantised matrices are compared by the values they stand for, under the name of their
    `weight`. The tensors named in `leave_out` are not read.

    Raises:
        InputError: a file changed or cannot be read, or a matrix is quantised in an
            unknown mode.
    """
    old, new = (
        _stored(base.tensors, base.quantized),
        _stored(tuned.tensors, _quantized(tuned, base)),
    )
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="weights")
    try:
        found = [
            _compared(pool, name, old.get(name), one)
            for name, one in new.items()
            if name not in leave_out
        ]
        for finish in found:
            yield finish()
    finally:
        pool.shutdown(cancel_futures=True)
    for name, one in old.items():
        if name not in new and name not in leave_out:
            yield WeightChange(name, one.shape, storage(one), None, "missing")


def component(name: str) -> str:
    """Which part of a language model a tensor belongs to, by its name."""
    for part, words in (
        ("norms", ("norm",)),
        ("embeddings", EMBEDDING_NAMES),
        ("the head", ("lm_head",)),
        ("attention", ("attn", "attention")),
        ("feed-forward", ("mlp", "feed_forward", "experts", "moe", "ffn")),
    ):
        if any(word in name for word in words):
            return part
    return "other weights"


def _quantized(tuned: TunedModel, base: BaseModel) -> Mapping[str, QuantizedTensor]:
    if tuned.from_adapter:
        # A single file describes nothing; its matrices are the base's.
        return quantized_tensors(tuned.tensors, base.config)
    return tuned.quantized


def _stored(
    tensors: Mapping[str, TensorRef], quantized: Mapping[str, QuantizedTensor]
) -> dict[str, Stored]:
    """Tensors by name, each quantised matrix once, under the name of its `weight`."""
    parts = {f"{module}.{part}" for module in quantized for part in ("scales", "biases")}
    return {
        name: quantized.get(name.removesuffix(".weight"), one) if name.endswith(".weight") else one
        for name, one in tensors.items()
        if name not in parts
    }


def _compared(
    pool: ThreadPoolExecutor, name: str, old: Stored | None, new: Stored
) -> Callable[[], WeightChange]:
    """Hand a tensor's pieces to the threads; calling the result waits for them."""
    before, after = None if old is None else storage(old), storage(new)
    if old is None or old.shape != new.shape:
        status = "extra" if old is None else "reshaped"
        return partial(WeightChange, name, new.shape, before, after, status)
    pair = pair_of(old, new)
    pieces = [(pool.submit(pair.sums, *edge), edge) for edge in steps(0, pair.units, pair.piece)]

    def finish() -> WeightChange:
        found = [(future.result(), edge) for future, edge in pieces]
        if before == after and all(sums is None for sums, _ in found):
            return WeightChange(name, new.shape, before, after, "same", 0.0)
        total = Sums()
        for sums, edge in found:
            total += sums or Sums(norm=pair.norm(*edge))
        relative = total.relative if pair.has_values else None
        return WeightChange(name, new.shape, before, after, "changed", relative, total.nonfinite)

    return finish
