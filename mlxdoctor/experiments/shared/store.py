"""Results on disk, one file an experiment: a stopped reproduction continues where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxdoctor.formats import json_format
from mlxdoctor.safety.atomic import replace_file
from mlxdoctor.safety.errors import InputError

#: Of the meaning of a stored result: those of another version are made again.
VERSION = 4
RESULT_FILE = "result.json"
#: Characters of the key in a folder's name.
KEY_LENGTH = 12


def key_of(facts: Mapping[str, Any]) -> str:
    """A name for an experiment that changes with whatever it depends on."""
    text = json.dumps({"version": VERSION, **facts}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


def read(folder: Path) -> dict[str, Any] | None:
    """The result in an experiment's folder; None where it was not finished, or is none."""
    try:
        result = json.loads((folder / RESULT_FILE).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return result if isinstance(result, dict) else None


def write(folder: Path, result: Mapping[str, Any]) -> None:
    """Write a result, at once or not at all.

    Raises:
        InputError: the folder can't be written.
    """
    write_json(folder / RESULT_FILE, result)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON, at once or not at all.

    Raises:
        InputError: the file can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json_format.render(content).encode())
    except OSError as error:
        raise InputError(path, f"cannot be written ({error.strerror})") from None
