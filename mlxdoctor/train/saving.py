"""What a run leaves: adapter and configuration as mlx-lm names them; its state, to go on from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path

from mlxdoctor.measure.training_step.state import restore_random
from mlxdoctor.safety.atomic import replace_file
from mlxdoctor.safety.errors import InputError
from mlxdoctor.train.attach import require_same
from mlxdoctor.train.settings import Settings
from mlxdoctor.train.step import Accumulated
from mlxdoctor.train.stopping import TrainingProgress

ADAPTER_FILE = "adapters.safetensors"
CONFIG_FILE = "adapter_config.json"
METRICS_FILE = "metrics.jsonl"
STATE_FILE = "state.safetensors"
#: Of the layout of a state file.
STATE_VERSION = "1"

#: Settings that must not change when a run is continued: they decide what the saved state means.
_FIXED = (
    *("fine_tune_type", "optimizer", "optimizer_config", "seed", "num_layers", "batch_size"),
    *("grad_accumulation_steps", "learning_rate", "lr_schedule", "lora_parameters"),
    *("max_seq_length", "mask_prompt"),
)


def write_config(settings: Settings) -> None:
    """Write `adapter_config.json` with mlx-lm's keys, sorted, as mlx-lm does.

    Raises:
        InputError: the folder cannot be made or written.
    """
    folder = Path(settings.adapter_path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(settings.stated(), indent=4, sort_keys=True)
        replace_file(folder / CONFIG_FILE, f"{text}\n".encode())
    except OSError as error:
        raise InputError(folder, f"cannot be written ({error.strerror})") from None


def write_adapter(settings: Settings, model: Any, iteration: int | None) -> None:
    """Write the trainable parameters, and as a checkpoint if an iteration is given."""
    folder = Path(settings.adapter_path)
    weights = dict(tree_flatten(model.trainable_parameters()))
    _save(folder / ADAPTER_FILE, weights)
    if iteration is not None:
        _save(folder / f"{iteration:07d}_{ADAPTER_FILE}", weights)


def write_state(
    settings: Settings,
    model: Any,
    optimizer: Any,
    *,
    progress: TrainingProgress,
    accumulated: Accumulated | None,
    rows: int,
) -> None:
    """Write everything needed to continue bit for bit to `state.safetensors`.

    Every process of a distributed run must call it; the first one writes.

    Args:
        rows: training rows, which a run that continues must have too.
    """
    group = mx.distributed.init()
    keys: Any = mx.random.state
    random = mx.distributed.all_gather(keys[0][None], stream=mx.cpu)
    mx.eval(random)
    if group.rank():
        return
    arrays = {**_named(model, optimizer), "random": random}
    if accumulated is not None:
        arrays |= _prefixed("accumulated", accumulated.gradient)
        arrays["weight"] = accumulated.weight
    metadata = {
        "version": STATE_VERSION,
        "progress": json.dumps(asdict(progress)),
        "fixed": json.dumps(_fixed(settings, rows)),
    }
    _save(Path(settings.adapter_path) / STATE_FILE, arrays, metadata)


def resume(
    settings: Settings, model: Any, optimizer: Any, rows: int
) -> tuple[TrainingProgress, Accumulated | None]:
    """Put weights, optimizer and random state of a state file in place, if one is stated.

    Args:
        model: prepared.
        optimizer: initialised.
        rows: training rows.

    Returns:
        How far that run had come, and the batches since its last update.

    Raises:
        InputError: the file is not a state file, or was saved by a run with other settings,
            other data, another number of processes, or other parameters; or that run is done.
    """
    if settings.extras.resume_state is None:
        return TrainingProgress(), None
    path = Path(settings.extras.resume_state)
    arrays, metadata = _loaded(path)
    _require_settings(path, json.loads(metadata["fixed"]), _fixed(settings, rows))
    group = mx.distributed.init()
    if len(arrays["random"]) != group.size():
        problem = f"was saved by {len(arrays['random'])} processes, not {group.size()}"
        raise InputError(path, problem, "continue with as many")
    aside = {name for name in arrays if name.startswith("accumulated.")}
    stored = {name: arrays[name] for name in arrays.keys() - aside - {"random", "weight"}}
    require_same(path, stored, _named(model, optimizer))
    parameters = model.trainable_parameters()
    model.update(_filled("parameters", parameters, arrays))
    optimizer.state.update(_filled("optimizer", optimizer.state, arrays))
    restore_random(arrays["random"][group.rank()])
    accumulated = None
    if aside:
        accumulated = Accumulated(_filled("accumulated", parameters, arrays), arrays["weight"])
    stated: dict[str, Any] = json.loads(metadata["progress"])
    known = {one.name for one in fields(TrainingProgress)}
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in stated.items()
        if key in known
    }
    progress = TrainingProgress(**values)
    if progress.iteration >= settings.iters:
        problem = f"is at iteration {progress.iteration} of {settings.iters}"
        raise InputError(path, problem, "raise `iters`")
    return progress, accumulated


def _loaded(path: Path) -> tuple[dict[str, mx.array], dict[str, str]]:
    loaded: Any
    try:
        loaded = mx.load(str(path), return_metadata=True)
    except (RuntimeError, ValueError, OSError) as error:
        raise InputError(path, f"cannot be loaded ({error})") from None
    arrays, metadata = loaded
    if metadata.get("version") != STATE_VERSION:
        problem = "is not a state file of this trainer"
        raise InputError(path, problem, f"name a {STATE_FILE} that it wrote")
    return arrays, metadata


def _fixed(settings: Settings, rows: int) -> dict[str, Any]:
    stated = settings.stated()
    return {**{key: stated[key] for key in _FIXED}, "training rows": rows}


def _require_settings(path: Path, saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for key, value in now.items():
        if saved.get(key) != value:
            problem = f"was saved with {key} {saved.get(key)!r}, not {value!r}"
            raise InputError(path, problem, "continue with the same settings and data")


def _named(model: Any, optimizer: Any) -> dict[str, mx.array]:
    """What a state file must hold: name -> array."""
    parameters = _prefixed("parameters", model.trainable_parameters())
    return {**parameters, **_prefixed("optimizer", optimizer.state)}


def _prefixed(prefix: str, tree: Any) -> dict[str, mx.array]:
    return {f"{prefix}.{name}": one for name, one in tree_flatten(tree)}


def _filled(prefix: str, tree: Any, arrays: Mapping[str, mx.array]) -> Any:
    return tree_map_with_path(lambda name, _: arrays[f"{prefix}.{name}"], tree)


def _save(
    path: Path, arrays: Mapping[str, mx.array], metadata: Mapping[str, str] | None = None
) -> None:
    # Written beside and renamed: an interrupted save leaves the previous file whole.
    temporary = path.with_name(f".{path.name}.partial.safetensors")
    try:
        mx.save_safetensors(str(temporary), dict(arrays), dict(metadata or {}))
        temporary.replace(path)
    except (RuntimeError, OSError) as error:
        temporary.unlink(missing_ok=True)
        raise InputError(path, f"cannot be written ({error})") from None
