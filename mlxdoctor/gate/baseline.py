"""The baseline: known findings, for which a gate does not fail.

An entry accepts a finding in the same files and with about the same figures. If the files or the
figures differ, the finding is judged anew.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from sys import float_info
from typing import Any

from mlxdoctor.evidence.source import read_bytes
from mlxdoctor.safety.errors import InputError

SCHEMA_VERSION = 2
#: Share of the accepted figure by which a figure may differ: another machine or another version
#: of a library changes it by less.
BAND = 0.1


@dataclass(frozen=True, order=True)
class Known:
    """One known finding.

    Attributes:
        path: the item, as `Policy.key` gives it.
        file: SHA-256 of the item's files; "" if it has none.
        figures: names and values of the figures, sorted by name.
    """

    path: str
    code: str
    fingerprint: str
    file: str = ""
    figures: tuple[tuple[str, float], ...] = ()

    @property
    def identity(self) -> tuple[str, str, str]:
        """Equal for two entries of the same finding, whatever their files and figures."""
        return self.path, self.code, self.fingerprint

    def reopened_by(self, current: "Known") -> str:
        """Why this entry does not accept the current finding, as a sentence; "" if it does."""
        if current.file != self.file:
            return f"the baseline accepts {self.code} of other files than those that are there"
        before, now = dict(self.figures), dict(current.figures)
        # A figure that became infinite or NaN is missing from `now`.
        if unmatched := before.keys() ^ now.keys():
            names = ", ".join(sorted(unmatched))
            return f"the baseline accepts {self.code} by other figures: {names}"
        for name, value in before.items():
            if abs(now[name] - value) > BAND * abs(value):
                was = f"the baseline accepts {self.code} where {name} is {value:.4g}"
                return f"{was}, and it is {now[name]:.4g}"
        return ""


def read_baseline(path: Path) -> frozenset[Known]:
    """The known findings in a file, which must be a baseline of this version."""
    if not path.exists():
        raise InputError(path, "there is no such baseline", "make it: --write-baseline")
    content, _ = read_bytes(path, "json_bytes")
    try:
        document = json.loads(content.decode("utf-8"))
        if document["schema_version"] != SCHEMA_VERSION:
            raise ValueError
        return frozenset(
            Known(**{**entry, "figures": figures_of(entry["figures"])})
            for entry in document["known"]
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        problem = "is not a baseline of this mlxdoctor"
        raise InputError(path, problem, "remove it and make it anew: --write-baseline") from None


def baseline_text(known: frozenset[Known]) -> str:
    """The text of a baseline: one finding a line, sorted, so that changes are easy to review."""
    entries = [asdict(entry) | {"figures": dict(entry.figures)} for entry in sorted(known)]
    body = ",\n".join(f"    {json.dumps(entry)}" for entry in entries)
    array = f"[\n{body}\n  ]" if entries else "[]"
    return f'{{\n  "schema_version": {SCHEMA_VERSION},\n  "known": {array}\n}}\n'


def figures_of(measured: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """The finite numbers that a finding measured, sorted by name."""
    return tuple(
        (name, float(value))
        for name, value in sorted(measured.items())
        # An integer in JSON may be too large for a float.
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= float_info.max
    )
