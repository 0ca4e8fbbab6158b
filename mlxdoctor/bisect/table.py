"""A table over the saves: what file, log and model say of each, the last good and the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mlxdoctor.bisect.behaviour import (
    HELD_OUT,
    Behaviour,
    Limits,
    SaveMeasure,
    broken_of,
    is_higher,
    measured_saves,
)
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
    from mlxdoctor.models.prompts import Prompt
    from mlxdoctor.run import Run


@dataclass(frozen=True)
class Best:
    """The best save of a run.

    Attributes:
        place: of the save.
        how: its held-out loss was measured here, or is the validation loss in the log.
        losses: place -> the loss, nats a token, of every save that has one.
        rows: held-out rows that it was measured on; 0 for a log.
        is_clear: whether the latest is worse than the best by more than chance; a log can't
            tell.
    """

    place: int
    how: Literal["measured", "logged"]
    losses: Mapping[int, float]
    rows: int = 0
    is_clear: bool = False

    @property
    def last(self) -> int:
        """The place of the latest save that has a loss."""
        return max(self.losses)


@dataclass(frozen=True)
class SaveRow:
    """One save, a row of the table.

    Attributes:
        verdict: what its file and the log say.
        standing: what it is worth, its behaviour taken into account.
        behaviour: what was measured of it, or of an earlier save whose file is the same.
        fault: what that shows to be wrong, as a clause; empty for nothing.
    """

    verdict: SaveVerdict
    standing: Standing
    behaviour: Behaviour | None = None
    fault: str = ""

    @property
    def checkpoint(self) -> Checkpoint:
        """Its file."""
        return self.verdict.save.checkpoint

    @property
    def path(self) -> Path:
        """Where its file is."""
        return self.checkpoint.path

    @property
    def why(self) -> str:
        """What is wrong with it, as clauses; empty where nothing is."""
        flaws = [one.text for one in self.verdict.remarks if one.flaw not in ODDITIES]
        return "; ".join([*flaws, *([self.fault] if self.fault else [])])


@dataclass(frozen=True)
class Bisection:
    """The table, and what follows from it.

    Attributes:
        rows: one a save, in the order of training.
        followed: the saves in figures.
        logged: the log at the saves; None where there is no usable one.
        split: the rows that losses were measured on; empty where no model was run.
        unmeasured: why no model was run; empty where one was.
        best: the best of the good ones; None where nothing compares them.
        prompts: those whose answers are kept.
    """

    rows: tuple[SaveRow, ...]
    followed: FollowedHistory
    logged: LoggedCourse | None
    split: str
    unmeasured: str
    best: Best | None = None
    prompts: Sequence[Prompt] = ()

    @property
    def last_good(self) -> int | None:
        """Place of the last good save; None where there is none."""
        return max((place for place, row in enumerate(self.rows) if _is_good(row)), default=None)

    @property
    def first_broken(self) -> int | None:
        """Place of the first save after the last good one; None where that is the newest."""
        place = 0 if self.last_good is None else self.last_good + 1
        return place if place < len(self.rows) else None

    @property
    def newest_is_good(self) -> bool:
        """Whether the last save is good."""
        return _is_good(self.rows[-1])

    @property
    def measured(self) -> int:
        """How many files were measured."""
        return len({id(row.behaviour) for row in self.rows if row.behaviour is not None})

    @property
    def is_decided(self) -> bool:
        """Whether anything that can tell a good save from a broken one was there.

        That a file is finite and trained is not enough to call it good.
        """
        if not self.newest_is_good or self.measured:
            return True
        size = self.followed.saves[-1].facts.size
        has_sizes = self.followed.quantity != "unscaled" and isfinite(size)
        return has_sizes or (self.logged is not None and self.logged.covers)


def _is_good(row: SaveRow) -> bool:
    return row.standing is Standing.GOOD


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
    config, base, log = run.get(TrainingConfig), run.get(BaseModel), run.get(TrainingLog)
    followed, logged, verdicts = examine(
        history, config, base, log, limits=limits, progress=progress
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
    split, unmeasured = "", "" if places else "no save is left to be measured"
    prompts: Sequence[Prompt] = ()
    seen: dict[int, Behaviour] = {}
    if places:
        try:
            measure = SaveMeasure(run, history.checkpoints)
            seen = measured_saves(places, measure.save, limits)
            split, prompts = measure.split, measure.prompts
        except (Missing, InputError) as reason:
            unmeasured = str(reason)
    rows = _judged(verdicts, seen, places if seen else (), limits)
    by_log = logged.validations if logged is not None else ()
    best = best_measured(rows, limits) if split in HELD_OUT else best_logged(rows, by_log)
    return Bisection(rows, followed, logged, split, unmeasured, best, prompts)


def _judged(
    verdicts: Sequence[SaveVerdict],
    seen: Mapping[int, Behaviour],
    places: Sequence[int],
    limits: Limits,
) -> tuple[SaveRow, ...]:
    """The rows of the table; a run that broke is taken to stay broken in between.

    Args:
        seen: place -> what was measured.
        places: of the saves that were to be measured.
    """
    faults = broken_of(seen, limits)
    last_good = max(seen.keys() - faults.keys(), default=-1)
    rows = []
    for place, verdict in enumerate(verdicts):
        file, standing = place if verdict.same_as is None else verdict.same_as, verdict.standing
        if file in faults or (file in places and file not in seen and file > last_good):
            standing = Standing.BROKEN
        elif file in seen:
            standing = Standing.GOOD
        rows.append(SaveRow(verdict, standing, seen.get(file), faults.get(file, "")))
    return tuple(rows)


def best_measured(rows: Sequence[SaveRow], limits: Limits) -> Best | None:
    """The save with the lowest loss of those that are good; None where none was measured."""
    seen = {place: row.behaviour for place, row in enumerate(rows) if row.behaviour is not None}
    losses = {place: one.loss for place, one in seen.items() if isfinite(one.loss)}
    good = [place for place in losses if _is_good(rows[place])]
    if not good:
        return None
    place, last = min(good, key=lambda place: losses[place]), max(losses)
    rises = seen[last].losses - seen[place].losses
    is_clear = last != place and losses[last] > losses[place] and is_higher(rises, limits)
    return Best(place, "measured", losses, len(seen[place].losses), is_clear)


def best_logged(rows: Sequence[SaveRow], validations: Sequence[float | None]) -> Best | None:
    """The save at the lowest validation loss of the log; None with fewer than two to compare."""
    losses = {place: loss for place, loss in enumerate(validations) if loss is not None}
    good = [place for place in losses if _is_good(rows[place])]
    if len({losses[place] for place in good}) < 2:
        return None
    place = min(good, key=lambda place: losses[place])
    return Best(place, "logged", losses)


def _history(run: Run) -> CheckpointHistory:
    if (history := run.get(CheckpointHistory)) is not None:
        return history
    # PEFT keeps each checkpoint in a folder of its own, which discovery does not look for.
    folder = next((path for path in run.files.roots if path.is_dir()), None)
    if folder is None:
        raise InputError(
            run.files.roots[0] if run.files.roots else None,
            "is not a folder with checkpoints",
            "name the folder that the run saved them in",
        )
    return CheckpointHistory.read(folder)
