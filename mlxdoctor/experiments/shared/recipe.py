"""How a run is made again: the settings of the reference trainer, from what the run left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.mlx_lm_defaults import MLX_LM_LORA_DEFAULTS
from mlxdoctor.evidence.run_files import resolve_file
from mlxdoctor.judge.rate import BandLimits, usual_rates
from mlxdoctor.report import Fix
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError
from mlxdoctor.train import Settings
from mlxdoctor.train.settings import TABLE

#: Keys that say where a run reported to, or what it ran besides training.
_LEFT_OUT = frozenset(
    {"config", "mlxdoctor", "report_to", "project_name", "test", "trust_remote_code", "wandb"}
)
_KNOWN = frozenset(one.name for one in fields(Settings)) - _LEFT_OUT


class NotReproducible(Exception):  # noqa: N818 - an answer, not an error
    """Raised where a run can't be made again; the reason is a clause."""


@dataclass(frozen=True)
class Recipe:
    """A run, ready to be made again.

    Attributes:
        config: the configuration as it was recorded.
        values: mlx-lm's keys of it, with base, data and files as they were found here.
        base: the base model's folder.
        data: the data folder.
        iterations: how long the run was to be.
        seed: its seed.
        ignored: keys that mlx-lm does not have, and that no rerun heeds.
    """

    config: TrainingConfig
    values: Mapping[str, Any]
    base: Path
    data: Path
    iterations: int
    seed: int
    ignored: tuple[str, ...]

    def settings(
        self, folder: Path, iterations: int, seed: int, values: Mapping[str, Any] | None = None
    ) -> Settings:
        """Settings of a rerun, which writes into `folder`: as mlx-lm, or as our own trainer.

        Args:
            values: to train with instead of those recorded.

        Raises:
            InputError: the reference trainer does not take a value.
        """
        stated = dict(self.values if values is None else values)
        # Where the configuration has a table of our own, our trainer made the run.
        own = self.config.values.get(TABLE)
        if isinstance(own, Mapping):
            own = {key: own.get(key) for key in ("mode", "grad_clip")}
        return Settings.from_values(
            {
                **stated,
                "adapter_path": str(folder),
                "iters": iterations,
                "seed": seed,
                "save_every": max(1, iterations // 2),
                "train": True,
                TABLE: own or {"mode": "parity"},
            },
            self.config.path,
        )


def recipe_of(run: Run) -> Recipe:
    """How to make a run again.

    Raises:
        NotReproducible: it left too little for that.
    """
    config = run.get(TrainingConfig)
    if config is None:
        raise NotReproducible(run.why_missing(TrainingConfig))
    if not config.describes_training:
        raise NotReproducible(
            f"{config.path.name} does not say how the run was trained; "
            "a configuration of mlx_lm.lora does"
        )
    if run.files.base is None or run.get(BaseModel) is None:
        raise NotReproducible(_why(run, BaseModel))
    if run.files.data is None or run.get(Dataset) is None:
        raise NotReproducible(_why(run, Dataset))
    values = trainable_values(config)
    if config.resume_adapter_file is not None:
        found = resolve_file(config.resume_adapter_file, run.files.roots)
        if found is None:
            raise NotReproducible(
                f"{config.resume_adapter_file}, which it was resumed from, is not here"
            )
        values["resume_adapter_file"] = str(found)
    base = run.files.base.resolve()
    data = (run.files.data if run.files.data.is_dir() else run.files.data.parent).resolve()
    recipe = Recipe(
        config=config,
        values={**values, "model": str(base), "data": str(data)},
        base=base,
        data=data,
        iterations=config.iters or Settings.iters,
        seed=config.seed or 0,
        ignored=tuple(sorted(config.values.keys() - _KNOWN - _LEFT_OUT)),
    )
    try:
        recipe.settings(Path("adapters"), 1, 0)
    except InputError as error:
        raise NotReproducible(f"the reference trainer does not take it: {error}") from None
    return recipe


def trainable_values(config: TrainingConfig) -> dict[str, Any]:
    """The keys of a configuration that the reference trainer knows and a rerun heeds."""
    values = {key: value for key, value in config.values.items() if key in _KNOWN}
    values.pop("hf_dataset", None)
    return values


def with_values(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with other values; a dot enters a table, which loses a key that is None."""
    changed = dict(values)
    for name, value in changes.items():
        table, _, key = name.rpartition(".")
        if not table:
            changed[key] = value
            continue
        stated = changed.get(table)
        default = MLX_LM_LORA_DEFAULTS if table == "lora_parameters" else {}
        inner = {**(stated if isinstance(stated, Mapping) else default), key: value}
        changed[table] = {
            name: old for name, old in inner.items() if name != key or old is not None
        }
    return changed


def changed_values(recipe: Recipe, fix: Fix) -> dict[str, Any]:
    """The recipe's values with a fix made, a schedule rescaled with its rate."""
    values = with_values(recipe.values, fix.after)
    schedule, rate = values.get("lr_schedule"), fix.after.get("learning_rate")
    if rate is not None and isinstance(schedule, Mapping):
        factor = float(rate) / float(fix.before["learning_rate"])
        values["lr_schedule"] = _rescaled(schedule, factor)
    return values


def _rescaled(schedule: Mapping[str, Any], factor: float) -> dict[str, Any]:
    arguments = schedule.get("arguments")
    if not isinstance(arguments, list) or not arguments:
        return dict(schedule)
    return {**schedule, "arguments": [arguments[0] * factor, *arguments[1:]]}


def usual_values(config: TrainingConfig, base: BaseModel | None) -> dict[str, tuple[float, float]]:
    """Key -> lowest and highest usual value; empty where the run is not one with LoRA."""
    rates = usual_rates(config, base, BandLimits())
    return {"learning_rate": rates} if rates is not None else {}


def _why(run: Run, kind: type[Any]) -> str:
    run.get(kind)
    return run.why_missing(kind)
