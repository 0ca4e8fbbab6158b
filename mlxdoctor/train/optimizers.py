"""The optimizer and its schedule, as mlx-lm builds them."""

from __future__ import annotations

from typing import Any

import mlx.optimizers as optim
from mlx_lm.tuner.utils import build_schedule

from mlxdoctor.safety.errors import InputError
from mlxdoctor.train.settings import OPTIMIZERS, Settings


def build_optimizer(settings: Settings) -> Any:
    """The optimizer, not yet initialised, with the schedule's or the constant rate.

    Raises:
        InputError: the schedule or the optimizer's options are not MLX's.
    """
    kinds = (optim.Adam, optim.AdamW, optim.Muon, optim.SGD, optim.Adafactor)
    kind = dict(zip(OPTIMIZERS, kinds, strict=True))[settings.optimizer]
    options = settings.optimizer_config.get(settings.optimizer) or {}
    if "learning_rate" in options:
        problem = "optimizer_config states a learning_rate"
        raise InputError(None, problem, "state it at the top level")
    try:
        return kind(learning_rate=_rate(settings), **options)
    except (TypeError, ValueError) as error:
        problem = f"optimizer_config.{settings.optimizer} is not what MLX takes ({error})"
        raise InputError(None, problem) from None


def _rate(settings: Settings) -> Any:
    schedule = settings.lr_schedule
    if not schedule:
        return settings.learning_rate
    known = {"name", "arguments", "warmup", "warmup_init"}
    for key in sorted(set(schedule) - known):
        raise InputError(None, f"lr_schedule has the unknown key {key!r}", f"it takes {known}")
    try:
        rate = build_schedule(dict(schedule))
        rate(0)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        problem = f"lr_schedule is not one MLX has ({type(error).__name__}: {error})"
        remedy = "for example name: cosine_decay, arguments: [1e-4, 1000], warmup: 100"
        raise InputError(None, problem, remedy) from None
    return rate
