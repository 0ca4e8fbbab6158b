"""One adapter in, the files of the other library's adapter folder out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

from mlxdoctor.convert.mlx_format import from_mlx, to_mlx
from mlxdoctor.convert.peft_format import from_peft, to_peft
from mlxdoctor.convert.portable import LIBRARY_NAMES, Library, require_fit
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.run_files import resolve
from mlxdoctor.evidence.tensor import count_nonfinite
from mlxdoctor.safety.errors import InputError

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Conversion:
    """An adapter in the other library's format, not yet written.

    Attributes:
        source: the adapter's folder.
        target: the library the files are for.
        files: name -> content of every file of the folder.
        modules: how many modules are adapted.
        layers: in how many layers.
        ranks: the source's ranks, ascending.
        scales: the source's scales, ascending.
        dtypes: the types of the stored numbers.
        base: the base model's folder that names and shapes were compared with, or None.
        notes: sentences on what is not carried over as it is, and why nothing is lost.
    """

    source: Path
    target: Library
    files: Mapping[str, bytes]
    modules: int
    layers: int
    ranks: tuple[int, ...]
    scales: tuple[float, ...]
    dtypes: tuple[str, ...]
    base: Path | None
    notes: tuple[str, ...]


def convert(path: Path, target: Library | None = None, model: str | None = None) -> Conversion:
    """Convert an adapter, in memory: every number keeps its bits.

    Args:
        path: the adapter's folder or file, with an adapter_config.json beside it.
        target: the library to convert to; by default the one it is not from.
        model: the base model, a folder or a hub name; by default the one that the
            configuration names, looked for on this machine.

    Raises:
        InputError: the adapter is unusable, or cannot be carried over without loss.
    """
    adapter = Adapter.read(path)
    config = TrainingConfig.read(adapter.path.parent)
    _require_whole(adapter, config)
    source: Library = "peft" if config.origin == "peft" else "mlx"
    if target is None:
        target = "mlx" if source == "peft" else "peft"
    if target == source:
        raise InputError(path, f"is an adapter of {LIBRARY_NAMES[source]} already")
    base = _base(model, config, adapter)
    read = from_peft if source == "peft" else from_mlx
    portable = read(adapter, config, base)
    figures = (portable.dropout, *(module.scale for module in portable.modules))
    if not all(map(isfinite, figures)):
        raise InputError(config.path, "states a scale or a dropout that is not a finite number")
    require_fit(portable, base, target)
    if model is not None:
        portable = replace(portable, model=model)
    files, changes = (to_mlx if target == "mlx" else to_peft)(portable, base)
    return Conversion(
        source=adapter.folder,
        target=target,
        files=files,
        modules=len(adapter.modules),
        layers=len({module.layer for module in adapter.modules} - {None}),
        ranks=tuple(sorted({module.rank for module in portable.modules})),
        scales=tuple(sorted({module.scale for module in portable.modules})),
        dtypes=adapter.dtypes,
        base=base.path if base is not None else None,
        notes=(*changes, *portable.notes, *_warnings(adapter, base)),
    )


def _require_whole(adapter: Adapter, config: TrainingConfig) -> None:
    if adapter.not_float:
        raise InputError(
            adapter.path,
            f"has no floating-point factors for {adapter.not_float[0]}",
            "save the adapter in float32, float16 or bfloat16",
        )
    if not adapter.modules:
        raise InputError(
            adapter.path, "holds no pair of LoRA factors", "there is nothing to convert"
        )
    if broken := adapter.unpaired or adapter.mismatched:
        raise InputError(
            adapter.path,
            f"{broken[0]} has no partner, or none that it can be multiplied with",
            "the adapter is incomplete",
        )
    if second := [module.name for module in adapter.others if ".lora_" in module.name]:
        raise InputError(
            adapter.path,
            f"{second[0]} is a factor of a module that has another in its place",
            "keep one adapter a file",
        )
    if empty := [module.name for module in adapter.modules if not module.rank]:
        raise InputError(adapter.path, f"{empty[0]} has rank 0", "there is nothing to convert")
    if adapter.naming != config.origin:
        raise InputError(
            adapter.path,
            f"has the names of {adapter.naming}, but {config.path.name} is of {config.origin}",
            "put the configuration that was saved with it beside it",
        )


def _base(model: str | None, config: TrainingConfig, adapter: Adapter) -> BaseModel | None:
    named = model or config.model
    if named is None:
        return None
    found = resolve(named, () if model else (adapter.folder,), model=True)
    if found is None and model is not None and (Path(model).exists() or not _is_hub_name(model)):
        raise InputError(
            model, "is not a model's folder", "it has no config.json with .safetensors weights"
        )
    return BaseModel.read(found) if found is not None else None


def _is_hub_name(name: str) -> bool:
    return _HUB_NAME.fullmatch(name) is not None and not name.startswith(".")


def _warnings(adapter: Adapter, base: BaseModel | None) -> tuple[str, ...]:
    found = []
    if nonfinite := sum(map(count_nonfinite, adapter.tensors.values())):
        found.append(f"{nonfinite:,} values are NaN or infinite, and are carried over as they are")
    if base is None:
        found.append("no base model was found to compare names and shapes with; see --base")
    elif base.quantization is not None:
        found.append(
            "the base model is quantised: on other weights the same adapter gives other answers"
        )
    return tuple(found)
