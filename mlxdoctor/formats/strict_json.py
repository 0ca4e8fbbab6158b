"""Whatever a command says, as JSON that any parser reads.

JSON has no NaN and no infinity. They are written as the texts "NaN", "Infinity" and "-Infinity", as
Protocol Buffers' JSON mapping does: a NaN loss is a finding, and `null` would lose it.
"""

import json
import math
from typing import Any

from mlxdoctor.finding import plain


def render(content: Any) -> str:
    """Indented JSON in ASCII, with a line break at its end."""
    return json.dumps(strict(content), indent=2, allow_nan=False) + "\n"


def finite(value: float | None) -> float | None:
    """A figure of a table, and None for one that is not finite."""
    return value if value is not None and math.isfinite(value) else None


def strict(value: Any) -> Any:
    """The value as JSON has it, with NaN and infinities spelled out."""
    # Python writes them in just this spelling, without the quotation marks.
    return json.loads(json.dumps(plain(value)), parse_constant=str)
