"""A log that is one JSON document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

from mlxdoctor.safety.reading_limits import current


def read_document(texts: Iterator[str]) -> tuple[Any, Iterator[str]]:
    """The document, and the whole text again, for other formats.

    The document is None where the text is longer than the limit `json_bytes` or no JSON.
    """
    parts, length = [], 0
    for text in texts:
        parts.append(text)
        length += len(text)
        if length > current().json_bytes:
            return None, chain(parts, texts)
    try:
        return json.loads("".join(parts)), iter(parts)
    except (ValueError, RecursionError):
        return None, iter(parts)
