"""Faults a configuration shows: rate, scale, limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mlxdoctor.train.faults.fault import Fault, fault
from mlxdoctor.train.parts import Parts
from mlxdoctor.train.settings import Settings


def rate(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Multiply the learning rate, and the peak of a schedule, which is its first argument."""
    factor, schedule = float(severity), settings.lr_schedule
    if schedule is not None:
        first, *others = schedule["arguments"]
        schedule = {**schedule, "arguments": [first * factor, *others]}
    changed = settings.learning_rate * factor
    return replace(settings, learning_rate=changed, lr_schedule=schedule), parts


RATE_TOO_HIGH = Fault(
    "rate-too-high",
    "learning-rate-too-high",
    "The learning rate is the severity times a sound one.",
    (10, 30, 100),
    rate,
)
RATE_TOO_LOW = Fault(
    "rate-too-low",
    "learning-rate-too-low",
    "The learning rate is the severity times a sound one; 0 is no rate at all.",
    (1e-2, 1e-4, 0),
    rate,
)


@fault("scale-too-large", "scale-too-large", 5, 10, 30)
def scale_too_large(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """The LoRA scale is the severity times a sound one, as when alpha is taken for it."""
    lora = dict(settings.lora_parameters or {})
    lora["scale"] = lora["scale"] * float(severity)
    return replace(settings, lora_parameters=lora), parts


@fault("answers-truncated", "answers-truncated", 0.9, 0.6, 0.25)
def answers_truncated(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Rows are cut this share of the way through the median answer."""
    _, tokenizer = parts.load(settings)
    rows = parts.encode(replace(settings, mask_prompt=True), tokenizer).train
    starts = np.median([row.offset for row in rows])
    ends = np.median([len(row.tokens) for row in rows])
    limit = round(float(starts + (ends - starts) * severity))
    return replace(settings, max_seq_length=limit), parts


@fault("no-validation-data", "no-validation-data", "none", harms="report")
def no_validation_data(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """No batch is validated on, so that the validation loss is 0/0."""
    del severity
    return replace(settings, val_batches=0), parts


@fault("half-precision-overflow", "numeric-overflow", 2.0**16, 2.0**20)
def half_precision(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Weights are float16 and the loss is multiplied by the severity without dividing again."""
    import mlx.core as mx

    def load(settings: Settings) -> tuple[Any, Any]:
        model, tokenizer = parts.load(settings)
        model.set_dtype(mx.float16)
        return model, tokenizer

    def scaled(model: Any, tokens: mx.array, spans: mx.array) -> tuple[mx.array, mx.array]:
        mean, supervised = parts.loss(model, tokens, spans)
        # The reported value stays the loss; its gradient is the multiple's.
        multiple = mean * severity
        return multiple - mx.stop_gradient(multiple - mean), supervised

    return settings, replace(parts, load=load, loss=scaled)
