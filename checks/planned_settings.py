"""Whether mlx-lm would take the settings of a run that is planned, and do what they ask for.

What it finds. Before a run: keys that mlx-lm does not know and passes over in silence, so that its
own defaults hold in their place, and values that it stops at.

Why it matters. `mlx_lm.lora` reads the keys that it knows and ignores the others without a word:
`learning-rate`, `epochs` or a `rank` at the top level train at its defaults. What it does stop at
it often finds after the model has been loaded and the rows were tokenized.

How it is measured. From the configuration alone, by what mlx-lm 0.32.2 does with each key; the
number of layers comes from the base model's files, where they are here.

When it is wrong. A later mlx-lm may know more keys, and a trainer of one's own has its own.

What to do. What the finding says: each names the key, and what to write.
"""

import math
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from mlxdoctor.check import DoesNotArise, check
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.mlx_lm_defaults import MLX_LM_DEFAULTS, MLX_LM_KEYS
from mlxdoctor.evidence.planned_run import PlannedRun
from mlxdoctor.finding import Sign, Symptom
from mlxdoctor.safety.quoting import quoted

#: What other trainers, older releases and people call a key -> what mlx-lm calls it.
_MEANT = {
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
_OPTIMIZERS = ("adam", "adamw", "muon", "sgd", "adafactor")
_TYPES = ("lora", "dora", "full")
_SCHEDULES = ("cosine_decay", "exponential_decay", "linear_schedule", "step_decay")
#: Keys whose values are whole numbers -> the smallest that makes sense.
_WHOLE = {
    "num_layers": -1,
    "batch_size": 1,
    "iters": 1,
    "val_batches": -1,
    "steps_per_report": 1,
    "steps_per_eval": 1,
    "save_every": 1,
    "max_seq_length": 2,
    "grad_accumulation_steps": 1,
    "seed": 0,
}
_LORA = frozenset({"rank", "scale", "dropout", "keys"})


@check(
    codes={
        "ignored": Symptom.error(
            "mlx-lm does not know a key, and would train with its own default in its place",
            expected="keys of mlx_lm.lora",
        ),
        "unknown": Symptom.info("mlx-lm passes over a key", expected="keys of mlx_lm.lora"),
        "refused": Symptom.error(
            "mlx-lm would stop at a setting", expected="a value that it takes"
        ),
    },
)
def planned_settings(planned: PlannedRun, *, base: BaseModel | None) -> Iterator[Sign]:
    """Go through the settings as mlx-lm would."""
    config = planned.config
    if config.origin != "mlx-lm":
        raise DoesNotArise("the configuration is not one of mlx_lm.lora")
    yield from _keys(config)
    yield from _refused(config, base)


def _keys(config: TrainingConfig) -> Iterator[Sign]:
    values = config.values
    # `mlxdoctor` is the reference trainer's own table.
    strange = [one for one in values if one not in MLX_LM_KEYS and one != "mlxdoctor"]
    for key in strange:
        meant = _meant(key)
        stated = _at(values, meant) is not None if meant else True
        if not meant or stated:
            yield Sign(
                "unknown",
                f"mlx_lm.lora has no key {quoted(key)}, and passes over it.",
                {"key": key},
                where=key,
            )
            continue
        default = MLX_LM_DEFAULTS.get(meant, "its own default")
        yield Sign(
            "ignored",
            f"mlx_lm.lora has no key {quoted(key)} and passes over it: it would train with "
            f"{meant} {default if meant in MLX_LM_DEFAULTS else 'at its default'}.",
            {"key": key, "meant": meant},
            where=key,
            fix=f"write {meant} instead of {key}{_beside(key, meant)}",
        )
    lora = values.get("lora_parameters")
    for key in lora if isinstance(lora, Mapping) else ():
        if key not in _LORA:
            yield Sign(
                "unknown",
                f"mlx_lm.lora has no key {quoted(str(key))} in lora_parameters, and passes over "
                "it.",
                {"key": f"lora_parameters.{key}"},
                where=f"lora_parameters.{key}",
            )


def _meant(key: str) -> str:
    plain = key.lower().replace("-", "_").strip()
    if plain in MLX_LM_KEYS:
        return plain
    if plain in _MEANT:
        return _MEANT[plain]
    close = get_close_matches(plain, MLX_LM_KEYS, n=1, cutoff=0.85)
    return close[0] if close else ""


def _beside(key: str, meant: str) -> str:
    if meant == "iters" and "epoch" in key:
        return ": rows / batch_size iterations are one pass over the rows"
    if meant == "lora_parameters.scale" and "alpha" in key:
        return ": alpha / rank"
    return ""


def _at(values: Mapping[str, Any], place: str) -> Any:
    found: Any = values
    for part in place.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _refused(config: TrainingConfig, base: BaseModel | None) -> Iterator[Sign]:
    values = config.values
    for key, least in _WHOLE.items():
        value = values.get(key)
        if value is not None and not (_is_whole(value) and value >= least):
            needed = "a whole number" if least == -1 else f"a whole number from {least} on"
            yield _stop(key, value, needed)
    rate = values.get("learning_rate")
    if rate is not None and config.lr_schedule is None and not _is_number(rate):
        yield _stop("learning_rate", rate, "a number")
    for key, allowed in (("optimizer", _OPTIMIZERS), ("fine_tune_type", _TYPES)):
        value = values.get(key)
        name = value.lower() if key == "optimizer" and isinstance(value, str) else value
        if value is not None and name not in allowed:
            yield _stop(key, value, f"one of {', '.join(allowed)}")
    yield from _lora(config)
    yield from _schedule(values.get("lr_schedule"))
    layers = base.num_layers if base is not None else None
    wanted = config.num_layers
    if layers is not None and wanted is not None and wanted > layers:
        stated = (
            f"num_layers is {wanted}"
            if not config.is_default("num_layers")
            else (f"num_layers is {wanted}, mlx-lm's default")
        )
        yield Sign(
            "refused",
            f"{stated}, and the base model has {layers} layers: mlx-lm stops there.",
            {"num_layers": wanted, "layers": layers, "advised_num_layers": -1},
            where="num_layers",
            fix="set num_layers to -1, which is all of them",
        )


def _lora(config: TrainingConfig) -> Iterator[Sign]:
    lora = config.values.get("lora_parameters")
    if config.fine_tune_type == "full" or lora is None:
        return
    if not isinstance(lora, Mapping):
        yield _stop("lora_parameters", lora, "a table with rank, scale and dropout")
        return
    for key, is_right, needed in (
        ("rank", lambda one: _is_whole(one) and one > 0, "a whole number above zero"),
        ("scale", lambda one: _is_number(one) and math.isfinite(one), "a number"),
        ("dropout", lambda one: _is_number(one) and 0 <= one < 1, "a number from 0 to below 1"),
    ):
        if key not in lora:
            hint = ""
            if key == "scale" and "alpha" in lora:
                hint = "; it has alpha, which PEFT divides by the rank"
            yield Sign(
                "refused",
                f"lora_parameters has no {key}{hint}: mlx-lm stops there, as it fills in the whole "
                "table or nothing.",
                {"key": f"lora_parameters.{key}"},
                where=f"lora_parameters.{key}",
                fix=f"add {key} to lora_parameters: "
                f"{ {'rank': 8, 'scale': 20.0, 'dropout': 0.0}[key]:g} is mlx-lm's own",
            )
        elif not is_right(lora[key]):
            yield _stop(f"lora_parameters.{key}", lora[key], needed)
    keys = lora.get("keys")
    if keys is not None and not (
        isinstance(keys, list) and all(isinstance(one, str) for one in keys)
    ):
        yield _stop("lora_parameters.keys", keys, "a list of names")


def _schedule(schedule: object) -> Iterator[Sign]:
    if schedule is None:
        return
    if not isinstance(schedule, Mapping):
        yield _stop("lr_schedule", schedule, "a table with name and arguments")
        return
    name, arguments = schedule.get("name"), schedule.get("arguments")
    if name not in _SCHEDULES:
        yield _stop("lr_schedule.name", name, f"one of {', '.join(_SCHEDULES)}")
    elif not isinstance(arguments, list) or not arguments or not all(map(_is_number, arguments)):
        yield _stop("lr_schedule.arguments", arguments, "a list of numbers, the rate first")
    elif not (2 <= len(arguments) <= 3) or (name in _SCHEDULES[2:] and len(arguments) != 3):
        count = "three" if name in _SCHEDULES[2:] else "two"
        yield _stop("lr_schedule.arguments", arguments, f"a list of {count} numbers")


def _stop(key: str, value: object, needed: str) -> Sign:
    return Sign(
        "refused",
        f"{key} is {quoted(str(value))}, where mlx-lm needs {needed}.",
        {"key": key},
        where=key,
        expected=needed,
        fix=f"set {key} to {needed}",
    )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
