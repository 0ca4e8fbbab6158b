"""The base model: its configuration and the headers of its weights, values on demand."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mlxdoctor.evidence.kind import Missing, RunView
from mlxdoctor.evidence.quantized import QuantizedTensor, Stored, quantized_tensors, stored
from mlxdoctor.evidence.safetensors_file import merged_tensors, model_files, read_safetensors
from mlxdoctor.evidence.source import Source, read_json_object
from mlxdoctor.evidence.tensor import TensorRef
from mlxdoctor.safety.errors import InputError

#: Rows in a row of a matrix that is sampled, and how many such blocks are read at once.
_ROWS_PER_BLOCK, _BLOCKS_PER_READ = 8, 16
#: Parts of the names of embeddings.
EMBEDDING_NAMES = ("embed", "wte", "wpe")
#: Sizes without which no model is built.
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


@dataclass(frozen=True)
class BaseModel:
    """A model folder, read without its values.

    Attributes:
        sources: configuration and weight files; the weights are not hashed.
        quantized: the quantised matrices by module name.
        is_mlx: MLX wrote the weights, so that their names are those a loader sees;
            other files are renamed while they are loaded, each architecture its way.
    """

    kind: ClassVar[str] = "base model"

    path: Path
    sources: tuple[Source, ...]
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorRef]
    quantized: Mapping[str, QuantizedTensor]
    is_mlx: bool

    @classmethod
    def find(cls, run: RunView) -> "BaseModel":
        files = run.files
        if files.base is not None:
            return cls.read(files.base)
        if files.base_named is not None:
            where = f"the base model {files.base_named!r} is not on this machine"
            raise Missing(f"{where}; name its folder with --base")
        raise Missing("nothing names the base model; name its folder with --base")

    @classmethod
    def read(cls, path: Path) -> "BaseModel":
        """Read `config.json` and the headers of the weight files.

        Raises:
            InputError: the folder has no configuration, one with impossible sizes, or no sound
                .safetensors weights.
        """
        config, source = read_json_object(path / "config.json")
        files = model_files(path)
        read = [read_safetensors(file) for file in files]
        tensors = merged_tensors(read)
        _require_sizes(source.path, config, tensors)
        return cls(
            path=path,
            sources=(source, *(Source(file, None, "header only") for file in files)),
            config=config,
            tensors=tensors,
            quantized=quantized_tensors(tensors, config),
            is_mlx=all(file.metadata.get("format") == "mlx" for file in read),
        )

    def stated(self, key: str) -> Any:
        """A value of the configuration, looked for under `text_config` too; None if absent."""
        if key in self.config:
            return self.config[key]
        text = self.config.get("text_config")
        return text.get(key) if isinstance(text, dict) else None

    def whole(self, *keys: str) -> int | None:
        """The first whole number above zero that is stated under one of the keys."""
        values = map(self.stated, keys)
        return next((value for value in values if type(value) is int and value > 0), None)

    @property
    def num_layers(self) -> int | None:
        """How many layers there are, as stated."""
        return self.whole("num_hidden_layers", "n_layer", "n_layers", "num_layers")

    @property
    def hidden_size(self) -> int | None:
        """The width of the residual stream, as stated."""
        return self.whole("hidden_size", "n_embd", "d_model", "dim")

    @property
    def vocab_size(self) -> int | None:
        """Rows of the embedding, as stated."""
        return self.whole("vocab_size", "n_vocab")

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The end tokens that `config.json` names."""
        value = self.stated("eos_token_id")
        values = value if isinstance(value, list) else [value]
        return tuple(token for token in values if type(token) is int)

    @cached_property
    def linear_shapes(self) -> Mapping[str, tuple[int, int]]:
        """Every matrix of weights by module name, as (inputs, outputs), dequantised.

        An embedding is (rows, width). Stacked experts give the shape of one.
        """
        shapes: dict[str, tuple[int, int]] = {}
        for name in self.tensors:
            module = name.removesuffix(".weight")
            if module != name and len(shape := self.shape(module)) >= 2:
                inputs, outputs = shape[-1], shape[-2]
                shapes[module] = (outputs, inputs) if is_embedding(module) else (inputs, outputs)
        return shapes

    @cached_property
    def stored(self) -> Mapping[str, Stored]:
        """Every tensor by name, a quantised matrix under that of its `weight`."""
        return stored(self.tensors, self.config)

    @cached_property
    def parameter_count(self) -> int:
        """All numbers of the model; a quantised matrix counts what it stands for."""
        return sum(prod(tensor.shape) for tensor in self.stored.values())

    @cached_property
    def norms(self) -> dict[str, float]:
        """The norms of weights by module, as far as they were asked for: every save needs them."""
        return {}

    def shape(self, module: str) -> tuple[int, ...]:
        """The shape of a module's weight, dequantised; empty where it has none."""
        weight = self.stored.get(f"{module}.weight")
        return weight.shape if weight is not None else ()

    def weight_norm(self, module: str, max_rows: int = 512) -> float:
        """The Frobenius norm of a module's weight, dequantised.

        A matrix with more rows than `max_rows` is estimated from that many: off by about the
        relative spread of the rows' norms over 2·sqrt(max_rows): a few percent at most.

        Raises:
            InputError: the module has no weight, or it cannot be read.
        """
        matrix = self.stored.get(f"{module}.weight")
        if matrix is None or not matrix.is_float:
            raise InputError(self.path, f"has no readable weight for {module}")
        rows = prod(matrix.shape[:-1])
        blocks = -(-min(rows, max_rows) // _ROWS_PER_BLOCK)
        most = _ROWS_PER_BLOCK if rows > max_rows else rows
        edges = [*(block * rows // blocks for block in range(blocks)), rows]
        spans = [(start, min(stop, start + most)) for start, stop in pairwise(edges)]
        square, seen = 0.0, 0
        for place in range(0, blocks, _BLOCKS_PER_READ):
            values = matrix.rows(*spans[place : place + _BLOCKS_PER_READ]).astype(np.float64)
            # Not a dot product: BLAS would wake its threads for each of these small blocks.
            square += float(np.einsum("ij,ij->", values, values))
            seen += len(values)
        return float(np.sqrt(square * rows / seen)) if seen else 0.0


def is_embedding(module: str) -> bool:
    """Whether a module is an embedding, by its name."""
    return any(word in module.rsplit(".", 1)[-1] for word in EMBEDDING_NAMES)


def _require_sizes(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Refuse sizes of which no model can be built: mlx-lm divides by them, or multiplies.

    Lists are some families' sizes, one a layer; what has no attention may state no heads.
    """
    text = config.get("text_config")
    attends = any(".self_attn." in name for name in tensors)
    for key, stated in product(_SIZES, (config, text if isinstance(text, dict) else {})):
        value = stated.get(key)
        is_whole = type(value) is int or (isinstance(value, float) and value.is_integer())
        is_absent = key == "num_attention_heads" and value == 0 and not attends
        if not (value is None or isinstance(value, list | dict) or is_absent) and (
            not is_whole or value < 1
        ):
            problem = f"says {value!r} for {key}, where a whole number from 1 on is needed"
            raise InputError(path, problem, "download the model's config.json again")
