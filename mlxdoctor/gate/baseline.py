"""Findings that are known: a gate with a baseline fails only for new ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxdoctor.safety.errors import InputError

SCHEMA_VERSION = 1


@dataclass(frozen=True, order=True)
class Known:
    """One known finding.

    Attributes:
        path: the item, as `Policy.key` gives it.
        code: the finding's code, for those who read the file.
        fingerprint: its identity: code and place, without figures.
    """

    path: str
    code: str
    fingerprint: str


def read_baseline(path: Path) -> frozenset[Known]:
    """The known findings in a file.

    Raises:
        InputError: it is not there, or is no baseline.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(path, "there is no such baseline", "make it: --write-baseline") from None
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror})", "check its access") from None
    except (ValueError, RecursionError):
        raise _not_one(path) from None
    if not isinstance(document, Mapping) or document.get("schema_version") != SCHEMA_VERSION:
        raise _not_one(path)
    entries = document.get("known")
    if not isinstance(entries, list):
        raise _not_one(path)
    return frozenset(_known(entry, path) for entry in entries)


def baseline_text(known: Iterable[Known]) -> str:
    """The file: one finding a line, in order, so that changes to it are easy to review."""
    lines = [
        json.dumps({"path": one.path, "code": one.code, "fingerprint": one.fingerprint})
        for one in sorted(set(known))
    ]
    body = ",\n".join(f"    {line}" for line in lines)
    listed = f"[\n{body}\n  ]" if lines else "[]"
    return f'{{\n  "schema_version": {SCHEMA_VERSION},\n  "known": {listed}\n}}\n'


def _known(entry: Any, path: Path) -> Known:
    fields = ("path", "code", "fingerprint")
    if not isinstance(entry, Mapping) or not all(isinstance(entry.get(one), str) for one in fields):
        raise _not_one(path)
    return Known(entry["path"], entry["code"], entry["fingerprint"])


def _not_one(path: Path) -> InputError:
    return InputError(
        path, "is not a baseline of mlxdoctor", "remove it and make it anew: --write-baseline"
    )
