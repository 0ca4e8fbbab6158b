"""Which file in a run folder is which kind of evidence.

Names are hints, contents decide: every trainer writes its log under another
name. Only names and the first bytes of files are looked at here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from mlxdoctor.evidence.dataset import is_log
from mlxdoctor.evidence.source import read_head
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current, exceeded

#: Bytes read of a file to tell what it is.
SNIFF_BYTES = 1 << 16

CHECKPOINT_NAME = re.compile(r"(?:^|.*[_-])0*(\d+)_adapters\.(?:safetensors|npz)$")
SPLIT_NAME = re.compile(r"^(train|valid|test)\.jsonl$")
_LOG_SUFFIXES = {".log", ".txt", ".out", ".err", ".jsonl", ".json", ".csv", ".tsv", ".md", ""}
_GENERATION_KEYS = {"tuned", "response", "output", "completion", "generated", "generation"}
_METRIC_KEYS = re.compile(r"(?:^|_)(?:perplexity|ppl|loss)$")
_TRAINING_KEYS = {"learning_rate", "lora_parameters", "fine_tune_type", "iters", "lr_schedule"}


@dataclass(frozen=True)
class RunFiles:
    """The evidence that was found, by kind. A `None` or empty field: none was found.

    `base` and `data` may be followed from the configuration; `base_named` and
    `data_named` keep what it said where that could not be found on this machine.
    `generations_named`: the user named them, so they are what is to be judged.
    `adapter_is_loose`: the user named the adapter's file, and not its folder.
    `problems`: limits at which looking through a folder ended.
    """

    roots: tuple[Path, ...] = ()
    config: Path | None = None
    adapter: Path | None = None
    adapter_is_loose: bool = False
    checkpoints: tuple[Path, ...] = ()
    logs: tuple[Path, ...] = ()
    base: Path | None = None
    base_named: str | None = None
    tuned: Path | None = None
    data: Path | None = None
    data_named: str | None = None
    generations: Path | None = None
    generations_named: bool = False
    metrics: tuple[Path, ...] = ()
    unrecognised: tuple[Path, ...] = field(default=())
    problems: tuple[InputError, ...] = ()


def discover(
    paths: Iterable[Path],
    *,
    base: Path | None = None,
    adapter: Path | None = None,
    log: Iterable[Path] = (),
    data: Path | None = None,
    generations: Path | None = None,
) -> RunFiles:
    """Sort the files under `paths` into kinds of evidence; options win over what is found.

    Raises:
        InputError: a path does not exist, or nothing in it is evidence.
    """
    paths = tuple(paths)
    explicit = (base, adapter, data, generations, *log)
    for path in (*paths, *(one for one in explicit if one is not None)):
        if not _exists(path):
            raise InputError(path, "there is no such file or folder", "check the path")
    files = RunFiles(roots=paths)
    for path in paths:
        files = _folder(files, path) if path.is_dir() else _loose_file(files, path)
    files = replace(
        files,
        base=base or files.base,
        adapter=adapter or files.adapter,
        logs=tuple(log) or files.logs,
        data=data or files.data,
        generations=generations or files.generations,
        generations_named=generations is not None,
    )
    if adapter is not None:
        files = replace(files, adapter_is_loose=adapter.is_file())
        files = _beside_adapter(files, adapter)
    if not any(
        getattr(files, one)
        for one in (
            *("config", "adapter", "checkpoints", "logs", "tuned"),
            *("base", "data", "generations", "metrics"),
        )
    ):
        where = ", ".join(str(path) for path in paths)
        raise InputError(
            where or None,
            "holds nothing that a fine-tune leaves behind",
            "name an adapter folder, a training log, a data folder or a model",
        )
    return files


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        # A loop of links, a name with a NUL in it, or one that is too long.
        return False


def _beside_adapter(files: RunFiles, adapter: Path) -> RunFiles:
    folder = adapter if adapter.is_dir() else adapter.parent
    config = folder / "adapter_config.json"
    if adapter.is_dir():
        found = _folder(RunFiles(), adapter)
        files = replace(files, adapter=found.adapter, checkpoints=found.checkpoints)
    return replace(files, config=config) if config.is_file() else files


def _walk(folder: Path, problems: list[InputError], depth: int = 0) -> Iterator[Path]:
    limits = current()
    try:
        # One more than the limit, so that a folder that has just as many is not cut.
        entries = sorted(islice(folder.iterdir(), limits.folder_entries + 1))
    except OSError as error:
        problem = f"cannot be listed ({error.strerror})"
        raise InputError(folder, problem, "check its access") from None
    if len(entries) > limits.folder_entries:
        problems.append(exceeded(folder, "has more names in it", "folder_entries"))
        entries.pop()
    yield from (entry for entry in entries if entry.is_file())
    if depth + 1 < limits.folder_levels:
        for entry in entries:
            if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
                yield from _walk(entry, problems, depth + 1)


def _folder(files: RunFiles, folder: Path) -> RunFiles:
    if is_model_folder(folder) and not (folder / "adapter_config.json").is_file():
        return replace(files, tuned=files.tuned or folder)
    splits: list[Path] = []
    loose: list[Path] = []
    most = current().folder_files
    problems: list[InputError] = []
    for count, path in enumerate(_walk(folder, problems)):
        if count >= most:
            problems.append(exceeded(folder, "has more files in it", "folder_files"))
            break
        name = path.name
        if CHECKPOINT_NAME.match(name):
            files = replace(files, checkpoints=(*files.checkpoints, path))
        elif name in ("adapters.safetensors", "adapter_model.safetensors", "adapters.npz"):
            files = replace(files, adapter=files.adapter or path)
        elif name == "adapter_config.json":
            files = replace(files, config=files.config or path)
        elif _is_split(path):
            splits.append(path)
        elif path.parent != folder and is_model_folder(path.parent):
            files = replace(files, tuned=files.tuned or path.parent)
        else:
            loose.append(path)
    if splits:
        files = replace(files, data=files.data or splits[0].parent)
    for path in loose:
        files = _sniffed(files, path)
    if files.adapter is None and files.checkpoints:
        files = replace(files, adapter=files.checkpoints[-1])
    return replace(files, problems=(*files.problems, *problems))


def _loose_file(files: RunFiles, path: Path) -> RunFiles:
    name = path.name
    if name == "adapter_config.json":
        return replace(files, config=path)
    if path.suffix in (".safetensors", ".npz"):
        files = replace(files, adapter=path, adapter_is_loose=True)
        return _beside_adapter(files, path)
    if _is_split(path):
        return replace(files, data=path)
    found = _sniffed(files, path)
    if found != files:
        return found
    # Nothing recognised it. Its reader will say so in a sentence that names
    # the file, which helps more than silence.
    if path.suffix == ".jsonl":
        return replace(files, data=path)
    if path.suffix in (".yaml", ".yml", ".json"):
        return replace(files, config=path)
    return replace(files, logs=(*files.logs, path))


def _sniffed(files: RunFiles, path: Path) -> RunFiles:
    if path.suffix in (".yaml", ".yml"):
        return replace(files, config=files.config or path) if _is_training_yaml(path) else files
    if path.suffix not in _LOG_SUFFIXES or path.name in ("expected.json", "README.md"):
        return files
    record = _first_record(path)
    if record is not None:
        if _is_generation(record):
            return replace(files, generations=files.generations or path)
        if _is_row(record):
            return replace(files, data=files.data or path)
        if path.suffix == ".json" and _TRAINING_KEYS & record.keys():
            return replace(files, config=files.config or path)
        if path.suffix == ".json" and _is_metrics(record):
            return replace(files, metrics=(*files.metrics, path))
    from mlxdoctor.evidence.training_log import looks_like_log

    try:
        if looks_like_log(path):
            return replace(files, logs=(*files.logs, path))
    except InputError:
        # Nobody named this file: one that can't be read is none of the evidence.
        return replace(files, unrecognised=(*files.unrecognised, path))
    return replace(files, unrecognised=(*files.unrecognised, path))


def _is_split(path: Path) -> bool:
    """Whether a file is a split of the data: by its name, unless it holds metrics.

    People write the metrics of training into train.jsonl too.
    """
    if not SPLIT_NAME.match(path.name):
        return False
    return not is_log(path)


def _head(path: Path) -> str:
    try:
        return read_head(path, SNIFF_BYTES).decode("utf-8-sig", errors="replace")
    except InputError:
        return ""


def _first_record(path: Path) -> Mapping[str, Any] | None:
    """The first JSON object of a .json or .jsonl file, if it starts with one."""
    if path.suffix not in (".json", ".jsonl"):
        return None
    text = _head(path).lstrip()
    try:
        value, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, dict) else None


def _is_generation(record: Mapping[str, Any]) -> bool:
    if "tuned" in record or ("base" in record and "prompt" in record):
        return True
    # `{"prompt", "completion"}` is a training row; a recorded generation says more.
    extra = {"max_tokens", "model", "adapter", "tokens", "base_tokens", "tuned_tokens"}
    keys = record.keys()
    return "prompt" in keys and bool(_GENERATION_KEYS & keys) and bool(extra & keys)


def _is_row(record: Mapping[str, Any]) -> bool:
    keys = record.keys()
    return "messages" in keys or "text" in keys or {"prompt", "completion"} <= keys


def _is_metrics(record: Mapping[str, Any]) -> bool:
    if {"log_history", "global_step"} & record.keys():
        return False
    nested = [value for value in record.values() if isinstance(value, dict)]
    return any(
        _METRIC_KEYS.search(str(key).lower()) and isinstance(value, int | float)
        for one in (record, *nested)
        for key, value in one.items()
    )


def _is_training_yaml(path: Path) -> bool:
    keys = re.findall(r"(?m)^([A-Za-z_]+)\s*:", _head(path))
    return bool(_TRAINING_KEYS & set(keys))


def is_model_folder(folder: Path) -> bool:
    """Whether a folder holds a model: a configuration and weights, or a weight index."""
    if not (folder / "config.json").is_file():
        return False
    return any(folder.glob("model*.safetensors")) or any(folder.glob("*.safetensors.index.json"))


def is_data_path(path: Path) -> bool:
    """Whether a path is a data folder as mlx-lm reads it, or one JSONL file."""
    if path.is_file():
        return path.suffix == ".jsonl"
    return any((path / f"{split}.jsonl").is_file() for split in ("train", "valid", "test"))


def resolve(named: str, roots: Iterable[Path], *, model: bool) -> Path | None:
    """The folder a configuration names, if it is on this machine; never downloaded.

    A relative path was relative to the folder the trainer was started in,
    which nobody recorded: the current folder, the run's folder and its parents
    are tried. A model's hub name is looked up in the local Hugging Face cache.
    """
    accept = is_model_folder if model else is_data_path
    candidates = _candidates(named, roots)
    if model and re.fullmatch(r"[\w.-]+/[\w.-]+", named):
        candidates.extend(_cached_snapshots(named))
    return _first(candidates, accept)


def resolve_file(named: str, roots: Iterable[Path]) -> Path | None:
    """The file a configuration names, looked for as `resolve` does."""
    return _first(_candidates(named, roots), Path.is_file)


def _candidates(named: str, roots: Iterable[Path]) -> list[Path]:
    try:
        path = Path(named).expanduser()
    except RuntimeError:  # "~name" of a user who is not known here
        return []
    if path.is_absolute():
        return [path]
    candidates = [Path.cwd() / path]
    for root in roots:
        start = (root if root.is_dir() else root.parent).resolve()
        candidates.extend(parent / path for parent in (start, *start.parents))
    return candidates


def _first(candidates: Iterable[Path], accept: Callable[[Path], bool]) -> Path | None:
    for candidate in candidates:
        try:
            if candidate.exists() and accept(candidate):
                return candidate
        except OSError:
            continue
    return None


def _cached_snapshots(repository: str) -> list[Path]:
    try:
        home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
        cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()
    except RuntimeError:  # a user without a home has no cache
        return []
    folder = cache / f"models--{repository.replace('/', '--')}"
    main = folder / "refs" / "main"
    try:
        named = [folder / "snapshots" / main.read_text().strip()] if main.is_file() else []
        return named + sorted((folder / "snapshots").glob("*"))
    except OSError:
        return []
