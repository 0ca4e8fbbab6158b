"""How PEFT and mlx-lm write an adapter: the names of its files and tensors, and their numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.tensor import TensorRef
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
    """

    name: str
    saves_models: str
    file: str
    metadata: str
    factors: tuple[str, str]
    magnitude: str

    def tensors(self, adapter: Adapter) -> dict[str, Stored]:
        """The tensors, by name, of an adapter that the other library wrote."""
        tensors: dict[str, Stored] = {}
        for module in adapter.modules:
            # mlx-lm stores A as (in, r) and B as (r, out), PEFT A as (r, in) and B as (out, r).
            for name, factor in zip(self.factors, (module.a, module.b), strict=True):
                tensors[name.format(module.name)] = np.ascontiguousarray(stored_values(factor).T)
            if module.magnitude is not None:
                tensors[self.magnitude.format(module.name)] = stored_values(module.magnitude)
        return tensors


_PEFT = "base_model.model.{}"
LIBRARIES: Mapping[Library, LibraryFormat] = {
    "mlx": LibraryFormat(
        *("mlx-lm", "mlx-lm", "adapters.safetensors", "mlx"),
        factors=("{}.lora_a", "{}.lora_b"),
        magnitude="{}.m",
    ),
    "peft": LibraryFormat(
        *("PEFT", "transformers", "adapter_model.safetensors", "pt"),
        factors=(f"{_PEFT}.lora_A.weight", f"{_PEFT}.lora_B.weight"),
        magnitude=f"{_PEFT}.lora_magnitude_vector",
    ),
}


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
