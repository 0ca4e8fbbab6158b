"""What a base model said before: reruns, checkpoints and adapters of one base ask it the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from mlxdoctor.evidence.base_model import BaseModel

T = TypeVar("T")
#: Questions whose answers are kept, the latest ones: a run asks ten or so, stage by stage.
KEPT = 32

_known: dict[Hashable, object] = {}


def as_before(base: BaseModel, question: Hashable, ask: Callable[[], T]) -> T:
    """What the base model says to this question: asked now, or as it said before.

    Args:
        base: its files must be as they were, by size and time.
        question: everything the answer depends on besides.
        ask: runs the model. The answer is shared, and may not be changed.
    """
    try:
        files = [(one.path.absolute(), one.path.stat()) for one in base.sources]
    except OSError:
        return ask()
    stamps = tuple((path, stat.st_size, stat.st_mtime_ns) for path, stat in files)
    key = (stamps, question)
    found = _known.pop(key, None)
    if found is None:
        found = ask()
    _known[key] = found
    for old in tuple(_known)[:-KEPT]:
        _known.pop(old, None)
    said: T = found  # type: ignore[assignment]
    return said
