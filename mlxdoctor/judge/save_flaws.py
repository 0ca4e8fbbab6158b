"""Which saves are broken, as their files and the log show."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from mlxdoctor.check import limit
from mlxdoctor.engines.tensors import Quantity, SaveFacts
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.checkpoints import CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import Progress
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.judge import curve
from mlxdoctor.judge.log_at_saves import LoggedCourse, course
from mlxdoctor.measure.weights.save_norms import (
    FollowedHistory,
    SaveState,
    follow,
)


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
#: The size from which a sudden growth breaks a save: a small update may grow fast without harm, as
#: after a warm-up.
_JUMP_SIZE = 1.0
#: Flaws that are told but break nothing by themselves.
ODDITIES = frozenset({Flaw.LARGE, Flaw.IDENTICAL})


@dataclass(frozen=True)
class SizeLimits:
    """When an update is too large for the weights that it is added to, median over modules."""

    exploded: float = limit(
        3.0,
        unit="‖ΔW‖/‖W‖",
        source="38 runs of mlx-lm on a 0.48 M-parameter Llama: healthy ones reach 1.7, ones "
        "damaged by their scale end at 2.0 to 3.8, collapsed ones begin at 4.1. 30 runs of four "
        "base models end above it, at 4.8 to 960: their answers' likeness to the right ones is "
        "0.05 to 0.44, that of sound runs 0.8 to 0.9",
        false_alarms="0 of 98 healthy runs of three base models; saves of 126 of four reach 1.3",
    )
    large: float = limit(
        1.8,
        unit="‖ΔW‖/‖W‖",
        source="the same runs, and three at five times a sound scale: 2.0 to 2.8; runs at 1.8 to "
        "2.9 are impaired, some not for good",
        false_alarms="0 of 98 healthy runs of three base models",
    )
    nominal_large: float = limit(
        4.0,
        unit="‖ΔW‖/sqrt(min(in, out)), without the base model",
        source="38 runs of mlx-lm on a 0.48 M-parameter Llama: healthy ones reach 1.3 and "
        "collapsed ones begin at 3.0",
        false_alarms="0 of 19 healthy runs; 0 of 126 sound runs of four base models: 0.9 at most",
    )
    nominal_exploded: float = limit(
        5.0,
        unit="‖ΔW‖/sqrt(min(in, out)), without the base model",
        source="a run damaged by its scale is at 7.1, one that repeats one token at 23; sound "
        "weights of large models are smaller than such weights, and their updates are, too",
        false_alarms="0 of 19 healthy runs; 0 of 126 sound runs of four base models: 0.9 at most",
    )


def too_large(size: float, limits: SizeLimits, *, is_relative: bool) -> str | None:
    """ "exploded" or "large" where an update is too large, else None.

    Args:
        size: ‖ΔW‖/‖W‖, or without the base model ‖ΔW‖/sqrt(min(in, out)), the norm that weights
            of the same shape usually have.
        limits: what is too large.
        is_relative: which of the two it is.
    """
    exploded, large = (
        (limits.exploded, limits.large)
        if is_relative
        else (limits.nominal_exploded, limits.nominal_large)
    )
    return "exploded" if size >= exploded else "large" if size >= large else None


@dataclass(frozen=True)
class SaveLimits(SizeLimits, curve.Limits):
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
    # The final file stands for the last numbered one's iteration at the least.
    last = max(save.iteration or 0 for save in history.checkpoints)
    iterations = [
        last if save.iteration is None else save.iteration for save in history.checkpoints
    ]
    logged = course(log, iterations, limits)
    return followed, logged, judge(followed, logged, limits)


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
    is_relative = quantity == "relative"
    verdict = too_large(size, limits, is_relative=is_relative) if quantity != "unscaled" else None
    if verdict is not None:
        text = (
            f"update {size:.3g} times as large as the weights"
            if is_relative
            else f"update about {size:.3g} times as large as weights of these shapes usually are"
        )
        # Without the base model no save that large was sound.
        flaw = Flaw(verdict) if is_relative else Flaw.EXPLODED
        remarks = [Remark(flaw, text)]
        if flaw is Flaw.EXPLODED:
            return remarks
    # A final file has no iteration of its own, and what is broken is no measure for the next.
    good = [verdict.save for verdict in before if verdict.standing is Standing.GOOD]
    before_it = [save for save in good if save.facts.size > 0]
    iteration = save.checkpoint.iteration
    if not before_it or iteration is None:
        return remarks
    growth, last = size / before_it[-1].facts.size, before_it[-1].checkpoint
    excess = growth * (last.iteration or 1) / max(iteration, 1)
    if excess >= limits.jump and size >= _JUMP_SIZE:
        text = f"update {growth:.3g} times as large as at {last.label}"
        remarks.append(Remark(Flaw.JUMPED, text))
    return remarks


def _in_the_log(logged: LoggedCourse, place: int) -> str:
    loss = logged.losses[place]
    if loss is None or not isfinite(loss):
        return "saved while the log's loss was not finite"
    return f"saved while the log's loss was {loss:.3g}"
