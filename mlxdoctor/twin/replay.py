"""What a run recorded, computed again; and the reading under which both agree.

A run is a function of base, rows, configuration and seed. Its first validation, its first reports
and its last validation are computed again as mlx-lm computes them. Where they differ, readings are
tried (`mlxdoctor.twin.readings`): what a trainer may have computed in place of mlx-lm's loss.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import Missing, NoSuchThing, RunView
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.measure.logged_levels import LoggedLoss, logged_loss
from mlxdoctor.models.load import LoadedBase, LoadedModels, load_tokenizer
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.time_budget import Pace
from mlxdoctor.twin.rerun import as_configured, deadline_of, says_how
from mlxdoctor.twin.settings import Settings

if TYPE_CHECKING:
    from mlxdoctor.twin.prepared import Parts
    from mlxdoctor.twin.reading import Reading

#: Iterations that are made again; where the first report comes later, as many as it takes.
ITERATIONS, LATEST_FIRST = 30, 60
#: Nats by which the same loss differs: rounding in half precision and in the log is below.
SAME = 0.02
#: Nats by which the very same validation differs where nothing but the log rounds, and those by
#: which it differs under the right reading in half precision.
EXACT, READ = 0.003, 0.01
#: Standard errors of losses over other rows, or over the same rows in another order.
ERRORS = 4.0
#: Of the nats by which a loss fell, by which another start or another order makes it differ.
PATH = 0.05
#: Of a disagreement, what a reading leaves at most. Tolerances by which a report is off that only
#: another training explains.
EXPLAINED, CLEAR = 1 / 3, 2.0
#: Batches on which it is seen that a reading is far off -> nats beyond what they differ from the
#: rest. One batch first: of 403 readings of a fixture the same are left, in two thirds of the time.
SCREENED = {1: 0.4, 3: 0.2}
#: LoRA scales that people set: alpha over rank, alpha, mlx-lm's defaults.
SCALES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 16.0, 20.0, 32.0, 40.0, 64.0, 128.0)
#: Readings whose first reports are made again, at most: those that fit the validations best.
TRAINED = 6
#: Of the time left, what one validation may take: the reports on training need most of it where
#: models are slow. And batches of one that is cut: fewer do not tell how they differ.
OF_THE_TIME, FEWEST_BATCHES = 1 / 4, 8

#: Of the time to train, what the replay takes: the rest is for what the rows teach.
SHARE = 0.5

What = Literal["before", "report", "after"]


@dataclass(frozen=True)
class Level:
    """One recorded loss and the same computed again, nats a token.

    Attributes:
        what: the validation before the first update, a report on training, or the validation
            after the last.
        iteration: of the report.
        recorded: by the log.
        computed: from base, rows and configuration.
        tolerance: by which they may differ: rounding, and the sampling error of other rows.
    """

    what: What
    iteration: int
    recorded: float
    computed: float
    tolerance: float

    @property
    def off(self) -> float:
        """The recorded loss less the computed one."""
        return self.recorded - self.computed

    @property
    def misfit(self) -> float:
        """Their difference where it is more than the tolerance; 0 where they agree."""
        return self.beyond(self.tolerance)

    def beyond(self, tolerance: float) -> float:
        """Their difference, nats; 0 where it is within a tolerance, or where both are lost."""
        finite = math.isfinite(self.recorded), math.isfinite(self.computed)
        if not all(finite):
            return math.inf if any(finite) else 0.0
        return abs(self.off) if abs(self.off) > tolerance else 0.0


@dataclass(frozen=True)
class Scale:
    """Another LoRA scale: the one in force, the one that agrees, and the loss with it, nats."""

    configured: float
    agreeing: float
    loss: float


def before_the_end(levels: Sequence[Level]) -> list[Level]:
    """Those of the start of a run: its first validation and its first reports."""
    return [level for level in levels if level.what != "after"]


def _worse_end(levels: Sequence[Level]) -> Level | None:
    """The end of a run, where the saved model is worse than the log has it."""
    ends = (level for level in levels if level.what == "after" and level.misfit > 0.0)
    return next((level for level in ends if not level.computed < level.recorded), None)


def misfit(levels: Sequence[Level]) -> float:
    """The largest disagreement, nats; 0 where all agree."""
    return max((level.misfit for level in levels), default=0.0)


@dataclass(frozen=True)
class Replay:
    """What a run recorded, beside what mlx-lm computes from its base, rows and configuration.

    Attributes:
        sources: the files that it was computed from.
        configured: what was recorded, in order of time, beside the same as configured.
        reading: under which what was recorded agrees; None where it agrees as configured, or
            under none.
        best: the same under that reading; as configured without one.
        scale: at which the saved adapter has the log's last loss; None where it has it, or at none.
        is_turned: whether it has that loss with its factors transposed, as other libraries store
            them. Only square factors load either way.
        saved_at: the iteration of an earlier validation, the loss of which it has to three digits.
        left_out: what there was no time for, as a clause; else empty.
    """

    kind: ClassVar[str] = "replay"
    needs_models: ClassVar[bool] = True
    #: Asked for after all that only asks models.
    trains: ClassVar[bool] = True

    sources: tuple[Source, ...]
    configured: tuple[Level, ...]
    reading: Reading | None
    best: tuple[Level, ...]
    scale: Scale | None = None
    is_turned: bool = False
    saved_at: int | None = None
    left_out: str = ""

    def level(self, what: What) -> Level | None:
        """The first level of a kind, under the reading that fits best; None where there is none."""
        return next((level for level in self.best if level.what == what), None)

    @property
    def is_step_for_step(self) -> bool:
        """Whether the first reports on training are the log's as configured, but for rounding."""
        start = before_the_end(self.configured)
        has_reports = any(level.what == "report" for level in start)
        return has_reports and all(level.beyond(EXACT) == 0.0 for level in start)

    @property
    def trains_as_read(self) -> bool:
        """Whether the first losses are those of a sound trainer, as far as they were recorded."""
        is_sound = self.reading is None or self.reading.sound
        return is_sound and misfit(before_the_end(self.best)) == 0.0

    @property
    def agrees(self) -> bool:
        """Whether a report and the last validation were recorded, and all is as computed."""
        is_whole = self.level("report") is not None and self.level("after") is not None
        return is_whole and self.trains_as_read and misfit(self.best) == 0.0

    @classmethod
    def find(cls, run: RunView) -> Replay:
        """Computed within the time that the run's options name."""
        log = run.need(TrainingLog)
        if log.is_preference:
            raise NoSuchThing("the loss of preference training is not that of a language model")
        if run.options.replay is False:
            raise Missing("nothing was computed again, because of --no-replay; leave it out")
        recorded = Recorded.of(log, run.get(TrainingConfig))
        try:
            return _Bench.of(run, recorded).replay()
        except InputError as error:
            # That the rows can't be read is told by the checks of the rows.
            raise Missing(f"nothing could be computed again: {error}") from None


@dataclass(frozen=True)
class Recorded:
    """The losses of a log that can be computed again.

    Attributes:
        before: of the validation before the first update; None where there is none.
        reports: (iterations before it, its own, loss) of the first reports on training.
        after: as the log has the end of training; None where it validated nothing.
        validations: (iteration, loss) of those in between.
    """

    before: float | None
    reports: tuple[tuple[int, int, float], ...]
    after: LoggedLoss | None
    validations: tuple[tuple[int, float], ...] = ()

    def misfit(self, levels: Sequence[Level]) -> float:
        """The largest disagreement of the start, nats.

        What was saved may not be what was trained: the end counts only where little of the start
        was recorded, and not where training went on to a lower loss after the last validation.
        """

        def counts(level: Level) -> bool:
            is_later = level.computed < level.recorded
            return level.what != "after" or self.before is None or not (self.reports or is_later)

        return misfit(list(filter(counts, levels)))

    @classmethod
    def of(cls, log: TrainingLog, config: TrainingConfig | None) -> Recorded:
        """What a log has of them.

        Raises:
            Missing: it has none.
        """
        main = log.main
        reports: list[tuple[int, int, float]] = []
        series = main.get("train_loss")
        # Trainers that count steps may count updates.
        is_counted = main.axis == "iteration" or (
            main.axis == "step" and (config is None or config.grad_accumulation_steps in {None, 1})
        )
        if series is not None and is_counted and main.shows_start:
            places = [0, *map(int, series.iterations)]
            for (last, iteration), loss in zip(pairwise(places), series.values, strict=True):
                if not last < iteration <= (ITERATIONS if reports else LATEST_FIRST):
                    break
                reports.append((last, iteration, float(loss)))
        after = logged_loss(log, planned=config.iters if config is not None else None)
        if after is not None and after.split != "valid":
            after = None
        if main.base_val_loss is None and not reports and after is None:
            raise Missing("the log has no loss that could be computed again")
        every = main.finite("val_loss")
        validations = zip(map(int, every.iterations), map(float, every.values), strict=True)
        first = 0 if main.base_val_loss is None else 1
        return cls(main.base_val_loss, tuple(reports), after, tuple(validations)[first:-1])


@dataclass(frozen=True)
class _Ground:
    """Settings and parts of a run, and the reading that they stand for; None as configured.

    Attributes:
        shape: the ground whose validations this one has, where only its training is another.
    """

    settings: Settings
    parts: Parts
    reading: Reading | None = None
    shape: _Ground | None = None

    def under(self, reading: Reading) -> _Ground | None:
        """The same under one more reading; None where that is no other run."""
        changed = reading.apply(self.settings, self.parts)
        if changed is None:
            return None
        shape = self if reading.in_training else None
        if self.reading is not None:
            clause = f"{reading.clause}, and {self.reading.clause}"
            reading = replace(reading, clause=clause)
        return _Ground(*changed, reading, shape)


@dataclass
class _Bench:
    """Where a run's losses are computed again, until the deadline.

    Attributes:
        is_cut: whether a validation was cut short: batches of it tell a loss, and no reading.
    """

    models: LoadedModels
    recorded: Recorded
    usual: _Ground
    tokenizer: Any
    deadline: float
    is_cut: bool = False
    _measured: list[tuple[_Ground, tuple[Level, ...]]] = field(default_factory=list)

    @classmethod
    def of(cls, run: RunView, recorded: Recorded) -> _Bench:
        is_saved = run.files.tuned or run.files.adapter
        base, models = run.need(BaseModel), run.need(LoadedModels if is_saved else LoadedBase)
        deadline = deadline_of(run, SHARE)
        tokenizer = load_tokenizer(base.path, base.eos_token_ids)
        settings, parts = as_configured(run)
        if not says_how(run):
            # Validations alone can be computed again.
            recorded = replace(recorded, reports=())
        return cls(models, recorded, _Ground(settings, parts), tokenizer, deadline)

    @property
    def is_late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.deadline

    def replay(self) -> Replay:
        """Compute what was recorded as configured; where it differs, as other trainers do."""
        configured = self.levels(self.usual)
        if not configured and self.is_cut:
            raise Missing("the time was over before a loss was computed again")
        # Another scale than that of the training explains the reports and the end alike.
        is_usual = not any(level.misfit for level in configured if level.what == "before")
        scale = self._other_scale(self.usual, configured) if is_usual else None
        if self.is_cut or scale is not None:
            return self._result(configured, None, configured, scale)
        if self.recorded.misfit(configured) == 0.0:
            return self._result(configured, *self._exactly(self.usual, configured))
        alone = list(self._under(self.usual, sound=True))
        both = [ground for shape in alone for ground in self._under(shape, sound=True, after=shape)]
        shapes = [shape for shape in (*alone, *both) if shape.shape is None]
        if all(level.what == "after" for level in configured):
            return self._by_its_end(configured, shapes)
        # The first validation tells the loss; what differs then is how it was trained.
        agreeing = [self.usual] if is_usual else list(filter(self._fits_exactly, shapes))
        if agreeing and not is_usual:
            shape = agreeing[0]
            fitting = self.levels(shape)
            if (scale := self._other_scale(shape, fitting)) is not None:
                return self._result(configured, shape, fitting, scale)
            if len(fitting) > 1 and self.recorded.misfit(fitting) == 0.0:
                return self._result(configured, *self._exactly(shape, fitting))
        trained = [ground for shape in agreeing for ground in self._trained_otherwise(shape)]
        of_single = (self.usual, *(shape for shape in alone if shape.shape is None))
        faulty = (ground for shape in of_single for ground in self._under(shape, sound=False))
        grounds = _different(chain(agreeing, trained, alone, both, faulty))
        ground, levels = self._best(grounds, configured)
        if ground is None and agreeing and not is_usual:
            ground, levels = agreeing[0], self.levels(agreeing[0])
        return self._result(configured, ground, levels)

    def _by_its_end(self, configured: Sequence[Level], shapes: Sequence[_Ground]) -> Replay:
        """The sound reading under which the end is exact, where nothing of the start is recorded.

        Or the one under which it is with another LoRA scale. One figure agrees within its noise
        with many a reading, and to three digits with few.
        """
        for shape in shapes:
            levels = self._validations(shape)
            is_exact = any(level.beyond(EXACT) == 0.0 for level in levels)
            if is_exact or self._saved_at(levels) is not None:
                return self._result(configured, shape, levels)
            if self.is_late:
                return self._result(configured, None, configured)
        for shape in filter(self._is_plain, shapes):
            levels = self._validations(shape)
            if (scale := self._other_scale(shape, levels, EXACT)) is not None:
                return self._result(configured, shape, levels, scale)
        return self._result(configured, None, configured)

    def _is_plain(self, shape: _Ground) -> bool:
        """Whether it is the loss as most trainers write it, over whole rows or answers alone."""
        from mlxdoctor.twin.masked_loss import exact_loss

        is_usual = shape.parts.encode is self.usual.parts.encode
        return is_usual and shape.parts.loss is exact_loss

    def _saved_at(self, levels: Sequence[Level]) -> int | None:
        """The iteration of an earlier validation, the loss of which it has instead of the last."""
        ends = [level.computed for level in levels if level.what == "after" and level.misfit > 0.0]
        earlier = self.recorded.validations if ends else ()
        return next((at for at, loss in earlier if abs(loss - ends[0]) <= EXACT), None)

    def _exactly(
        self, shape: _Ground, near: Sequence[Level]
    ) -> tuple[_Ground | None, Sequence[Level]]:
        """What a trainer did whose reports are within noise of a shape's, and exact if read so.

        Several reports to three digits are no chance: other batches never give them.

        Args:
            near: what was recorded, computed again under the shape.
        """
        before, reports = _off(near)
        if sum(level.what == "report" for level in near) > 1 and reports > READ:
            grounds = self._trained_otherwise(shape)
            if before > READ:
                # Another loss, too, may be within the noise of few batches.
                both = (self._under(self.usual, sound=sound) for sound in (True, False))
                shapes = (ground for ground in chain(*both) if ground.shape is None)
                grounds = chain(filter(self._fits_exactly, shapes), grounds)
            for ground in grounds:
                if self.is_late:
                    break
                levels = self.levels(ground)
                start = before_the_end(levels)
                is_whole = len(start) == len(before_the_end(near))
                if is_whole and all(level.beyond(EXACT) == 0.0 for level in start):
                    return ground, levels
        return (None if shape is self.usual else shape), near

    def _fits_exactly(self, shape: _Ground) -> bool:
        return (
            self.recorded.before is not None
            and not self.is_late
            and self._screened(shape) == 0.0
            and _off(self._validations(shape))[0] <= READ
            and not self.is_cut
        )

    def _trained_otherwise(self, shape: _Ground) -> Iterator[_Ground]:
        both = (ground for sound in (True, False) for ground in self._under(shape, sound=sound))
        return (ground for ground in both if ground.shape is not None)

    def levels(self, ground: _Ground) -> tuple[Level, ...]:
        """All that was recorded, computed again."""
        return (*self._validations(ground), *self._reports(ground))

    def _result(
        self,
        configured: Sequence[Level],
        ground: _Ground | None,
        levels: Sequence[Level],
        scale: Scale | None = None,
    ) -> Replay:
        def in_time(levels: Sequence[Level]) -> tuple[Level, ...]:
            order: tuple[What, ...] = ("before", "report", "after")
            key = lambda level: (order.index(level.what), level.iteration)  # noqa: E731
            return tuple(sorted(levels, key=key))

        return Replay(
            self.models.sources,
            in_time(configured),
            ground.reading if ground is not None else None,
            in_time(levels),
            scale or (self._other_scale(ground, levels) if ground is not None else None),
            self._is_turned(ground or self.usual, levels),
            self._saved_at(levels),
            "not every reading of the log was tried: the time was over"
            if (self.is_late or self.is_cut) and self.recorded.misfit(levels) > 0.0
            else "",
        )

    def _other_scale(
        self, ground: _Ground, levels: Sequence[Level], allowed: float | None = None
    ) -> Scale | None:
        """The scale at which the saved adapter has the log's last loss, where it has another.

        Args:
            allowed: nats by which it may be off, if not by its tolerance.
        """
        if (after := _worse_end(levels)) is None:
            return None
        model, modules = self._adapted()
        scales = [float(module.scale) for module in modules]
        if not scales:
            return None
        own, tried = scales[0], []
        for scale in (*SCALES, -own):
            for module, configured in zip(modules, scales, strict=True):
                module.scale = configured * scale / own if own else scale
            loss = self._loss(model, ground)[0]
            tried.append((abs(loss - after.recorded), scale, loss))
            if self.is_late:
                break
        for module, configured in zip(modules, scales, strict=True):
            module.scale = configured
        off, scale, loss = min(tried)
        if allowed is None:
            # Training may have gone on to a lower loss after the last validation.
            learned = self.recorded.before - after.recorded if self.recorded.before else 0.0
            allowed = max(after.tolerance, PATH * learned if loss < after.recorded else 0.0)
        return Scale(own, scale, loss) if off <= allowed else None

    def _adapted(self) -> tuple[Any, list[Any]]:
        """The tuned model, and its modules with factors."""
        model = self.models.select("tuned")
        return model, [each for _, each in model.named_modules() if hasattr(each, "lora_a")]

    def _is_turned(self, ground: _Ground, levels: Sequence[Level]) -> bool:
        """Whether the saved adapter has the log's last loss with its factors transposed."""
        if (after := _worse_end(levels)) is None:
            return False
        model, modules = self._adapted()
        factors = [factor for module in modules for factor in (module.lora_a, module.lora_b)]
        if not factors or any(factor.ndim != 2 or len(set(factor.shape)) > 1 for factor in factors):
            return False

        def turn() -> None:
            for module in modules:
                module.lora_a, module.lora_b = module.lora_a.T, module.lora_b.T

        turn()
        loss = self._loss(model, ground)[0]
        turn()
        return abs(loss - after.recorded) <= after.tolerance

    def _under(
        self, shape: _Ground, *, sound: bool, after: _Ground | None = None
    ) -> Iterator[_Ground]:
        """A shape under one more reading each.

        Args:
            after: what shape; those before its own reading in the list are left out, since the
                order of two makes no difference, unless only training shows them.
        """
        from mlxdoctor.twin.reading import readings

        every, first = readings(), 0
        if after is not None and after.reading is not None:
            first = 1 + [each.code for each in every].index(after.reading.code)
        if shape.shape is None:
            for place, reading in enumerate(every):
                if reading.sound is sound and (reading.in_training or place >= first):
                    ground = shape.under(reading)
                    if ground is not None:
                        yield ground

    def _best(
        self, grounds: Iterable[_Ground], configured: Sequence[Level]
    ) -> tuple[_Ground | None, Sequence[Level]]:
        """The reading that agrees, else the one that leaves least, if that is little enough.

        Validations take a forward pass each. Reports take training: they are computed again at
        once under a reading that fits the validations, later under the best of the others.
        """
        allowed = EXPLAINED * self.recorded.misfit(configured)
        reports = [level for level in configured if level.what == "report"]
        is_far = any(level.beyond(CLEAR * level.tolerance) > 0.0 for level in reports)
        best: tuple[_Ground | None, Sequence[Level]] = (None, configured)
        later: list[tuple[float, int, _Ground]] = []

        def better(ground: _Ground) -> tuple[_Ground | None, Sequence[Level]]:
            levels = self.levels(ground)
            left = self._left(ground, levels)
            # One figure agrees by chance with some reading. Another base has no end.
            start, recorded = before_the_end(levels), before_the_end(configured)
            is_whole = len(levels) > 1 and len(start) == len(recorded)
            if ground.reading is not None and not ground.reading.sound:
                is_whole = is_whole and (left > 0.0 or misfit(levels) == 0.0)
                # A report that is hardly beyond its noise agrees by chance with some training, and
                # without a validation any report of another optimiser does.
                is_exact = all(level.beyond(SAME) == 0.0 for level in start)
                is_told = is_far if ground.shape is not None else self.recorded.before is not None
                is_whole = is_whole and (is_exact or is_told)
            slack = max((level.tolerance - SAME for level in levels), default=0.0)
            is_near = _off(levels)[0] <= READ + slack or left > 0.0
            if not (is_whole and is_near and left <= allowed):
                return best
            pairs = (best, (ground, levels))
            return min(pairs, key=lambda each: (self._left(*each), *_off(each[1])))

        for number, ground in enumerate(grounds):
            if self.is_late or (best[0] is not None and max(_off(best[1])) <= EXACT):
                return best
            screened = self._screened(ground)
            if screened == 0.0:
                best = better(ground)
            elif screened <= allowed:
                later.append((screened, number, ground))
        for _, _, ground in sorted(later, key=lambda entry: entry[:2])[:TRAINED]:
            if not self.is_late and self._left(*best) > 0.0:
                best = better(ground)
        return best

    def _left(self, ground: _Ground | None, levels: Sequence[Level]) -> float:
        """The misfit of what was recorded, nats; of the end none where a sound start is exact."""
        start = before_the_end(levels)
        is_sound = ground is not None and (ground.reading is None or ground.reading.sound)
        if is_sound and start and all(level.beyond(EXACT) == 0.0 for level in start):
            return 0.0
        return self.recorded.misfit(levels)

    @cached_property
    def _few(self) -> dict[int, float]:
        """The loss as configured over the batches on which readings are screened, nats."""
        return {count: self._before(self.usual, count)[0] for count in SCREENED}

    def _screened(self, ground: _Ground) -> float:
        """The misfit of the validations; infinite where a few batches show that it is large."""
        usual = [each for each in self._validations(self.usual) if each.what == "before"]
        try:
            if usual and ground.shape is not self.usual:
                for count, slack in SCREENED.items():
                    shift = self._before(ground.shape or ground, count)[0] - self._few[count]
                    if not abs(usual[0].off - shift) <= slack + abs(shift) / 2:
                        return math.inf
            return self._left(ground, self._validations(ground))
        except InputError:
            # Rows of text have no prompt to mask.
            return math.inf

    def _validations(self, ground: _Ground) -> tuple[Level, ...]:
        """The validations before and after training, as far as they were recorded."""
        ground = ground.shape or ground
        for measured, levels in self._measured:
            if measured is ground:
                return levels
        self._measured.append((ground, tuple(self._validated(ground))))
        return self._measured[-1][1]

    def _validated(self, ground: _Ground) -> Iterator[Level]:
        recorded, after = self.recorded, self.recorded.after
        rows = ground.parts.encode(ground.settings, self.tokenizer)
        if len(rows.valid) < ground.settings.batch_size:
            return
        if recorded.before is not None:
            mean, error = self._before(ground)
            if not math.isfinite(error):
                return
            yield Level("before", 0, recorded.before, mean, max(SAME, ERRORS * error))
        if after is not None and self._has_usual_model(ground) and "tuned" in self.models.names:
            mean, error = self._loss(self.models.select("tuned"), ground)
            tolerance = max(SAME, ERRORS * error) + after.drift
            if math.isfinite(error):
                yield Level("after", after.iteration, after.after, mean, tolerance)

    def _has_usual_model(self, ground: _Ground) -> bool:
        usual = self.usual.parts
        return ground.parts.load is usual.load and ground.parts.prepare is usual.prepare

    def _before(self, ground: _Ground, count: int | None = None) -> tuple[float, float]:
        """The loss before training over the first validation, or some batches of it."""
        if self._has_usual_model(ground) and ground.settings.resume_adapter_file is None:
            return self._loss(self.models.select("base"), ground, count)
        model, _ = ground.parts.load(ground.settings)
        ground.parts.prepare(model, ground.settings)
        return self._loss(model, ground, count)

    def _loss(self, model: Any, ground: _Ground, count: int | None = None) -> tuple[float, float]:
        """The loss of a validation, nats a token; its standard error beside one of other rows.

        Zero where both are over all rows (Cochran 1977, finite populations, ratio estimator);
        infinite where there was no time for enough of them.

        Args:
            count: of its batches, if not all.
        """
        from mlxdoctor.twin.masked_loss import losses_of

        settings, parts = ground.settings, ground.parts
        rows = parts.encode(settings, self.tokenizer)
        made, total = parts.batches(settings), len(rows.valid) / settings.batch_size
        # Drawn before the validation, as in mlx-lm: both draw from one generator there.
        next(made.train(rows.train))
        batches = list(made.evaluation(rows.valid, settings.val_batches))
        planned, batches = len(batches), batches[:count]
        now = time.monotonic()
        until = now + OF_THE_TIME * (self.deadline - now)
        pace = Pace(min(FEWEST_BATCHES, len(batches)), self.deadline, until)
        each = losses_of(model, batches, parts.loss, pace.is_over)
        sums, counts = (np.array(values) for values in each)
        self.is_cut = self.is_cut or len(sums) < len(batches)
        if not pace.is_enough:
            return math.nan, math.inf
        if not counts.sum():
            return math.nan, 0.0
        mean = float(sums.sum() / counts.sum())
        residuals = (sums - mean * counts) / counts.mean()
        spread = math.sqrt(float((residuals**2).sum()) / max(len(sums) - 1, 1))
        shares = [max(1 / size - 1 / max(total, size), 0.0) for size in (len(sums), planned)]
        return mean, spread * math.sqrt(sum(shares))

    def _reports(self, ground: _Ground) -> tuple[Level, ...]:
        """The first reports on training, made again."""
        reports = self.recorded.reports
        if not reports or self.is_late:
            return ()
        from mlxdoctor.twin.loop import first_losses
        from mlxdoctor.twin.prepared import prepared

        try:
            start = prepared(ground.settings, ground.parts)
            pace = Pace(reports[0][1], self.deadline)
            losses = first_losses(start, reports[-1][1], pace.is_over)
        except InputError:
            return ()
        noise, levels = _noise(losses), []
        for last, iteration, recorded in reports:
            own = losses[last:iteration]
            if len(own) < iteration - last:
                break
            mean, error = float(np.mean(own)), noise * math.sqrt(2 / len(own))
            tolerance = max(SAME, ERRORS * error, PATH * abs(losses[0] - mean))
            levels.append(Level("report", iteration, recorded, mean, tolerance))
        return tuple(levels)


def _different(grounds: Iterable[_Ground]) -> Iterator[_Ground]:
    """Those that are not an earlier one under another name."""
    seen: list[tuple[Settings, Parts]] = []
    for ground in grounds:
        if (ground.settings, ground.parts) not in seen:
            seen.append((ground.settings, ground.parts))
            yield ground


def _off(levels: Sequence[Level]) -> tuple[float, float]:
    """How far the first validation is off, or without one the last; and the reports, nats.

    Of two readings that agree, the nearer one is right.
    """
    offs = {level.what: abs(level.off) for level in levels}
    reports = [abs(level.off) for level in levels if level.what == "report"]
    both = offs.get("before", offs.get("after", 0.0)), max(reports, default=0.0)
    first, later = (math.inf if math.isnan(each) else each for each in both)
    return first, later


def _noise(losses: Sequence[float]) -> float:
    """What one batch's loss differs by from the next, trend aside: from second differences."""
    if len(losses) < 3:
        return 0.0
    bends = np.diff(np.asarray(losses, np.float64), 2)
    return math.sqrt(float(np.mean(bends**2)) / 6)
