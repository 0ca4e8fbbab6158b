"""Reports packed small: a gate holds one for each of thousands of adapters."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

#: Reports that are unpacked at a time: formats look at one after the other.
UNPACKED = 4


class HeldReport(Mapping[str, Any]):
    """A report that takes a tenth of its memory, and is unpacked when it is looked at."""

    __slots__ = ("_packed",)

    def __init__(self, report: Mapping[str, Any]) -> None:
        """Pack `report`, of texts, numbers, and mappings and lists of them."""
        self._packed = zlib.compress(json.dumps(dict(report)).encode(), 1)

    def __getitem__(self, key: str) -> Any:
        return _unpacked(self._packed)[key]

    def __iter__(self) -> Iterator[str]:
        return iter(_unpacked(self._packed))

    def __len__(self) -> int:
        return len(_unpacked(self._packed))


@lru_cache(maxsize=UNPACKED)
def _unpacked(packed: bytes) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(zlib.decompress(packed))
    return report
