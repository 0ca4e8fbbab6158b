"""JSON from files that nobody vouches for.

Python's parser takes more than a configuration may say: a key twice, numbers of any size,
nesting up to the stack, and half a surrogate pair, which nothing can be written with.
"""

import json
import math
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current, exceeded

T = TypeVar("T")

_HALF = re.compile("[\ud800-\udfff]")
#: Digits of a whole number: no float has more.
MAX_DIGITS = 300
#: Whole numbers in a configuration fit into 64 bits (the largest, unsigned).
MAX_WHOLE = 2**64


def parse_settings(path: Path, text: str) -> Any:
    """The value of a JSON text that is a configuration or an index.

    Raises:
        InputError: it is not JSON; it is nested over `json_depth` levels deep; a key is there
            twice with different values; or a whole number does not fit into 64 bits.
    """
    try:
        value = json.loads(text, object_pairs_hook=without_repeats, parse_int=whole)
    except RecursionError:
        raise exceeded(path, "is nested more deeply than can be read", "json_depth") from None
    except ValueError as error:
        remedy = "it may be cut off or another kind of file"
        raise InputError(path, f"is not valid JSON ({error})", remedy) from None
    if too_deep(value):
        raise exceeded(path, "is nested more deeply than a configuration", "json_depth")
    return mended(value) if "\\ud" in text or "\\uD" in text else value


def json_values(text: str) -> tuple[list[Any], int]:
    """The values of a JSON list, of one JSON value, or of JSON lines; and lines that are none."""
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        return (value if isinstance(value, list) else [value]), 0
    values: list[Any] = []
    # Not splitlines: a text may hold U+2028 and other separators as they are.
    lines = [line for line in text.split("\n") if line.strip()]
    for line in lines:
        with suppress(ValueError, RecursionError):
            values.append(json.loads(line))
    return values, len(lines) - len(values)


def as_float(value: Any) -> float | None:
    """A number as a float, infinite where it has over 308 digits; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def too_deep(value: Any) -> bool:
    """Whether lists and objects contain each other more than `json_depth` deep."""
    layer = [value]
    for _ in range(current().json_depth + 2):
        layer = [
            child
            for parent in layer
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
    return bool(layer)


def mended(value: T) -> T:
    """The value with every half of a surrogate pair as U+FFFD: no file or terminal takes one."""
    mend: Any = value
    if isinstance(value, str):
        mend = _HALF.sub("\ufffd", value)
    elif isinstance(value, list):
        mend = [mended(item) for item in value]
    elif isinstance(value, dict):
        mend = {mended(key): mended(item) for key, item in value.items()}
    return cast("T", mend)


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object that the parser makes of these pairs.

    Raises:
        ValueError: a key is there twice with different values.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        for key, value in pairs:
            # The same word or number said twice harms nobody.
            if isinstance(value, dict | list) or repr(found[key]) != repr(value):
                raise ValueError(f"{key!r} is there twice, with different values")
    return found


def whole(text: str) -> int | float:
    """The whole number that a configuration states; a float where it takes more than 64 bits.

    Transformers writes such a number where a tokenizer has no limit (1e30, in digits).

    Raises:
        ValueError: it has more digits than any float: Python can't print or divide all of those.
    """
    if len(text) > MAX_DIGITS:
        raise ValueError(f"the number {text[:21]}… has {len(text):,} digits")
    value = int(text)
    return value if -MAX_WHOLE < value < MAX_WHOLE else float(value)
