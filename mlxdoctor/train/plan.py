"""What a run is about to do, worked out before its first step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mlx.utils import tree_flatten

from mlxdoctor.models.parameters import count_parameters
from mlxdoctor.train.settings import Settings
from mlxdoctor.train.token_rows import TokenRows


@dataclass(frozen=True)
class Plan:
    """A run before its first step.

    Attributes:
        trainable: component -> parameters that will be trained; layers taken together.
        frozen: component -> parameters that stay; quantized ones counted unpacked.
        optimizer_bytes: memory of the optimizer's state, bytes.
        lines: these, the data, and what may surprise, for a person.
    """

    trainable: Mapping[str, int]
    frozen: Mapping[str, int]
    optimizer_bytes: int
    lines: tuple[str, ...]


def make_plan(settings: Settings, model: Any, optimizer: Any, rows: TokenRows) -> Plan:
    """Count what will be trained, with which memory, on what.

    Args:
        optimizer: initialised.
    """
    trainable, frozen = count_parameters(model)
    optimizer_bytes = sum(one.nbytes for _, one in tree_flatten(optimizer.state))
    few, many = sum(trainable.values()), sum(frozen.values())
    share = 100 * few / max(few + many, 1)
    lines = (
        f"Trainable parameters: {share:.3f}% ({few / 1e6:.3f}M/{(few + many) / 1e6:.3f}M)",
        *(f"  trained  {count:>15,}  {name}" for name, count in trainable.items()),
        *(f"  frozen   {count:>15,}  {name}" for name, count in frozen.items()),
        f"Optimizer state: {optimizer_bytes / 1e6:,.1f} MB",
        *_of_data(settings, rows),
        *(f"Note: {note}" for note in _notes(settings, rows)),
    )
    return Plan(trainable, frozen, optimizer_bytes, lines)


def _of_data(settings: Settings, rows: TokenRows) -> Iterator[str]:
    limit, every = settings.max_seq_length, settings.grad_accumulation_steps
    lengths = [len(row.tokens) for row in rows.train]
    tokens = sum(min(length, limit) for length in lengths)
    supervised = sum(row.supervised(limit) for row in rows.train)
    an_epoch = f"{tokens:,} tokens an epoch, {supervised:,} of them supervised"
    yield f"Data: {len(lengths):,} rows, {an_epoch}"
    epochs = settings.iters * settings.batch_size / len(lengths)
    # Batches left over are one more update; mlx-lm never applies them.
    updates = settings.iters // every + (settings.is_exact and settings.iters % every > 0)
    yield f"Run: {updates:,} updates, {epochs:.2f} epochs"
    if rows.left_out:
        yield f"Left out: {rows.left_out:,} rows without a token to learn from"
    if cut := sum(length > limit for length in lengths):
        yield f"Cut: {cut:,} rows are longer than the limit"


def _notes(settings: Settings, rows: TokenRows) -> Iterator[str]:
    options = settings.optimizer_config.get(settings.optimizer) or {}
    if settings.optimizer == "adafactor" and options.get("relative_step", True):
        yield (
            "Adafactor takes its own relative steps and ignores learning_rate; "
            "set optimizer_config.adafactor.relative_step to false to change that"
        )
    if not rows.valid:
        yield "there are no validation rows: overfitting will not be seen"
    every = settings.grad_accumulation_steps
    if not settings.is_exact and settings.iters % every:
        yield f"as in mlx-lm, the last {settings.iters % every} batches are never applied"
