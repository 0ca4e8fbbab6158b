"""What ships with the package: tables of TOML files, read into dataclasses, and its modules."""

import importlib
import pkgutil
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import ModuleType
from typing import Any, TypeVar

from mlxdoctor.safety.errors import InputError

Record = TypeVar("Record")


def shipped_text(package: str, file: str) -> str:
    """The text of a file that lies in a package of ours."""
    return (pkgutil.get_data(package, file) or b"").decode()


def shipped(package: str, file: str) -> Mapping[str, Any]:
    """The tables of a file that lies in a package of ours, by name."""
    return tomllib.loads(shipped_text(package, file))


def modules_of(package: str) -> list[ModuleType]:
    """Every module that lies in the package itself, imported, by name; packages in it are not."""
    return [
        importlib.import_module(f"{package}.{info.name}")
        for info in pkgutil.iter_modules(importlib.import_module(package).__path__)
        if not info.ispkg
    ]


def record(
    kind: type[Record], file: str, name: str, table: Mapping[str, Any], **given: Any
) -> Record:
    """One table as a dataclass whose fields are the table's keys, with `-` for `_`.

    Lists become tuples, text loses the space around it, and what a field has as a pattern is one.

    Args:
        kind: a field without a default is a key that the table must have.
        file, name: of the table, for messages.
        given: fields that are not read from the table as they stand, by name.

    Raises:
        InputError: the table has a key that is no field, or lacks one.
    """
    values = {key.replace("-", "_"): _plain(value) for key, value in table.items()} | given
    keys = {part.name: part for part in fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(values.keys() - keys.keys()):
        raise InputError(file, f"{name} has the unknown key {unknown[0]!r}")
    for key, part in keys.items():
        is_needed = part.default is MISSING and part.default_factory is MISSING
        if is_needed and key not in values:
            raise InputError(file, f"{name} lacks the key {key!r}")
        if part.type == re.Pattern[str] | None and key in values:
            values[key] = re.compile(values[key])
    return kind(**values)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.strip()
    return tuple(map(_plain, value)) if isinstance(value, list) else value
