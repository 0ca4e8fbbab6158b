"""What a run is about to do, worked out before its first step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from mlxdoctor.models.parameters import count_parameters
from mlxdoctor.train.batches import Batch, Worker, collate
from mlxdoctor.train.masked_loss import LossFunction
from mlxdoctor.train.settings import Settings
from mlxdoctor.train.token_rows import TokenRows

#: A timed step shorter than this is timed again, now that it is warm (seconds).
SHORT_STEP = 1.0
#: A forward pass takes about this share of a step.
FORWARD_SHARE = 1 / 3


@dataclass(frozen=True)
class Plan:
    """A run before its first step.

    Attributes:
        trainable: component -> parameters that will be trained; layers taken together.
        frozen: component -> parameters that stay; quantized ones counted unpacked.
        optimizer_bytes: memory of the optimizer's state, bytes.
        lines: these, the data, how long it may take, and what may surprise, for a person.
    """

    trainable: Mapping[str, int]
    frozen: Mapping[str, int]
    optimizer_bytes: int
    lines: tuple[str, ...]


def make_plan(
    settings: Settings,
    model: Any,
    optimizer: Any,
    rows: TokenRows,
    loss: LossFunction,
    *,
    start: int,
) -> Plan:
    """Count, and time one batch; neither the model nor any random state is changed.

    Args:
        optimizer: initialised.
        start: the first iteration that will be made.
    """
    trainable, frozen = count_parameters(model)
    optimizer_bytes = sum(one.nbytes for _, one in tree_flatten(optimizer.state))
    few, many = sum(trainable.values()), sum(frozen.values())
    share = 100 * few / max(few + many, 1)
    batch = _middling_batch(rows, settings)
    lines = (
        f"Trainable parameters: {share:.3f}% ({few / 1e6:.3f}M/{(few + many) / 1e6:.3f}M)",
        *(f"  trained  {count:>15,}  {name}" for name, count in trainable.items()),
        *(f"  frozen   {count:>15,}  {name}" for name, count in frozen.items()),
        f"Optimizer state: {optimizer_bytes / 1e6:,.1f} MB",
        *_of_data(settings, rows, start, batch, _time_batch(model, loss, batch)),
        *(f"Note: {note}" for note in _notes(settings, rows)),
    )
    return Plan(trainable, frozen, optimizer_bytes, lines)


def duration(seconds: float) -> str:
    """`90` -> `1 min 30 s`; hours and minutes from an hour on."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.0f} s" if whole >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _of_data(
    settings: Settings, rows: TokenRows, start: int, batch: Batch, seconds: float
) -> Iterator[str]:
    """What is trained on, and how long that takes where `batch` takes these seconds."""
    limit, every = settings.max_seq_length, settings.grad_accumulation_steps
    lengths = [len(row.tokens) for row in rows.train]
    tokens = sum(min(length, limit) for length in lengths)
    supervised = sum(row.supervised(limit) for row in rows.train)
    an_epoch = f"{tokens:,} tokens an epoch, {supervised:,} of them supervised"
    yield f"Data: {len(lengths):,} rows, {an_epoch}"
    epochs = settings.iters * settings.batch_size / len(lengths)
    # Batches left over are one more update; mlx-lm never applies them.
    is_partial = settings.extras.is_exact and settings.iters % every > 0
    updates = settings.iters // every - (start - 1) // every + is_partial
    batches = settings.iters - start + 1
    validated = -(-len(rows.valid) // settings.batch_size)
    if settings.val_batches != -1:
        validated = min(settings.val_batches, validated)
    validated *= 1 + batches // settings.steps_per_eval
    typical = tokens / len(lengths) * settings.batch_size / max(int(batch.spans[:, 1].sum()), 1)
    whole = duration(seconds * typical * (batches + FORWARD_SHARE * validated))
    yield f"Run: {updates:,} updates, {epochs:.2f} epochs, about {whole} ({seconds:.3f} s a batch)"
    if rows.left_out:
        yield f"Left out: {rows.left_out:,} rows without a token to learn from"
    if cut := sum(length > limit for length in lengths):
        yield f"Cut: {cut:,} rows are longer than the limit"


def _middling_batch(rows: TokenRows, settings: Settings) -> Batch:
    order = sorted(range(len(rows.train)), key=lambda index: len(rows.train[index].tokens))
    size = min(settings.batch_size, len(order))
    start = (len(order) - size) // 2
    indices = order[start : start + size]
    return collate(rows.train, indices, size, settings.max_seq_length, Worker())


def _time_batch(model: Any, loss: LossFunction, batch: Batch) -> float:
    """Seconds of a forward and backward pass, dropout off so that no random state is used."""
    model.eval()
    value_and_grad = nn.value_and_grad(model, loss)
    tokens, spans = mx.array(batch.tokens), mx.array(batch.spans)

    def once() -> float:
        begun = time.perf_counter()
        mx.eval(value_and_grad(model, tokens, spans))
        return time.perf_counter() - begun

    seconds = once()
    return once() if seconds < SHORT_STEP else seconds


def _notes(settings: Settings, rows: TokenRows) -> Iterator[str]:
    options = settings.optimizer_config.get(settings.optimizer) or {}
    if settings.optimizer == "adafactor" and options.get("relative_step", True):
        yield (
            "Adafactor takes its own relative steps and ignores learning_rate; "
            "set optimizer_config.adafactor.relative_step to false to change that"
        )
    if settings.report_to:
        yield f"report_to {settings.report_to} is not used: metrics.jsonl has the figures"
    if not rows.valid:
        yield "there are no validation rows: overfitting will not be seen"
    every = settings.grad_accumulation_steps
    if not settings.extras.is_exact and settings.iters % every:
        yield f"as in mlx-lm, the last {settings.iters % every} batches are never applied"
