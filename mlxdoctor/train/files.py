"""What a run writes: adapters and configuration as mlx-lm names them, metrics, and its state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path

from mlxdoctor.measure.training_step.state import restore_random
from mlxdoctor.safety.atomic import replace_file
from mlxdoctor.safety.errors import InputError
from mlxdoctor.train.model import require_same
from mlxdoctor.train.progress import Progress
from mlxdoctor.train.settings import Settings
from mlxdoctor.train.step import Accumulated

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


@dataclass(frozen=True)
class Restored:
    """What a state file gave back besides the weights that were put in place."""

    progress: Progress
    accumulated: Accumulated | None


def write_config(folder: Path, settings: Settings) -> None:
    """Write `adapter_config.json` with mlx-lm's keys, sorted, as mlx-lm does.

    Raises:
        InputError: the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(settings.stated(), indent=4, sort_keys=True)
        replace_file(folder / CONFIG_FILE, f"{text}\n".encode())
    except OSError as error:
        raise InputError(folder, f"cannot be written ({error.strerror})") from None


def write_adapter(folder: Path, model: Any, iteration: int | None) -> None:
    """Write the trainable parameters, and as a checkpoint if an iteration is given."""
    weights = dict(tree_flatten(model.trainable_parameters()))
    _save(folder / ADAPTER_FILE, weights)
    if iteration is not None:
        _save(folder / f"{iteration:07d}_{ADAPTER_FILE}", weights)


def write_state(
    folder: Path,
    *,
    model: Any,
    optimizer: Any,
    progress: Progress,
    accumulated: Accumulated | None,
    settings: Settings,
    rows: int,
) -> None:
    """Write everything needed to continue bit for bit to `state.safetensors`.

    Every process of a distributed run must call it; the first one writes.
    """
    group = mx.distributed.init()
    keys: Any = mx.random.state
    random = mx.distributed.all_gather(keys[0][None], stream=mx.cpu)
    mx.eval(random)
    if group.rank():
        return
    arrays = {
        **_named("parameters", model.trainable_parameters()),
        **_named("optimizer", optimizer.state),
        "random": random,
    }
    if accumulated is not None:
        arrays |= _named("accumulated", accumulated.gradient)
        arrays["weight"] = accumulated.weight
    metadata = {
        "version": STATE_VERSION,
        "progress": json.dumps(asdict(progress)),
        "fixed": json.dumps(_fixed(settings, rows)),
    }
    _save(folder / STATE_FILE, arrays, metadata)


def restore_state(
    path: Path, model: Any, optimizer: Any, settings: Settings, rows: int
) -> Restored:
    """Put saved weights, optimizer state and random state in place.

    Args:
        model: prepared.
        optimizer: initialised.

    Raises:
        InputError: the file is not a state file, or was saved by a run with other settings,
            other data, another number of processes, or other parameters.
    """
    loaded: Any
    try:
        loaded = mx.load(str(path), return_metadata=True)
    except (RuntimeError, ValueError, OSError) as error:
        raise InputError(path, f"cannot be loaded ({error})") from None
    arrays, metadata = loaded
    if metadata.get("version") != STATE_VERSION:
        raise InputError(
            path, "is not a state file of this trainer", f"name a {STATE_FILE} that it wrote"
        )
    _require_settings(path, json.loads(metadata["fixed"]), _fixed(settings, rows))
    group = mx.distributed.init()
    if len(arrays["random"]) != group.size():
        raise InputError(
            path,
            f"was saved by {len(arrays['random'])} processes, not {group.size()}",
            "continue with as many",
        )
    wanted = {
        **_named("parameters", model.trainable_parameters()),
        **_named("optimizer", optimizer.state),
    }
    aside = {name: one for name, one in arrays.items() if name.startswith("accumulated.")}
    stored = {name: one for name, one in arrays.items() if name not in {*aside, "random", "weight"}}
    require_same(path, stored, wanted)
    parameters = model.trainable_parameters()
    model.update(_filled(parameters, "parameters", arrays))
    optimizer.state.update(_filled(optimizer.state, "optimizer", arrays))
    restore_random(arrays["random"][group.rank()])
    accumulated = None
    if aside:
        accumulated = Accumulated(_filled(parameters, "accumulated", arrays), arrays["weight"])
    stated = json.loads(metadata["progress"])
    known = {one.name for one in fields(Progress)}
    values = {key: _tuples(value) for key, value in stated.items() if key in known}
    return Restored(Progress(**values), accumulated)


def keep_metrics(path: Path, until: int) -> None:
    """Drop the lines of a metrics file after iteration `until`; 0 drops them all.

    So are lines that are no records: a run that was killed may have left half of one.

    Raises:
        InputError: the file cannot be written.
    """
    kept: list[bytes] = []
    if until and path.is_file():
        for line in path.read_bytes().splitlines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            iteration = record.get("iteration", 0) if isinstance(record, dict) else None
            if isinstance(iteration, int) and iteration <= until:
                kept.append(line + b"\n")
    try:
        replace_file(path, b"".join(kept))
    except OSError as error:
        raise InputError(path, f"cannot be written ({error.strerror})") from None


def _named(prefix: str, tree: Any) -> dict[str, mx.array]:
    return {f"{prefix}.{name}": one for name, one in tree_flatten(tree)}


def _filled(tree: Any, prefix: str, arrays: Mapping[str, mx.array]) -> Any:
    return tree_map_with_path(lambda name, _: arrays[f"{prefix}.{name}"], tree)


def _fixed(settings: Settings, rows: int) -> dict[str, Any]:
    stated = settings.stated()
    return {**{key: stated[key] for key in _FIXED}, "training rows": rows}


def _require_settings(path: Path, saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for key, value in now.items():
        if saved.get(key) != value:
            raise InputError(
                path,
                f"was saved with {key} {saved.get(key)!r}, not {value!r}",
                "continue with the same settings and data",
            )


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


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
