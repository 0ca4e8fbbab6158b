"""Which checkpoint is the last good one and which the best: files, log and behaviour together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from mlxdoctor.bisect.behaviour import (
    HELD_OUT,
    Behaviour,
    Limits,
    SaveMeasure,
    Search,
    broken_of,
    search,
)
from mlxdoctor.bisect.best import Best, SaidTo, all_measured, best_logged, best_measured
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.checkpoints import Checkpoint, CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import Missing, Progress
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.judge.log_at_saves import LoggedCourse
from mlxdoctor.judge.save_flaws import ODDITIES, SaveVerdict, Standing, examine
from mlxdoctor.measure.weights.save_norms import FollowedHistory
from mlxdoctor.safety.errors import InputError

if TYPE_CHECKING:
    from mlxdoctor.run import Run


@dataclass(frozen=True)
class Bisection:
    """The answer, and what it rests on.

    Attributes:
        followed: the saves in figures.
        verdicts: what files and log say of each.
        standings: what each is worth, the behaviour taken into account.
        logged: the log at the saves; None where there is no usable one.
        behaviour: place of a save -> what was measured with the model.
        faults: place -> what the model's behaviour shows to be wrong.
        split: the rows that it was measured on; empty where no model was run.
        unmeasured: why no model was run; empty where one was.
        held: no save after the break was measured to be good, nor one before it broken.
        last_good: place of the last good save; None where there is none.
        best: the best of the good ones; None where nothing compares them.
        said: the answers of the last good one and of the best to a few prompts.
    """

    followed: FollowedHistory
    verdicts: tuple[SaveVerdict, ...]
    standings: tuple[Standing, ...]
    logged: LoggedCourse | None
    behaviour: Mapping[int, Behaviour]
    faults: Mapping[int, str]
    split: str
    unmeasured: str
    held: bool
    last_good: int | None
    best: Best | None = None
    said: tuple[SaidTo, ...] = ()

    @property
    def newest_is_good(self) -> bool:
        """Whether the last save is good."""
        return self.standings[-1] is Standing.GOOD

    @property
    def is_decided(self) -> bool:
        """Whether anything that can tell a good save from a broken one was there.

        That a file is finite and trained is not enough to call it good.
        """
        if not self.newest_is_good or self.behaviour:
            return True
        has_sizes = self.followed.quantity != "unscaled" and isfinite(
            self.followed.saves[-1].facts.size
        )
        return has_sizes or (self.logged is not None and self.logged.covers)

    @property
    def first_broken(self) -> int | None:
        """Place of the first save after the last good one; None where that is the newest."""
        place = 0 if self.last_good is None else self.last_good + 1
        return place if place < len(self.standings) else None

    def checkpoint(self, place: int) -> Checkpoint:
        """The save at a place."""
        return self.followed.saves[place].checkpoint

    def path(self, place: int) -> Path:
        """Its file."""
        return self.checkpoint(place).path

    def why(self, place: int) -> str:
        """What is wrong with a save, as clauses; empty where nothing is."""
        found = [one.text for one in self.verdicts[place].remarks if one.flaw not in ODDITIES]
        same = self.verdicts[place].same_as
        fault = self.faults.get(place if same is None else same)
        return "; ".join([*found, *([fault] if fault else [])])


def bisect(run: Run, limits: Limits, progress: Progress | None = None) -> Bisection:
    """Find the last good checkpoint of a run, and the best one.

    Args:
        run: what it left behind; its models are run where it allows that.
        limits: when a save is broken.
        progress: called file by file, then save by save.

    Raises:
        InputError: there are no numbered checkpoints, or none of them can be read.
    """
    history = _history(run)
    followed, logged, verdicts = examine(
        history,
        run.get(TrainingConfig),
        run.get(BaseModel),
        run.get(TrainingLog),
        limits=limits,
        progress=progress,
    )
    if all(one.save.problem for one in verdicts):
        first = verdicts[0].save
        raise InputError(
            history.path,
            f"has {len(verdicts)} checkpoints, none of which can be read; "
            f"{first.checkpoint.path.name} {first.problem}",
        )
    places = [
        place for place, one in enumerate(verdicts) if not one.is_certain and one.same_as is None
    ]
    found = _searched(run, history.checkpoints, places, logged, limits)
    standings = _standings(verdicts, places, found)
    good = [place for place, one in enumerate(standings) if one is Standing.GOOD]
    best = _best(found, verdicts, good, logged, limits)
    last_good = good[-1] if good else None
    return Bisection(
        followed=followed,
        verdicts=verdicts,
        standings=standings,
        logged=logged,
        behaviour=found.behaviour,
        faults=found.faults,
        split=found.measure.split if found.measure is not None else "",
        unmeasured=found.unmeasured,
        held=found.search is None or found.search.held,
        last_good=last_good,
        best=best,
        said=_said(found, verdicts, [last_good, best.place if best is not None else None]),
    )


@dataclass(frozen=True)
class _Searched:
    """What running the models showed, by the places of the saves.

    Attributes:
        places: of the saves that were to be measured.
        search: the search for the last good one; None where no model was run.
        measure: runs the models; None where they can't be.
        unmeasured: why none was run; empty where one was.
        behaviour: place -> what was measured.
        faults: place -> what is wrong with it.
    """

    places: tuple[int, ...]
    search: Search | None = None
    measure: SaveMeasure | None = None
    unmeasured: str = ""
    behaviour: Mapping[int, Behaviour] = field(default_factory=dict)
    faults: Mapping[int, str] = field(default_factory=dict)


def _history(run: Run) -> CheckpointHistory:
    if (found := run.get(CheckpointHistory)) is not None:
        return found
    # PEFT keeps each checkpoint in a folder of its own, which discovery does not look for.
    folder = next((one for one in run.files.roots if one.is_dir()), None)
    if folder is None:
        raise InputError(
            run.files.roots[0] if run.files.roots else None,
            "is not a folder with checkpoints",
            "name the folder that the run saved them in",
        )
    return CheckpointHistory.read(folder)


def _searched(
    run: Run,
    checkpoints: Sequence[Checkpoint],
    places: Sequence[int],
    logged: LoggedCourse | None,
    limits: Limits,
) -> _Searched:
    """Run the models: the answers of a few saves, and the losses of all of them."""
    if not places:
        return _Searched((), unmeasured="no save is left to be measured")
    tried = [checkpoints[place] for place in places]
    try:
        measure = SaveMeasure(run, tried, limits)
        found = search(len(tried), measure, _hint(tried, logged), limits)
        measured = dict(found.measured)
        if measure.split in HELD_OUT:
            measured = all_measured(len(tried), measured, measure.losses)
    except (Missing, InputError) as reason:
        return _Searched(tuple(places), unmeasured=str(reason))
    faults = {**broken_of(measured, limits), **found.broken}
    return _Searched(
        tuple(places),
        found,
        measure,
        behaviour={places[at]: one for at, one in sorted(measured.items())},
        faults={places[at]: why for at, why in sorted(faults.items())},
    )


def _best(
    found: _Searched,
    verdicts: Sequence[SaveVerdict],
    good: Sequence[int],
    logged: LoggedCourse | None,
    limits: Limits,
) -> Best | None:
    """By the rows that were held out, or else by the validations in the log."""
    if found.measure is not None and found.measure.split in HELD_OUT:
        same = {at: _first(verdicts, at) for at in range(len(verdicts))}
        measured = {at: found.behaviour[of] for at, of in same.items() if of in found.behaviour}
        return best_measured(measured, good, limits)
    return best_logged(logged.validations, good) if logged is not None else None


def _said(
    found: _Searched, verdicts: Sequence[SaveVerdict], wanted: Sequence[int | None]
) -> tuple[SaidTo, ...]:
    """What these saves answer, prompt by prompt."""
    measure = found.measure
    if measure is None:
        return ()
    answers: dict[int, tuple[str, ...]] = {}
    for place in dict.fromkeys(one for one in wanted if one is not None):
        first = _first(verdicts, place)
        known = found.behaviour.get(first)
        if known is not None and known.answers:
            answers[place] = known.answers
        elif first in found.places:
            answers[place] = measure.answers(found.places.index(first))
    return tuple(
        SaidTo(
            prompt.text,
            prompt.expected,
            {place: texts[at] for place, texts in answers.items() if at < len(texts)},
        )
        for at, prompt in enumerate(measure.prompts)
    )


def _first(verdicts: Sequence[SaveVerdict], place: int) -> int:
    """The place of the first save whose file is the same."""
    same = verdicts[place].same_as
    return place if same is None else same


def _hint(tried: Sequence[Checkpoint], logged: LoggedCourse | None) -> int | None:
    """The save nearest to the lowest validation loss, if the log tells of one."""
    if logged is None or logged.best is None:
        return None
    best = logged.best
    return min(
        range(len(tried)),
        key=lambda place: abs((tried[place].iteration or _LAST) - best),
    )


#: Beyond every iteration: where a final file without a number is put.
_LAST = 1 << 60


def _standings(
    verdicts: Sequence[SaveVerdict], places: Sequence[int], found: _Searched
) -> tuple[Standing, ...]:
    standings = [one.standing for one in verdicts]
    if found.search is not None:
        last = found.search.last_good if found.search.last_good is not None else -1
        for at, place in enumerate(places):
            asked = at in found.search.measured
            if place in found.faults or (not asked and at > last):
                standings[place] = Standing.BROKEN
            elif asked:
                standings[place] = Standing.GOOD
    for place, one in enumerate(verdicts):
        if one.same_as is not None:
            standings[place] = standings[one.same_as]
    return tuple(standings)
