"""A LoRA adapter in no library's format, and what must hold before it is written in one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import frexp
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.adapter import layer_of
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.tensor import TensorRef
from mlxdoctor.safety.errors import InputError

Library = Literal["mlx", "peft"]
#: The values of a tensor in the type that they are stored in.
Stored = NDArray[Any]

#: What users call the libraries.
LIBRARY_NAMES = {"mlx": "mlx-lm", "peft": "PEFT"}
_SAVED_BY = {"mlx": "mlx-lm", "peft": "transformers"}
EMBEDDING = "model.embed_tokens"
OUTPUT_HEAD = "lm_head"
#: What PEFT puts before every name.
PEFT_PREFIX = "base_model.model."
# The names that mlx-lm and transformers share in every architecture that has them; others
# are renamed in some (mlx-lm calls the w1 of Lfm2's experts gate_proj).
_SHARED = re.compile(
    r"model\.layers\.\d+\.(self_attn\.(q|k|v|o|qkv)_proj|mlp\.(gate|up|down|gate_up)_proj)"
    rf"|{re.escape(EMBEDDING)}|{OUTPUT_HEAD}"
)
_NAME_BASE = "name the base model's folder with --base"


@dataclass(frozen=True, eq=False)
class PortableModule:
    """One adapted module: its weight changes by scale · (A·B)ᵀ.

    Attributes:
        name: the module in the base model.
        a: (in, r); for an embedding, (rows, r).
        b: (r, out); for an embedding, (r, width).
        magnitude: DoRA's (out,), or None.
        scale: what A·B is multiplied by.
        is_embedding: an embedding, not a linear layer.
    """

    name: str
    a: Stored
    b: Stored
    magnitude: Stored | None
    scale: float
    is_embedding: bool

    @property
    def rank(self) -> int:
        """r."""
        rank: int = self.a.shape[1]
        return rank

    @property
    def layer(self) -> int | None:
        """The number of its layer, None outside the layers."""
        return layer_of(self.name)[0]


@dataclass(frozen=True, eq=False)
class PortableAdapter:
    """What both formats can say of an adapter.

    Attributes:
        path: the file of weights it was read from.
        modules: by layer and name; at least one.
        dropout: the probability with which training dropped an input of A.
        model: the base model as the configuration names it, or None.
        is_dora: whether every module has a magnitude.
        notes: sentences on what the source holds and the other format does not need.
    """

    path: Path
    modules: tuple[PortableModule, ...]
    dropout: float
    model: str | None
    is_dora: bool
    notes: tuple[str, ...] = ()


def require_fit(adapter: PortableAdapter, base: BaseModel | None, target: Library) -> None:
    """Refuse modules that the base lacks, or whose name in the other library is unknown.

    Raises:
        InputError: such a module, or an embedding or output head without a base model to
            tell whether the two share a weight.
    """
    are_looked_up = base is not None and base.is_mlx == (target == "mlx")
    for module in adapter.modules:
        if base is not None:
            _require_in(module, base, adapter.path)
        elif module.is_embedding or (module.name == OUTPUT_HEAD and target == "mlx"):
            raise InputError(
                adapter.path,
                f"whether {module.name} shares its weight with another module decides how it is "
                "converted, and no base model was found",
                _NAME_BASE,
            )
        if not are_looked_up and not _SHARED.fullmatch(module.name):
            raise InputError(
                adapter.path,
                f"the module {module.name} may have another name in {LIBRARY_NAMES[target]}",
                f"{_NAME_BASE}, saved by {_SAVED_BY[target]}, to look it up",
            )


def _require_in(module: PortableModule, base: BaseModel, path: Path) -> None:
    shape = base.linear_shapes.get(module.name)
    if shape is None:
        # Weights packed by another quantiser have no shape here, but they have the name.
        if any(name.startswith(f"{module.name}.") for name in base.tensors):
            return
        if module.name == OUTPUT_HEAD and is_tied(base):
            return
        raise InputError(
            path,
            f"the module {module.name} is not in the base model {base.path}",
            "the adapter does not belong to it, or is saved under names that no loader finds",
        )
    ours = (module.a.shape[0], module.b.shape[1])
    if shape != ours:
        raise InputError(
            path,
            f"{module.name} takes {ours[0]:,} inputs to {ours[1]:,} outputs, but in the base "
            f"model {base.path} {shape[0]:,} to {shape[1]:,}",
            "the adapter belongs to another model",
        )


def stored_values(tensor: TensorRef) -> Stored:
    """The values of a tensor in the type that they are stored in: float32, float16 or bfloat16.

    Raises:
        InputError: its type is not one that both libraries load, or it cannot be read.
    """
    import ml_dtypes

    types: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
    if tensor.dtype not in types:
        raise InputError(
            tensor.path, f"{tensor.name} is {tensor.dtype}, which is not a type of both libraries"
        )
    values: Stored = tensor.read(0, tensor.nbytes).view(types[tensor.dtype])
    return values.reshape(tensor.shape)


def is_same(first: Stored, other: Stored) -> bool:
    """Whether type, shape and every bit agree."""
    return (first.dtype, first.shape, first.tobytes()) == (
        other.dtype,
        other.shape,
        other.tobytes(),
    )


def times(values: Stored, factor: float) -> Stored | None:
    """The values times `factor`, None unless every product is exact in their type.

    Only powers of two are tried: others round nearly every value.
    """
    if abs(frexp(factor)[0]) != 0.5:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = values.astype(np.float64) * factor
        product = wanted.astype(values.dtype)
        exact = np.array_equal(product.astype(np.float64), wanted, equal_nan=True)
    return product if exact else None


def is_tied(base: BaseModel) -> bool:
    """Whether the embedding's weight is also the output head's."""
    stated = base.stated("tie_word_embeddings")
    if isinstance(stated, bool):
        return stated
    return not any(f".{OUTPUT_HEAD}." in f".{name}" for name in base.tensors)
