"""Which saves are broken, as their files and the log show."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf, isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.engines.series import Floats, noise, smoothed
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.checkpoints import CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import Progress
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.measure.weights.save_norms import Save, follow


class Standing(StrEnum):
    """What a save is worth."""

    GOOD = "good"
    BROKEN = "broken"
    UNTRAINED = "untrained"


class Flaw(StrEnum):
    """Why a save is broken, or was not trained."""

    UNREADABLE = "unreadable"
    NON_FINITE = "non-finite"
    ERASED = "erased"
    ZERO = "zero-b"
    EXPLODED = "exploded"
    BLOWN_UP = "blown-up-in-the-log"
    ANSWERS = "bad-answers"


#: Flaws that are facts: no measurement of the model's behaviour takes them back.
FACTS = frozenset({Flaw.UNREADABLE, Flaw.NON_FINITE, Flaw.ERASED, Flaw.ZERO, Flaw.EXPLODED})
#: ‖ΔW‖/‖W‖, median over modules. 38 runs of mlx-lm on a 0.48 M-parameter Llama: healthy ones reach
#: 1.7, ones damaged by their scale end at 2.0 to 3.8, collapsed ones begin at 4.1. 30 runs of four
#: base models end above it, at 4.8 to 960: their answers' likeness to the right ones is 0.05 to
#: 0.44, that of sound runs 0.8 to 0.9. Crossed by 0 of 98 healthy runs of three base models; saves
#: of 126 of four reach 1.3.
EXPLODED = 3.0
#: ‖ΔW‖/sqrt(min(in, out)), without the base model: in the 38 runs healthy ones reach 1.3 and
#: collapsed ones begin at 3.0. Crossed by 0 of 19 healthy runs, 0 of 126 sound runs of four base
#: models: 0.9 at most.
NOMINAL_LARGE = 4.0
# When a model that was saved at a report was lost already. In 126 sound runs of four base models
# the loss at a save is 1.10 times and 0.06 nats above the lowest level before at most; 36 healthy
# runs of the fixture model and 4 healthy users' logs cross none of these.
#: Nats above a level: more than one noisy batch.
DIVERGED_NATS = 0.5
#: Standard deviations of a report: a batch of hard rows is no blow-up.
_NOISES = 4.0
#: Rise of the loss over what had been learned: 0.02 at most at the saves of the same sound runs; of
#: 38 runs that broke on the way 28 are above it at the first broken save.
LOST_SHARE = 0.25


@dataclass(frozen=True)
class LoggedCourse:
    """The log, as far as the saves go.

    Attributes:
        losses: the reported training loss at or just before each save, in nats.
        lost: which of the saves were made while the training loss was blown up.
        onset: the first report of the blow-up that lasted to the end, or to the last save.
        story: the blow-up as a clause; empty where there is none.
        covers: whether the log reaches the last save.
        validations: the validation loss reported at each save's iteration, in nats.
    """

    losses: tuple[float | None, ...]
    lost: tuple[bool, ...]
    onset: int | None
    story: str
    covers: bool
    validations: tuple[float | None, ...] = ()


def course(log: TrainingLog | None, iterations: Sequence[int]) -> LoggedCourse | None:
    """What the log says at each of the saves.

    Args:
        iterations: rising, of the saves; a save may be made twice at the same.

    Returns:
        None where the log has no loss by iteration, or is one of preference training.
    """
    # Checkpoints are called by their iteration.
    if log is None or log.is_preference or not (log.main.is_counted and iterations):
        return None
    if (series := log.main.get("train_loss")) is None:
        return None
    interval = int(np.median(np.diff(series.iterations))) if len(series) > 1 else 0
    apart = np.diff(np.unique(iterations))
    between = float(apart.min()) if len(apart) else float(iterations[0])
    # Reports to take a median of: an odd number that fits twice between two saves.
    width = 2 * int(min(between / max(interval, 1) / 4, 4)) + 1
    bad, level = blown_up(series.values, log.main.base_val_loss, width)
    # For each save the last report up to it; -1 where there is none.
    places = (np.searchsorted(series.iterations, iterations, "right") - 1).tolist()
    last = places[-1]
    good = np.flatnonzero(~bad[: last + 1])
    onset, story = None, ""
    if last >= 0 and bad[last]:
        place = int(good[-1]) + 1 if len(good) else 0
        onset, after = int(series.iterations[place]), float(series.values[last])
        story = f"the log's loss is not finite from {log.main.unit} {onset} on"
        if isfinite(after):
            levels = f"from {level[place]:.3g} to {after:.3g}"
            story = f"the log's loss blew up at {log.main.unit} {onset}, {levels}"
    validations = log.main.finite("val_loss")
    # A validation after n updates is reported at n or, before the next of them, at n + 1.
    validated = dict(zip(validations.iterations.tolist(), validations.values.tolist(), strict=True))
    return LoggedCourse(
        losses=tuple(float(series.values[place]) if place >= 0 else None for place in places),
        # The report after a save must agree with the one up to it.
        lost=tuple(place >= 0 and bool(bad[place : place + 2].all()) for place in places),
        onset=onset,
        story=story,
        covers=int(series.iterations[-1]) >= iterations[-1] - interval,
        validations=tuple(validated.get(save, validated.get(save + 1)) for save in iterations),
    )


def blown_up(values: Floats, start: float | None, width: int) -> tuple[NDArray[np.bool_], Floats]:
    """At which reports the loss is not finite, or far above the lowest level before them.

    Args:
        values: float64 (n,), the training losses.
        start: the untouched model's loss, where it is known.
        width: reports, an odd number, to take a median of.

    Returns:
        bool (n,), and that level, float64 (n,).
    """
    known = np.where(np.isfinite(values), values, np.nan)
    finite = known[np.isfinite(known)]
    sigma = noise(finite)
    # Before the lowest report, where that is known: a blow-up is no noise.
    if len(before := finite[: int(np.argmin(finite)) + 1] if len(finite) else finite) >= 4:
        sigma = min(sigma, noise(before))
    needed = max(DIVERGED_NATS, _NOISES * sigma)
    medians = smoothed(np.pad(known, width // 2, mode="edge"), width)
    # What is not finite is not smoothed away.
    smooth = np.where(np.isfinite(medians), medians, known)
    # The middle of three, so that one lucky batch is no level.
    filled = np.where(np.isfinite(smooth), smooth, np.inf)
    level = smoothed(np.pad(filled, 1, mode="edge"), 3)
    first = start if start is not None and isfinite(start) else float(level[0])
    lowest = np.minimum.accumulate(np.concatenate([[first], level]))[:-1]
    with np.errstate(invalid="ignore"):
        is_much = smooth - lowest > LOST_SHARE * (first - lowest)
        far = is_much & (smooth - lowest > needed)
    return ~np.isfinite(smooth) | far, lowest


@dataclass(frozen=True)
class SaveVerdict:
    """What is known of one save: from its file and the log, and in `bisect` from its answers.

    Attributes:
        flaws: what is wrong with it -> a clause with its figures, the worst first.
        same_as: the place of the earlier save whose file is the same, byte for byte.
    """

    save: Save
    standing: Standing
    flaws: Mapping[Flaw, str] = field(default_factory=dict)
    same_as: int | None = None

    @property
    def path(self) -> Path:
        return self.save.checkpoint.path

    @property
    def is_certain(self) -> bool:
        """Whether a fact about the file breaks it, whatever the model may answer."""
        return not FACTS.isdisjoint(self.flaws)

    @property
    def is_good(self) -> bool:
        """Whether nothing breaks it, and it was trained."""
        return self.standing is Standing.GOOD

    @property
    def why(self) -> str:
        """What breaks it, as clauses; empty where nothing does."""
        return "; ".join(self.flaws.values())


def examine(
    history: CheckpointHistory,
    config: TrainingConfig | None,
    base: BaseModel | None,
    log: TrainingLog | None,
    progress: Progress | None = None,
) -> tuple[LoggedCourse | None, tuple[SaveVerdict, ...]]:
    """The log at each of the saves, and what it and the files say of them."""
    # The final file stands for the last numbered one's iteration at the least.
    last = max(save.iteration or 0 for save in history.checkpoints)
    iterations = [
        last if save.iteration is None else save.iteration for save in history.checkpoints
    ]
    logged = course(log, iterations)
    verdicts: list[SaveVerdict] = []
    first_with: dict[str, int] = {}
    trained: set[str] = set()
    for place, save in enumerate(follow(history, config, base, progress)):
        zero = {name for name, size in save.sizes.items() if size == 0}
        flaws = _of_file(save, zero & trained) or _of_size(save)
        trained |= save.sizes.keys() - zero
        is_trained = flaws.keys().isdisjoint({Flaw.UNREADABLE, Flaw.ZERO})
        if logged is not None and logged.lost[place] and is_trained:
            loss = logged.losses[place]
            state = f"{loss:.3g}" if loss is not None and isfinite(loss) else "not finite"
            flaws[Flaw.BLOWN_UP] = f"saved while the log's loss was {state}"
        digest = None if save.problem else save.checkpoint.source.sha256
        same = place if digest is None else first_with.setdefault(digest, place)
        standing = Standing.BROKEN if flaws else Standing.GOOD
        if flaws.keys() == {Flaw.ZERO}:
            standing = Standing.UNTRAINED
        verdicts.append(SaveVerdict(save, standing, flaws, same if same != place else None))
    return logged, tuple(verdicts)


def _of_file(save: Save, erased: Collection[str]) -> dict[Flaw, str]:
    if save.problem:
        return {Flaw.UNREADABLE: f"its file {save.problem}"}
    if save.nonfinite:
        return {Flaw.NON_FINITE: f"{save.nonfinite:,} of its values are NaN or infinite"}
    if erased:
        text = f"{len(erased)} of {len(save.sizes)} modules lost what they had learned: B is 0"
        return {Flaw.ERASED: text}
    if save.is_zero:
        return {Flaw.ZERO: "every B is exactly zero: it is the base model still"}
    return {}


def _of_size(save: Save) -> dict[Flaw, str]:
    # Without the base model no save that is called large was sound.
    most = {"relative": EXPLODED, "nominal": NOMINAL_LARGE, "unscaled": inf}
    if not save.size >= most[save.quantity]:
        return {}
    times = f"update {save.size:.3g} times as large as the weights"
    if save.quantity == "nominal":
        usual = "as weights of these shapes usually are"
        times = f"update about {save.size:.3g} times as large {usual}"
    return {Flaw.EXPLODED: times}
