"""Which saves are broken, as their files and the log show."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf, isfinite
from pathlib import Path

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.checkpoints import CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import Progress
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.judge.log_at_saves import LoggedCourse, course
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
    JUMPED = "jumped"
    BLOWN_UP = "blown-up-in-the-log"
    ANSWERS = "bad-answers"


#: Flaws that are facts: no measurement of the model's behaviour takes them back.
FACTS = frozenset({Flaw.UNREADABLE, Flaw.NON_FINITE, Flaw.ERASED, Flaw.ZERO, Flaw.EXPLODED})
#: The size from which a sudden growth breaks a save: a small update may grow fast without harm, as
#: after a warm-up.
_JUMP_SIZE = 1.0
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
#: Growth of the update between two saves over the ratio of their iterations. Adam moves A and B by
#: at most a step at a time: an update that began near zero can grow by the square of that ratio at
#: most. Healthy runs of mlx-lm stay below 1.0 from the first save on, sound runs of four base
#: models below 1.33. Crossed by 0 of 19 healthy runs, 0 of 126 sound runs of four base models.
JUMP = 3.0


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
    # What is broken is no measure for the next.
    good: Save | None = None
    for place, save in enumerate(follow(history, config, base, progress)):
        zero = {name for name, size in save.sizes.items() if size == 0}
        flaws = _of_file(save, zero & trained) or _of_size(save, good)
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
        if not flaws and save.size > 0:
            good = save
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


def _of_size(save: Save, good: Save | None) -> dict[Flaw, str]:
    """What its size shows, alone and beside that of the last good save."""
    size, iteration = save.size, save.checkpoint.iteration
    # Without the base model no save that is called large was sound.
    most = {"relative": EXPLODED, "nominal": NOMINAL_LARGE, "unscaled": inf}
    if size >= most[save.quantity]:
        times = f"update {size:.3g} times as large as the weights"
        if save.quantity == "nominal":
            times = f"update about {size:.3g} times as large as weights of these shapes usually are"
        return {Flaw.EXPLODED: times}
    # A final file has no iteration of its own.
    if good is None or iteration is None or not size >= _JUMP_SIZE:
        return {}
    growth, last = size / good.size, good.checkpoint
    if growth * (last.iteration or 1) / max(iteration, 1) < JUMP:
        return {}
    return {Flaw.JUMPED: f"update {growth:.3g} times as large as at {last.label}"}
