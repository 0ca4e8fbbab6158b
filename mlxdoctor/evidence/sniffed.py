"""A file as it looks before anyone reads it: its name, and how it begins."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mlxdoctor.evidence.source import read_head
from mlxdoctor.safety.errors import InputError

#: Bytes read of a file to tell what it is.
SNIFF_BYTES = 1 << 16


@dataclass(frozen=True)
class Sniffed:
    """A file, for a kind of evidence to say whether it is of that kind."""

    path: Path

    @cached_property
    def head(self) -> str:
        """The text it begins with; empty where it can't be read."""
        try:
            return read_head(self.path, SNIFF_BYTES).decode("utf-8-sig", errors="replace")
        except InputError:
            return ""

    @cached_property
    def record(self) -> Mapping[str, Any]:
        """The first object of a .json or .jsonl file, itself or in a list; empty without one."""
        if self.path.suffix not in (".json", ".jsonl"):
            return {}
        try:
            value, _ = json.JSONDecoder().raw_decode(self.head.lstrip())
        except (ValueError, RecursionError):
            return {}
        if isinstance(value, list) and value:
            value = value[0]
        return value if isinstance(value, dict) else {}
