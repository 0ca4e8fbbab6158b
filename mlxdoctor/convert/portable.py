"""A LoRA adapter in no library's format, its numbers, and how each library writes them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.adapter import LoraModule
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.tensor import TensorRef
from mlxdoctor.measure.weights.adapter_facts import module_scale
from mlxdoctor.safety.errors import InputError

Library = Literal["mlx", "peft"]
#: The values of a tensor in the type that they are stored in.
Stored = NDArray[Any]


@dataclass(frozen=True)
class LibraryFormat:
    """How a library writes an adapter.

    Attributes:
        saves_models: the library that saves the models it loads.
        file, metadata: of the weights, and what it says it is in.
        factors, magnitude: the names of A and B, and of DoRA's; `{}` stands for the module.
        is_turned: whether A is stored as (r, in) and B as (out, r).
    """

    name: str
    saves_models: str
    file: str
    metadata: str
    factors: tuple[str, str]
    magnitude: str
    is_turned: bool

    def tensors(self, modules: Iterable["PortableModule"]) -> dict[str, Stored]:
        """The tensors of an adapter by name."""
        tensors: dict[str, Stored] = {}
        for module in modules:
            for name, factor in zip(self.factors, (module.a, module.b), strict=True):
                stored = factor.T if self.is_turned else factor
                tensors[name.format(module.name)] = np.ascontiguousarray(stored)
            if module.magnitude is not None:
                tensors[self.magnitude.format(module.name)] = module.magnitude
        return tensors


_PEFT = "base_model.model.{}"
LIBRARIES: Mapping[Library, LibraryFormat] = {
    "mlx": LibraryFormat(
        *("mlx-lm", "mlx-lm", "adapters.safetensors", "mlx"),
        factors=("{}.lora_a", "{}.lora_b"),
        magnitude="{}.m",
        is_turned=False,
    ),
    "peft": LibraryFormat(
        *("PEFT", "transformers", "adapter_model.safetensors", "pt"),
        factors=(f"{_PEFT}.lora_A.weight", f"{_PEFT}.lora_B.weight"),
        magnitude=f"{_PEFT}.lora_magnitude_vector",
        is_turned=True,
    ),
}


@dataclass(frozen=True, eq=False)
class PortableModule:
    """One adapted module: its weight changes by scale · (A·B)ᵀ.

    Attributes:
        name: the module in the base model.
        a: (in, r).
        b: (r, out).
        magnitude: DoRA's (out,), or None.
        scale: what A·B is multiplied by.
    """

    name: str
    a: Stored
    b: Stored
    magnitude: Stored | None
    scale: float

    @classmethod
    def of(cls, module: LoraModule, config: TrainingConfig) -> "PortableModule":
        """The module as its own library would apply it."""
        a, b = stored_values(module.a), stored_values(module.b)
        a, b = (a.T, b.T) if module.naming == "peft" else (a, b)
        magnitude = stored_values(module.magnitude) if module.magnitude else None
        return cls(module.name, a, b, magnitude, module_scale(module, config))

    @property
    def rank(self) -> int:
        return int(self.a.shape[1])


def stored_values(tensor: TensorRef) -> Stored:
    """The values of a tensor in the type that they are stored in: float32, float16 or bfloat16.

    Raises:
        InputError: its type is not one that both libraries load, or it cannot be read.
    """
    import ml_dtypes

    types: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
    if tensor.dtype not in types:
        problem = f"{tensor.name} is {tensor.dtype}, which is not a type of both libraries"
        raise InputError(tensor.path, problem)
    values: Stored = tensor.read((0, tensor.nbytes)).view(types[tensor.dtype])
    return values.reshape(tensor.shape)
