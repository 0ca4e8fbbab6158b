"""The tensors of an adapter: LoRA factors by module, and whatever else is in the file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.kind import Missing, NoSuchThing, RunView
from mlxdoctor.evidence.safetensors_file import read_safetensors
from mlxdoctor.evidence.source import Source, hash_file
from mlxdoctor.evidence.tensor import TensorRef
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current, exceeded

Naming = Literal["mlx-lm", "peft"]

#: The weights of an adapter folder, the first that exists.
FILE_NAMES = (
    "adapters.safetensors",
    "adapter_model.safetensors",
    "adapters.npz",
    "adapter.safetensors",
)
#: The parameters of an adapter that mlx-lm makes, by the last part of their name.
ADAPTER_LEAVES = frozenset({"lora_a", "lora_b", "m"})

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.(.+)$")
#: The names of factors, by whose they are.
_NAMES: Mapping[Naming, re.Pattern[str]] = {
    "mlx-lm": re.compile(r"^(?P<module>.+)\.(?P<role>lora_a|lora_b|m)$"),
    "peft": re.compile(
        r"^(?:base_model\.model\.)?(?P<module>.+)\."
        r"(?P<role>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)"
        r"(?:\.(?!weight$)[^.]+)?(?:\.weight)?$"
    ),
}


def layer_of(name: str) -> tuple[int | None, str]:
    """The layer number in a module's name, and what comes after it (or the whole name)."""
    match = _LAYER.search(name)
    return (int(match[1]), match[2]) if match else (None, name)


@dataclass(frozen=True)
class LoraModule:
    """One module that the adapter changes, by scale · A·B.

    Attributes:
        name: the module in the base model, without any wrapper's prefix.
        a: the factor with `in_features`: (in, r); PEFT (r, in); experts (E, r, in).
        b: the factor with `out_features`: (r, out); PEFT (out, r); experts (E, out, r).
        magnitude: DoRA's vector of (out,), or None.
        naming: whose names and orientation the file uses.
        in_features: the module's inputs; for an embedding, its rows.
        out_features: the module's outputs; for an embedding, its width.
        projection: the module's name within its layer ("self_attn.q_proj").
        experts: E where every expert has factors of its own, else None.
    """

    name: str
    a: TensorRef
    b: TensorRef
    magnitude: TensorRef | None
    naming: Naming
    rank: int
    in_features: int
    out_features: int
    layer: int | None
    projection: str
    experts: int | None

    @property
    def parameter_count(self) -> int:
        """Trainable numbers: both factors and the magnitude."""
        return self.a.size + self.b.size + (self.magnitude.size if self.magnitude else 0)

    def factors(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """A as (in, r) and B as (r, out), as stored; (E, in, r) and (E, r, out) with experts.

        Float64 where they are stored so, else float32.

        Raises:
            InputError: the file changed or cannot be read.
        """
        a, b = self.a.load(), self.b.load()
        if self.naming == "peft" or self.experts is not None:
            return np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2)
        return a, b


#: Share of the modules below which those without an update may have been pruned: 0.07 and 0.11 in
#: two sound adapters, half and more in the ward's faults.
PRUNED = 0.125


@dataclass(frozen=True, eq=False)
class Adapter:
    """What an adapter file holds.

    Attributes:
        naming: whose names it uses; "mlx-lm" where it holds no factor at all.
        modules: complete pairs of factors, by layer and name.
        others: tensors that belong to no complete pair and are not half of one.
        unpaired: names of what is left of modules of which a factor is missing.
        mismatched: names of modules whose two factors cannot be multiplied.
        not_float: names of modules whose factors would go together and are stored as whole
            numbers, or in a type that has no values here.
        is_loose: the file was named by itself, and not the folder that it belongs to.
    """

    kind: ClassVar[str] = "adapter"

    path: Path
    naming: Naming
    modules: tuple[LoraModule, ...]
    others: tuple[TensorRef, ...]
    unpaired: tuple[str, ...]
    mismatched: tuple[str, ...]
    not_float: tuple[str, ...]
    parameter_count: int
    tensors: Mapping[str, TensorRef]
    is_loose: bool = False

    @classmethod
    def find(cls, run: RunView) -> Self:
        if run.files.adapter is None:
            if run.files.tuned is not None:
                raise NoSuchThing("what was trained is in the tuned model's own weights")
            raise Missing("no adapter file was found; name it with --adapter")
        named = (*run.files.roots, run.options.adapter)
        return cls.read(run.files.adapter, is_loose=run.files.adapter in named)

    @classmethod
    def read(cls, path: Path, *, is_loose: bool = False) -> Self:
        """Read the names and shapes in an adapter's file, or in the folder that holds it.

        Raises:
            InputError: there is no such file, it is not a sound .safetensors, or its modules or
                their factors are over a limit.
        """
        file = adapter_file(path)
        if file.suffix != ".safetensors":
            remedy = "save it with mx.save_safetensors: other weights are never opened"
            raise InputError(file, "is not a .safetensors file", remedy)
        tensors = read_safetensors(file).tensors
        naming, parts = _factors(tensors)
        modules: list[LoraModule] = []
        unpaired: list[str] = []
        mismatched: list[str] = []
        not_float: list[str] = []
        for name, part in sorted(parts.items()):
            if "a" not in part or "b" not in part:
                unpaired += [tensor.name for tensor in part.values()]
            elif (module := _module(name, part, naming)) is None:
                mismatched.append(name)
            elif not (module.a.is_float and module.b.is_float):
                not_float.append(name)
            else:
                modules.append(module)
        if len(modules) > current().modules:
            raise exceeded(file, f"has factors of {len(modules):,} modules", "modules")
        factor_bytes = sum(module.a.nbytes + module.b.nbytes for module in modules)
        if factor_bytes > current().adapter_bytes:
            raise exceeded(file, f"has {factor_bytes:,} bytes of factors", "adapter_bytes")
        paired = {tensor.name for part in parts.values() for tensor in part.values()}
        return cls(
            path=file,
            naming=naming,
            modules=tuple(
                sorted(modules, key=lambda each: (each.layer is None, each.layer or 0, each.name))
            ),
            others=tuple(tensor for name, tensor in tensors.items() if name not in paired),
            unpaired=tuple(sorted(unpaired)),
            mismatched=tuple(mismatched),
            not_float=tuple(not_float),
            parameter_count=sum(tensor.size for tensor in tensors.values()),
            tensors=tensors,
            is_loose=is_loose,
        )

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The file of weights, hashed when first asked for."""
        return (hash_file(self.path),)

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """The types of the stored numbers, without repetition."""
        return tuple(sorted({tensor.dtype for tensor in self.tensors.values()}))


def adapter_file(path: Path) -> Path:
    """The file of weights that `path` is, or that the folder `path` holds.

    Raises:
        InputError: the folder holds none.
    """
    if not path.is_dir():
        return path
    for name in FILE_NAMES:
        if (path / name).is_file():
            return path / name
    if any((path / name).is_file() for name in ("adapter_model.bin", "adapter_model.pt")):
        raise InputError(
            path, "holds pickled weights, which are never opened", "save it as safetensors"
        )
    saved = sorted(path.glob("*adapters.safetensors"))
    if saved:
        return saved[-1]
    raise InputError(
        path, "holds no adapter weights", f"expected {FILE_NAMES[0]} or {FILE_NAMES[1]}"
    )


def _factors(tensors: Mapping[str, TensorRef]) -> tuple[Naming, dict[str, dict[str, TensorRef]]]:
    """Whose names the tensors have, and the factors and magnitudes by module."""
    has_mlx_lms = any(name.endswith((".lora_a", ".lora_b")) for name in tensors)
    is_pefts = not has_mlx_lms and any(map(_NAMES["peft"].match, tensors))
    naming: Naming = "peft" if is_pefts else "mlx-lm"
    parts: dict[str, dict[str, TensorRef]] = {}
    for name, tensor in tensors.items():
        if match := _NAMES[naming].match(name):
            role = match["role"][-1].lower()
            parts.setdefault(match["module"], {})[role if role in "ab" else "magnitude"] = tensor
    return naming, parts


def _module(name: str, part: Mapping[str, TensorRef], naming: Naming) -> LoraModule | None:
    a, b = part["a"], part["b"]
    experts = None
    shape_a, shape_b = a.shape, b.shape
    if len(shape_a) == 3 and len(shape_b) == 3 and shape_a[0] == shape_b[0] and naming == "mlx-lm":
        experts, shape_a, shape_b = shape_a[0], shape_a[1:], shape_b[1:]
    if len(shape_a) != 2 or len(shape_b) != 2:
        return None
    if naming == "peft" or experts is not None:
        shape_a, shape_b = shape_a[::-1], shape_b[::-1]
    if shape_a[1] != shape_b[0]:
        return None
    layer, projection = layer_of(name)
    return LoraModule(
        name=name,
        a=a,
        b=b,
        magnitude=part.get("magnitude"),
        naming=naming,
        rank=shape_a[1],
        in_features=shape_a[0],
        out_features=shape_b[1],
        layer=layer,
        projection=projection,
        experts=experts,
    )
