"""Findings that are known: a gate with a baseline fails only for new ones.

What is accepted is a finding of the files that are there, as large as it was: where one of them is
another, or with other figures, it is judged anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
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
        InputError: it is not there, or is no baseline of this version.
    """
    if not path.exists():
        raise InputError(path, "there is no such baseline", "make it: --write-baseline")
    content, _ = read_bytes(path, "json_bytes")
    try:
        document = json.loads(content.decode("utf-8"))
        if document["schema_version"] != SCHEMA_VERSION:
            raise ValueError
        return frozenset(map(_known, document["known"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        problem = "is not a baseline of this mlxdoctor"
        raise InputError(path, problem, "remove it and make it anew: --write-baseline") from None


def _known(entry: Any) -> Known:
    path, code, fingerprint, file = (
        entry[name] for name in ("path", "code", "fingerprint", "file")
    )
    if not all(isinstance(text, str) for text in (path, code, fingerprint, file)):
        raise TypeError
    return Known(path, code, fingerprint, file, figures_of(dict(entry["figures"])))


def baseline_text(known: Iterable[Known]) -> str:
    """The file: one finding a line, in order, so that changes to it are easy to review."""
    lines = [
        json.dumps(asdict(entry) | {"figures": dict(entry.figures)}) for entry in sorted(set(known))
    ]
    body = ",\n".join(f"    {line}" for line in lines)
    listed = f"[\n{body}\n  ]" if lines else "[]"
    return f'{{\n  "schema_version": {SCHEMA_VERSION},\n  "known": {listed}\n}}\n'


def figures_of(measured: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """The numbers among what a finding measured."""
    return tuple(
        (name, float(value))
        for name, value in sorted(measured.items())
        # JSON has integers of any size; what is not finite is no figure.
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= float_info.max
    )
