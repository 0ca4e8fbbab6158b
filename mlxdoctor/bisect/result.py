"""Which checkpoint is the last good one: files, log and behaviour put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from mlxdoctor.bisect.behaviour import Behaviour, Limits, SaveMeasure, Search, search
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
        has_sizes = self.followed.quantity != "unscaled" and isfinite(self.followed.saves[-1].size)
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
    """Find the last good checkpoint of a run.

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
    found, split, unmeasured = _searched(run, history.checkpoints, places, logged, limits)
    standings = _standings(verdicts, places, found)
    good = [place for place, one in enumerate(standings) if one is Standing.GOOD]
    return Bisection(
        followed=followed,
        verdicts=verdicts,
        standings=standings,
        logged=logged,
        behaviour={places[at]: one for at, one in found.measured.items()} if found else {},
        faults={places[at]: why for at, why in found.broken.items()} if found else {},
        split=split,
        unmeasured=unmeasured,
        held=found is None or found.held,
        last_good=good[-1] if good else None,
    )


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
) -> tuple[Search | None, str, str]:
    """What running the models shows; the split they ran on; why they did not run."""
    if not places:
        return None, "", "no save is left to be measured"
    tried = [checkpoints[place] for place in places]
    try:
        measure = SaveMeasure(run, tried, limits)
        found = search(len(tried), measure, _hint(tried, logged), limits)
    except (Missing, InputError) as reason:
        return None, "", str(reason)
    return found, measure.split, ""


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
    verdicts: Sequence[SaveVerdict], places: Sequence[int], found: Search | None
) -> tuple[Standing, ...]:
    standings = [one.standing for one in verdicts]
    if found is not None:
        last = found.last_good if found.last_good is not None else -1
        for at, place in enumerate(places):
            if at in found.broken or (at not in found.measured and at > last):
                standings[place] = Standing.BROKEN
            elif at in found.measured:
                standings[place] = Standing.GOOD
    for place, one in enumerate(verdicts):
        if one.same_as is not None:
            standings[place] = standings[one.same_as]
    return tuple(standings)
