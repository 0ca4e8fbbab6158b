"""The shapes of a base model, on which its memory in training depends."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod

from mlxdoctor.evidence.adapter import layer_of
from mlxdoctor.evidence.base_model import BaseModel, is_embedding
from mlxdoctor.evidence.tensor import DTYPE_BITS, TensorRef

#: Last parts of the names of modules that write into the residual stream.
_OUTPUTS = frozenset(
    ("o_proj", "out_proj", "dense", "wo", "down_proj", "w2", "fc2", "c_proj", "dense_4h_to_h")
)
_BYTES = {"F32": 4, "BF16": 2, "F16": 2}


@dataclass(frozen=True)
class Matrix:
    """A linear module of a layer.

    Attributes:
        name: below the layer, as `keys` names it: `self_attn.q_proj`.
        inputs: numbers in.
        outputs: numbers out.
        experts: how many of it are stacked; 1 for an ordinary one.
        quantised: its weight is packed.
        stored: bytes of its weight, with scales and biases.
    """

    name: str
    inputs: int
    outputs: int
    experts: int = 1
    quantised: bool = False
    stored: int = 0

    @property
    def size(self) -> int:
        """Numbers of its weight, unpacked."""
        return self.inputs * self.outputs * self.experts

    @property
    def in_attention(self) -> bool:
        """Whether it belongs to attention, by its name."""
        return "attn" in self.name or "attention" in self.name

    @property
    def is_output(self) -> bool:
        """Whether it writes into the residual stream, by its name."""
        return self.name.rsplit(".", 1)[-1] in _OUTPUTS


@dataclass(frozen=True)
class Layer:
    """One layer: its matrices, and bytes of what else it stores."""

    matrices: tuple[Matrix, ...]
    other: int = 0


@dataclass(frozen=True)
class ModelShape:
    """What a model's memory depends on.

    Attributes:
        hidden: width of the residual stream.
        heads: attention heads.
        kv_heads: heads of keys and values.
        head: width of a head.
        vocabulary: rows of the output layer.
        layers: from the first to the last.
        outside: matrices outside the layers, by their full names.
        stored: bytes of all weights.
        number: bytes of one number of the activations: 4, or 2 for half precision.
        experts_a_token: experts that each token passes; 1 in a dense model.
        is_rough: its layers are not attention followed by an MLP, which is what is counted.
    """

    hidden: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    layers: tuple[Layer, ...]
    outside: tuple[Matrix, ...]
    stored: int
    number: int
    experts_a_token: int = 1
    is_rough: bool = False

    @property
    def is_quantised(self) -> bool:
        """Whether the layers' matrices are packed."""
        return any(matrix.quantised for layer in self.layers for matrix in layer.matrices)


def shape_of(base: BaseModel) -> ModelShape | None:
    """The shapes of a model at hand; None where its configuration or its files lack what is needed.

    Read from `config.json` and the headers of the weights; no value is read.
    """
    hidden, vocabulary = base.hidden_size, base.vocab_size
    heads = _whole(base, "num_attention_heads", "n_head", "num_heads")
    if not hidden or not vocabulary or not heads:
        return None
    matrices: dict[int, list[Matrix]] = defaultdict(list)
    other: dict[int, int] = defaultdict(int)
    outside: list[Matrix] = []
    for name, tensor in base.tensors.items():
        layer, rest = layer_of(name)
        module = name.rsplit(".", 1)[0]
        shape = base.shape(module) if name.endswith(".weight") else ()
        if len(shape) < 2:
            if layer is not None and module not in base.quantized:
                other[layer] += _bytes(tensor)
            continue
        parts = (base.tensors.get(f"{module}.{part}") for part in ("weight", "scales", "biases"))
        matrix = Matrix(
            rest.removesuffix(".weight") if layer is not None else module,
            shape[-1],
            shape[-2],
            prod(shape[:-2]),
            module in base.quantized,
            sum(_bytes(part) for part in parts if part is not None),
        )
        (outside if layer is None else matrices[layer]).append(matrix)
    if not matrices:
        return None
    layers = tuple(Layer(tuple(matrices[n]), other[n]) for n in range(max(matrices) + 1))
    is_usual = all(_is_usual(layer) for layer in layers) and base.stated("kv_lora_rank") is None
    return ModelShape(
        hidden,
        heads,
        _whole(base, "num_key_value_heads", "n_head_kv", "num_kv_heads") or heads,
        _whole(base, "head_dim") or hidden // heads,
        vocabulary,
        layers,
        tuple(outside),
        sum(map(_bytes, base.tensors.values())),
        _number(base),
        _whole(base, "num_experts_per_tok", "num_experts_per_token", "moe_topk") or 1,
        not is_usual,
    )


def _is_usual(layer: Layer) -> bool:
    """Whether a layer is attention and an MLP, by its matrices' names."""
    kinds = {(matrix.in_attention, matrix.is_output) for matrix in layer.matrices}
    return len(kinds) == 4


def _whole(base: BaseModel, *keys: str) -> int | None:
    values = (base.stated(key) for key in keys)
    return next((value for value in values if type(value) is int and value > 0), None)


def _bytes(tensor: TensorRef) -> int:
    return tensor.size * DTYPE_BITS[tensor.dtype] // 8


def _number(base: BaseModel) -> int:
    """Bytes of an activation: those of the embedding's numbers, or of its scales."""
    for name, tensor in base.tensors.items():
        if is_embedding(name.rsplit(".", 1)[0]) and tensor.dtype in _BYTES:
            return _BYTES[tensor.dtype]
    kinds = (tensor.dtype for tensor in base.tensors.values())
    return next((_BYTES[kind] for kind in kinds if kind in _BYTES), 2)
