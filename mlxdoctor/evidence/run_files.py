"""Which file of a run is which kind of evidence, and where what it names lies on this machine."""

import os
import re
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current

#: A checkpoint's file as mlx-lm names it, whatever comes before its iteration.
CHECKPOINT_NAME = re.compile(r"(?:^|.*[_-])0*(\d+)_adapters\.safetensors$")
#: And as people's own trainers do: step_150.safetensors, adapters-300.safetensors.
_OWN_CHECKPOINT = re.compile(
    r"(?:step|iter|iteration|checkpoint|ckpt|adapters?)[_-]?0*(\d+)\.safetensors$"
)

#: What the keys of recorded answers are called.
PROMPT_KEYS = ("prompt", "question", "input", "instruction", "query")
TUNED_KEYS = (
    *("tuned", "response", "output", "completion", "generated_text", "generation", "generated"),
    *("prediction", "model_output", "model_answer", "answer", "text"),
)
BASE_KEYS = ("base", "base_response", "base_output")
SYSTEM_KEYS = ("system", "system_prompt")
EXPECTED_KEYS = ("expected", "reference", "target")
LIST_KEYS = ("generations", "results", "samples", "items")
#: Answers that rows to train on have beside their prompts, too.
_OF_ROWS = {"completion", "answer", "text"}
#: What a recorded answer says beside itself, and a training row does not.
_OF_ANSWERS = {"max_tokens", "model", "adapter", "tokens", "base_tokens", "tuned_tokens"}
#: A file's name that says so.
_NAMED = re.compile("answers|generat|outputs|predict|responses|samples", re.IGNORECASE)
#: Files of a data folder.
_NAMES = ("train.jsonl", "valid.jsonl", "test.jsonl")
#: Endings of files that people keep rows in, or name so by mistake.
_ROWS = frozenset((".json", ".jsonl", ".csv", ".tsv", ".parquet", ".arrow", ".txt", ".xlsx"))


def iteration_in(name: str) -> int | None:
    """The iteration that a checkpoint's file has in its name; None where it is no checkpoint's."""
    match = CHECKPOINT_NAME.match(name) or _OWN_CHECKPOINT.match(name)
    return int(match[1]) if match else None


def is_recorded_answer(keys: Set[str], name: str = "") -> bool:
    """Whether a row with these keys, in a file of this name, is a recorded answer, not a row."""
    if "tuned" in keys or {"base", "prompt"} <= keys:
        return True
    answers = set(TUNED_KEYS) - _OF_ROWS
    if not _OF_ANSWERS.isdisjoint(keys):
        answers.add("completion")
    if not keys.isdisjoint(EXPECTED_KEYS) or _NAMED.search(name):
        answers.add("answer")
    return "prompt" in keys and not answers.isdisjoint(keys)


@dataclass(frozen=True)
class RunFiles:
    """The evidence that was found, by kind. A `None` or empty field: none was found.

    `base` and `data` may be followed from the configuration; `base_named` and
    `data_named` keep what it said where that could not be found on this machine.
    `settings` is what else configures training, beside a `config` of the adapter's own.
    `unrecognised`: files that none of these kinds claims; another package's kind may.
    `problems`: limits at which looking through a folder ended.
    """

    roots: tuple[Path, ...] = ()
    config: Path | None = None
    settings: Path | None = None
    adapter: Path | None = None
    checkpoints: tuple[Path, ...] = ()
    logs: tuple[Path, ...] = ()
    base: Path | None = None
    base_named: str | None = None
    tuned: Path | None = None
    data: Path | None = None
    data_named: str | None = None
    generations: Path | None = None
    metrics: tuple[Path, ...] = ()
    unrecognised: tuple[Path, ...] = ()
    problems: tuple[InputError, ...] = ()

    @property
    def found(self) -> bool:
        """Whether anything in it is evidence."""
        single = (self.config, self.adapter, self.tuned, self.base, self.data, self.generations)
        return any((*single, self.checkpoints, self.logs, self.metrics))

    def having(self, kind: str, path: Path) -> "RunFiles":
        """With one more path under the field `kind`: added to several, or the first of one."""
        before: tuple[Path, ...] | Path | None = getattr(self, kind)
        added: Any = (*before, path) if isinstance(before, tuple) else before or path
        return replace(self, **{kind: added})


def is_model_folder(folder: Path) -> bool:
    """Whether a folder holds a model: a configuration and weights, or a weight index."""
    if not (folder / "config.json").is_file():
        return False
    return any(folder.glob("model*.safetensors")) or any(folder.glob("*.safetensors.index.json"))


def is_data_path(path: Path) -> bool:
    """Whether a path is a data folder as mlx-lm reads it, or one JSONL file."""
    if path.is_file():
        return path.suffix == ".jsonl"
    return any((path / name).is_file() for name in _NAMES)


def rows_elsewhere(folder: Path) -> list[Path]:
    """What holds rows in a folder without `train.jsonl`: folders that have it, or other files."""
    entries = sorted(islice(folder.iterdir(), current().folder_entries)) if folder.is_dir() else []
    deeper = [entry for entry in entries if entry.is_dir() and is_data_path(entry)]
    # What has one of the right names and is no data is a log.
    others = [entry for entry in entries if entry.name not in _NAMES]
    return deeper or [entry for entry in others if entry.suffix.lower() in _ROWS]


def resolve(named: str, roots: Iterable[Path], *, model: bool) -> Path | None:
    """The folder a configuration names, if it is on this machine; never downloaded.

    A relative path was relative to the folder the trainer was started in,
    which nobody recorded: the current folder, the run's folder and its parents
    are tried. A model's hub name is looked up in the local Hugging Face cache.
    """
    candidates = _candidates(named, roots)
    if model and re.fullmatch(r"[\w.-]+/[\w.-]+", named):
        candidates += _cached_snapshots(named)
    if model:
        return _first(candidates, is_model_folder)
    found = _first(candidates, is_data_path)
    found = found or _first(candidates, lambda at: bool(rows_elsewhere(at)))
    # A folder that is named in full is meant, whatever it holds.
    return found or _first(candidates if Path(named).is_absolute() else (), Path.is_dir)


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
        candidates += [parent / path for parent in (start, *start.parents)]
    return candidates


def _first(candidates: Iterable[Path], accept: Callable[[Path], bool]) -> Path | None:
    for candidate in candidates:
        with suppress(OSError):
            if candidate.exists() and accept(candidate):
                return candidate
    return None


def _cached_snapshots(repository: str) -> list[Path]:
    try:
        home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
        cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()
        folder = cache / f"models--{repository.replace('/', '--')}"
        main = folder / "refs" / "main"
        named = [folder / "snapshots" / main.read_text().strip()] if main.is_file() else []
        return named + sorted((folder / "snapshots").glob("*"))
    # A user without a home has no cache; and a reference may not be UTF-8.
    except (RuntimeError, OSError, ValueError):
        return []
