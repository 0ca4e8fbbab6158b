"""One adapter in, the files of the other library's adapter folder out."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.numpy import save

from mlxdoctor.convert.libraries import LIBRARIES, Library
from mlxdoctor.convert.refusals import require_convertible
from mlxdoctor.evidence.adapter import Adapter, layer_of
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.quantized import quantization_stated
from mlxdoctor.evidence.run_files import resolve
from mlxdoctor.evidence.tensor import count_nonfinite
from mlxdoctor.measure.weights.adapter_facts import module_scale
from mlxdoctor.safety.errors import InputError

_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")


@dataclass(frozen=True)
class Conversion:
    """An adapter in the other library's format, not yet written.

    Attributes:
        source: the adapter's folder.
        files: name -> content of every file of the folder.
        base: the base model's folder that names and shapes were compared with, or None.
        notes: sentences on what is not carried over as it is, and why nothing is lost.
    """

    source: Path
    target: Library
    files: Mapping[str, bytes]
    summary: str
    base: Path | None
    notes: tuple[str, ...]


def convert(path: Path, model: str | None = None) -> Conversion:
    """Convert an adapter to the library it is not from, in memory: every number keeps its bits.

    Args:
        path: the adapter's folder or file, with an adapter_config.json beside it.
        model: the base model, a folder or a hub name; by default that of the configuration.

    Raises:
        InputError: the adapter is unusable, or cannot be carried over without loss.
    """
    adapter = Adapter.read(path)
    config = TrainingConfig.read(adapter.path.parent)
    source: Library = "peft" if config.origin == "peft" else "mlx"
    target: Library = "mlx" if source == "peft" else "peft"
    base = _base(model, config, adapter)
    require_convertible(adapter, config, base, source)
    # All modules have one rank and one scale, as mlx-lm has them.
    first = adapter.modules[0]
    stated = _for_mlx if target == "mlx" else _for_peft
    settings = stated(adapter, config, model or config.model)
    notes = tuple(_warnings(adapter, base))
    there = LIBRARIES[target]
    files = {
        "adapter_config.json": (json.dumps(settings, indent=4) + "\n").encode(),
        there.file: save(there.tensors(adapter), {"format": there.metadata}),
    }
    layers = {module.layer for module in adapter.modules} - {None}
    summary = (
        f"{len(adapter.modules)} modules in {len(layers)} layers, "
        f"rank {first.rank}, scale {module_scale(first, config):g}, "
        f"{'/'.join(adapter.dtypes)}, nothing rounded"
    )
    beside = base.path if base is not None else None
    return Conversion(adapter.path.parent, target, files, summary, beside, notes)


def _base(model: str | None, config: TrainingConfig, adapter: Adapter) -> BaseModel | None:
    named = model or config.model
    if named is None:
        return None
    folder = resolve(named, () if model else (adapter.path.parent,), model=True)
    if folder is not None:
        return BaseModel.read(folder)
    if model is not None and (Path(model).exists() or not _HUB_NAME.fullmatch(model)):
        raise InputError(
            model, "is not a model's folder", "it has no config.json with .safetensors weights"
        )
    return None


def _warnings(adapter: Adapter, base: BaseModel | None) -> Iterator[str]:
    if nonfinite := sum(map(count_nonfinite, adapter.tensors.values())):
        yield f"{nonfinite:,} values are NaN or infinite, and are carried over as they are"
    if base is None:
        yield "no base model was found to compare names and shapes with; see --base"
    elif quantization_stated(base.config) is not None:
        yield "the base model is quantised: on other weights the same adapter gives other answers"


def _for_mlx(adapter: Adapter, config: TrainingConfig, model: str | None) -> dict[str, Any]:
    """The settings as mlx-lm states them."""
    layers = {layer_of(module.name)[0] for module in adapter.modules} - {None}
    return {
        "fine_tune_type": config.fine_tune_type,
        "lora_parameters": {
            "dropout": config.dropout or 0.0,
            # Whole names are looked up in the whole model, whatever `num_layers` is.
            "keys": [module.name for module in adapter.modules],
            "rank": adapter.modules[0].rank,
            "scale": module_scale(adapter.modules[0], config),
        },
        "model": model,
        "num_layers": max(len(layers), 1),
    }


def _for_peft(adapter: Adapter, config: TrainingConfig, model: str | None) -> dict[str, Any]:
    """The settings as PEFT states them."""
    # lora_alpha / r is the scale in single precision, in which both libraries multiply. A whole
    # alpha is an integer, as PEFT declares it.
    rank = adapter.modules[0].rank
    alpha = module_scale(adapter.modules[0], config) * rank
    return {
        "base_model_name_or_path": model,
        "bias": "none",
        "inference_mode": True,
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
        "lora_dropout": config.dropout or 0.0,
        "peft_type": "LORA",
        "r": rank,
        "target_modules": [module.name for module in adapter.modules],
        "task_type": "CAUSAL_LM",
        "use_dora": config.fine_tune_type == "dora",
    }
