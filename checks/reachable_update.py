"""Whether the saved states lie within reach of each other.

What it finds. Two saved states of an adapter, or the adapter it was resumed from and the first
save, that lie further apart than the planned rates and the number of updates between them allow.

Why it matters. Then these files were not made by this configuration: another rate, a schedule
that was dropped, an adapter that was scaled, merged or exchanged afterwards. What the
configuration says of the run, and any advice that follows from it, is about another run.

How it is measured. No update of Adam moves a number further than (1-β1)/sqrt(1-β2) ·
sqrt((1-rᵗ)/(1-r)) times the rate, r = β1²/β2, at the t-th update, whatever the gradients are
(Cauchy–Schwarz); with bias correction it is less, and so it is with clipping. AdamW adds its decay.
Summed over the updates between two saves, with the rate that the schedule plans for each, that
is the way that the number which moved furthest must not exceed. B begins at zero, or where the
adapter that was resumed from has it; A is followed from the first file that holds it.

When it is wrong. The bound holds for any gradients. In sound runs the number that moves furthest
goes about half of that way in 50 updates and a tenth of it in 300: a rate of three times the
planned one is seen in the former, one of less than ten times is not in the latter. Checkpoints
of an earlier run that were left in the folder are judged as if they were this run's.

What to do. Find the configuration that this run was made with, or keep runs in folders of their
own. `learning-rate-schedule` compares the configuration with the rates in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import Cost, Inconclusive, NotApplicable, check, limit
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.checkpoints import CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.resumed import ResumedAdapter
from mlxdoctor.finding import Sign, Symptom
from mlxdoctor.judge.rate import planned_rates

_ADAM = ("adam", "adamw")
#: More updates than this are a mistake in the configuration.
_MOST_UPDATES = 10_000_000
#: Units of the last place of what adapters are saved as, relative.
_ROUNDING = {"F32": 2.0**-23, "F16": 2.0**-10, "BF16": 2.0**-7}


#: How far a number of at most a size can have gone from one update to another.
_Way = Callable[[int, int, float], float]


@dataclass(frozen=True)
class Limits:
    """How much further than the bound is too far."""

    slack: float = limit(
        1.01,
        unit="times the bound",
        source="rounding of float32 sums of a few thousand updates",
        false_alarms="0 of 131 sound runs of four base models: those saved every 12 to 75 updates "
        "reach 0.43 to 0.95 of the bound, those saved every 120 to 500 reach 0.08 to 0.35",
    )


@dataclass(frozen=True)
class _State:
    """An adapter as it was saved: which file, after how many iterations and updates."""

    label: str
    iteration: int
    updates: int
    adapter: Adapter


@dataclass(frozen=True)
class _Stretch:
    """What lies between two states.

    Attributes:
        moved: the furthest that a number moved.
        bound: the furthest that it could have moved.
        tensor: the tensor it is in.
    """

    before: _State
    after: _State
    moved: float
    bound: float
    tensor: str

    @property
    def updates(self) -> int:
        """How many updates lie between them."""
        return self.after.updates - self.before.updates

    @property
    def reached(self) -> float:
        """The furthest that a number moved, over what it could have moved."""
        if self.bound > 0:
            return self.moved / self.bound
        return inf if self.moved > 0 else 0.0


@check(
    codes={
        "beyond-the-steps": Symptom.warning(
            "two saved states lie further apart than the steps between them",
            fix="look for the configuration that this run was made with, and for files of other "
            "runs",
        )
    },
    cost=Cost.WEIGHTS,
    limits=Limits(),
)
def reachable_update(
    config: TrainingConfig,
    adapter: Adapter | None,
    history: CheckpointHistory | None,
    resumed: ResumedAdapter | None,
    limits: Limits,
) -> Iterator[Sign]:
    """Compare how far the factors went between two saves with how far they could."""
    if not config.describes_training:
        raise NotApplicable("the configuration does not say how the run was trained")
    if config.optimizer not in _ADAM:
        raise NotApplicable(f"the bound is one for Adam, and the optimiser is {config.optimizer}")
    states = _states(config, adapter, history)
    if config.resume_adapter_file and resumed is not None:
        folder = states[0].adapter.path.resolve().parent
        if resumed.adapter.path.resolve().parent == folder:
            raise Inconclusive("the run was resumed from a file that it wrote over itself")
        states = [_State("the adapter it was resumed from", 0, 0, resumed.adapter), *states]
    way = _way(config, max(state.updates for state in states))
    stretches = [] if config.resume_adapter_file else _from_zero(states[0], way)
    for before, after in pairwise(states):
        stretches += _between(before, after, way)
    if not stretches:
        raise Inconclusive("no two files hold the same factors")
    beyond = [one for one in stretches if one.reached > limits.slack]
    if beyond:
        yield _sign(beyond, len(stretches), config)


def _states(
    config: TrainingConfig, adapter: Adapter | None, history: CheckpointHistory | None
) -> list[_State]:
    steps, iters = max(config.grad_accumulation_steps or 1, 1), config.iters or 0
    saved = history.checkpoints if history is not None else ()
    if not saved and adapter is None:
        raise Inconclusive("no adapter was found")
    if not iters or any((one.iteration or 0) > iters for one in saved):
        raise Inconclusive("some checkpoints are of another run than the configuration's")
    if saved:
        at = [(one, iters if one.iteration is None else one.iteration) for one in saved]
        return [_State(one.label, place, place // steps, one.adapter) for one, place in at]
    return [_State("the final file", iters, iters // steps, adapter)] if adapter is not None else []


def _way(config: TrainingConfig, updates: int) -> _Way:
    """The furthest that Adam can go, whatever the gradients are."""
    if updates > _MOST_UPDATES:
        raise Inconclusive(f"{updates:,} updates are more than a run makes")
    rates = planned_rates(config, updates)
    # Uphill is as far.
    rates = np.abs(rates) if rates is not None else None
    momenta = _numbers(config.optimizer_config.get("betas", [0.9, 0.999]))
    decays = config.optimizer_config.get("weight_decay", 0.01) if config.optimizer == "adamw" else 0
    decay = _numbers([decays])
    if rates is None or len(momenta) != 2 or len(decay) != 1:
        raise Inconclusive("the configuration's rates or momenta are not understood")
    first, second = momenta
    ratio = first**2 / second if 0.0 <= first < 1.0 and 0.0 < second < 1.0 else 1.0
    if ratio >= 1.0:
        raise Inconclusive("with these momenta a step of Adam has no bound")
    at = np.arange(1, updates + 1)
    largest = (1 - first) / np.sqrt(1 - second) * np.sqrt((1 - ratio**at) / (1 - ratio))
    steps, decayed = (
        np.concatenate(([0.0], np.cumsum(rates * one))) for one in (largest, abs(decay[0]))
    )

    def between(first: int, last: int, size: float) -> float:
        way = float(steps[last] - steps[first])
        return way + float(decayed[last] - decayed[first]) * (size + way)

    return between


def _numbers(values: object) -> list[float]:
    """The numbers of a list, none where something else is in it."""
    known = values if isinstance(values, list) else []
    sound = all(isinstance(one, int | float) and isfinite(one) for one in known)
    return [float(one) for one in known] if sound else []


def _from_zero(state: _State, way: _Way) -> list[_Stretch]:
    """The way to the first save, of the factors that begin at zero."""
    furthest = [(_largest(one.b.load()), one.b.name) for one in state.adapter.modules]
    furthest = [one for one in furthest if isfinite(one[0])]
    if not furthest:
        return []
    moved, tensor = max(furthest)
    bound = way(0, state.updates, 0.0)
    return [_Stretch(_State("the start", 0, 0, state.adapter), state, moved, bound, tensor)]


def _between(before: _State, after: _State, way: _Way) -> list[_Stretch]:
    earlier = {name: one for name, one in before.adapter.tensors.items() if one.is_float}
    found = []
    for module in after.adapter.modules:
        for tensor in (module.a, module.b):
            other = earlier.get(tensor.name)
            if other is None or other.shape != tensor.shape:
                continue
            # What is infinite in both is told elsewhere.
            with np.errstate(invalid="ignore"):
                start = other.load().astype(np.float64)
                moved = _largest(tensor.load() - start)
            if not isfinite(moved):
                continue
            size = _largest(start)
            bound = way(before.updates, after.updates, size)
            # What is saved is rounded, at either end.
            bound += 2 * _ROUNDING.get(tensor.dtype, 0.0) * (size + moved)
            found.append(_Stretch(before, after, moved, bound, tensor.name))
    return [max(found, key=lambda one: one.reached)] if found else []


def _largest(values: NDArray[np.generic]) -> float:
    return float(np.abs(values).max()) if values.size else 0.0


def _sign(beyond: Sequence[_Stretch], stretches: int, config: TrainingConfig) -> Sign:
    worst = max(beyond, key=lambda one: one.reached)
    updates = f"{worst.updates} updates" if worst.updates != 1 else "1 update"
    return Sign(
        "beyond-the-steps",
        f"Between {worst.before.label} and {worst.after.label} a number of {worst.tensor} moved by "
        f"{worst.moved:.3g}, and {updates} at the planned rates cannot move any by more than "
        f"{worst.bound:.3g}: these files are not of one run with this configuration.",
        {
            "moved": worst.moved,
            "bound": worst.bound,
            "updates": worst.updates,
            "stretches_beyond": len(beyond),
            "stretches": stretches,
            "learning_rate": config.learning_rate,
        },
        where=worst.tensor,
        onset=worst.after.iteration,
        expected=f"at most {worst.bound:.3g}",
    )
