"""In which keys two training configurations differ, and a configuration between the two."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.mlx_lm_defaults import MLX_LM_DEFAULTS, MLX_LM_LORA_DEFAULTS
from mlxdoctor.evidence.run_files import resolve, resolve_file
from mlxdoctor.experiments.shared.recipe import Recipe, trainable_values, with_values
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError
from mlxdoctor.train import Settings

#: Keys that say where a run writes, how often it reports, or how it saves memory: a rerun
#: makes them its own, and they change nothing that is learned.
_BOOKKEEPING = frozenset(
    {
        *("adapter_path", "clear_cache_threshold", "config", "grad_checkpoint", "project_name"),
        *("report_to", "save_every", "seed", "steps_per_eval", "steps_per_report", "test"),
        *("test_batches", "train", "trust_remote_code", "val_batches", "mlxdoctor"),
    }
)
#: Tables whose keys are compared one by one.
_TABLES = ("lora_parameters",)
#: Keys that mlx-lm's defaults say something sound about, whatever the task.
_SUGGESTED = ("optimizer", "batch_size", "grad_accumulation_steps", "fine_tune_type")


@dataclass(frozen=True)
class Difference:
    """One key, dots entering tables, with its value in force in both configurations."""

    key: str
    failing: Any
    healthy: Any


@dataclass(frozen=True)
class Healthy:
    """A configuration to compare with.

    Attributes:
        name: what it is called.
        values: mlx-lm's keys.
    """

    name: str
    values: Mapping[str, Any]


def healthy_of(path: Path, recipe: Recipe) -> Healthy:
    """The configuration of a healthy run; base and data where it names some that are here.

    Args:
        path: a run's folder, or a configuration file.
        recipe: the failing run, whose base and data stand in for what is not here.

    Raises:
        InputError: there is no training configuration.
    """
    run = Run.discover([path], allow_model=False)
    config = run.get(TrainingConfig)
    if config is None or not config.describes_training:
        raise InputError(
            path,
            "has no configuration of mlx_lm.lora to compare with",
            "name the folder of a healthy run, or the file it was trained with",
        )
    values = trainable_values(config)
    for key, known in (("model", recipe.base), ("data", recipe.data)):
        named = values.get(key)
        found = resolve(str(named), run.files.roots, model=key == "model") if named else None
        values[key] = str(found.resolve() if found is not None else known)
    resumed = resolve_file(str(values.get("resume_adapter_file") or ""), run.files.roots)
    values["resume_adapter_file"] = str(resumed) if resumed is not None else None
    return Healthy(run.name, values)


def suggested(
    recipe: Recipe, usual: Mapping[str, tuple[float, float]], base: BaseModel | None
) -> Healthy:
    """A sound configuration for the run's own task, where no healthy run is at hand.

    mlx-lm's defaults for what does not depend on the task, and a rate in the middle of what
    is usual for a model of this size at that scale; what is learned, of what and for how
    long stays the run's.

    Args:
        usual: key -> the range of values that is usual for the model at the run's scale.
        base: the base model, for its number of layers.
    """
    config = recipe.config
    scale = MLX_LM_LORA_DEFAULTS["scale"]
    own = abs(config.scale if config.scale is not None else scale)
    step = (config.learning_rate or 0.0) * own
    if "learning_rate" in usual:
        step = math.sqrt(math.prod(usual["learning_rate"])) * own
    keys = config.values.get("lora_parameters") or {}
    layers = MLX_LM_DEFAULTS["num_layers"]
    values = {
        **recipe.values,
        **{key: MLX_LM_DEFAULTS[key] for key in _SUGGESTED},
        "learning_rate": float(f"{step / scale:.2g}"),
        "lr_schedule": None,
        "lora_parameters": {
            **MLX_LM_LORA_DEFAULTS,
            **({"keys": keys["keys"]} if "keys" in keys else {}),
        },
        "num_layers": -1 if base is not None and (base.num_layers or layers) < layers else layers,
        "max_seq_length": max(MLX_LM_DEFAULTS["max_seq_length"], config.max_seq_length or 0),
    }
    return Healthy("sound defaults", values)


def differences(failing: Mapping[str, Any], healthy: Mapping[str, Any]) -> tuple[Difference, ...]:
    """The keys with another value in force, mlx-lm's defaults filled in, in the order of names.

    Raises:
        InputError: a configuration has a value that mlx-lm would not take.
    """
    ours, theirs = _flat(failing), _flat(healthy)
    return tuple(
        Difference(key, ours.get(key), theirs.get(key))
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
    )


def between(
    values: Mapping[str, Any], chosen: Iterable[Difference], *, towards: str
) -> dict[str, Any]:
    """A configuration with the chosen keys as in the other one.

    Args:
        values: a configuration.
        towards: "failing" or "healthy": whose values the chosen keys get.
    """
    return with_values(values, {one.key: getattr(one, towards) for one in chosen})


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    stated = Settings.from_values({k: v for k, v in values.items() if k != "mlxdoctor"}).stated()
    optimizer = str(stated["optimizer"])
    flat: dict[str, Any] = {}
    for key, value in stated.items():
        if key in _BOOKKEEPING:
            continue
        if key in _TABLES and isinstance(value, Mapping):
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
        elif key == "optimizer_config":
            # Options of other optimizers are there for nothing.
            own = value.get(optimizer) if isinstance(value, Mapping) else None
            flat[key] = {optimizer: own} if own else {}
        else:
            flat[key] = value
    return flat
