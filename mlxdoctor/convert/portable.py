"""A LoRA adapter in no library's format, and what must hold before it is written in one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mlxdoctor.convert.raw import RawTensor
from mlxdoctor.evidence.adapter import layer_of
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.safety.errors import InputError

Library = Literal["mlx", "peft"]

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


@dataclass(frozen=True)
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
    a: RawTensor
    b: RawTensor
    magnitude: RawTensor | None
    scale: float
    is_embedding: bool

    @property
    def rank(self) -> int:
        """r."""
        return self.a.shape[1]

    @property
    def layer(self) -> int | None:
        """The number of its layer, None outside the layers."""
        return layer_of(self.name)[0]

    @property
    def projection(self) -> str:
        """Its name within its layer, or the whole name outside the layers."""
        return layer_of(self.name)[1]


@dataclass(frozen=True)
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


def is_tied(base: BaseModel) -> bool:
    """Whether the embedding's weight is also the output head's."""
    stated = base.stated("tie_word_embeddings")
    if isinstance(stated, bool):
        return stated
    return not any(f".{OUTPUT_HEAD}." in f".{name}" for name in base.tensors)


def grid(modules: Iterable[PortableModule]) -> tuple[list[int], list[str]] | None:
    """The layers and the projections, where every one of those layers has all of those.

    Modules outside the layers are left out. None where a layer lacks a projection that
    another has, or where no module is in a layer.
    """
    cells = {(one.layer, one.projection) for one in modules if one.layer is not None}
    layers = sorted({layer for layer, _ in cells if layer is not None})
    projections = sorted({projection for _, projection in cells})
    if not cells or len(cells) != len(layers) * len(projections):
        return None
    return layers, projections
