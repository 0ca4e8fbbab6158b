"""Faults a configuration shows: rate, scale, limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from mlxdoctor.train.faults.fault import Fault
from mlxdoctor.train.parts import Parts, parts_of
from mlxdoctor.train.settings import Settings


def with_settings(settings: Settings, parts: Parts, **changes: Any) -> tuple[Settings, Parts]:
    """Changed settings, and parts that batch as they say.

    Batch makers know the limit, the batch size and the seed they were made with: those of
    the mode are made again, what else was replaced is kept.
    """
    changed = replace(settings, **changes)
    fresh = parts_of(changed)
    kept = replace(
        parts, train_batches=fresh.train_batches, evaluation_batches=fresh.evaluation_batches
    )
    return changed, kept


def scaled_schedule(settings: Settings, factor: float) -> dict[str, Any] | None:
    """The schedule with its peak, which is its first argument, times a factor."""
    if settings.lr_schedule is None:
        return None
    schedule = dict(settings.lr_schedule)
    first, *others = schedule["arguments"]
    return {**schedule, "arguments": [first * factor, *others]}


def rate(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Multiply the learning rate, that of a schedule as well."""
    factor = float(severity)
    return with_settings(
        settings,
        parts,
        learning_rate=settings.learning_rate * factor,
        lr_schedule=scaled_schedule(settings, factor),
    )


def scale(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Multiply the LoRA scale."""
    lora = dict(settings.lora_parameters or {})
    lora["scale"] = lora["scale"] * float(severity)
    return with_settings(settings, parts, lora_parameters=lora)


def shortened(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Cut rows off: the limit is put this share of the way from prompt to end of the median row."""
    _, tokenizer = parts.load(settings)
    rows = parts.encode(replace(settings, mask_prompt=True), tokenizer).train
    starts = np.median([row.offset for row in rows])
    ends = np.median([len(row.tokens) for row in rows])
    limit = round(float(starts + (ends - starts) * severity))
    return with_settings(settings, parts, max_seq_length=limit)


def no_validation(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Validate on no batches at all: the reported loss is 0/0."""
    del severity
    return with_settings(settings, parts, val_batches=0)


def half_precision(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Run in float16, with the loss multiplied against underflow, and never divided again."""
    import mlx.core as mx

    load: Callable[[Settings], tuple[Any, Any]] = parts.load
    loss = parts.loss

    def load_half(settings: Settings) -> tuple[Any, Any]:
        model, tokenizer = load(settings)
        model.set_dtype(mx.float16)
        return model, tokenizer

    def scaled(model: Any, tokens: mx.array, spans: mx.array) -> tuple[mx.array, mx.array]:
        mean, supervised = loss(model, tokens, spans)
        # The reported value stays the loss; its gradient is the multiple's.
        multiple = mean * severity
        return multiple - mx.stop_gradient(multiple - mean), supervised

    return settings, replace(parts, load=load_half, loss=scaled)


FAULTS = (
    Fault(
        "rate-too-high",
        "learning-rate-too-high",
        "The learning rate is the severity times a sound one.",
        (10, 30, 100),
        rate,
    ),
    Fault(
        "rate-too-low",
        "learning-rate-too-low",
        "The learning rate is the severity times a sound one; 0 is no rate at all.",
        (1e-2, 1e-4, 0),
        rate,
    ),
    Fault(
        "scale-too-large",
        "scale-too-large",
        "The LoRA scale is the severity times a sound one, as when alpha is taken for it.",
        (5, 10, 30),
        scale,
    ),
    Fault(
        "answers-truncated",
        "answers-truncated",
        "Rows are cut this share of the way through the median answer.",
        (0.9, 0.6, 0.25),
        shortened,
    ),
    Fault(
        "no-validation-data",
        "no-validation-data",
        "No batch is validated on, so that the validation loss is 0/0.",
        ("none",),
        no_validation,
        harms="report",
    ),
    Fault(
        "half-precision-overflow",
        "numeric-overflow",
        "Weights are float16 and the loss is multiplied by the severity without dividing again.",
        (2.0**16, 2.0**20),
        half_precision,
    ),
)
