"""The keys of `mlx_lm.lora` 0.32.2: their defaults, what it needs of values, and other names.

The one copy in here, so that configuration, rows, trainer, checks and advice agree on it; a test
compares the defaults (`CONFIG_DEFAULTS`) with the mlx-lm that is installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

#: Under `lora_parameters`; the whole is used where it is not stated, and nothing of it elsewhere.
MLX_LM_LORA_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {"rank": 8, "dropout": 0.0, "scale": 20.0}
)
MLX_LM_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "fine_tune_type": "lora",
        "optimizer": "adam",
        "seed": 0,
        "num_layers": 16,
        "batch_size": 4,
        "iters": 1000,
        "val_batches": 25,
        "learning_rate": 1e-5,
        "steps_per_report": 10,
        "steps_per_eval": 200,
        "save_every": 100,
        "max_seq_length": 2048,
        "grad_accumulation_steps": 1,
        "mask_prompt": False,
    }
)
#: Where an adapter is written where nothing is stated.
MLX_LM_ADAPTER_PATH = "adapters"
#: Every key that `mlx_lm.lora` reads of a configuration; it passes over any other in silence.
MLX_LM_KEYS = frozenset(MLX_LM_DEFAULTS) | {
    "adapter_path",
    "chat_feature",
    "clear_cache_threshold",
    "completion_feature",
    "config",
    "data",
    "grad_checkpoint",
    "hf_dataset",
    "lora_parameters",
    "lr_schedule",
    "model",
    "optimizer_config",
    "project_name",
    "prompt_feature",
    "report_to",
    "resume_adapter_file",
    "test",
    "test_batches",
    "text_feature",
    "train",
    "trust_remote_code",
}
#: What other trainers, older releases and people call a key -> what mlx-lm calls it.
MEANT: Mapping[str, str] = {
    "lr": "learning_rate",
    "lora_layers": "num_layers",
    "lora_rank": "lora_parameters.rank",
    "rank": "lora_parameters.rank",
    "r": "lora_parameters.rank",
    "lora_scale": "lora_parameters.scale",
    "scale": "lora_parameters.scale",
    "alpha": "lora_parameters.scale",
    "lora_alpha": "lora_parameters.scale",
    "dropout": "lora_parameters.dropout",
    "lora_dropout": "lora_parameters.dropout",
    "target_modules": "lora_parameters.keys",
    "keys": "lora_parameters.keys",
    "lora_keys": "lora_parameters.keys",
    "epochs": "iters",
    "num_epochs": "iters",
    "num_train_epochs": "iters",
    "max_steps": "iters",
    "steps": "iters",
    "train_type": "fine_tune_type",
    "use_dora": "fine_tune_type",
    "gradient_accumulation_steps": "grad_accumulation_steps",
    "gradient_checkpointing": "grad_checkpoint",
    "per_device_train_batch_size": "batch_size",
    "max_length": "max_seq_length",
    "max_tokens": "max_seq_length",
    "scheduler": "lr_schedule",
    "lr_scheduler_type": "lr_schedule",
    "warmup": "lr_schedule",
    "warmup_steps": "lr_schedule",
    "weight_decay": "optimizer_config",
    "train_on_responses_only": "mask_prompt",
}
OPTIMIZERS = ("adam", "adamw", "muon", "sgd", "adafactor")
#: Schedule -> how many arguments it takes.
SCHEDULES = {
    "cosine_decay": (2, 3),
    "exponential_decay": (2,),
    "linear_schedule": (3,),
    "step_decay": (3,),
}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Need(NamedTuple):
    """Whether mlx-lm takes a value, and what it takes, as in "set iters to ..."."""

    holds: Callable[[Any], bool]
    text: str


def _whole(least: int) -> Need:
    needed = f"a whole number from {max(least, 0)} on" + (", or -1 for all" if least == -1 else "")
    return Need(lambda value: type(value) is int and value >= least, needed)


def _among(*names: str) -> Need:
    return Need(lambda value: value in names, f"one of {', '.join(names)}")


def _table(what: str) -> Need:
    return Need(lambda value: isinstance(value, Mapping), f"a table with {what}")


def is_numbers(arguments: Any) -> bool:
    """Whether it is a list of numbers that is not empty."""
    return isinstance(arguments, list) and bool(arguments) and all(map(_is_number, arguments))


#: Place in the configuration -> whether mlx-lm takes a value that is stated, and what it needs.
NEEDS: Mapping[str, Need] = {
    "num_layers": _whole(-1),
    "batch_size": _whole(1),
    "iters": _whole(1),
    "val_batches": _whole(-1),
    "steps_per_report": _whole(1),
    "steps_per_eval": _whole(1),
    "save_every": _whole(1),
    "max_seq_length": _whole(2),
    "grad_accumulation_steps": _whole(1),
    "seed": _whole(0),
    "learning_rate": Need(_is_number, "a number"),
    "optimizer": _among(*OPTIMIZERS),
    "fine_tune_type": _among("lora", "dora", "full"),
    "lr_schedule": _table("name and arguments"),
    "lr_schedule.name": _among(*SCHEDULES),
    "lr_schedule.arguments": Need(is_numbers, "a list of numbers, the rate first"),
    "lora_parameters": _table("rank, scale and dropout"),
    "lora_parameters.rank": _whole(1),
    "lora_parameters.scale": Need(lambda x: _is_number(x) and abs(x) < math.inf, "a finite number"),
    "lora_parameters.dropout": Need(
        lambda x: _is_number(x) and 0 <= x < 1,
        "a number from 0 to below 1",
    ),
    "lora_parameters.keys": Need(
        lambda x: isinstance(x, list | tuple) and all(isinstance(key, str) for key in x),
        "a list of names",
    ),
}
