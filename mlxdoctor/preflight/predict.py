"""What training will take: memory at its peak, from shapes, and time to its end, from timed steps.

What a step keeps for its backward pass was read off the graph that MLX 0.32.4 makes of mlx-lm's own
step (`mx.export_function` of the loss' gradients, fused and ordered as `mx.compile` and `eval` do).
For a dense Llama-like layer with LoRA on all seven matrices in float32, a token leaves

    4·width + 2·heads·head + 2·kv_heads·head + heads·tokens + 5·between + 7·rank + 4 numbers:

both norms' inputs and outputs; queries, keys, values and what the output matrix takes; the
attention's weights; gate, its sigmoid, their product, up, and what the down matrix takes. Without
an adapter or a gradient of its own, a matrix's input is not kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mlxdoctor.preflight.model_shape import Layer, Matrix, ModelShape

Device = Literal["cpu", "metal", "cuda"]
FLOAT32 = 4
#: Bytes of a number of an adapter: `mx.random.uniform` and `mx.zeros` give float32 for any base.
ADAPTER_NUMBER = 4
#: mlx-lm pads a batch to one more than a multiple of this (tuner/trainer.py, iterate_batches).
PAD_TO = 32


@dataclass(frozen=True)
class PlannedStep:
    """What decides how much memory a step takes, besides the model.

    Attributes:
        batch_size: rows of a batch.
        tokens: inputs of the longest batch's rows, after padding and cutting.
        fine_tune_type: "lora", "dora" or "full".
        num_layers: layers trained, from the last; 0 or less for all.
        rank: of the adapters.
        keys: names of the modules that get adapters; None for all linear ones of a layer.
        dropout: of the adapters' inputs.
        optimizer: mlx-lm's name.
        grad_checkpoint: each layer's activations are computed again in the backward pass.
        grad_accumulation_steps: batches an update.
        device: where it runs: kernels differ.
    """

    batch_size: int
    tokens: int
    fine_tune_type: str = "lora"
    num_layers: int = 16
    rank: int = 8
    keys: tuple[str, ...] | None = None
    dropout: float = 0.0
    optimizer: str = "adam"
    grad_checkpoint: bool = False
    grad_accumulation_steps: int = 1
    device: Device = "cpu"

    @property
    def is_full(self) -> bool:
        """Whether the layers themselves are trained."""
        return self.fine_tune_type == "full"

    def trained_layers(self, model: ModelShape) -> tuple[Layer, ...]:
        """The layers that are converted or unfrozen; `layers[-0:]` are all."""
        return model.layers[-max(self.num_layers, 0) :]

    def trained(self, layer: Layer) -> list[Matrix]:
        """The matrices of a trained layer that get an adapter, or are unfrozen."""
        if self.is_full:
            # mlx-lm unfreezes whole layers; packed weights stay, as MLX trains none.
            return [matrix for matrix in layer.matrices if not matrix.quantised]
        return [one for one in layer.matrices if self.keys is None or one.name in self.keys]


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


def predict_memory(model: ModelShape, step: PlannedStep) -> Mapping[str, int]:
    """The peak of memory of training, as `mx.get_peak_memory` will show it, in bytes.

    Nothing is run. The parts are held at once, and their sum is the peak.

    Returns:
        weights, adapters, optimiser, gradients, activations and loss -> bytes.
    """
    layers = step.trained_layers(model)
    trained = trained_bytes(model, step)
    # MLX updates each parameter as soon as its gradient is there: one layer's gradients and their
    # update are alive. With accumulation the sum of the batches before is held throughout.
    gradients = trained if step.grad_accumulation_steps > 1 else round(2 * trained / len(layers))
    kept = [_kept_by(layer, model, step) for layer in layers]
    boundary = step.batch_size * step.tokens * model.number * model.hidden
    # With checkpointing layers keep their inputs, and one at a time is computed again. Without, the
    # first trained layer's input has no gradient, and is not kept.
    checkpointed = len(layers) * boundary + max(kept)
    activations = checkpointed if step.grad_checkpoint else max(sum(kept) - 2 * boundary, 0)
    return {
        "weights": model.stored,
        "adapters": 0 if step.is_full else trained,
        "optimiser": optimizer_bytes(model, step),
        "gradients": gradients,
        "activations": activations,
        "loss": _around_the_loss(model, step),
    }


def trained_bytes(model: ModelShape, step: PlannedStep) -> int:
    """Bytes of all that is trained: adapters, or the unfrozen layers."""
    if step.is_full:
        return sum(
            layer.other + sum(matrix.stored for matrix in step.trained(layer))
            for layer in step.trained_layers(model)
        )
    # DoRA has a magnitude for each output.
    magnitudes = step.fine_tune_type == "dora"
    return ADAPTER_NUMBER * sum(
        step.rank * matrix.experts * (matrix.inputs + matrix.outputs) + magnitudes * matrix.outputs
        for matrix in _adapted(model, step)
    )


def _adapted(model: ModelShape, step: PlannedStep) -> Iterator[Matrix]:
    """Every matrix that gets an adapter; outside the layers those that `keys` names."""
    for layer in step.trained_layers(model):
        yield from step.trained(layer)
    yield from (matrix for matrix in model.outside if matrix.name in (step.keys or ()))


def optimizer_bytes(model: ModelShape, step: PlannedStep) -> int:
    """Bytes of the optimiser's state (mlx.optimizers), of the same precision as what is trained."""
    if step.optimizer == "adafactor":
        # A row and a column of each matrix, and whole vectors.
        if not step.is_full:
            return ADAPTER_NUMBER * sum(
                matrix.experts * (matrix.inputs + matrix.outputs + 2 * step.rank)
                for matrix in _adapted(model, step)
            )
        return sum(
            layer.other
            + sum(model.number * one.experts * (one.inputs + one.outputs) for one in layer.matrices)
            for layer in step.trained_layers(model)
        )
    # Muon and SGD keep an array a parameter; SGD does so without momentum, too.
    return (1 if step.optimizer in ("muon", "sgd") else 2) * trained_bytes(model, step)


def _kept_by(layer: Layer, model: ModelShape, step: PlannedStep) -> int:
    """Bytes that a trained layer keeps for its backward pass, without checkpointing."""
    number, kernels = model.number, KERNELS[step.device]
    trained = step.trained(layer)
    # x @ lora_a is in float32, so that a copy of x in float32 is kept, and x itself is not.
    copy = number if step.is_full else max(number, ADAPTER_NUMBER)
    per_token = 2 * (kernels.norm_number or number) * model.hidden
    per_token += number * (model.heads + 2 * model.kv_heads) * model.head
    if number in kernels.keeps_attention:
        per_token += number * model.heads * step.tokens
    # silu(gate) · up: gate, its sigmoid, their product and up; experts' answers, to be weighed.
    per_token += 4 * number * _between(layer, model)
    per_token += sum(
        number * model.experts_a_token * matrix.outputs
        for matrix in layer.matrices
        if matrix.experts > 1 and matrix.is_output
    )
    per_token += _inputs(trained, copy, model) + 4 * FLOAT32
    fixed = 0
    if step.is_full:
        # The normed input, for the norm's own weight.
        per_token += 2 * number * model.hidden
    else:
        per_token += sum(step.rank * ADAPTER_NUMBER * _passes(one, model) for one in trained)
        if step.dropout:
            # What was dropped, as numbers to multiply with, and the result.
            per_token += sum((copy + 1) * matrix.inputs for matrix in trained)
    if step.fine_tune_type == "dora":
        per_token += sum(number * matrix.outputs for matrix in trained)
        # DoRA unpacks a packed weight, and its gradient needs it again.
        fixed += sum(number * matrix.size for matrix in trained if matrix.quantised)
    if step.device == "cpu":
        # The mask, and cosines and sines of the rotary embedding for queries and for keys.
        fixed += step.tokens**2 + 2 * number * step.tokens * model.head
    return step.batch_size * step.tokens * per_token + fixed


def _around_the_loss(model: ModelShape, step: PlannedStep) -> int:
    """Bytes on top of what layers keep when the loss is made and the last layer's turn begins.

    Two moments compete: the copies of the logits with the gradients of the last layer's MLP,
    and the gradients of its attention. The factors are fitted to 70 steps of random
    shapes that were traced, ordered and added up without being computed.
    """
    layers = step.trained_layers(model)
    # With adapters the backward pass is in float32, as they are.
    number = model.number if step.is_full else max(model.number, ADAPTER_NUMBER)
    wide, narrow = (7.0, 12.0) if model.is_quantised else (5.0, 10.0)
    between = max(_between(layer, model) for layer in layers)
    mlp = number * (wide * between + narrow * model.hidden)
    logits = model.number * KERNELS[step.device].loss_copies * model.vocabulary
    attention = 3 * model.number * model.heads * step.tokens
    adapts_mlp = not step.is_full and any(
        not matrix.in_attention for layer in layers for matrix in step.trained(layer)
    )
    # Without adapters in the MLP there are fewer operations a layer: both moments fall within what
    # is handed out ahead.
    both = max(logits + mlp, attention + 0.8 * mlp) if adapts_mlp else logits + mlp + attention
    return round(step.batch_size * step.tokens * both)


def _passes(matrix: Matrix, model: ModelShape) -> int:
    """How often each token passes a matrix: once, or through several experts."""
    return model.experts_a_token if matrix.experts > 1 else 1


def _between(layer: Layer, model: ModelShape) -> int:
    """Numbers between the matrices of a layer's MLPs, for one token."""
    return sum(
        matrix.inputs * _passes(matrix, model)
        for matrix in layer.matrices
        if not matrix.in_attention and matrix.is_output
    )


def _inputs(trained: Iterable[Matrix], copy: int, model: ModelShape) -> int:
    """Bytes a token of the inputs of what is trained: matrices that read the same share one."""
    inputs: dict[object, int] = {}
    for matrix in trained:
        shared = (matrix.in_attention, matrix.experts > 1, matrix.inputs)
        key = matrix.name if matrix.is_output else shared
        inputs[key] = copy * matrix.inputs * _passes(matrix, model)
    return sum(inputs.values())


def width(longest: int, max_seq_length: int) -> int:
    """Inputs of a batch whose longest row has that many tokens: padded, cut, less the target."""
    padded = 1 + PAD_TO * -(-longest // PAD_TO)
    return min(padded, max_seq_length) - 1


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


#: Of the whole: clocks change, and other programs take their turn.
SPREAD = 0.1


def predict_time(
    iterations: int,
    batch_size: int,
    widths: Sequence[int],
    *,
    validation_batches: int,
    trained: Sequence[TimedBatch],
    validated: Sequence[TimedBatch],
) -> tuple[float, float, float]:
    """Seconds from the first iteration to the last on this machine: low, likeliest and high.

    Seconds of a batch are fitted as a constant, a part by tokens, and a part by tokens × length
    (the attention), none of them negative, as far as the lengths timed tell them apart.

    Args:
        iterations: training batches.
        batch_size: rows of a batch.
        widths: inputs of each batch of an epoch; those of the validation are taken for alike.
        validation_batches: of all validations together.
        trained: training steps of one length or several; not empty.
        validated: batches of a validation; not empty.
    """
    from scipy.optimize import nnls

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
    fitted = sum(float(_features(batch.rows, batch.tokens) @ weights) for batch in validated)
    validation = sum(batch.seconds for batch in validated) / fitted * step
    likely = iterations * step + validation_batches * validation
    spread = max(SPREAD, misfit)
    # Batches longer than those that were timed are told less well.
    longest = max(batch.rows * batch.tokens for batch in trained)
    spread += 0.1 * max(0.0, math.log2(batch_size * max(widths) / longest))
    return max(0.0, 1 - spread) * likely, likely, (1 + spread) * likely


def _features(rows: int, tokens: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([1.0, rows * tokens, rows * tokens * tokens])
