"""Code and pickles that came with a run or its model: found by name, never opened or run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from mlxdoctor.evidence.kind import RunView
from mlxdoctor.evidence.source import Source, hash_file, read_json_object
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current

#: Configurations of a model folder in which code can be named.
CONFIGURATIONS = (
    "config.json",
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "generation_config.json",
)
#: Keys that make a loader run Python from the folder or from a repository.
CODE_KEYS = (
    "model_file",
    "auto_map",
    "custom_pipelines",
    "custom_generate",
    "chat_template_type",
)
#: The key of a run's configuration that lets a loader run such code.
TRUST = "trust_remote_code"
#: Endings of files that are pickles, or archives of them: loading one runs what it says.
PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib"})


@dataclass(frozen=True)
class NamedCode:
    """A key of a configuration that asks for code.

    Attributes:
        path: the configuration.
        key: `model_file`, `auto_map`, …
        value: what it names, as text.
    """

    path: Path
    key: str
    value: str


@dataclass(frozen=True)
class RemoteCode:
    """What in a run's folders could run, if something else loaded it.

    Attributes:
        sources: the configurations that were read.
        named: keys that ask for code, and those of a run's configuration that allow it.
        pickles: files that are pickles by their names.
    """

    kind: ClassVar[str] = "code beside the weights"

    sources: tuple[Source, ...]
    named: tuple[NamedCode, ...]
    pickles: tuple[Path, ...]

    @classmethod
    def find(cls, run: RunView) -> RemoteCode:
        files = run.files
        named = (*files.roots, files.base, files.tuned, files.adapter)
        places = [one if one.is_dir() else one.parent for one in named if one is not None]
        return cls.read(one.resolve() for one in places)

    @classmethod
    def read(cls, folders: Iterable[Path]) -> RemoteCode:
        """Look through folders, each by itself, for what names or holds code."""
        named: list[NamedCode] = []
        pickles: list[Path] = []
        sources: list[Source] = []
        for folder in dict.fromkeys(folders):
            named += code_named_in(folder)
            config = folder / "adapter_config.json"
            if _values(config).get(TRUST) is True:
                named.append(NamedCode(config, TRUST, "true"))
            pickles += _pickles(folder)
            files = [folder / name for name in CONFIGURATIONS]
            sources += [hash_file(file) for file in files if file.is_file()]
        return cls(tuple(sources), tuple(named), tuple(pickles))


def code_named_in(folder: Path) -> tuple[NamedCode, ...]:
    """The keys in a folder's configurations that ask for code of its own."""
    named: list[NamedCode] = []
    for path in (folder / name for name in CONFIGURATIONS):
        values = _values(path)
        named += [NamedCode(path, key, str(values[key])) for key in CODE_KEYS if values.get(key)]
    return tuple(named)


def _values(path: Path) -> Mapping[str, Any]:
    """What a configuration states; nothing where it can't be read, which its reader reports."""
    try:
        return read_json_object(path)[0]
    except InputError:
        return {}


def _pickles(folder: Path) -> Iterator[Path]:
    try:
        entries = islice(folder.iterdir(), current().folder_entries)
        yield from sorted(one for one in entries if one.suffix.lower() in PICKLE_SUFFIXES)
    except OSError:
        return
