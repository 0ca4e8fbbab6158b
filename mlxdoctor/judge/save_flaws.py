"""Which saves are broken, as their files and the log show."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from mlxdoctor.check import limit
from mlxdoctor.engines.tensors import SaveFacts
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.checkpoints import Checkpoint, CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import Progress
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.exhibits import CheckpointSizes
from mlxdoctor.judge.log_at_saves import LoggedCourse, LogLimits, course
from mlxdoctor.judge.update_size import Limits
from mlxdoctor.measure.weights.save_norms import (
    FollowedHistory,
    Quantity,
    SaveState,
    follow,
    heat_map,
)

#: Fewer checkpoints than this show no course.
MIN_SHOWN = 3


class Standing(StrEnum):
    """What a save is worth."""

    GOOD = "good"
    BROKEN = "broken"
    UNTRAINED = "untrained"


class Flaw(StrEnum):
    """Why a save is broken, or what is odd about it."""

    UNREADABLE = "unreadable"
    NON_FINITE = "non-finite"
    ERASED = "erased"
    ZERO = "zero-b"
    EXPLODED = "exploded"
    JUMPED = "jumped"
    BLOWN_UP = "blown-up-in-the-log"
    PAST_BEST = "past-its-best-in-the-log"
    LARGE = "large"
    IDENTICAL = "identical"


#: Flaws that are facts: no measurement of the model's behaviour takes them back.
FACTS = frozenset({Flaw.UNREADABLE, Flaw.NON_FINITE, Flaw.ERASED, Flaw.ZERO, Flaw.EXPLODED})
#: Flaws that are told but break nothing by themselves.
ODDITIES = frozenset({Flaw.LARGE, Flaw.IDENTICAL})


@dataclass(frozen=True)
class SaveLimits(Limits, LogLimits):
    """When a file or the log says that a save is broken.

    Adam moves A and B by at most a step at a time: an update that began near zero can grow by
    the square of the ratio of the iterations at most.
    """

    jump: float = limit(
        3.0,
        unit="growth of the update between two saves over the ratio of their iterations",
        source="healthy runs of mlx-lm stay below 1.0 from the first save on, sound runs of four "
        "base models below 1.33",
        false_alarms="0 of 19 healthy runs; 0 of 126 sound runs of four base models",
    )
    jump_size: float = limit(
        1.0,
        unit="the size after the jump",
        source="a small update may grow fast without harm, as after a warm-up",
    )


@dataclass(frozen=True)
class Remark:
    """One flaw of a save: which, and a clause with its figures."""

    flaw: Flaw
    text: str


@dataclass(frozen=True)
class SaveVerdict:
    """What the files and the log say of one save.

    Attributes:
        save: the save.
        standing: what it is worth.
        remarks: what was found, the worst first.
        same_as: the place of the earlier save whose file is the same, byte for byte.
    """

    save: SaveState
    standing: Standing
    remarks: tuple[Remark, ...] = ()
    same_as: int | None = None

    @property
    def is_certain(self) -> bool:
        """Whether a fact about the file breaks it, whatever the model may answer."""
        return any(remark.flaw in FACTS for remark in self.remarks)


def examine(
    history: CheckpointHistory,
    config: TrainingConfig | None,
    base: BaseModel | None,
    log: TrainingLog | None,
    *,
    limits: SaveLimits,
    progress: Progress | None = None,
) -> tuple[FollowedHistory, LoggedCourse | None, tuple[SaveVerdict, ...]]:
    """The saves in figures, the log at each of them, and what both say of it."""
    followed = follow(history, config, base, progress)
    logged = course(log, _iterations(history.checkpoints), limits)
    return followed, logged, judge(followed, logged, limits)


def _iterations(checkpoints: Sequence[Checkpoint]) -> list[int]:
    """Of every save; the final file stands for the last numbered one's at the least."""
    iterations: list[int] = []
    for save in checkpoints:
        iterations.append(save.iteration if save.iteration is not None else iterations[-1])
    return iterations


def sizes_shown(
    history: CheckpointHistory,
    config: TrainingConfig | None,
    base: BaseModel | None,
    log: TrainingLog | None,
) -> Iterator[CheckpointSizes]:
    """The sizes of the updates over the saves, and which saves are broken, for a report."""
    if len(history.checkpoints) < MIN_SHOWN:
        return
    followed, _, verdicts = examine(history, config, base, log, limits=SaveLimits())
    shown = heat_map(followed, [verdict.standing is not Standing.GOOD for verdict in verdicts])
    if shown is not None:
        yield shown


def judge(
    followed: FollowedHistory, logged: LoggedCourse | None, limits: SaveLimits
) -> tuple[SaveVerdict, ...]:
    """Judge every save.

    Args:
        followed: the saves in figures.
        logged: what the log says at each of them.
        limits: when a save is broken.
    """
    verdicts: list[SaveVerdict] = []
    together, saves = followed.facts, followed.saves
    for place, save in enumerate(saves):
        if save.problem:
            remark = Remark(Flaw.UNREADABLE, f"its file {save.problem}")
            verdicts.append(SaveVerdict(save, Standing.BROKEN, (remark,)))
            continue
        remarks = _facts(save.facts, together.erased[place])
        if not remarks:
            remarks += _sizes(save, verdicts, followed.quantity, limits)
        is_base = any(remark.flaw is Flaw.ZERO for remark in remarks)
        if logged is not None and logged.lost[place] and not is_base:
            remarks.append(Remark(Flaw.BLOWN_UP, _in_the_log(logged, place)))
        elif logged is not None and logged.risen[place] and not remarks:
            text = f"saved after the validation loss had risen from its minimum at {logged.best}"
            remarks.append(Remark(Flaw.PAST_BEST, text))
        same = together.same_as[place]
        if same != place:
            text = f"byte for byte the same file as {saves[same].checkpoint.path.name}"
            remarks.append(Remark(Flaw.IDENTICAL, text))
        verdicts.append(
            SaveVerdict(save, _standing(remarks), tuple(remarks), same if same != place else None)
        )
    return tuple(verdicts)


def _standing(remarks: Sequence[Remark]) -> Standing:
    flaws = {remark.flaw for remark in remarks} - ODDITIES
    if not flaws:
        return Standing.GOOD
    return Standing.UNTRAINED if flaws == {Flaw.ZERO} else Standing.BROKEN


def _facts(save: SaveFacts, erased: Collection[str]) -> list[Remark]:
    if save.nonfinite:
        text = f"{save.nonfinite:,} of its values are NaN or infinite"
        return [Remark(Flaw.NON_FINITE, text)]
    if erased:
        text = f"{len(erased)} of {len(save.sizes)} modules lost what they had learned: B is 0"
        return [Remark(Flaw.ERASED, text)]
    if save.is_zero:
        return [Remark(Flaw.ZERO, "every B is exactly zero: it is the base model still")]
    return []


def _sizes(
    save: SaveState, before: Sequence[SaveVerdict], quantity: Quantity, limits: SaveLimits
) -> list[Remark]:
    size = save.facts.size
    if not isfinite(size):
        return []
    remarks = []
    if quantity == "relative":
        text = f"update {size:.3g} times as large as the weights"
        if size >= limits.exploded:
            return [Remark(Flaw.EXPLODED, text)]
        remarks = [Remark(Flaw.LARGE, text)] if size >= limits.large else []
    elif quantity == "nominal" and size >= limits.nominal_large:
        text = f"update about {size:.3g} times as large as weights of these shapes usually are"
        return [Remark(Flaw.EXPLODED, text)]
    # A final file has no iteration of its own, and what is broken is no measure for the next.
    good = [verdict.save for verdict in before if verdict.standing is Standing.GOOD]
    usual = [save for save in good if save.facts.size > 0]
    iteration = save.checkpoint.iteration
    if not usual or iteration is None:
        return remarks
    growth, last = size / usual[-1].facts.size, usual[-1].checkpoint
    excess = growth * (last.iteration or 1) / max(iteration, 1)
    if excess >= limits.jump and size >= limits.jump_size:
        text = f"update {growth:.3g} times as large as at {last.label}"
        remarks.append(Remark(Flaw.JUMPED, text))
    return remarks


def _in_the_log(logged: LoggedCourse, place: int) -> str:
    loss = logged.losses[place]
    if loss is None or not isfinite(loss):
        return "saved while the log's loss was not finite"
    return f"saved while the log's loss was {loss:.3g}"
