"""Experiments, one file each: what would show a cause, and the causes it can show.

There are two kinds. Where the randomness of training plays no part an experiment is *direct*:
load it rightly, evaluate it again, compare. It is made once, in a folder of its own:

    @direct("wrong-base-model", "one step of training, for the shapes", iterations=1)
    def fresh_shapes(lab: Laboratory, run: Run, folder: Path) -> Ruling:

Else it is *counterfactual*: the run is made again, with several seeds and one thing changed. It
says whether it is for runs that fail as recorded, and should cure them, or for those that are
sound in the reference trainer, and should re-create the failure:

    @counterfactual(of="sound", shows=lambda cause: bool(cause.inject))
    def inject_fault(bench: Bench, cause: Cause, question: Question, plain: Trials) -> Ruling:

Which cause no experiment can show, and why, stands in causes.toml. What all of them share is in
`shared/`. Other packages add experiments through the entry-point group `mlxdoctor.experiments`,
by naming a module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from mlxdoctor.causes import Cause
from mlxdoctor.evidence.source import hash_file
from mlxdoctor.experiments.shared.bench import Bench
from mlxdoctor.experiments.shared.laboratory import Laboratory, stamps
from mlxdoctor.experiments.shared.rules import Question, Ruling, Trials, undecided
from mlxdoctor.members import modules_of
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError

ENTRY_POINT_GROUP = "mlxdoctor.experiments"

MakeDirect = Callable[[Laboratory, Run, Path], Ruling]
MakeReruns = Callable[[Bench, Cause, Question, Trials], Ruling | None]


@dataclass(frozen=True)
class Measured:
    """What a direct experiment said, and what it cost."""

    label: str
    ruling: Ruling
    iterations: int
    seconds: float = 0.0

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Measured:
        """What `asdict` gave.

        Raises:
            KeyError, TypeError, ValueError: it is not that.
        """
        ruling = Ruling(**values["ruling"])
        if ruling.verdict not in ("confirmed", "refuted", "undecided"):
            raise ValueError(ruling.verdict)
        seconds = float(values["seconds"])
        return cls(str(values["label"]), ruling, int(values["iterations"]), seconds)


@dataclass(frozen=True)
class Direct:
    """An experiment that is made once.

    Attributes:
        cause: that it can show.
        title: what is done, for people.
        make: does it, in a folder of its own.
        iterations: that it trains for.
    """

    cause: str
    title: str
    make: MakeDirect
    iterations: int = 0

    def shows(self, cause: Cause) -> bool:
        """Whether it can show a cause."""
        return cause.id == self.cause

    def made(self, lab: Laboratory, run: Run) -> Measured:
        """What it says: made now, or recalled.

        Raises:
            BudgetSpent: there was not enough time for it.
            InputError: the folder can't be written.
        """

        def make(folder: Path) -> Measured:
            try:
                ruling = self.make(lab, run, folder)
            except InputError as error:
                ruling = undecided(f"it can't be tried: {error}", "files with which it can be")
            return Measured(self.title, ruling, self.iterations)

        facts = _facts(lab, run, self.cause)
        return lab.remembered(f"direct-{self.cause}", facts, self.title, make, Measured.from_dict)


@dataclass(frozen=True)
class Counterfactual:
    """An experiment that reruns the training with one thing changed.

    Attributes:
        of: the runs it is for: those that fail when made again as recorded, or those that
            are sound then.
        shows: whether it can show a cause.
        make: does it; None where there is nothing to change.
        any_symptom: whether its causes can have any symptom, those in causes.toml aside.
    """

    of: Literal["failing", "sound"]
    shows: Callable[[Cause], bool]
    make: MakeReruns
    any_symptom: bool = False


Experiment = Direct | Counterfactual


def direct(cause: str, title: str, *, iterations: int = 0) -> Callable[[MakeDirect], Direct]:
    """Turn a function into a `Direct`; see there."""
    return lambda make: Direct(cause, title, make, iterations)


def counterfactual(
    *, of: Literal["failing", "sound"], shows: Callable[[Cause], bool], any_symptom: bool = False
) -> Callable[[MakeReruns], Counterfactual]:
    """Turn a function into a `Counterfactual`; see there."""
    return lambda make: Counterfactual(of, shows, make, any_symptom)


def discover() -> tuple[Experiment, ...]:
    """All experiments: the built-in ones by name, then those of installed packages.

    Raises:
        ValueError: two direct experiments are for one cause.
    """
    modules = modules_of(__name__)
    modules += [entry_point.load() for entry_point in entry_points(group=ENTRY_POINT_GROUP)]
    found = [one for module in modules for one in _in(module)]
    causes = [one.cause for one in found if isinstance(one, Direct)]
    if twice := next((cause for cause in causes if causes.count(cause) > 1), None):
        raise ValueError(f"two experiments show {twice} directly: remove one of them")
    return tuple(found)


def _in(module: ModuleType) -> list[Experiment]:
    return [
        one
        for one in vars(module).values()
        if isinstance(one, Experiment) and one.make.__module__ == module.__name__
    ]


def _facts(lab: Laboratory, run: Run, cause: str) -> dict[str, Any]:
    files = run.files
    single = [one for one in (files.adapter, files.config, *files.metrics, *files.logs) if one]
    folders = [lab.recipe.base, lab.recipe.data, *([files.tuned] if files.tuned else ())]
    return {
        "cause": cause,
        "values": lab.recipe.values,
        "seed": lab.recipe.seed,
        "files": [hash_file(one).sha256 or stamps(one.parent) for one in single],
        "folders": [stamps(one) for one in folders],
    }
