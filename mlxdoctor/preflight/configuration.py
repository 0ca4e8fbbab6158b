"""What is planned: a configuration's file, with the options of a command line over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mlxdoctor.evidence.config import CONFIG_NAME, TrainingConfig
from mlxdoctor.evidence.mlx_lm_defaults import MLX_LM_DEFAULTS
from mlxdoctor.evidence.sniffed import Sniffed
from mlxdoctor.safety.errors import InputError

#: What a plan without a file is called.
NO_FILE = Path("plan")


def is_plan(path: Path) -> bool:
    """Whether a file is a configuration to train with, and not what a run left behind.

    What trainers write beside an adapter is the latter.
    """
    if path.suffix.lower() not in (".yaml", ".yml", ".json") or path.name == CONFIG_NAME:
        return False
    if not path.is_file():
        return False
    file = Sniffed(path)
    # A log of JSON has rates in it as well, and names no model.
    names_model = path.suffix.lower() != ".json" or "model" in file.record
    return names_model and TrainingConfig.is_held_by(file)


def planned_config(file: Path | None, options: Mapping[str, Any]) -> TrainingConfig:
    """The configuration as `mlx_lm.lora` completes it: options go before the file's keys.

    Args:
        file: YAML or JSON, or a folder with an `adapter_config.json` or one configuration in it;
            None for options alone.
        options: mlx-lm's keys -> values; those that are None count as not stated.

    Raises:
        InputError: the file can't be read or is no training configuration, or there is neither
            a file nor an option.
    """
    stated = {key: value for key, value in options.items() if value is not None}
    if file is not None:
        config = TrainingConfig.read(_only_one(file) if file.is_dir() else file)
        if config.origin == "peft":
            raise InputError(
                file, "is a PEFT configuration", "name one with the keys of `mlx_lm.lora`"
            )
        if config.origin == "own" and stated:
            raise InputError(
                file,
                "keeps its keys in sections, and is not one that options of mlx_lm.lora go with",
                "change the file",
            )
        return replace(config, values=MappingProxyType({**config.values, **stated}))
    if not stated:
        raise InputError(
            None, "there is nothing to examine", "name a configuration, or --model and --data"
        )
    config = TrainingConfig((), NO_FILE, MappingProxyType(stated), "mlx-lm")
    if config.describes_training:
        return config
    # A configuration that says nothing of training is one of an adapter.
    optimizer = MLX_LM_DEFAULTS["optimizer"]
    return replace(config, values=MappingProxyType({**stated, "optimizer": optimizer}))


def _only_one(folder: Path) -> Path:
    """The configuration that a folder holds.

    Raises:
        InputError: it holds none or several.
    """
    written = folder / CONFIG_NAME
    try:
        found = [written] if written.exists() else list(filter(is_plan, sorted(folder.iterdir())))
    except OSError as error:
        raise InputError(folder, f"could not be read ({error.strerror})") from None
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(one.name for one in found[:3]) + (", ..." if len(found) > 3 else "")
        raise InputError(folder, f"holds {len(found)} configurations ({names})", "name one of them")
    raise InputError(folder, "holds no training configuration", "name its file")
