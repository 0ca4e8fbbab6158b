"""What a kind of evidence is: a class with a name for the report that finds and reads itself.

A check asks for evidence by its parameters' annotations, and a run answers: `run.get(Adapter)`
calls `Adapter.find(run)`, once. Nothing lists the kinds, so that one of another package is
found as these are. A kind, usually a frozen dataclass, has

- `kind`, what the report calls it; empty for a step on the way to other evidence;
- `sources`, the files it was read from, for the report's list;
- `find(run)`, which raises `Missing` or `NotThere`, or `InputError` where it can't be read;
- `needs_models = True` if it runs a model: a diagnosis looks at the files first.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from mlxdoctor.check import DoesNotArise, EvidenceSource, NotApplicable
from mlxdoctor.evidence.options import Options
from mlxdoctor.evidence.run_files import RunFiles
from mlxdoctor.safety.time_budget import TimeBudget

#: Called with what is being done, a count done and a total; draws progress.
Progress = Callable[[str, int, int], None]


class Missing(NotApplicable):
    """Raised by `find` when the run left no such evidence; the reason is a clause."""


class NotThere(Missing):
    """Raised where nothing is lacking either: this run has no such thing, or nobody asked."""


class NoSuchThing(NotThere, DoesNotArise):
    """Raised where a run of its kind can have no such thing: what asks for it does not arise."""


class RunView(EvidenceSource, Protocol):
    """What a kind of evidence is told of its run: the part of `mlxdoctor.run.Run` that it needs."""

    @property
    def name(self) -> str: ...

    @property
    def files(self) -> RunFiles: ...

    @property
    def options(self) -> Options: ...

    @property
    def progress(self) -> Progress | None: ...

    @property
    def budget(self) -> TimeBudget: ...

    def other(self, path: Path) -> "RunView": ...
