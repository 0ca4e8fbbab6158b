"""Code that came with a run or its model: found by the keys that name it, never run."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from mlxdoctor.evidence.config import CONFIG_NAME
from mlxdoctor.evidence.kind import RunView
from mlxdoctor.evidence.source import Source, hash_file, read_json_object
from mlxdoctor.safety.errors import InputError

#: Configurations of a model folder in which code can be named.
CONFIGURATIONS = (
    "config.json",
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "generation_config.json",
)
#: Keys that make a loader run Python from the folder or from a repository.
CODE_KEYS = ("model_file", "auto_map", "custom_pipelines", "custom_generate", "chat_template_type")
#: The key of a run's configuration that lets a loader run such code.
TRUST = "trust_remote_code"


class NamedCode(NamedTuple):
    """A key of the configuration `path` that asks for code, and what it names, as text."""

    path: Path
    key: str
    value: str


@dataclass(frozen=True)
class RemoteCode:
    """What in a run's folders could run, if something else loaded it.

    Attributes:
        sources: the configurations that were read.
        named: keys that ask for code, and those of a run's configuration that allow it.
    """

    kind: ClassVar[str] = "code beside the weights"

    sources: tuple[Source, ...]
    named: tuple[NamedCode, ...]

    @classmethod
    def find(cls, run: RunView) -> "RemoteCode":
        files = run.files
        named = filter(None, (*files.roots, files.base, files.tuned, files.adapter))
        return cls.read((path if path.is_dir() else path.parent).resolve() for path in named)

    @classmethod
    def read(cls, folders: Iterable[Path]) -> "RemoteCode":
        """Look through folders, each by itself, for what names code."""
        folders = tuple(dict.fromkeys(folders))
        files = [folder / name for folder in folders for name in CONFIGURATIONS]
        return cls(
            tuple(hash_file(file) for file in files if file.is_file()),
            tuple(
                code
                for folder in folders
                for code in (*code_named_in(folder), *_named(folder / CONFIG_NAME, (TRUST,)))
            ),
        )


def code_named_in(folder: Path) -> tuple[NamedCode, ...]:
    """The keys in a folder's configurations that ask for code of its own."""
    files = (folder / name for name in CONFIGURATIONS)
    return tuple(code for file in files for code in _named(file, CODE_KEYS))


def _named(path: Path, keys: Iterable[str]) -> list[NamedCode]:
    """Those of the keys that a configuration states; none where its reader reports it."""
    try:
        values = read_json_object(path)[0]
    except InputError:
        return []
    return [
        NamedCode(path, key, "true" if value is True else str(value))
        for key in keys
        if (value := values.get(key))
    ]
