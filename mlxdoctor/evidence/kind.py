"""What a kind of evidence is: a class with a name for the report that finds and reads itself.

A check asks for evidence by its parameters' annotations, and a run answers: `run.get(Adapter)`
calls `Adapter.find(run)`, once. Nothing lists the kinds, so that one of another package is
found as these are.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

from mlxdoctor.evidence.options import Options
from mlxdoctor.evidence.run_files import RunFiles
from mlxdoctor.evidence.source import Source
from mlxdoctor.safety.time_budget import TimeBudget

T = TypeVar("T")

#: Called with what is being done, a count done and a total; draws progress.
Progress = Callable[[str, int, int], None]


class Missing(Exception):  # noqa: N818 - an answer, not an error
    """Raised by `find` when the run left no such evidence; the reason is a clause."""


class NotThere(Missing):
    """Raised where nothing is lacking either: this run has no such thing, or nobody asked."""


class NoSuchThing(NotThere):
    """Raised where a run of its kind can have no such thing: what asks for it does not arise."""


class RunView(Protocol):
    """What a kind of evidence is told of its run; `mlxdoctor.run.Run` is one, and says more."""

    @property
    def name(self) -> str:
        """What the report calls the run."""

    @property
    def files(self) -> RunFiles:
        """Which file is which kind of evidence."""

    @property
    def options(self) -> Options:
        """What the user said."""

    @property
    def progress(self) -> Progress | None:
        """To be told about work that takes seconds."""

    @property
    def is_planned(self) -> bool:
        """Whether the run has not begun."""

    @property
    def budget(self) -> TimeBudget:
        """How long models may run."""

    def get(self, kind: type[T]) -> T | None:
        """The evidence of that kind; None where there is none."""

    def need(self, kind: type[T]) -> T:
        """As `get`; raises `Missing` where there is none."""

    def why_missing(self, kind: type[Any]) -> str:
        """Why `get` gave None."""

    def cannot_have(self, kind: type[Any]) -> bool:
        """Whether a run of its kind has no such evidence."""

    def other(self, path: Path) -> RunView:
        """The run in another folder."""


class Evidence(Protocol):
    """A kind of evidence: usually a frozen dataclass.

    Attributes:
        kind: what the report calls it; empty for a step on the way to other evidence,
            which the report does not list.

    What runs a model says `needs_models = True`: a diagnosis looks at the files first.
    """

    kind: ClassVar[str]

    @property
    def sources(self) -> tuple[Source, ...]:
        """The files it was read from, for the report's list."""

    @classmethod
    def find(cls, run: RunView) -> Self:
        """Find it in a run, and read it.

        Raises:
            Missing: the run left none; the reason tells the user what to name.
            NotThere: there can be none, and nothing is lacking.
            InputError: there is one, and it can't be read.
        """
