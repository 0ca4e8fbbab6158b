"""What the saves answer: measured on a few of them, chosen by bisection.

The search assumes that a run that broke stays broken, as one whose loss blew up does: then
about log2(n) of n saves need to be loaded. The neighbours of the boundary that it finds are
measured too; where one of them contradicts the assumption, every save is measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import limit
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.checkpoints import Checkpoint
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.kind import Missing
from mlxdoctor.evidence.supervision import Role, build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.judge import collapse
from mlxdoctor.judge.save_flaws import SaveLimits
from mlxdoctor.measure.text.prompt_rates import Rate, is_raised, rate
from mlxdoctor.measure.text.statistics import sign_test

if TYPE_CHECKING:
    from mlxdoctor.models.answer import Answer
    from mlxdoctor.models.load import LoadedModels
    from mlxdoctor.models.losses import RowLosses, RowPass
    from mlxdoctor.models.prompts import Prompt
    from mlxdoctor.run import Run

Floats = NDArray[np.float64]

#: Rows on which the answers' loss is measured, evenly spaced.
ROWS = 32
#: Prompts of the run's own held-out and training rows; a few general ones are added.
HELD_OUT_PROMPTS, TRAINED_PROMPTS = 8, 4
#: Tokens of an answer at most.
MAX_TOKENS = 48
#: Prompts whose answers are shown.
SHOWN = 3
#: The splits that say what a model is worth, the best first.
SPLITS = ("valid", "test", "train")
#: Those of them that a run is not trained on.
HELD_OUT = ("valid", "test")


@dataclass(frozen=True)
class Limits(SaveLimits, collapse.Limits):
    """When a save is broken: its file, the log, and what the model answers."""

    rows: int = limit(
        8, unit="rows", source="of fewer a sign test is never sure; all of them must agree then"
    )


@dataclass(frozen=True)
class Behaviour:
    """What one save does.

    Attributes:
        losses: of the right answers, row by row, nats a token, float64 (rows,).
        base_losses: the base model's on the same rows.
        collapsed: prompts answered with one token, a handful of them, or a loop.
        failure: why it could not be put on the base model; empty where it could.
        answers: what it said to the first few prompts; empty where it was not asked.
    """

    losses: Floats
    base_losses: Floats
    collapsed: Rate | None = None
    failure: str = ""
    answers: tuple[str, ...] = ()

    @property
    def loss(self) -> float:
        """Mean over the rows, nats a token; infinite where it is not finite."""
        mean = float(self.losses.mean()) if len(self.losses) else np.inf
        return mean if isfinite(mean) else np.inf

    @property
    def base_loss(self) -> float:
        """The base model's."""
        return float(self.base_losses.mean()) if len(self.base_losses) else np.nan


#: The behaviour of the save at a place.
Measure = Callable[[int], Behaviour]


@dataclass(frozen=True)
class Search:
    """What was measured, and what follows from it.

    Attributes:
        measured: place of a save -> its behaviour.
        broken: place -> why, as a clause, for those measured that are broken.
        best: the place with the lowest loss of those that are not; None without any.
        last_good: the last place before the break, or the last of all; None where all are broken.
        held: a run that broke stayed broken, as far as was measured.
    """

    measured: Mapping[int, Behaviour]
    broken: Mapping[int, str]
    best: int | None
    last_good: int | None
    held: bool


def search(count: int, measure: Measure, hint: int | None, limits: Limits) -> Search:
    """Find the last good one of `count` saves.

    Args:
        count: saves, in the order of training.
        measure: loads and measures one.
        hint: the place that the log thinks best; the middle without one.
        limits: when a save is broken.
    """
    measured: dict[int, Behaviour] = {}

    def look(*places: int) -> Mapping[int, str]:
        for place in places:
            if 0 <= place < count and place not in measured:
                measured[place] = measure(place)
        return broken_of(measured, limits)

    look(0, count - 1, count // 2 if hint is None else hint)
    while (gap := _gap(measured, look(), count)) is not None:
        look(gap)
    low, high = _boundary(measured, look())
    broken = look(low - 1, high + 1)
    held = all(place in broken for place in measured if place >= high) and (
        low < 0 or low - 1 not in broken
    )
    if not held:
        broken = look(*range(count))
        low, _ = _boundary(measured, broken)
    good = [place for place in measured if place not in broken]
    best = min(good, key=lambda place: measured[place].loss) if good else None
    return Search(dict(measured), broken, best, low if low >= 0 else None, held)


def _boundary(measured: Mapping[int, Behaviour], broken: Mapping[int, str]) -> tuple[int, int]:
    """The last good place, -1 for none, and the first broken one after it."""
    good = [place for place in measured if place not in broken]
    low = max(good, default=-1)
    return low, min((place for place in broken if place > low), default=max(measured) + 1)


def _gap(measured: Mapping[int, Behaviour], broken: Mapping[int, str], count: int) -> int | None:
    """The place half-way between the last good save and the break; None where they adjoin."""
    low, high = _boundary(measured, broken)
    if low < 0 or high > count - 1 or high - low <= 1:
        return None
    return (low + high) // 2


def broken_of(measured: Mapping[int, Behaviour], limits: Limits) -> dict[int, str]:
    """Place -> why, as a clause, for those measured that are broken."""
    found = {place: _own_fault(one, limits) for place, one in measured.items()}
    sound = {place: measured[place] for place, why in found.items() if not why}
    for place, one in sound.items():
        earlier = [other for before, other in sound.items() if before < place]
        best = min(earlier, key=lambda other: other.loss, default=one)
        if _is_worse(one, best, limits):
            found[place] = f"its answers' loss is {one.loss:.3g}, and was {best.loss:.3g} before"
    return {place: why for place, why in sorted(found.items()) if why}


def _own_fault(one: Behaviour, limits: Limits) -> str:
    if one.failure:
        return f"it cannot be put on the base model ({one.failure})"
    if not isfinite(one.loss):
        return "its answers' loss is not finite"
    if one.loss > one.base_loss and is_higher(one.losses - one.base_losses, limits):
        return (
            f"its answers' loss is {one.loss:.3g}, worse than the base model's {one.base_loss:.3g}"
        )
    if one.collapsed is not None and is_raised(one.collapsed, limits):
        found = one.collapsed
        return f"it answers {found.tuned} of {found.prompts} prompts with a few tokens or a loop"
    return ""


def _is_worse(one: Behaviour, best: Behaviour, limits: Limits) -> bool:
    rise = one.loss - best.loss
    is_share = rise > limits.share * (best.base_loss - best.loss) > 0
    if rise < limits.risen_nats or not (one.loss > limits.risen_ratio * best.loss or is_share):
        return False
    return is_higher(one.losses - best.losses, limits)


def is_higher(rises: Floats, limits: Limits) -> bool:
    """Whether the loss rose on most rows, and not by chance."""
    if len(rises) < limits.rows:
        return bool((rises > 0).all())
    return float(np.median(rises)) > 0 and sign_test(rises) < limits.significance


class SaveMeasure:
    """Puts saves on the base model one after the other; the base is loaded and asked once.

    Args:
        run: its models and rows.
        checkpoints: the saves.
        limits: when an answer is collapsed.

    Attributes:
        split: the split of its data that it measures on.
        prompts: those whose answers are kept, held-out ones first.

    Raises:
        Missing: the base model or the data is not at hand, or models may not be run.
        InputError: one of them cannot be read.
    """

    def __init__(self, run: Run, checkpoints: Sequence[Checkpoint], limits: Limits) -> None:
        if not run.options.allow_model:
            raise Missing("no model was run, because of --no-generate")
        self._base, self._tokenizer = run.need(BaseModel), run.need(Tokenizer)
        dataset = run.need(Dataset)
        split = next((one for one in SPLITS if one in dataset.splits), None)
        if split is None:
            raise Missing("the data has no rows")
        from mlxdoctor.models.prompts import prompts_for

        self.split = split
        self._rows = build(dataset, self._tokenizer, run.get(TrainingConfig), split=split)
        self._checkpoints, self._limits, self._progress = checkpoints, limits, run.progress
        ends = (*self._tokenizer.eos_token_ids, *self._base.eos_token_ids)
        self._ends = tuple(dict.fromkeys(ends))
        self._prompts = prompts_for(
            dataset, self._tokenizer, held_out=HELD_OUT_PROMPTS, trained=TRAINED_PROMPTS
        )
        self.prompts = self._prompts[:SHOWN]
        self._of_base: list[bool] | None = None
        self._models: LoadedModels | None = None
        self._place: int | None = None
        self._done = 0

    def __call__(self, place: int) -> Behaviour:
        """Losses and answers of the save at a place."""
        found = self.losses(place)
        models = self._models
        if found.failure or models is None:
            return found
        if self._of_base is None:
            self._of_base = self._collapsed(self._asked(models.select("base")))
        answers = self._asked(models.select("tuned"))
        collapsed = rate(self._collapsed(answers), self._of_base, self._limits)
        return replace(found, collapsed=collapsed, answers=self._texts(answers[:SHOWN]))

    def losses(self, place: int) -> Behaviour:
        """The losses alone of the save at a place, which take a third of the time."""
        from mlxdoctor.models.losses import measure

        models = self._with(place)
        if models.load_failure is not None:
            # A numbered file is loaded from a temporary folder, which is no place to name.
            failure = re.sub(r" at \S+", "", models.load_failure)
            return Behaviour(np.empty(0), np.empty(0), failure=failure)
        pads = (self._rows.pad_id,)
        found = measure(models, self._tokenizer, [self._rows], max_rows=ROWS, pad_ids=pads)
        pairs = [
            (_answer_loss(row, row.base), _answer_loss(row, row.tuned))
            for row in found.rows
            if row.tuned is not None
        ]
        losses = np.array(pairs, np.float64).reshape(-1, 2)
        return Behaviour(losses[:, 1], losses[:, 0])

    def answers(self, place: int) -> tuple[str, ...]:
        """What the save at a place says to `prompts`."""
        models = self._with(place)
        if models.load_failure is not None:
            return ()
        return self._texts(self._asked(models.select("tuned"), self.prompts))

    def _with(self, place: int) -> LoadedModels:
        from mlxdoctor.models.load import load

        if self._models is not None and self._place == place:
            return self._models
        if self._progress is not None:
            self._progress("measuring checkpoints", self._done, len(self._checkpoints))
        self._done += 1
        self._models = load(self._base, self._checkpoints[place].path, self._models)
        self._place = place
        return self._models

    def _asked(self, model: object, prompts: Sequence[Prompt] | None = None) -> list[Answer]:
        from mlxdoctor.models.answer import answer

        return answer(model, self._prompts if prompts is None else prompts, self._ends, MAX_TOKENS)

    def _texts(self, answers: Sequence[Answer]) -> tuple[str, ...]:
        return tuple(self._tokenizer.decode(self._content(one)) for one in answers)

    def _collapsed(self, answers: Sequence[Answer]) -> list[bool]:
        return [collapse.is_collapsed(self._content(one), self._limits) for one in answers]

    def _content(self, one: Answer) -> list[int]:
        return [token for token in one.tokens if token not in self._ends]


def _answer_loss(row: RowLosses, one: RowPass) -> float:
    """Mean loss of the answer and its end token; of the whole row where it has no answer."""
    roles = row.roles[1 : 1 + len(one.next)]
    chosen = one.next[(roles == Role.ANSWER) | (roles == Role.END)]
    return float((chosen if len(chosen) else one.next).mean())
