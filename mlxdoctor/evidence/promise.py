"""What preflight promised of a run: `preflight.json`, as it writes it beside its report."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mlxdoctor.evidence.kind import NotThere, RunView
from mlxdoctor.evidence.source import Source, read_json_object
from mlxdoctor.safety.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

#: How the file is called, and what says in it that it is one.
NAME, MARK = "preflight.json", "mlxdoctor-preflight"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Promise:
    """What was predicted.

    Attributes:
        sources: the file.
        peak: bytes of memory at the highest.
        is_rough: that was guessed from the model's name.
        seconds_an_iteration: the range that the steps timed give; None where none was timed.
        loss: an iteration, and the training loss that the log will report at it; None where these
            iterations were not made.
    """

    kind: ClassVar[str] = "what preflight promised"

    sources: tuple[Source, ...]
    peak: int
    is_rough: bool
    seconds_an_iteration: tuple[float, float] | None
    loss: tuple[int, float] | None = None

    @classmethod
    def find(cls, run: RunView) -> Promise:
        """The file, where it lies in the run's folder or was named beside it; see `Evidence`."""
        named = [path for path in run.files.unrecognised if path.name == NAME]
        if not named:
            raise NotThere("no preflight.json was named")
        return cls.read(named[0])

    @classmethod
    def read(cls, path: Path) -> Promise:
        """Read it.

        Raises:
            InputError: it is no promise of preflight's.
        """
        values, source = read_json_object(path)
        peak, pace = values.get("peak"), values.get("seconds_an_iteration")
        if values.get("file") != MARK or not isinstance(peak, int) or peak <= 0:
            raise InputError(path, "is not what preflight writes", "make it again")
        pair = None
        if isinstance(pace, list) and len(pace) == 2 and all(map(_is_number, pace)):
            pair = (float(pace[0]), float(pace[1]))
        # Under names of their own the two would look like a log's.
        at, told = values.get("loss_at"), None
        if isinstance(at, list) and len(at) == 2 and all(map(_is_number, at)):
            told = (int(at[0]), float(at[1]))
        return cls((source,), peak, values.get("is_rough") is True, pair, told)


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value < math.inf
