"""Sorts the files of a run into kinds of evidence.

Names are hints, contents decide: every trainer writes its log under another
name. Only names and the first bytes of files are looked at here.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from mlxdoctor.evidence.adapter import FILE_NAMES, adapter_file
from mlxdoctor.evidence.config import CONFIG_NAME, TrainingConfig
from mlxdoctor.evidence.dataset import SPLITS, Features, is_log
from mlxdoctor.evidence.logs.metric_names import HELD_OUT, STEPS, snake_case
from mlxdoctor.evidence.metrics import PRINTED, ReportedMetrics
from mlxdoctor.evidence.options import Options
from mlxdoctor.evidence.run_files import RunFiles, is_model_folder, is_recorded_answer, iteration_in
from mlxdoctor.evidence.source import Sniffed, read_json_object, require_file
from mlxdoctor.evidence.training_log import holds_history, looks_like_log, looks_like_unread_log
from mlxdoctor.finding import some_of
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current, exceeded

_SETTINGS_SUFFIXES = frozenset((".json", ".yaml", ".yml"))
_TEXT_SUFFIXES = frozenset(
    (".log", ".txt", ".out", ".err", ".jsonl", ".json", ".csv", ".tsv", ".md", ".ipynb", "")
)
#: The folder in which W&B keeps its runs, and how it names them.
WANDB = "wandb"
_WANDB_RUN = re.compile(r"^(?:offline-)?run-(?=\d)")
#: What is wrong with a file that no format of logs reads.
UNREAD_LOG = "looks like a training log, but none of its lines could be read as a report"
_READ_LOGS = "lines such as `step 10 | loss 2.5 | lr 1e-5` are read, and JSON lines"
#: What makes a file under another name one of training rows.
_FORMATS_OF_ROWS = ("completions", "chat", "text")
#: How rows are called that are held out, behind which a sign stands.
_HELD_OUT = re.compile(rf"(?:^|_){HELD_OUT}")
#: Folders that belong to a run: a save with a log of its own, as PEFT's trainer makes them, and
#: what W&B keeps of a run.
_PART_OF_A_RUN = re.compile(r"checkpoint-\d+|wandb")
#: What people or W&B write about a run, and not the run itself.
_NO_EVIDENCE = {"expected.json", "README.md", "wandb-summary.json"}
#: Runs or adapters that are named where a folder holds several.
MAX_SHOWN = 5
#: A factor's whole name: an optimiser's state of one has more after it.
_FACTOR = re.compile(r'\.lora_(?:[ab]|[AB](?:\.\w+)?\.weight|[AB])"\s*:')


def discover(paths: Iterable[Path], options: Options | None = None) -> RunFiles:
    """Sort the files under `paths` into kinds of evidence; options win over what is found.

    Raises:
        InputError: a path does not exist, or nothing in it is evidence.
    """
    paths, options = tuple(paths), options or Options()
    named: dict[str, Any] = options.paths
    for path in (*paths, *named.values(), *options.log):
        try:
            path.stat()
        except (OSError, ValueError):
            # A loop of links and a name with a NUL in it are as good as none.
            raise InputError(path, "there is no such file or folder", "check the path") from None
    runs = [path for path in dict.fromkeys(paths) if (path / FILE_NAMES[0]).is_file()]
    if len(runs) > 1:
        shown = some_of([str(path) for path in runs], MAX_SHOWN)
        remedy = "name one of them, or judge them all with `mlxdoctor gate`"
        raise InputError(None, f"{shown} have an adapter each", remedy)
    files = RunFiles(roots=paths, adapter=options.adapter)
    for path in paths:
        files = _folder(files, path) if path.is_dir() else _loose_file(files, path)
    files = replace(files, logs=options.log or files.logs, **named)
    if options.adapter is not None:
        files = _beside_adapter(files, options.adapter)
    if not files.found:
        raise _nothing_found(paths)
    return files


def _nothing_found(paths: Sequence[Path]) -> InputError:
    problem = "has no adapter, no figures of a training, no rows and no model in it"
    remedy = "name an adapter folder, a training log, a data folder or a model"
    if len(paths) == 1 and paths[0].suffix == ".py":
        problem, remedy = "is source code", "`mlxdoctor lint` says what is wrong in a trainer's"
    elif len(paths) == 1 and {snake_case(key) for key in Sniffed(paths[0]).record} & {*STEPS}:
        problem, remedy = "has records of steps, and no loss in them", "name a log that has losses"
    return InputError(", ".join(map(str, paths)) or None, problem, remedy)


def _beside_adapter(files: RunFiles, adapter: Path) -> RunFiles:
    if adapter.is_dir():
        own = _folder(RunFiles(), adapter)
        files = replace(files, adapter=own.adapter, checkpoints=own.checkpoints)
    config = (adapter if adapter.is_dir() else adapter.parent) / CONFIG_NAME
    return replace(files, config=config) if config.is_file() else files


def _walk(folder: Path, problems: list[InputError], depth: int = 0) -> Iterator[Path]:
    """The files below a folder; what kept it from looking at more is added to `problems`."""
    limits = current()
    try:
        # One more than the limit, so that a folder that has just as many is not cut.
        entries = sorted(islice(folder.iterdir(), limits.folder_entries + 1))
    except OSError as error:
        problem = f"cannot be listed ({error.strerror})"
        raise InputError(folder, problem, "check its access") from None
    if folder.name == WANDB:
        runs = [entry for entry in entries if _WANDB_RUN.search(entry.name) and entry.is_dir()]
        if runs:
            # Of several runs, which W&B names after when they began, the last is this one.
            newest = max(runs, key=lambda run: _WANDB_RUN.sub("", run.name))
            yield from _walk(newest, problems, limits.folder_levels - 2)
            return
    if len(entries) > limits.folder_entries:
        problems.append(exceeded(folder, "has more names in it", "folder_entries"))
        entries.pop()
    for entry in entries:
        if entry.is_file():
            yield entry
        elif not entry.is_dir() and _kind_by_name(entry) is not None:
            # A pipe, or a link to nothing, under a name that stands for evidence.
            try:
                require_file(entry)
            except InputError as error:
                problems.append(error)
    for entry in entries:
        is_near = depth + 1 < limits.folder_levels or entry.name == WANDB
        is_own = entry.is_dir() and not entry.is_symlink() and not entry.name.startswith(".")
        if is_near and is_own:
            yield from _walk(entry, problems, depth + 1)


def _folder(files: RunFiles, folder: Path) -> RunFiles:
    if is_model_folder(folder) and not (folder / CONFIG_NAME).is_file():
        return replace(files, tuned=files.tuned or folder)
    problems: list[InputError] = []
    saved: list[Path] = []
    by_content: dict[Path, str] = {}
    most = current().folder_files
    for count, path in enumerate(_walk(folder, problems)):
        if count >= most:
            problems.append(exceeded(folder, "has more files in it", "folder_files"))
            break
        kind = _kind_by_name(path)
        if kind is not None:
            # Of several adapters in a folder mlx-lm reads the first by its name.
            named = adapter_file(path.parent) if kind == "adapter" else path
            files = files.having(kind, path.parent if kind == "data" else named)
            saved += [path] if kind == "adapter" or path.name == CONFIG_NAME else []
        elif path.parent != folder and is_model_folder(path.parent):
            files = files.having("tuned", path.parent)
        elif path.name not in _NO_EVIDENCE:
            by_content[path] = _kind_by_content(path) or "unrecognised"
    files = _end_of_a_chain(files, saved)
    adapters = [path for path, kind in by_content.items() if kind == "adapter"]
    is_known = files.adapter is not None or bool(files.checkpoints)
    if is_known or len(adapters) > 1:
        by_content |= dict.fromkeys(adapters, "unrecognised")
        if not is_known:
            what, remedy = "adapters under names of their own", "name one of the files"
            problems.append(_several(folder, what, adapters, remedy))
    # Of several files of rows under names of their own the largest that is not held out.
    rows = [path for path, kind in by_content.items() if kind == "data"]
    held_out = {path for path in rows if _HELD_OUT.search(f"{snake_case(path.stem)}_")}
    rows.sort(key=lambda path: (path in held_out, -path.stat().st_size))
    by_content |= {path: by_content.pop(path) for path in rows}
    for path, kind in by_content.items():
        files = files.having(kind, path)
        with suppress(InputError):
            if kind == "unrecognised" and looks_like_unread_log(path):
                problems.append(InputError(path, UNREAD_LOG, _READ_LOGS))
    configs = [path for path, kind in by_content.items() if kind == "config"]
    logs = [path for path in files.logs if path.is_relative_to(folder)]
    if runs := separate_runs(folder, saved, configs, logs):
        raise _several(folder, "runs", runs, f"name one of them: {runs[0]}")
    if len(configs) == 1 and files.config not in (None, configs[0]):
        files = replace(files, settings=configs[0])
    adapter = files.adapter or next(reversed(files.checkpoints), None)
    return replace(files, adapter=adapter, problems=(*files.problems, *problems))


def separate_runs(
    folder: Path, saved: Collection[Path], configs: Collection[Path], logs: Collection[Path]
) -> tuple[Path, ...]:
    """The folders of several runs below one folder; empty where it is one run's.

    Several are folders side by side, nothing of a run beside them: each with a log, and an
    adapter or a configuration; or, where there is no log at all, each with an adapter.

    Args:
        folder: the folder that was asked about.
        saved: adapters in it, and the configurations that were saved with them.
        configs: other configurations in it.
        logs: training logs in it.
    """
    everything = (*saved, *configs, *logs)
    names = {path.relative_to(folder).parts[0] for path in everything}
    if not names or any(folder / name in everything for name in names):
        return ()
    places = [folder / name for name in sorted(names)]
    if len(places) == 1:
        return separate_runs(places[0], saved, configs, logs)
    # Each of these has to be there.
    wanted = ((*saved, *configs), logs) if logs else (saved,)
    runs = [
        place
        for place in places
        if not _PART_OF_A_RUN.fullmatch(place.name)
        and all(any(path.is_relative_to(place) for path in paths) for paths in wanted)
    ]
    return tuple(runs) if len(runs) > 1 else ()


def _end_of_a_chain(files: RunFiles, saved: Collection[Path]) -> RunFiles:
    """Of adapters that were resumed from each other, the last: the one that none began with."""
    folders = [*dict.fromkeys(path.parent for path in saved if path.name != CONFIG_NAME)]
    begun_with = set()
    for folder in folders if len(folders) > 1 else ():
        with suppress(InputError):
            stated = read_json_object(folder / CONFIG_NAME)[0].get("resume_adapter_file")
            begun_with |= {Path(stated).parent.name} if isinstance(stated, str) else set()
    ends = [folder for folder in folders if folder.name not in begun_with]
    if len(ends) != 1 or not begun_with or not (ends[0] / CONFIG_NAME).is_file():
        return files
    (end,) = ends
    checkpoints = tuple(path for path in files.checkpoints if path.parent == end)
    config = end / CONFIG_NAME
    return replace(files, adapter=adapter_file(end), config=config, checkpoints=checkpoints)


def _several(folder: Path, what: str, paths: Sequence[Path], remedy: str) -> InputError:
    """What to say of a folder that holds several things of which one is needed."""
    shown = some_of([str(path.relative_to(folder)) for path in paths], MAX_SHOWN)
    return InputError(folder, f"holds {len(paths)} {what}: {shown}", remedy)


def _loose_file(files: RunFiles, path: Path) -> RunFiles:
    if path.suffix in (".safetensors", ".npz"):
        return _beside_adapter(replace(files, adapter=path), path)
    if (kind := _kind_by_name(path)) is not None:
        return files.having(kind, path)
    kind = "unrecognised" if path.suffix == ".py" else _kind_by_content(path)
    if kind == "unrecognised" and path.suffix in _TEXT_SUFFIXES:
        with suppress(InputError):
            kind = "logs" if looks_like_log(path, is_named=True) else kind
    if kind is None:
        # Nothing recognised it. Its reader will say so in a sentence that names
        # the file, which helps more than silence.
        kind = "config" if path.suffix in _SETTINGS_SUFFIXES else "logs"
    return files.having(kind, path)


def _kind_by_name(path: Path) -> str | None:
    """The field of `RunFiles` that the file's name says it belongs in."""
    return next((kind for kind, is_named in _BY_NAME if is_named(path)), None)


def _kind_by_content(path: Path) -> str | None:
    """The field of `RunFiles` that a file belongs in; None where it is no text to look at."""
    file = Sniffed(path)
    kinds = [(kind, holds) for kind, suffixes, holds in _BY_CONTENT if path.suffix in suffixes]
    kind = None
    # Nobody named this file: one that can't be read is none of the evidence.
    with suppress(InputError):
        kind = next((kind for kind, holds in kinds if holds(file)), None)
    return "unrecognised" if kind is None and path.suffix in _TEXT_SUFFIXES else kind


#: Fields of `RunFiles`, and which names of files say that they belong there. People write the
#: metrics of training into train.jsonl too.
_BY_NAME: tuple[tuple[str, Callable[[Path], bool]], ...] = (
    ("checkpoints", lambda path: iteration_in(path.name) is not None),
    ("adapter", lambda path: path.name in FILE_NAMES[:3]),
    ("config", lambda path: path.name == CONFIG_NAME),
    ("data", lambda path: path.suffix == ".jsonl" and path.stem in SPLITS and not is_log(path)),
)
#: Fields of `RunFiles`, the files that may belong there by their endings, and whether one begins
#: so; in the order in which they are asked.
_BY_CONTENT: tuple[tuple[str, frozenset[str], Callable[[Sniffed], bool]], ...] = (
    ("adapter", frozenset((".safetensors",)), lambda file: bool(_FACTOR.search(file.head))),
    (
        "generations",
        _TEXT_SUFFIXES,
        lambda file: is_recorded_answer(file.record.keys(), file.path.stem),
    ),
    ("data", _TEXT_SUFFIXES, lambda file: Features().format_of(file.record) in _FORMATS_OF_ROWS),
    ("logs", frozenset((".json",)), lambda file: holds_history(file.path)),
    ("config", _SETTINGS_SUFFIXES, TrainingConfig.is_held_by),
    ("metrics", _TEXT_SUFFIXES, ReportedMetrics.is_held_by),
    ("logs", _TEXT_SUFFIXES, lambda file: looks_like_log(file.path)),
    ("metrics", PRINTED, ReportedMetrics.is_printed_in),
)
