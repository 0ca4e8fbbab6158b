"""What training will take: memory at its peak, from shapes, and time to its end, from timed steps.

What a step keeps for its backward pass was read off the graph that MLX 0.32.4 makes of mlx-lm's own
step. For a dense Llama-like layer with LoRA on all seven matrices in float32, a token leaves

    4·width + 2·heads·head + 2·kv_heads·head + heads·tokens + 5·between + 7·rank + 4 numbers:

both norms' inputs and outputs; queries, keys, values and what the output matrix takes; the
attention's weights; gate, its sigmoid, their product, up, and what the down matrix takes. Without
an adapter or a gradient of its own, a matrix's input is not kept.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal

import numpy as np

from mlxdoctor.evidence.adapter import layer_of
from mlxdoctor.evidence.base_model import BaseModel, is_embedding
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.measure.weights.lora_targets import configured_parameters

Device = Literal["cpu", "metal", "cuda"]
FLOAT32 = 4
#: Bytes of a number of an adapter: `mx.random.uniform` and `mx.zeros` give float32 for any base.
ADAPTER_NUMBER = 4
#: Last parts of the names of modules that write into the residual stream.
_OUTPUTS = frozenset(
    ("o_proj", "out_proj", "dense", "wo", "down_proj", "w2", "fc2", "c_proj", "dense_4h_to_h")
)
_BYTES = {"F32": 4, "BF16": 2, "F16": 2}


@dataclass(frozen=True)
class Kernels:
    """How a device computes what devices compute differently.

    Attributes:
        keeps_attention: bytes of a number for which the attention's weights, heads × tokens ×
            tokens, are made and kept.
        norm_number: bytes of a number of a norm's kept input; None for that of activations.
        loss_copies: arrays of batch × tokens × vocabulary that are alive at once, about.
    """

    keeps_attention: frozenset[int]
    norm_number: int | None
    loss_copies: float


KERNELS: Mapping[Device, Kernels] = {
    # Measured on MLX 0.32.4, Linux. On a CPU mx.fast's functions are made of ordinary operations, a
    # norm in float32 among them; cross-entropy has logits, those less their maximum, zeros to
    # scatter into, and a softmax.
    "cpu": Kernels(frozenset({2, 4}), FLOAT32, 4),
    # MLX's source, not measured: metal/scaled_dot_product_attention.cpp has in training "the
    # unfused SDPA for both forward and backward"; mx.fast.cross_entropy the logits and their
    # gradient.
    "metal": Kernels(frozenset({2, 4}), None, 2),
    # Measured on MLX 0.32.4, an NVIDIA H200. cuda/scaled_dot_product_attention.cpp: in half
    # precision cuDNN's kernel, whose backward pass makes the weights again. The copies are fitted
    # (reports/preflight-memory-gpu.json).
    "cuda": Kernels(frozenset({FLOAT32}), None, 2.75),
}


@dataclass(frozen=True)
class Memory:
    """The memory of training at its peak, as `mx.get_peak_memory` will show it.

    Attributes:
        parts: weights, adapters, optimiser, gradients, activations and loss, which are held at
            once -> bytes.
        is_rough: layers are not attention followed by an MLP, which is what is counted.
    """

    parts: Mapping[str, int]
    is_rough: bool

    @property
    def peak(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())


def predict_memory(
    base: BaseModel, config: TrainingConfig, tokens: int, device: Device = "cpu"
) -> Memory | None:
    """The peak of memory of training; nothing is run, and of the base no value is read.

    Args:
        config: as mlx-lm completes it.
        tokens: inputs of each row of the longest batch, without the last target.

    Returns:
        None where the base's configuration or files lack what is needed.
    """
    heads, hidden = base.whole("num_attention_heads", "n_head", "num_heads"), base.hidden_size
    matrices = tuple(_matrices(base))
    in_layers = [matrix for matrix in matrices if matrix.layer is not None]
    if not hidden or not base.vocab_size or not heads or not in_layers:
        return None
    step = _Step(base, config, tokens, KERNELS[device], matrices, heads, hidden)
    # Each layer of the usual kind has inputs and outputs of its attention and of its MLP.
    kinds = {(matrix.layer, matrix.in_attention, matrix.is_output) for matrix in in_layers}
    is_rough = len(kinds) < 4 * step.depth or base.stated("kv_lora_rank") is not None
    return Memory(step.parts(), is_rough)


@dataclass(frozen=True)
class _Matrix:
    """A linear module: `name` is that below its layer, as `keys` names it; sizes of one expert."""

    layer: int | None
    name: str
    inputs: int
    outputs: int
    experts: int
    packed: bool

    @property
    def in_attention(self) -> bool:
        return "attn" in self.name or "attention" in self.name

    @property
    def is_output(self) -> bool:
        """Whether it writes into the residual stream."""
        return self.name.rsplit(".", 1)[-1] in _OUTPUTS


def _matrices(base: BaseModel) -> Iterator[_Matrix]:
    for module in base.linear_shapes:
        *experts, outputs, inputs = base.shape(module)
        is_packed = module in base.quantized
        yield _Matrix(*layer_of(module), inputs, outputs, prod(experts), is_packed)


@dataclass(frozen=True)
class _Step:
    """A training step: what it trains, and what it holds, in bytes."""

    base: BaseModel
    config: TrainingConfig
    tokens: int
    kernels: Kernels
    matrices: tuple[_Matrix, ...]
    heads: int
    hidden: int

    def parts(self) -> dict[str, int]:
        layers = self.layers
        kept = [self._kept_by(layer) for layer in layers]
        # MLX updates each parameter as soon as its gradient is there: one layer's gradients and
        # their update are alive. With accumulation the sum of the batches before is held.
        accumulates = (self.config.grad_accumulation_steps or 1) > 1
        gradients = self.trained if accumulates else round(2 * self.trained / len(layers))
        # Muon and SGD keep an array a parameter; SGD does so without momentum, too. Adafactor keeps
        # a row and a column of each matrix.
        arrays = {"muon": 1.0, "sgd": 1.0, "adafactor": 0.0 if self.is_full else 1 / self.rank}
        kept_arrays = arrays.get((self.config.optimizer or "adam").lower(), 2.0)
        boundary = self.rows * self.tokens * self.number * self.hidden
        # The first trained layer's input has no gradient, and is not kept.
        activations = max(sum(kept) - 2 * boundary, 0)
        if self.config.values.get("grad_checkpoint") is True:
            # Layers keep their inputs, and one at a time is computed again.
            activations = len(layers) * boundary + max(kept)
        return {
            "weights": sum(tensor.nbytes for tensor in self.base.tensors.values()),
            "adapters": 0 if self.is_full else self.trained,
            "optimiser": round(kept_arrays * self.trained),
            "gradients": gradients,
            "activations": activations,
            "loss": self._around_the_loss(),
        }

    @property
    def rows(self) -> int:
        return self.config.batch_size or 1

    @property
    def is_full(self) -> bool:
        return self.config.fine_tune_type == "full"

    @property
    def rank(self) -> int:
        return self.config.rank or 8

    @property
    def experts_a_token(self) -> int:
        keys = ("num_experts_per_tok", "num_experts_per_token", "moe_topk")
        return self.base.whole(*keys) or 1

    @cached_property
    def number(self) -> int:
        """Bytes of an activation: those of the embedding's numbers, or of its scales."""
        tensors = self.base.tensors.items()
        ordered = sorted(tensors, key=lambda item: not is_embedding(item[0].rsplit(".", 1)[0]))
        return next((_BYTES[ref.dtype] for _, ref in ordered if ref.dtype in _BYTES), 2)

    @property
    def adapter_number(self) -> int:
        """Bytes of a number that a trained matrix computes with: x @ lora_a is in float32."""
        return self.number if self.is_full else max(self.number, ADAPTER_NUMBER)

    @cached_property
    def depth(self) -> int:
        return 1 + max(matrix.layer for matrix in self.matrices if matrix.layer is not None)

    @cached_property
    def layers(self) -> list[list[_Matrix]]:
        """The matrices of each layer that is converted or unfrozen; `layers[-0:]` are all."""
        every = [
            [matrix for matrix in self.matrices if matrix.layer == n] for n in range(self.depth)
        ]
        return every[-max(self.config.num_layers or 0, 0) :]

    def _trained_in(self, layer: Iterable[_Matrix]) -> list[_Matrix]:
        """Those that get an adapter, or are unfrozen: packed weights stay, as MLX trains none."""
        keys = self.config.keys
        if self.is_full:
            return [matrix for matrix in layer if not matrix.packed]
        return [matrix for matrix in layer if keys is None or matrix.name in keys]

    @cached_property
    def trained(self) -> int:
        """Bytes of all that is trained: adapters, or the unfrozen layers."""
        if self.is_full:
            layers = range(self.depth - len(self.layers), self.depth)
            return sum(
                tensor.nbytes
                for name, tensor in self.base.tensors.items()
                if layer_of(name)[0] in layers
                and name.rpartition(".")[0] not in self.base.quantized
            )
        return ADAPTER_NUMBER * (configured_parameters(self.config, self.base) or 0)

    def _kept_by(self, layer: list[_Matrix]) -> int:
        """Bytes that a trained layer keeps for its backward pass, without checkpointing."""
        number, trained = self.number, self._trained_in(layer)
        kv_heads = self.base.whole("num_key_value_heads", "n_head_kv", "num_kv_heads")
        per_token = 2 * (self.kernels.norm_number or number) * self.hidden
        head = self.base.whole("head_dim") or self.hidden // self.heads
        per_token += number * (self.heads + 2 * (kv_heads or self.heads)) * head
        if number in self.kernels.keeps_attention:
            per_token += number * self.heads * self.tokens
        # silu(gate) · up: gate, its sigmoid, their product and up; experts' answers, to be weighed.
        per_token += 4 * number * self._between(layer)
        answers = [matrix.outputs for matrix in layer if matrix.experts > 1 and matrix.is_output]
        per_token += number * self.experts_a_token * sum(answers)
        per_token += self._inputs(trained) + 4 * FLOAT32
        fixed = 0
        if self.is_full:
            # The normed input, for the norm's own weight.
            per_token += 2 * number * self.hidden
        else:
            per_token += self.rank * ADAPTER_NUMBER * sum(map(self._passes, trained))
            if self.config.dropout:
                # What was dropped, as numbers to multiply with, and the result.
                per_token += (self.adapter_number + 1) * sum(matrix.inputs for matrix in trained)
        if self.config.fine_tune_type == "dora":
            per_token += number * sum(matrix.outputs for matrix in trained)
            # DoRA unpacks a packed weight, and its gradient needs it again.
            packed = (each for each in trained if each.packed)
            fixed = number * sum(each.inputs * each.outputs * each.experts for each in packed)
        return self.rows * self.tokens * per_token + fixed

    def _around_the_loss(self) -> int:
        """Bytes on top of what layers keep when the loss is made and the last layer's turn begins.

        Two moments compete: the copies of the logits with the gradients of the last layer's MLP,
        and the gradients of its attention. The factors are fitted to 70 traced steps.
        """
        is_packed = any(matrix.packed for matrix in self.matrices if matrix.layer is not None)
        wide, narrow = (7.0, 12.0) if is_packed else (5.0, 10.0)
        between = max(map(self._between, self.layers))
        mlp = self.adapter_number * (wide * between + narrow * self.hidden)
        logits = self.number * self.kernels.loss_copies * (self.base.vocab_size or 0)
        attention = 3 * self.number * self.heads * self.tokens
        adapted = [matrix for layer in self.layers for matrix in self._trained_in(layer)]
        if self.is_full or all(matrix.in_attention for matrix in adapted):
            # Fewer operations a layer: both moments fall within what is handed out ahead.
            both = logits + mlp + attention
        else:
            both = max(logits + mlp, attention + 0.8 * mlp)
        return round(self.rows * self.tokens * both)

    def _passes(self, matrix: _Matrix) -> int:
        """How often each token passes a matrix: once, or through several experts."""
        return self.experts_a_token if matrix.experts > 1 else 1

    def _between(self, layer: Iterable[_Matrix]) -> int:
        """Numbers between the matrices of a layer's MLPs, for one token."""
        outputs = [matrix for matrix in layer if matrix.is_output and not matrix.in_attention]
        return sum(matrix.inputs * self._passes(matrix) for matrix in outputs)

    def _inputs(self, trained: Iterable[_Matrix]) -> int:
        """Bytes a token of the inputs of what is trained: matrices that read the same share one."""
        inputs: dict[object, int] = {}
        for each in trained:
            shared = (each.in_attention, each.experts > 1, each.inputs)
            inputs[each.name if each.is_output else shared] = each.inputs * self._passes(each)
        return self.adapter_number * sum(inputs.values())


@dataclass(frozen=True)
class TimedBatch:
    """A batch that was computed and timed, its shape being compiled before.

    Attributes:
        rows: rows of the batch.
        tokens: inputs of each row.
        seconds: what it took.
    """

    rows: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Timed:
    """What the training and the validation batches of a plan take."""

    trained: tuple[TimedBatch, ...]
    validated: tuple[TimedBatch, ...]


#: Of the whole: clocks change, and other programs take their turn.
SPREAD = 0.1


def predict_time(
    timed: Timed, iterations: int, batch_size: int, widths: Sequence[int], validation_batches: int
) -> tuple[float, float, float]:
    """Seconds from the first iteration to the last on this machine: low, likeliest and high.

    Seconds of a batch are fitted as a constant, a part by tokens, and a part by tokens × length
    (the attention), none of them negative, as far as the lengths timed tell them apart.

    Args:
        timed: training steps of one length or several, and batches of a validation.
        widths: inputs of each batch of an epoch; those of the validation are taken for alike.
        validation_batches: of all validations together.
    """
    from scipy.optimize import nnls

    trained = timed.trained
    columns = np.array([_features(batch.rows, batch.tokens) for batch in trained])
    seconds = np.array([batch.seconds for batch in trained])
    # One length tells the part by tokens, two the constant besides, three the attention.
    lengths = len({(batch.rows, batch.tokens) for batch in trained})
    used = [[1], [0, 1], [0, 1, 2]][min(lengths, 3) - 1]
    weights = np.zeros(3)
    # The errors are relative ones.
    weights[used] = nnls(columns[:, used] / seconds[:, None], np.ones(len(seconds)))[0]
    misfit = float(np.sqrt(np.mean(np.square(columns @ weights / seconds - 1))))
    step = float(np.mean([_features(batch_size, tokens) @ weights for tokens in widths]))
    validated = [float(_features(batch.rows, batch.tokens) @ weights) for batch in timed.validated]
    validation = sum(batch.seconds for batch in timed.validated) / sum(validated) * step
    likely = iterations * step + validation_batches * validation
    spread = max(SPREAD, misfit)
    # Batches longer than those that were timed are told less well.
    longest = max(batch.rows * batch.tokens for batch in trained)
    spread += 0.1 * max(0.0, math.log2(batch_size * max(widths) / longest))
    return max(0.0, 1 - spread) * likely, likely, (1 + spread) * likely


def _features(rows: int, tokens: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([1.0, rows * tokens, rows * tokens * tokens])
