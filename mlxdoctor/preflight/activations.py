"""What a forward pass leaves for the backward pass, and what the backward pass adds: in bytes.

Read off the graph that MLX 0.32.4 makes of mlx-lm's own step (`mx.export_function` of the loss'
gradients, fused and ordered as `mx.compile` and `eval` do). For a dense Llama-like layer with
LoRA on all seven matrices in float32, a token leaves

    4·width + 2·heads·head + 2·kv_heads·head + heads·tokens + 5·between + 7·rank + 4 numbers:

both norms' inputs and outputs; queries, keys, values and what the output matrix takes; the
attention's weights; gate, its sigmoid, their product, up, and what the down matrix takes. Without
an adapter or a gradient of its own, a matrix's input is not kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlxdoctor.preflight.model_shape import Layer, Matrix, ModelShape
from mlxdoctor.preflight.planned_step import PlannedStep

#: Bytes of a number of an adapter: `mx.random.uniform` and `mx.zeros` give float32 for any base.
ADAPTER_NUMBER = 4
FLOAT32 = 4


@dataclass(frozen=True)
class Kernels:
    """How a device computes what devices compute differently.

    Attributes:
        keeps_attention: bytes of a number for which the attention's weights, heads × tokens ×
            tokens, are made and kept.
        norm_number: bytes of a number of a norm's kept input; None for that of activations.
        loss_copies: arrays of batch × tokens × vocabulary that are alive at once, about.
        runs_ahead: operations are handed out, and their memory taken, before those in front of
            them are computed, so that an array outlives its last use by a while.
        source: what says so.
    """

    keeps_attention: frozenset[int]
    norm_number: int | None
    loss_copies: float
    runs_ahead: bool
    source: str


_EVERY = frozenset({2, 4})
KERNELS = {
    # On a CPU mx.fast's functions are made of ordinary operations, a norm in float32 among them;
    # cross-entropy has logits, those less their maximum, zeros to scatter into, and a softmax.
    # cpu::CommandEncoder counts a task every 10 dispatches, and eval waits beyond 10 tasks.
    "cpu": Kernels(_EVERY, FLOAT32, 4, True, "measured on MLX 0.32.4, Linux"),
    # metal/scaled_dot_product_attention.cpp: in training "the unfused SDPA for both forward and
    # backward". mx.fast.cross_entropy has the logits and their gradient.
    "metal": Kernels(_EVERY, None, 2, True, "MLX's source; not measured"),
    # cuda/scaled_dot_product_attention.cpp: in half precision cuDNN's kernel, whose backward pass
    # makes the weights again; in float32 ordinary operations. Around the loss three quarters of
    # an array more than its two are alive: fitted to the half that was to be seen
    # (reports/preflight-memory-gpu.json).
    "cuda": Kernels(
        frozenset({FLOAT32}), None, 2.75, True, "measured on MLX 0.32.4, an NVIDIA H200"
    ),
}


def kernels_of(step: PlannedStep) -> Kernels:
    """How the step's device computes."""
    return KERNELS[step.device]


def kept_by(layer: Layer, model: ModelShape, step: PlannedStep) -> int:
    """Bytes that a trained layer keeps for its backward pass, without checkpointing."""
    number, kernels = model.number, kernels_of(step)
    is_full = step.fine_tune_type == "full"
    # x @ lora_a is in float32, so that a copy of x in float32 is kept, and x itself is not.
    copy = number if is_full else max(number, ADAPTER_NUMBER)
    trained = [one for one in layer.matrices if step.trains(one)]
    wide, narrow = model.heads * model.head, model.kv_heads * model.head
    per_token = 2 * (kernels.norm_number or number) * model.hidden
    if is_full:
        per_token += 2 * number * model.hidden  # the normed input, for the norm's own weight
    per_token += number * (wide + 2 * narrow)
    if number in kernels.keeps_attention:
        per_token += number * model.heads * step.tokens
    per_token += _mlp(layer, model, number)
    per_token += _inputs(trained, copy, model)
    if not is_full:
        per_token += sum(step.rank * ADAPTER_NUMBER * _passes(one, model) for one in trained)
    if step.fine_tune_type == "dora":
        per_token += sum(number * one.outputs for one in trained)
    if step.dropout and not is_full:
        # What was dropped, as numbers to multiply with, and the result.
        per_token += sum((copy + 1) * one.inputs for one in trained)
    per_token += 4 * FLOAT32
    fixed = 0
    if step.device == "cpu":
        # The mask, and cosines and sines of the rotary embedding for queries and for keys.
        fixed = step.tokens**2 + 2 * number * step.tokens * model.head
    if step.fine_tune_type == "dora":
        # DoRA unpacks a packed weight, and its gradient needs it again.
        fixed += sum(number * one.size for one in trained if one.quantised)
    return step.batch_size * step.tokens * per_token + fixed


def boundary(model: ModelShape, step: PlannedStep) -> int:
    """Bytes that a checkpointed layer keeps: its input."""
    return step.batch_size * step.tokens * model.number * model.hidden


def around_the_loss(model: ModelShape, step: PlannedStep) -> int:
    """Bytes on top of what layers keep when the loss is made and the last layer's turn begins.

    Two moments compete: the copies of the logits with the gradients of the last layer's MLP,
    and the gradients of its attention. The factors are fitted to 70 steps of random
    shapes that were traced, ordered and added up without being computed.
    """
    kernels, tokens = kernels_of(step), step.batch_size * step.tokens
    is_full = step.fine_tune_type == "full"
    # With adapters the backward pass is in float32, as they are.
    number = model.number if is_full else max(model.number, ADAPTER_NUMBER)
    wide, narrow = (7.0, 12.0) if model.is_quantised else (5.0, 10.0)
    if not kernels.runs_ahead:
        wide, narrow = 3.0, 3.0
    between = max((_between(layer, model) for layer in step.trained_layers(model)), default=0)
    mlp = number * (wide * between + narrow * model.hidden)
    logits = model.number * kernels.loss_copies * model.vocabulary
    attention = 3 * model.number * model.heads * step.tokens
    if not _adapts_mlp(step, model):
        # Fewer operations a layer: both moments fall within what is handed out ahead.
        return round(tokens * (logits + mlp + attention))
    return round(tokens * max(logits + mlp, attention + 0.8 * mlp))


def _adapts_mlp(step: PlannedStep, model: ModelShape) -> bool:
    """Whether matrices outside attention get adapters, which adds operations to their turn."""
    return step.fine_tune_type != "full" and any(
        step.trains(one) and not one.in_attention
        for layer in step.trained_layers(model)
        for one in layer.matrices
    )


def _passes(matrix: Matrix, model: ModelShape) -> int:
    """How often each token passes a matrix: once, or through several experts."""
    return model.experts_a_token if matrix.experts > 1 else 1


def _between(layer: Layer, model: ModelShape) -> int:
    """Numbers between the matrices of a layer's MLPs, for one token."""
    return sum(
        one.inputs * _passes(one, model)
        for one in layer.matrices
        if not one.in_attention and one.is_output
    )


def _mlp(layer: Layer, model: ModelShape, number: int) -> int:
    # silu(gate) · up: gate, its sigmoid, their product and up; the result is the down
    # matrix's input.
    kept = 4 * number * _between(layer, model)
    experts = [one for one in layer.matrices if one.experts > 1 and one.is_output]
    # Each expert's answer, to be weighed.
    return kept + sum(number * model.experts_a_token * one.outputs for one in experts)


def _inputs(trained: list[Matrix], copy: int, model: ModelShape) -> int:
    """Bytes a token of the inputs of what is trained: matrices that read the same share one."""
    shared: dict[tuple[bool, bool, int], int] = {}
    total = 0
    for one in trained:
        size = copy * one.inputs * _passes(one, model)
        if one.is_output:
            total += size
        else:
            shared[one.in_attention, one.experts > 1, one.inputs] = size
    return total + sum(shared.values())
