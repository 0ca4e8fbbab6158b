"""The losses of a run's log, computed again under one reading of what its trainer did."""

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import RunView
from mlxdoctor.models.load import LoadedBase, LoadedModels
from mlxdoctor.models.losses import ratio
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.time_budget import Pace
from mlxdoctor.twin.levels import EXACT, Level, Recorded, What
from mlxdoctor.twin.parts import Parts
from mlxdoctor.twin.readings import Reading
from mlxdoctor.twin.rerun import AsConfigured, deadline_of, in_few_widths, says_how
from mlxdoctor.twin.settings import Settings

#: Nats by which the same loss differs: rounding in half precision and in the log is below.
SAME = 0.02
#: Standard errors of losses over other rows, or over the same rows in another order.
ERRORS = 4.0
#: Of the nats by which a loss fell, by which another start or another order makes it differ.
PATH = 0.05
#: Share of the log's first loss that the base model's own is below where it was trained already.
HALF = 0.5
#: LoRA scales that people set: alpha over rank, alpha, mlx-lm's defaults.
SCALES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 16.0, 20.0, 32.0, 40.0, 64.0, 128.0)
#: Of the time left, what one validation may take: the reports on training need most of it where
#: models are slow. And batches of one that is cut: fewer do not tell how they differ.
OF_THE_TIME, FEWEST_BATCHES = 1 / 4, 8
#: Batches of a validation of which nothing says how many it had: in short runs people set few.
UNSAID = 4
#: Losses after which a reading may be given up, since it cannot come to what was recorded: by this
#: share of it, even if all later losses were as many times the highest so far.
TOLD, AROUND, RISE = 3, 0.2, 1.25
#: Of the time, after which no more readings are held against validations where some fit nearly.
MOST = 0.7
#: Of the time to train, what the replay takes: the rest is for what the rows teach.
SHARE = 0.5

#: Where a module's name has the number of its layer.
_LAYER = re.compile(r"\.(\d+)\.")
#: A module's name -> its factors A and B, arrays of MLX.
Factors = Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True)
class Scale:
    """Another LoRA scale: the one in force, the one that agrees, and the loss with it, nats.

    One of 0 is the base model alone.
    """

    configured: float
    agreeing: float
    loss: float


@dataclass(frozen=True)
class Ground:
    """Settings and parts of a run, and the reading that they stand for; None as configured.

    Attributes:
        shape: the ground whose validations this one has, where only its training is another.
    """

    settings: Settings
    parts: Parts
    reading: Reading | None = None
    shape: "Ground | None" = None

    @property
    def is_sound(self) -> bool:
        return self.reading is None or self.reading.sound

    def under(self, reading: Reading) -> "Ground | None":
        """The same under one more reading; None where that is no other run."""
        changed = reading.apply(self.settings, self.parts)
        if changed is None:
            return None
        shape = self if reading.in_training else None
        if self.reading is not None:
            clause = f"{reading.clause}, and {self.reading.clause}"
            reading = replace(reading, clause=clause)
        return Ground(*changed, reading, shape)


@dataclass
class Bench:
    """Where a run's losses are computed again, until the deadline.

    Attributes:
        is_counted: whether the run's configuration says how many batches its validations had.
        is_cut: whether a validation was cut short: batches of it tell a loss, and no reading.
        begun: when the search began, by `time.monotonic`.
    """

    models: LoadedModels
    recorded: Recorded
    usual: Ground
    tokenizer: Any
    deadline: float
    is_counted: bool = True
    is_cut: bool = False
    begun: float = field(default_factory=time.monotonic)
    _measured: dict[int, tuple[Ground, tuple[Level, ...]]] = field(default_factory=dict)

    @classmethod
    def of(cls, run: RunView, recorded: Recorded) -> "Bench":
        is_saved = run.files.tuned or run.files.adapter
        models = run.need(LoadedModels if is_saved else LoadedBase)
        deadline = deadline_of(run, SHARE)
        usual = run.need(AsConfigured)
        if not says_how(run):
            # Validations alone can be computed again.
            recorded = replace(recorded, reports=())
        ground = Ground(usual.settings, usual.parts)
        is_counted = run.get(TrainingConfig) is not None
        return cls(models, recorded, ground, usual.tokenizer, deadline, is_counted)

    @property
    def is_mostly_over(self) -> bool:
        """Whether most of the time is over."""
        left = self.deadline - time.monotonic()
        return left < (1.0 - MOST) * (self.deadline - self.begun)

    @property
    def is_late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.deadline

    def levels(self, ground: Ground) -> tuple[Level, ...]:
        """All that was recorded, computed again, in order of time."""
        levels = (*self.validations(ground), *self._reports(ground))
        return tuple(sorted(levels, key=lambda level: get_args(What).index(level.what)))

    def validations(self, ground: Ground) -> tuple[Level, ...]:
        """The validations before and after training, as far as they were recorded."""
        ground = ground.shape or ground
        if id(ground) not in self._measured:
            self._measured[id(ground)] = ground, tuple(self._validated(ground))
        return self._measured[id(ground)][1]

    def _validated(self, ground: Ground) -> Iterator[Level]:
        recorded, after = self.recorded, self.recorded.after
        if not ground.parts.encode(ground.settings, self.tokenizer).valid:
            return
        if recorded.before is not None:
            mean, error = self.before(ground)
            if not math.isfinite(error):
                return
            yield Level("before", 0, recorded.before, mean, max(SAME, ERRORS * error))
        if after is not None and self._has_usual_model(ground) and "tuned" in self.models.names:
            mean, error = self._loss(self.models.select("tuned"), ground)
            tolerance = max(SAME, ERRORS * error) + after.drift
            if math.isfinite(error):
                yield Level("after", after.iteration, after.after, mean, tolerance)

    def _has_usual_model(self, ground: Ground) -> bool:
        usual = self.usual.parts
        return ground.parts.load is usual.load and ground.parts.prepare is usual.prepare

    def before(self, ground: Ground, count: int | None = None) -> tuple[float, float]:
        """The loss before training over the first validation, or some batches of it."""
        if self._has_usual_model(ground) and ground.settings.resume_adapter_file is None:
            return self._loss(self.models.select("base"), ground, count)
        model, _ = ground.parts.load(ground.settings)
        ground.parts.prepare(model, ground.settings)
        return self._loss(model, ground, count)

    def _loss(self, model: Any, ground: Ground, count: int | None = None) -> tuple[float, float]:
        """The loss of a validation, nats a token; its standard error beside one of other rows.

        Zero where both are over all rows (Cochran 1977, finite populations, ratio estimator);
        infinite where there was no time for enough of them.

        Args:
            count: of its batches, if not all.
        """
        from mlxdoctor.twin.masked_loss import losses_of

        settings, parts = ground.settings, ground.parts
        rows = parts.encode(settings, self.tokenizer)
        held = rows.valid
        # mlx-lm refuses rows that fill no batch; others take what there is.
        settings = replace(settings, batch_size=max(min(settings.batch_size, len(held)), 1))
        made, total = parts.batches(settings), len(held) / settings.batch_size
        # Drawn before the validation, as in mlx-lm: both draw from one generator there.
        next(made.train(rows.train))
        batches = list(made.evaluation(held, settings.val_batches))
        planned = len(batches) if self.is_counted else min(len(batches), UNSAID)
        batches = batches[:count]
        now = time.monotonic()
        until = now + OF_THE_TIME * (self.deadline - now)
        pace = Pace(min(FEWEST_BATCHES, len(batches)), self.deadline, until)
        each = losses_of(model, pace.taken(batches), parts.loss)
        sums, counts = (np.array(values) for values in each)
        self.is_cut = self.is_cut or len(sums) < len(batches)
        if not pace.is_enough:
            return math.nan, math.inf
        if not counts.sum():
            return math.nan, 0.0
        mean, spread = ratio(sums, counts)
        shares = [max(1 / size - 1 / max(total, size), 0.0) for size in (len(sums), planned)]
        return mean, spread * math.sqrt(sum(shares))

    def _reports(self, ground: Ground) -> tuple[Level, ...]:
        """The first reports on training, made again."""
        reports = self.recorded.reports
        if not reports or self.is_late:
            return ()
        from mlxdoctor.twin.loop import first_losses
        from mlxdoctor.twin.prepared import prepared

        try:
            # What a reading does may depend on the padding.
            parts = in_few_widths(ground.parts) if ground is self.usual else ground.parts
            start = prepared(ground.settings, parts)
            pace = Pace(reports[0][1], self.deadline)
            losses, is_off = list[float](), False
            for loss in pace.taken(first_losses(start, reports[-1][1])):
                losses.append(loss)
                # What sound trainers compute is shown, and is computed to the end.
                is_off = not ground.is_sound and _cannot_agree(losses, *reports[0][1:])
                if is_off:
                    break
        except InputError:
            return ()
        if is_off:
            _, iteration, recorded = reports[0]
            return (Level("report", iteration, recorded, math.inf, SAME),)
        noise, levels = _noise(losses), []
        for last, iteration, recorded in reports:
            own = losses[last:iteration]
            if len(own) < iteration - last:
                break
            mean, error = float(np.mean(own)), noise * math.sqrt(2 / len(own))
            tolerance = max(SAME, ERRORS * error, PATH * abs(losses[0] - mean))
            levels.append(Level("report", iteration, recorded, mean, tolerance))
        return tuple(levels)

    def other_scale(
        self, ground: Ground, levels: Sequence[Level], allowed: float | None = None
    ) -> Scale | None:
        """The scale at which the saved adapter has the log's last loss, where it has another.

        Args:
            allowed: nats by which it may be off, if not by its tolerance.
        """
        if (after := _worse_end(levels)) is None:
            return None
        model, adapted = self._adapted()
        modules = [*adapted.values()]
        scales = [float(module.scale) for module in modules]
        if not scales:
            return None
        own, tried = scales[0], []
        for scale in (0.0, *SCALES, -own):
            for module, configured in zip(modules, scales, strict=True):
                module.scale = configured * scale / own if own else scale
            loss = self._loss(model, ground)[0]
            tried.append((abs(loss - after.recorded), scale, loss))
            if self.is_late:
                break
        for module, configured in zip(modules, scales, strict=True):
            module.scale = configured
        learned = self.recorded.before - after.recorded if self.recorded.before else 0.0

        def agrees(off: float, loss: float) -> bool:
            # Training may have gone on to a lower loss after the last validation.
            later = PATH * learned if loss < after.recorded else 0.0
            return off <= (max(after.tolerance, later) if allowed is None else allowed)

        base, *others = tried
        # Where the base model alone has it, any small scale does. It is not that of the training
        # if the log begins far above it.
        has_it = agrees(base[0], base[2]) and base[2] < HALF * self.recorded.first
        off, scale, loss = base if has_it else min(others, default=(math.inf, own, math.nan))
        return Scale(own, scale, loss) if agrees(off, loss) else None

    def _adapted(self) -> tuple[Any, dict[str, Any]]:
        """The tuned model, and its modules with factors by name."""
        model = self.models.select("tuned")
        return model, {
            name: each for name, each in model.named_modules() if hasattr(each, "lora_a")
        }

    def rearranged(self, ground: Ground, levels: Sequence[Level]) -> str:
        """How the saved adapter has the log's last loss; "" where it has it in no such way.

        "turned": its factors transposed, as other libraries store them; only square ones load
        either way. "moved": those of each layer in a later one, where the last ones have none.
        """
        if (after := _worse_end(levels)) is None:
            return ""
        model, modules = self._adapted()
        stored = {name: (module.lora_a, module.lora_b) for name, module in modules.items()}

        def put(factors: Factors) -> None:
            for name, module in modules.items():
                module.lora_a, module.lora_b = factors[name]

        for way, factors in (("turned", _turned(stored)), ("moved", _moved(stored))):
            if not factors or _shapes(factors) != _shapes(stored):
                continue
            put(factors)
            loss = self._loss(model, ground)[0]
            put(stored)
            if abs(loss - after.recorded) <= after.tolerance:
                return way
        return ""

    def saved_at(self, levels: Sequence[Level]) -> int | None:
        """The iteration of an earlier validation, the loss of which it has instead of the last."""
        ends = [level.computed for level in levels if level.what == "after" and level.misfit > 0.0]
        earlier = self.recorded.validations if ends else ()
        return next((at for at, loss in earlier if abs(loss - ends[0]) <= EXACT), None)


def _shapes(factors: Factors) -> dict[str, tuple[Any, Any]]:
    return {name: (a.shape, b.shape) for name, (a, b) in factors.items()}


def _turned(stored: Factors) -> Factors:
    """The factors transposed."""
    pairs = ((name, pair) for name, pair in stored.items() if pair[0].ndim == pair[1].ndim == 2)
    return {name: (a.T, b.T) for name, (a, b) in pairs}


def _moved(stored: Factors) -> Factors:
    """Those of each layer in a later one, by as many as have none at the end; else nothing."""
    layers = {name: int(match[1]) for name in stored if (match := _LAYER.search(name))}
    full = {layer for name, layer in layers.items() if stored[name][1].any().item()}
    by = max(layers.values(), default=0) - max(full, default=0)
    if not by or not full or len(layers) < len(stored):
        return {}
    moved = {}
    for name, (a, b) in stored.items():
        before = _LAYER.sub(f".{layers[name] - by}.", name, count=1)
        moved[name] = stored.get(before, (a, b - b))
    return moved


def _worse_end(levels: Sequence[Level]) -> Level | None:
    """The end of a run, where the saved model is worse than the log has it."""
    ends = (level for level in levels if level.what == "after" and level.misfit > 0.0)
    return next((level for level in ends if not level.computed < level.recorded), None)


def _cannot_agree(losses: Sequence[float], count: int, recorded: float) -> bool:
    """Whether the mean of so many losses cannot become the one recorded, after the first ones."""
    rest, told = count - len(losses), sum(losses)
    is_high = told > (1.0 + AROUND) * recorded * count
    is_low = told + rest * RISE * max(losses) < (1.0 - AROUND) * recorded * count
    return TOLD <= len(losses) < count and (is_high or is_low)


def _noise(losses: Sequence[float]) -> float:
    """What one batch's loss differs by from the next, trend aside: from second differences."""
    if len(losses) < 3:
        return 0.0
    bends = np.diff(np.asarray(losses, np.float64), 2)
    return math.sqrt(float(np.mean(bends**2)) / 6)
