"""The shapes of a model: all that its memory depends on, from its files or, roughly, its name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from mlxdoctor.evidence.adapter import layer_of
from mlxdoctor.evidence.base_model import BaseModel, is_embedding
from mlxdoctor.evidence.tensor import DTYPE_BITS
from mlxdoctor.judge.model_facts import facts_of_name

#: Words of the names of modules that belong to attention.
_ATTENTION = ("attn", "attention")
#: Last parts of the names of modules that write into the residual stream.
_OUTPUTS = (
    "o_proj",
    "out_proj",
    "dense",
    "wo",
    "down_proj",
    "w2",
    "fc2",
    "c_proj",
    "dense_4h_to_h",
)
#: Width over depth of common models of 1 B parameters and more (Llama, Qwen, Mistral: 110 to 128).
_WIDTH_A_LAYER = 118
#: Numbers of a layer over the width's square: attention with grouped heads, and three matrices.
_NUMBERS_A_LAYER = 13.0
_HEAD = 128
_ROUGH_VOCABULARY = 128_000


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
        return any(word in self.name for word in _ATTENTION)

    @property
    def is_output(self) -> bool:
        """Whether it writes into the residual stream, by its name."""
        return self.name.rsplit(".", 1)[-1] in _OUTPUTS


@dataclass(frozen=True)
class Layer:
    """One layer: its matrices, and bytes of what else it stores."""

    matrices: tuple[Matrix, ...]
    other: int = 0

    @property
    def stored(self) -> int:
        """Bytes of the whole layer."""
        return self.other + sum(one.stored for one in self.matrices)


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
        is_rough: guessed from the model's name and size, or its layers are not attention
            followed by an MLP, which is what is counted.
        source: what says so.
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
    source: str = "its files"

    @property
    def is_quantised(self) -> bool:
        """Whether the layers' matrices are packed."""
        return any(one.quantised for layer in self.layers for one in layer.matrices)


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
    outside = []
    for name, tensor in base.tensors.items():
        layer, rest = layer_of(name)
        module = name.rsplit(".", 1)[0]
        if not name.endswith(".weight") or len(base.shape(module)) < 2:
            if layer is not None and module not in base.quantized:
                other[layer] += tensor.size * DTYPE_BITS[tensor.dtype] // 8
            continue
        shape = base.shape(module)
        matrix = Matrix(
            rest.removesuffix(".weight") if layer is not None else module,
            shape[-1],
            shape[-2],
            prod(shape[:-2]),
            module in base.quantized,
            _stored(base, module),
        )
        if layer is None:
            outside.append(matrix)
        else:
            matrices[layer].append(matrix)
    if not matrices:
        return None
    layers = tuple(Layer(tuple(matrices[n]), other[n]) for n in range(max(matrices) + 1))
    stored = sum(one.size * DTYPE_BITS[one.dtype] // 8 for one in base.tensors.values())
    is_usual = all(_is_usual(layer) for layer in layers) and base.stated("kv_lora_rank") is None
    return ModelShape(
        hidden,
        heads,
        _whole(base, "num_key_value_heads", "n_head_kv", "num_kv_heads") or heads,
        _whole(base, "head_dim") or hidden // heads,
        vocabulary,
        layers,
        tuple(outside),
        stored,
        _number(base),
        _whole(base, "num_experts_per_tok", "num_experts_per_token", "moe_topk") or 1,
        not is_usual,
        "its files" if is_usual else "its files, whose layers are of a kind that is not counted",
    )


def shape_of_name(name: str) -> ModelShape | None:
    """Shapes guessed from the size in a model's name; None where the name says none.

    A dense model with the proportions of Llama and its like, quantised where the name says so.
    Good for an order of magnitude and little more: `is_rough` says so.
    """
    facts = facts_of_name(name)
    if facts.parameters is None:
        return None
    vocabulary = facts.vocabulary or _ROUGH_VOCABULARY
    depth = (facts.parameters / (_NUMBERS_A_LAYER * _WIDTH_A_LAYER**2)) ** (1 / 3)
    count = max(2, round(depth))
    hidden = max(64, round(_WIDTH_A_LAYER * depth / 64) * 64)
    bits = next((bits for bits in (3, 4, 5, 6, 8) if f"{bits}bit" in name.lower()), None)
    heads, kv_heads = max(1, hidden // _HEAD), max(1, hidden // _HEAD // 4)
    between = round(hidden * (_NUMBERS_A_LAYER - 2.5) / 3)
    wide, narrow = heads * _HEAD, kv_heads * _HEAD
    # A group of 64 codes has a scale and a bias of two bytes each.
    bytes_a_number = bits / 8 + 4 / 64 if bits else 2.0

    def matrix(of: str, inputs: int, outputs: int) -> Matrix:
        return Matrix(
            of, inputs, outputs, 1, bits is not None, round(inputs * outputs * bytes_a_number)
        )

    layer = Layer(
        (
            matrix("self_attn.q_proj", hidden, wide),
            matrix("self_attn.k_proj", hidden, narrow),
            matrix("self_attn.v_proj", hidden, narrow),
            matrix("self_attn.o_proj", wide, hidden),
            matrix("mlp.gate_proj", hidden, between),
            matrix("mlp.up_proj", hidden, between),
            matrix("mlp.down_proj", between, hidden),
        ),
        4 * hidden,
    )
    return ModelShape(
        hidden,
        heads,
        kv_heads,
        _HEAD,
        vocabulary,
        (layer,) * count,
        (),
        round(facts.parameters * bytes_a_number),
        2,
        is_rough=True,
        source="its name",
    )


def _is_usual(layer: Layer) -> bool:
    """Whether a layer is attention and an MLP, by its matrices' names."""
    kinds = {(one.in_attention, one.is_output) for one in layer.matrices}
    return {(True, False), (True, True), (False, False), (False, True)} <= kinds


def _whole(base: BaseModel, *keys: str) -> int | None:
    found = (base.stated(key) for key in keys)
    return next((value for value in found if type(value) is int and value > 0), None)


def _stored(base: BaseModel, module: str) -> int:
    parts = (base.tensors.get(f"{module}.{part}") for part in ("weight", "scales", "biases"))
    return sum(one.size * DTYPE_BITS[one.dtype] // 8 for one in parts if one is not None)


def _number(base: BaseModel) -> int:
    """Bytes of an activation: those of the embedding's numbers, or of its scales."""
    sizes: Mapping[str, int] = {"F32": 4, "BF16": 2, "F16": 2}
    for name, tensor in base.tensors.items():
        if is_embedding(name.rsplit(".", 1)[0]) and tensor.dtype in sizes:
            return sizes[tensor.dtype]
    return next((sizes[one.dtype] for one in base.tensors.values() if one.dtype in sizes), 2)
