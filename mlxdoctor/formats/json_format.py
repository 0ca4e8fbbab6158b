"""The report as JSON that any parser reads.

RFC 8259 has no NaN and no infinity, and Python's own spelling of them is
rejected elsewhere. They are written as the texts "NaN", "Infinity" and
"-Infinity", as Protocol Buffers' JSON mapping does: a NaN loss is a finding,
and `null` would lose it. `float("NaN")` and `Number("NaN")` read them back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def render(data: Mapping[str, Any]) -> str:
    """The report as indented JSON in ASCII, with a line break at its end."""
    return json.dumps(_strict(data), indent=2, allow_nan=False) + "\n"


def _strict(value: Any) -> Any:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value
