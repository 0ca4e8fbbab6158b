"""A table over the saves: what file, log and model say of each, the last good and the best."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from mlxdoctor.bisect.behaviour import (
    HELD_OUT,
    Behaviour,
    SaveMeasure,
    broken_of,
    is_higher,
    measured_saves,
)
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.checkpoints import CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import Missing
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.judge.save_flaws import Flaw, LoggedCourse, SaveVerdict, Standing, examine
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError


@dataclass(frozen=True)
class Best:
    """The best save of a run.

    Attributes:
        losses: place -> the held-out loss, nats a token, of every save that has one.
        rows: held-out rows that it was measured on.
        is_clear: whether the latest is worse by more than chance.
    """

    place: int
    losses: Mapping[int, float]
    rows: int
    is_clear: bool

    @property
    def last(self) -> int:
        """The place of the latest save that has a loss."""
        return max(self.losses)


@dataclass(frozen=True)
class Bisection:
    """The table, and what follows from it.

    Attributes:
        rows: one a save, in the order of training; its behaviour is taken into account.
        behaviours: place -> what was measured of the save, or of an earlier one whose file is
            the same.
        logged: the log at the saves; None where there is no usable one.
        split: the rows that losses were measured on; empty where no model was run.
        unmeasured: why no model was run; empty where one was.
    """

    rows: tuple[SaveVerdict, ...]
    behaviours: Mapping[int, Behaviour]
    logged: LoggedCourse | None
    split: str
    unmeasured: str
    best: Best | None = None

    @property
    def last_good(self) -> int | None:
        """Place of the last good save; None where there is none."""
        return max((place for place, row in enumerate(self.rows) if row.is_good), default=None)

    @property
    def first_broken(self) -> int | None:
        """Place of the first save after the last good one; None where that is the newest."""
        place = 0 if self.last_good is None else self.last_good + 1
        return place if place < len(self.rows) else None

    @property
    def newest_is_good(self) -> bool:
        """Whether the last save is good."""
        return self.rows[-1].is_good

    @property
    def measured(self) -> int:
        """How many files were measured."""
        return sum(self.rows[place].same_as is None for place in self.behaviours)

    @property
    def is_decided(self) -> bool:
        """Whether anything that can tell a good save from a broken one was there.

        That a file is finite and trained is not enough to call it good.
        """
        if not self.newest_is_good or self.measured:
            return True
        newest = self.rows[-1].save
        has_sizes = newest.quantity != "unscaled" and isfinite(newest.size)
        return has_sizes or (self.logged is not None and self.logged.covers)


def bisect(run: Run) -> Bisection:
    """Find the last good checkpoint of a run, and the best one.

    Raises:
        InputError: there are no numbered checkpoints, or none of them can be read.
    """
    if (history := run.get(CheckpointHistory)) is None:
        # Which says why there is none.
        history = CheckpointHistory.read(run.files.roots[0])
    config, base, log = run.get(TrainingConfig), run.get(BaseModel), run.get(TrainingLog)
    logged, verdicts = examine(history, config, base, log, run.progress)
    if all(verdict.save.problem for verdict in verdicts):
        why = f"{verdicts[0].path.name} {verdicts[0].save.problem}"
        problem = f"has {len(verdicts)} checkpoints, none of which can be read; {why}"
        raise InputError(history.path, problem)
    places = [
        place
        for place, verdict in enumerate(verdicts)
        if not verdict.is_certain and verdict.same_as is None
    ]
    split, unmeasured = "", "" if places else "no save is left to be measured"
    seen: dict[int, Behaviour] = {}
    if places:
        try:
            measure = SaveMeasure(run, history.checkpoints)
            seen = measured_saves(places, measure.save)
            split = measure.split
        except (Missing, InputError) as reason:
            unmeasured = str(reason)
    if seen:
        verdicts = _judged(verdicts, seen, places)
    behaviours = {place: seen[file] for place, file in enumerate(_files(verdicts)) if file in seen}
    best = best_of(verdicts, behaviours) if split in HELD_OUT else None
    return Bisection(verdicts, behaviours, logged, split, unmeasured, best)


def _files(verdicts: Sequence[SaveVerdict]) -> list[int]:
    """Of each save the place of the first whose file is the same."""
    return [i if each.same_as is None else each.same_as for i, each in enumerate(verdicts)]


def _judged(
    verdicts: Sequence[SaveVerdict],
    seen: Mapping[int, Behaviour],
    places: Sequence[int],
) -> tuple[SaveVerdict, ...]:
    """The verdicts with what the models showed; a run that broke is taken to stay broken."""
    faults = broken_of(seen)
    last_good = max(seen.keys() - faults.keys(), default=-1)
    judged = []
    for file, verdict in zip(_files(verdicts), verdicts, strict=True):
        standing, flaws = verdict.standing, dict(verdict.flaws)
        if file in faults:
            standing = Standing.BROKEN
            flaws[Flaw.ANSWERS] = faults[file]
        elif file in seen:
            standing = Standing.GOOD
        elif file in places and file > last_good:
            standing = Standing.BROKEN
        judged.append(replace(verdict, standing=standing, flaws=flaws))
    return tuple(judged)


def best_of(verdicts: Sequence[SaveVerdict], behaviours: Mapping[int, Behaviour]) -> Best | None:
    """The good save with the lowest loss on held-out rows; None where none has one."""
    losses = {place: save.loss for place, save in behaviours.items() if isfinite(save.loss)}
    good = [place for place in losses if verdicts[place].is_good]
    if not good:
        return None
    place, last = min(good, key=lambda place: losses[place]), max(losses)
    rises = behaviours[last].losses - behaviours[place].losses
    is_clear = last != place and losses[last] > losses[place] and is_higher(rises)
    return Best(place, losses, len(behaviours[place].losses), is_clear)
