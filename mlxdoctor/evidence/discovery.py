"""Sorts the files of a run into kinds of evidence, by asking each kind.

Names are hints, contents decide: every trainer writes its log under another
name. Only names and the first bytes of files are looked at here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.checkpoints import CheckpointHistory
from mlxdoctor.evidence.config import CONFIG_NAME, TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.metrics import ReportedMetrics
from mlxdoctor.evidence.run_files import RunFiles, is_model_folder
from mlxdoctor.evidence.separate_runs import separate_runs
from mlxdoctor.evidence.sniffed import Sniffed
from mlxdoctor.evidence.source import require_file
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current, exceeded

#: Kinds that are known by a file's name, in the order in which they are asked.
_BY_NAME: tuple[tuple[str, Callable[[Path], bool]], ...] = (
    ("checkpoints", CheckpointHistory.is_named),
    ("adapter", Adapter.is_named),
    ("config", TrainingConfig.is_named),
    ("data", Dataset.is_named),
)
_TEXT_SUFFIXES = {
    ".log",
    ".txt",
    ".out",
    ".err",
    ".jsonl",
    ".json",
    ".csv",
    ".tsv",
    ".md",
    ".ipynb",
    "",
}
#: The folder in which W&B keeps its runs, how it names them, and what it sums one up in.
WANDB = "wandb"
_WANDB_RUN = re.compile(r"^(?:offline-)?run-(?=\d)")
_SUMMARY = "wandb-summary.json"
_YAML_SUFFIXES = {".yaml", ".yml"}
#: What people write about a run, and not the run itself.
_NO_EVIDENCE = {"expected.json", "README.md"}
#: Runs that are named where a folder holds several.
MAX_RUNS_SHOWN = 5
_GENERATION_KEYS = {"tuned", "response", "output", "completion", "generated", "generation"}


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
    files = RunFiles(roots=paths, adapter=adapter)
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
    if not files.found:
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
    config = folder / CONFIG_NAME
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
    runs = [one for one in entries if folder.name == WANDB and _is_wandb_run(one)]
    if runs:
        # Of several runs, which W&B names after when they began, the last is this one.
        newest = max(runs, key=lambda one: _WANDB_RUN.sub("", one.name))
        yield from _walk(newest, problems, limits.folder_levels - 2)
        return
    if len(entries) > limits.folder_entries:
        problems.append(exceeded(folder, "has more names in it", "folder_entries"))
        entries.pop()
    yield from (entry for entry in entries if entry.is_file())
    problems += [one for entry in entries if (one := _why_no_file(entry)) is not None]
    for entry in entries:
        is_near = depth + 1 < limits.folder_levels or entry.name == WANDB
        if is_near and _is_folder(entry) and not entry.name.startswith("."):
            yield from _walk(entry, problems, depth + 1)


def _why_no_file(path: Path) -> InputError | None:
    """What is wrong with a name that stands for evidence, and is a pipe or a link to nothing."""
    if path.is_file() or path.is_dir() or _named_kind(path) is None:
        return None
    try:
        require_file(path)
    except InputError as error:
        return error
    return None


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_wandb_run(path: Path) -> bool:
    return _WANDB_RUN.search(path.name) is not None and _is_folder(path)


def _folder(files: RunFiles, folder: Path) -> RunFiles:
    if is_model_folder(folder) and not (folder / CONFIG_NAME).is_file():
        return replace(files, tuned=files.tuned or folder)
    loose: list[Path] = []
    saved: list[Path] = []
    most = current().folder_files
    problems: list[InputError] = []
    for count, path in enumerate(_walk(folder, problems)):
        if count >= most:
            problems.append(exceeded(folder, "has more files in it", "folder_files"))
            break
        named = _named_kind(path)
        if named is not None:
            files = _with_named(files, named, path)
            saved += [path] if named == "adapter" or path.name == CONFIG_NAME else []
        elif path.parent != folder and is_model_folder(path.parent):
            files = files.having("tuned", path.parent)
        elif path.name not in _NO_EVIDENCE:
            loose.append(path)
    kinds = {path: _kind_by_content(path) or "unrecognised" for path in loose}
    own = [path for path, kind in kinds.items() if kind == "adapter"]
    is_known = files.adapter is not None or bool(files.checkpoints)
    if is_known or len(own) > 1:
        kinds |= dict.fromkeys(own, "unrecognised")
        problems += [] if is_known else [_several(folder, own)]
    for path, kind in kinds.items():
        if kind == "unrecognised" and _is_unread_log(path):
            problems.append(_unread(path))
        files = files.having(kind, path)
    configs = [path for path, kind in kinds.items() if kind == "config"]
    _require_one_run(folder, saved, configs, files.logs)
    if len(configs) == 1 and files.config not in (None, configs[0]):
        files = replace(files, settings=configs[0])
    # The last report of each metric is better than nothing.
    for path in (one for one in files.unrecognised if one.name == _SUMMARY and not files.logs):
        files = files.having("logs", path)
    if files.adapter is None and files.checkpoints:
        files = replace(files, adapter=files.checkpoints[-1])
    return replace(files, problems=(*files.problems, *problems))


def _with_named(files: RunFiles, kind: str, path: Path) -> RunFiles:
    if kind == "adapter" and Adapter.comes_before(path, files.adapter):
        return replace(files, adapter=path)
    return files.having(kind, path.parent if kind == "data" else path)


def _several(folder: Path, adapters: list[Path]) -> InputError:
    shown = ", ".join(str(one.relative_to(folder)) for one in adapters[:MAX_RUNS_SHOWN])
    return InputError(
        folder,
        f"holds {len(adapters)} adapters under names of their own: {shown}",
        "name one of the files",
    )


def _require_one_run(
    folder: Path, saved: list[Path], configs: list[Path], logs: tuple[Path, ...]
) -> None:
    below = [one for one in logs if one.is_relative_to(folder)]
    runs = separate_runs(folder, saved, configs, below)
    if runs:
        shown = ", ".join(str(one.relative_to(folder)) for one in runs[:MAX_RUNS_SHOWN])
        more = len(runs) - MAX_RUNS_SHOWN
        raise InputError(
            folder,
            f"holds {len(runs)} runs: {shown}{f' and {more} more' if more > 0 else ''}",
            f"name one of them: {runs[0]}",
        )


def _loose_file(files: RunFiles, path: Path) -> RunFiles:
    if path.name == CONFIG_NAME:
        return replace(files, config=path)
    if path.suffix in (".safetensors", ".npz"):
        files = replace(files, adapter=path, adapter_is_loose=True)
        return _beside_adapter(files, path)
    if Dataset.is_named(path):
        return replace(files, data=path)
    if path.suffix == ".py":
        return files.having("unrecognised", path)
    kind = _kind_by_content(path)
    if kind is None:
        # Nothing recognised it. Its reader will say so in a sentence that names
        # the file, which helps more than silence.
        settings = path.suffix in (".json", *_YAML_SUFFIXES)
        return replace(files, config=path) if settings else files.having("logs", path)
    return files.having(kind, path)


def _named_kind(path: Path) -> str | None:
    return next((kind for kind, is_named in _BY_NAME if is_named(path)), None)


def _kind_by_content(path: Path) -> str | None:
    """The field of `RunFiles` that a file belongs in; None where it is no text to look at."""
    file = Sniffed(path)
    if path.name == _SUMMARY:
        return None
    if path.suffix == ".safetensors":
        return "adapter" if Adapter.is_held_by(file) else None
    if path.suffix in _YAML_SUFFIXES:
        return "config" if TrainingConfig.is_held_by(file) else None
    if path.suffix not in _TEXT_SUFFIXES or path.name in _NO_EVIDENCE:
        return None
    try:
        return next((kind for kind, holds in _BY_CONTENT if holds(file)), "unrecognised")
    except InputError:
        # Nobody named this file: one that can't be read is none of the evidence.
        return "unrecognised"


def _holds_answers(file: Sniffed) -> bool:
    """Whether a file holds recorded answers, which are read as `Generations`."""
    keys = file.record.keys()
    if "tuned" in keys or {"base", "prompt"} <= keys:
        return True
    # `{"prompt", "completion"}` is a training row; a recorded generation says more.
    extra = {"max_tokens", "model", "adapter", "tokens", "base_tokens", "tuned_tokens"}
    return "prompt" in keys and bool(_GENERATION_KEYS & keys) and bool(extra & keys)


def _is_log(file: Sniffed) -> bool:
    # Loaded for a file that is nothing else: most runs have one, and the reader is large.
    from mlxdoctor.evidence.training_log import looks_like_log

    return looks_like_log(file.path)


def _is_unread_log(path: Path) -> bool:
    from mlxdoctor.evidence.training_log import looks_like_unread_log

    try:
        return looks_like_unread_log(path)
    except InputError:
        return False


def _unread(path: Path) -> InputError:
    return InputError(
        path,
        "looks like a training log, but none of its lines could be read as a report",
        "lines such as `step 10 | loss 2.5 | lr 1e-5` are read, and JSON lines",
    )


#: Kinds that are known by how a file begins, in the order in which they are asked.
_BY_CONTENT: tuple[tuple[str, Callable[[Sniffed], bool]], ...] = (
    ("generations", _holds_answers),
    ("data", Dataset.is_held_by),
    ("config", TrainingConfig.is_held_by),
    ("metrics", ReportedMetrics.is_held_by),
    ("logs", _is_log),
)
