"""How a run is made again: the settings of the reference trainer, from what the run left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.kind import Missing
from mlxdoctor.evidence.run_files import resolve, resolve_file
from mlxdoctor.judge.rate import BandLimits, usual_rates
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError
from mlxdoctor.train import Settings
from mlxdoctor.train.settings import TABLE

#: Keys that say where a run reported to, what it ran besides training, or where rows are hosted.
_LEFT_OUT = frozenset(
    {"config", "hf_dataset", "mlxdoctor", "report_to", "project_name", "test"}
    | {"trust_remote_code", "wandb"}
)
_KEYS = frozenset(one.name for one in fields(Settings) if not one.metadata["ours"]) - _LEFT_OUT


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
        # Where the configuration has a table of our own, our trainer made the run.
        own = self.config.values.get(TABLE)
        if isinstance(own, Mapping):
            own = {key: own.get(key) for key in ("mode", "grad_clip")}
        return Settings.from_values(
            {
                **(self.values if values is None else values),
                "adapter_path": str(folder),
                "iters": iterations,
                "seed": seed,
                "save_every": max(1, iterations // 2),
                "train": True,
                TABLE: own or {"mode": "parity"},
            },
            self.config.path,
        )

    def named_base(self, run: Run) -> Path | None:
        """The folder of the base that the run's own configuration names; None: not here."""
        named = self.config.model
        found = resolve(named, run.files.roots, model=True) if named is not None else None
        return found.resolve() if found is not None else None


def recipe_of(run: Run) -> Recipe:
    """How to make a run again.

    Raises:
        Missing: it left too little for that.
    """
    config, model, dataset = run.need(TrainingConfig), run.need(BaseModel), run.need(Dataset)
    if not config.describes_training:
        raise Missing(
            f"{config.path.name} does not say how the run was trained; "
            "a configuration of mlx_lm.lora does"
        )
    values = {key: value for key, value in config.values.items() if key in _KEYS}
    if config.resume_adapter_file is not None:
        path = resolve_file(config.resume_adapter_file, run.files.roots)
        if path is None:
            raise Missing(f"{config.resume_adapter_file}, which it was resumed from, is not here")
        values["resume_adapter_file"] = str(path)
    base = model.path.resolve()
    data = (dataset.path if dataset.path.is_dir() else dataset.path.parent).resolve()
    recipe = Recipe(
        config=config,
        values={**values, "model": str(base), "data": str(data)},
        base=base,
        data=data,
        iterations=config.iters or Settings.iters,
        seed=config.seed or 0,
        ignored=tuple(sorted(config.values.keys() - _KEYS - _LEFT_OUT)),
    )
    try:
        recipe.settings(Path("adapters"), 1, 0)
    except InputError as error:
        raise Missing(f"the reference trainer does not take it: {error}") from None
    return recipe


def usual_values(config: TrainingConfig, base: BaseModel | None) -> dict[str, tuple[float, float]]:
    """Key -> lowest and highest usual value; empty where the run is not one with LoRA."""
    rates = usual_rates(config, base, BandLimits())
    return {"learning_rate": rates} if rates is not None else {}
