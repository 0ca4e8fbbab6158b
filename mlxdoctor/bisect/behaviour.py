"""What the saves of a run learned: the losses of the right answers."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.engines.text import evenly
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.checkpoints import Checkpoint
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.kind import Missing
from mlxdoctor.evidence.supervision import build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.judge.save_flaws import LOST_SHARE
from mlxdoctor.measure.text.statistics import SIGNIFICANCE, sign_test
from mlxdoctor.models.load import LoadedModels, load
from mlxdoctor.models.losses import ANSWERS, ENOUGH_ROWS, Meter, target_losses
from mlxdoctor.run import Run

Floats = NDArray[np.float64]

#: Rows on which the answers' loss is measured, evenly spaced.
ROWS = 32
#: The splits that say what a model is worth, the best first.
SPLITS = ("valid", "test", "train")
#: Those of them that a run is not trained on.
HELD_OUT = ("valid", "test")
#: Saves that are measured before others between them are: a run may have hundreds.
MEASURED = 16
#: Answers' loss over the lowest before: healthy runs end within 1.10 of it.
_RISEN_RATIO = 1.15
#: Nats that it has to rise besides: small losses double and halve with the batch.
_RISEN_NATS = 0.2


@dataclass(frozen=True)
class Behaviour:
    """What one save does.

    Attributes:
        losses, base_losses: of the right answers, row by row, nats a token, float64 (rows,).
        failure: why it could not be put on the base model; empty where it could.
    """

    losses: Floats
    base_losses: Floats
    failure: str = ""

    @property
    def loss(self) -> float:
        """Mean over the rows, nats a token; infinite where it is not finite."""
        mean = float(self.losses.mean()) if len(self.losses) else np.inf
        return mean if isfinite(mean) else np.inf

    @property
    def base_loss(self) -> float:
        """The base model's."""
        return float(self.base_losses.mean()) if len(self.base_losses) else np.nan


def measured_saves(
    places: Sequence[int], measure: Callable[[int], Behaviour]
) -> dict[int, Behaviour]:
    """Place of a save -> what it does: of all, or of as many as show the lowest and the break."""
    seen: dict[int, Behaviour] = {}
    wanted = [places[i] for i in evenly(len(places), MEASURED)]
    while wanted:
        seen |= {place: measure(place) for place in wanted}
        # Halfway between the save with the lowest loss and its neighbours, and into the break.
        measured, broken = sorted(seen), broken_of(seen)
        lowest = measured.index(min(measured, key=lambda place: seen[place].loss))
        last_good = max((i for i, place in enumerate(measured) if place not in broken), default=-1)
        gaps = [i for i in {lowest - 1, lowest, last_good} if 0 <= i < len(measured) - 1]
        between = [[p for p in places if measured[i] < p < measured[i + 1]] for i in gaps]
        wanted = [unseen[(len(unseen) - 1) // 2] for unseen in between if unseen]
    return seen


def broken_of(seen: Mapping[int, Behaviour]) -> dict[int, str]:
    """Place -> why, as a clause, for those measured that are broken."""
    faults = {place: _own_fault(save) for place, save in seen.items()}
    best: Behaviour | None = None
    for place in sorted(place for place, fault in faults.items() if not fault):
        save = seen[place]
        if best is not None and _is_worse(save, best):
            faults[place] = f"its answers' loss is {save.loss:.3g}, and was {best.loss:.3g} before"
        best = save if best is None or save.loss < best.loss else best
    return {place: fault for place, fault in sorted(faults.items()) if fault}


def _own_fault(save: Behaviour) -> str:
    if save.failure:
        return f"it cannot be put on the base model ({save.failure})"
    if not isfinite(save.loss):
        return "its answers' loss is not finite"
    if save.loss > save.base_loss and is_higher(save.losses - save.base_losses):
        base = f"{save.base_loss:.3g}"
        return f"its answers' loss is {save.loss:.3g}, worse than the base model's {base}"
    return ""


def _is_worse(save: Behaviour, best: Behaviour) -> bool:
    """Whether a loss rose by enough nats, and by a ratio or a share of the gain, not by chance."""
    rise, gain = save.loss - best.loss, best.base_loss - best.loss
    lost_much = gain > 0 and rise > LOST_SHARE * gain
    if rise < _RISEN_NATS or not (save.loss > _RISEN_RATIO * best.loss or lost_much):
        return False
    return is_higher(save.losses - best.losses)


def is_higher(rises: Floats) -> bool:
    """Whether the loss rose on most rows, and not by chance."""
    # Of fewer rows a sign test is never sure: all of them must agree then.
    if len(rises) < ENOUGH_ROWS:
        return bool((rises > 0).all())
    return float(np.median(rises)) > 0 and sign_test(rises) < SIGNIFICANCE


class SaveMeasure:
    """Puts saves on the base model one after the other; the base is loaded once.

    Attributes:
        split: the split of its data that it measures on.

    Raises:
        Missing: the base model or the data is not at hand, or models may not be run.
        InputError: one of them cannot be read.
    """

    def __init__(self, run: Run, saves: Sequence[Checkpoint]) -> None:
        if not run.options.allow_model:
            raise Missing("because of --no-generate")
        self._base, self._tokenizer = run.need(BaseModel), run.need(Tokenizer)
        dataset = run.need(Dataset)
        self.split = next(name for name in SPLITS if name in dataset.splits)
        self._rows = build(dataset, self._tokenizer, run.get(TrainingConfig), split=self.split)
        self._saves, self._progress = saves, run.progress
        self._models: LoadedModels | None = None
        self._done = 0

    def save(self, place: int) -> Behaviour:
        """The losses of the save at a place."""
        if self._progress is not None:
            self._progress("measuring checkpoints", self._done, len(self._saves))
        self._done += 1
        self._models = models = load(self._base, self._saves[place].path, self._models)
        if models.load_failure is not None:
            # A numbered file is loaded from a temporary folder, which is no place to name.
            failure = re.sub(r" at \S+", "", models.load_failure)
            return Behaviour(np.empty(0), np.empty(0), failure=failure)
        meter = Meter(models, self._tokenizer)
        measured = meter.measure([self._rows], ROWS).compared
        both = [[target_losses(row, which, ANSWERS) for which in models.names] for row in measured]
        means = [[each.mean() for each in losses] for losses in both if len(losses[0])]
        base, tuned = np.array(means, np.float64).reshape(-1, 2).T
        return Behaviour(tuned, base)
