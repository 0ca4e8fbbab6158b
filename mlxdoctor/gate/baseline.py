"""Findings that are known: a gate with a baseline fails only for new ones.

What is accepted is a finding of the files that are there, as large as it was: where one of them is
another, or with other figures, it is judged anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from sys import float_info
from typing import Any

from mlxdoctor.evidence.source import read_bytes
from mlxdoctor.safety.errors import InputError

SCHEMA_VERSION = 2
#: By how much a figure may differ from the accepted one, as a share of it: what is measured
#: again of the same files, on another machine or by another version of a library, differs less.
BAND = 0.1


@dataclass(frozen=True, order=True)
class Known:
    """One known finding.

    Attributes:
        path: the item, as `Policy.key` gives it.
        code: the finding's code, for those who read the file.
        fingerprint: its identity: code and place, without figures.
        file: SHA-256 of the item's own files, "" where it has none.
        figures: what was measured, by name, in the names' order.
    """

    path: str
    code: str
    fingerprint: str
    file: str = ""
    figures: tuple[tuple[str, float], ...] = ()

    @property
    def identity(self) -> tuple[str, str, str]:
        """What the finding is, of whatever file and however large."""
        return self.path, self.code, self.fingerprint

    def reopened_by(self, found: Known) -> str:
        """Why accepting this does not accept what was found now, as a sentence; "" if it does."""
        if found.file != self.file:
            return f"the baseline accepts {self.code} of other files than those that are there"
        before, now = dict(self.figures), dict(found.figures)
        # A figure that is not finite is none: one that grew beyond that is missing.
        if other := before.keys() ^ now.keys():
            return f"the baseline accepts {self.code} by other figures: {', '.join(sorted(other))}"
        for name, value in before.items():
            if abs(now[name] - value) > BAND * abs(value):
                return (
                    f"the baseline accepts {self.code} where {name} is {value:.4g}, and it is "
                    f"{now[name]:.4g}"
                )
        return ""


def read_baseline(path: Path) -> frozenset[Known]:
    """The known findings in a file.

    Raises:
        InputError: it is not there, or is no baseline.
    """
    if not path.exists():
        raise InputError(path, "there is no such baseline", "make it: --write-baseline")
    content, _ = read_bytes(path, "json_bytes")
    try:
        document = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _not_one(path) from None
    if not isinstance(document, Mapping):
        raise _not_one(path)
    if document.get("schema_version") == 1:
        problem = "is a baseline of an older mlxdoctor, which does not say of which files"
        raise InputError(path, problem, "remove it and make it anew: --write-baseline")
    if document.get("schema_version") != SCHEMA_VERSION:
        raise _not_one(path)
    entries = document.get("known")
    if not isinstance(entries, list):
        raise _not_one(path)
    return frozenset(_known(entry, path) for entry in entries)


def baseline_text(known: Iterable[Known]) -> str:
    """The file: one finding a line, in order, so that changes to it are easy to review."""
    lines = [
        json.dumps(
            {
                "path": one.path,
                "code": one.code,
                "fingerprint": one.fingerprint,
                "file": one.file,
                "figures": dict(one.figures),
            }
        )
        for one in sorted(set(known))
    ]
    body = ",\n".join(f"    {line}" for line in lines)
    listed = f"[\n{body}\n  ]" if lines else "[]"
    return f'{{\n  "schema_version": {SCHEMA_VERSION},\n  "known": {listed}\n}}\n'


def figures_of(measured: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """The numbers among what a finding measured."""
    return tuple(
        (name, float(value))
        for name, value in sorted(measured.items())
        if isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value)
    )


def _is_finite(value: float) -> bool:
    # JSON has integers of any size.
    return abs(value) <= float_info.max


def _known(entry: Any, path: Path) -> Known:
    fields = ("path", "code", "fingerprint", "file")
    if not isinstance(entry, Mapping) or not all(isinstance(entry.get(one), str) for one in fields):
        raise _not_one(path)
    figures = entry.get("figures")
    if not isinstance(figures, Mapping):
        raise _not_one(path)
    code, fingerprint = entry["code"], entry["fingerprint"]
    return Known(entry["path"], code, fingerprint, entry["file"], figures_of(figures))


def _not_one(path: Path) -> InputError:
    return InputError(
        path, "is not a baseline of mlxdoctor", "remove it and make it anew: --write-baseline"
    )
