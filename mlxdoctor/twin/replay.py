"""What a run recorded, computed again as mlx-lm does; and the reading under which both agree."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import ClassVar

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.kind import Missing, NoSuchThing, RunView
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.supervision import of_preferences
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.bench import SAME, Bench, Ground, Scale
from mlxdoctor.twin.levels import EXACT, Level, Recorded, What, before_the_end, misfit, off
from mlxdoctor.twin.parts import Parts
from mlxdoctor.twin.readings import Reading, readings
from mlxdoctor.twin.settings import Settings

#: Nats by which the very same validation differs under the right reading in half precision.
READ = 0.01
#: Of a disagreement, what a reading leaves at most. Tolerances by which a report is off that only
#: another training explains.
EXPLAINED, CLEAR = 1 / 3, 2.0
#: Batches on which it is seen that a reading is far off -> nats beyond what they differ from the
#: rest. One batch first: of 403 readings of a fixture the same are left, in two thirds of the time.
SCREENED = {1: 0.4, 3: 0.2}
#: Readings whose first reports are made again, at most: those that fit the validations best.
TRAINED = 6
#: Times, or by which share, the end of a log is another than any usual loss of the saved model, and
#: the share of it within which a faulty reading gives it: of a hundred one agrees by chance. 12, 17
#: and 37 times where it was right. And by which another LoRA scale may miss such an end: 0.02 and
#: 0.17 where it was right.
FAR, NEAR, NEARBY = 4.0, 0.1, 0.25
#: Times what mlx-lm computes that a logged loss is where faulty readings are tried first: 3.2 and
#: 7.9 in two faulty runs. Sound readings of a run differ by less in their first reports.
TWICE = 2.0
#: What a replay leaves out, as a clause.
NOT_ALL = "not every reading of the log was tried: the time was over"


@dataclass(frozen=True)
class Replay:
    """What a run recorded, beside what mlx-lm computes from its base, rows and configuration.

    Attributes:
        configured: what was recorded, in order of time, beside the same as configured.
        reading: under which what was recorded agrees; None where it agrees as configured, or
            under none.
        best: the same under that reading; as configured without one.
        scale: at which the saved adapter has the log's last loss; None where it has it, or at none.
        rearranged: how it has that loss with its factors put otherwise, as `Bench.rearranged`.
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
    rearranged: str = ""
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
    def find(cls, run: RunView) -> "Replay":
        """Computed within the time that the run's options name."""
        log, config = run.need(TrainingLog), run.get(TrainingConfig)
        if of_preferences(config, log, run.get(Dataset)):
            raise NoSuchThing("the loss of preference training is not that of a language model")
        if run.options.replay is False:
            raise Missing("nothing was computed again, because of --no-replay; leave it out")
        recorded = Recorded.of(log, config)
        try:
            return _Search(Bench.of(run, recorded)).replay()
        except InputError as error:
            # That the rows can't be read is told by the checks of the rows.
            raise Missing(f"nothing could be computed again: {error}") from None


@dataclass
class _Search:
    """The search for the reading under which a bench computes what was recorded."""

    bench: Bench
    _way: str = ""

    def replay(self) -> Replay:
        """Compute what was recorded as configured; where it differs, as other trainers do."""
        configured = self.bench.levels(self.bench.usual)
        if not configured and self.bench.is_cut:
            raise Missing("the time was over before a loss was computed again")
        # Before the search, which may take all of the time.
        self._way = self._rearranged(configured)
        if self._way:
            return self._result(configured, None, configured)
        # Another scale than that of the training explains the reports and the end alike. An end
        # alone has to be exact.
        is_usual = not any(level.misfit for level in configured if level.what == "before")
        has_start = any(level.what != "after" for level in configured)
        scale = None
        if is_usual and has_start:
            scale = self.bench.other_scale(self.bench.usual, configured)
        if self.bench.is_cut or scale is not None:
            return self._result(configured, None, configured, scale)
        if self.bench.recorded.misfit(configured) == 0.0:
            return self._result(configured, *self._exactly(self.bench.usual, configured))
        alone = list(self._under(self.bench.usual, sound=True))
        both = [ground for shape in alone for ground in self._under(shape, sound=True, after=shape)]
        shapes = [shape for shape in (*alone, *both) if shape.shape is None]
        if not has_start:
            # Measured first: the time may be over later.
            _ = self._ends
            return self._by_its_end(configured, shapes)
        if self.bench.recorded.before is None and (ground := self._faulty_end()) is not None:
            return self._result(configured, ground, self.bench.validations(ground))
        # The first validation tells the loss; what differs then is how it was trained.
        agreeing = [self.bench.usual] if is_usual else list(filter(self._fits_exactly, shapes))
        if agreeing and not is_usual:
            shape = agreeing[0]
            fitting = self.bench.levels(shape)
            if (scale := self.bench.other_scale(shape, fitting)) is not None:
                return self._result(configured, shape, fitting, scale)
            if len(fitting) > 1 and self.bench.recorded.misfit(fitting) == 0.0:
                return self._result(configured, *self._exactly(shape, fitting))
        trained = [ground for shape in agreeing for ground in self._trained_otherwise(shape)]
        # Where the first validation is mlx-lm's to three digits, its loss is.
        exact = [level.beyond(EXACT) == 0.0 for level in configured if level.what == "before"]
        others = iter(()) if any(exact) else self._otherwise(configured, alone, both)
        ground, levels = self._best(_different(chain(agreeing, trained, others)), configured)
        return self._result(configured, ground, levels)

    def _otherwise(
        self, configured: Sequence[Level], alone: Sequence[Ground], both: Sequence[Ground]
    ) -> Iterator[Ground]:
        """Other losses: of sound trainers, and faulty ones of the shape that fits best first."""
        yield from alone
        of_single = [self.bench.usual, *(shape for shape in alone if shape.shape is None)]
        of_single.sort(key=self._screened)
        faulty = (ground for shape in of_single for ground in self._under(shape, sound=False))
        # No two sound readings make a loss so many times what it is.
        is_twice = any(level.recorded > TWICE * level.computed for level in configured)
        yield from chain(faulty, both) if is_twice else chain(both, faulty)

    def _by_its_end(self, configured: Sequence[Level], shapes: Sequence[Ground]) -> Replay:
        """The sound reading under which the end is exact, or is with another LoRA scale.

        Of the start nothing is recorded. One figure agrees within its noise with many a reading,
        and to three digits with few.
        """
        earlier, is_near = None, False
        for shape in shapes:
            levels = self.bench.validations(shape)
            if any(level.beyond(EXACT) == 0.0 for level in levels):
                return self._result(configured, shape, levels)
            is_near |= self._is_plain(shape) and bool(levels) and misfit(levels) == 0.0
            if earlier is None and self.bench.saved_at(levels) is not None:
                earlier = shape, levels
            if self.bench.is_late:
                return self._result(configured, None, configured)
        # Where the last validation is near, an earlier one is met by chance.
        if earlier is not None and not is_near:
            return self._result(configured, *earlier)
        plain = [(each, self.bench.validations(each)) for each in shapes if self._is_plain(each)]
        scaled = [
            (*each, scale)
            for each in plain
            if (scale := self.bench.other_scale(*each, self._allowed)) is not None
        ]
        if scaled:
            # That of the base model alone first: among so many scales one may agree by chance.
            return self._result(configured, *min(scaled, key=lambda each: each[-1].agreeing != 0))
        if (ground := self._faulty_end()) is not None:
            return self._result(configured, ground, self.bench.validations(ground))
        return self._result(configured, None, configured)

    def _is_plain(self, shape: Ground) -> bool:
        """Whether it is the loss as most trainers write it, over whole rows or answers alone."""
        plain = self._plain[0].parts
        return shape.parts.encode is plain.encode and shape.parts.loss is plain.loss

    def _exactly(
        self, shape: Ground, near: Sequence[Level]
    ) -> tuple[Ground | None, Sequence[Level]]:
        """What a trainer did whose reports are within noise of a shape's, and exact if read so.

        Several reports to three digits are no chance: other batches never give them. Under the
        shape they were computed `near`.
        """
        before, reports = off(near)
        if sum(level.what == "report" for level in near) > 1 and reports > READ:
            grounds = self._trained_otherwise(shape)
            if before > READ:
                # Another loss, too, may be within the noise of few batches.
                both = (self._under(self.bench.usual, sound=sound) for sound in (True, False))
                shapes = (ground for ground in chain(*both) if ground.shape is None)
                grounds = chain(filter(self._fits_exactly, shapes), grounds)
            for ground in grounds:
                if self.bench.is_late:
                    break
                levels = self.bench.levels(ground)
                start = before_the_end(levels)
                is_whole = len(start) == len(before_the_end(near))
                if is_whole and all(level.beyond(EXACT) == 0.0 for level in start):
                    return ground, levels
        return (None if shape is self.bench.usual else shape), near

    def _fits_exactly(self, shape: Ground) -> bool:
        return (
            self.bench.recorded.before is not None
            and not self.bench.is_late
            and self._screened(shape) == 0.0
            and off(self.bench.validations(shape))[0] <= READ
            and not self.bench.is_cut
        )

    def _trained_otherwise(self, shape: Ground) -> Iterator[Ground]:
        both = (ground for sound in (True, False) for ground in self._under(shape, sound=sound))
        return (ground for ground in both if ground.shape is not None)

    def _result(
        self,
        configured: Sequence[Level],
        ground: Ground | None,
        levels: Sequence[Level],
        scale: Scale | None = None,
    ) -> Replay:
        is_short = self.bench.is_late or self.bench.is_cut
        return Replay(
            self.bench.models.sources,
            tuple(configured),
            ground.reading if ground is not None else None,
            tuple(levels),
            scale or (self.bench.other_scale(ground, levels) if ground is not None else None),
            self._way,
            self.bench.saved_at(levels),
            NOT_ALL if is_short and self.bench.recorded.misfit(levels) > 0.0 else "",
        )

    def _rearranged(self, configured: Sequence[Level]) -> str:
        """As `Bench.rearranged`, whether the log's loss is of whole rows or of answers alone."""
        for ground in (self.bench.usual, *self._plain):
            with suppress(InputError):  # rows of text have no prompt
                if way := self.bench.rearranged(ground, configured):
                    return way
        return ""

    @cached_property
    def _plain(self) -> tuple[Ground, ...]:
        """The loss as most trainers write it, over whole rows and over answers alone."""
        from mlxdoctor.twin.masked_loss import exact_loss

        usual = self.bench.usual
        settings = (replace(usual.settings, mask_prompt=each) for each in (False, True))
        return tuple(Ground(each, replace(usual.parts, loss=exact_loss)) for each in settings)

    @cached_property
    def _ends(self) -> tuple[tuple[Level, Ground], ...]:
        """The last loss, beside a usual one of the saved model on those rows, the least first."""
        ends = list[tuple[Level, Ground]]()
        for shape in self._plain:
            with suppress(InputError):  # rows of text have no prompt
                levels = self.bench.validations(shape)
                ends += [(each, shape) for each in levels if each.what == "after"]
        return tuple(sorted(ends, key=lambda end: end[0].computed))

    @property
    def _allowed(self) -> float:
        """Nats by which an end may be off at another scale.

        Where no usual loss is anywhere near, no scale but that of the training brings one there.
        """
        least = self._ends[0][0] if self._ends else None
        if least is None or least.computed < FAR * least.recorded:
            return EXACT
        return NEARBY * least.recorded

    def _faulty_end(self) -> Ground | None:
        """The faulty reading under which the end is exact, where no usual loss is near it."""
        least = self._ends[0][0] if self._ends else None
        if least is None or least.recorded / FAR < least.computed < FAR * least.recorded:
            return None
        for ground in chain(*(self._under(shape, sound=False) for _, shape in self._ends)):
            if self.bench.is_late:
                break
            with suppress(InputError):
                levels = self.bench.validations(ground) if ground.shape is None else ()
                near = min(EXACT, NEAR * least.recorded)
                if any(level.beyond(near) == 0.0 for level in levels if level.what == "after"):
                    return ground
        return None

    def _under(
        self, shape: Ground, *, sound: bool, after: Ground | None = None
    ) -> Iterator[Ground]:
        """A shape under one more reading each.

        The order of two makes no difference: those that come before the reading of `after` are left
        out, unless only training shows them.
        """
        every, first = readings(), 0
        if after is not None and after.reading is not None:
            first = 1 + [each.code for each in every].index(after.reading.code)
        if shape.shape is None:
            for place, reading in enumerate(every):
                is_asked = reading.sound is sound and (reading.in_training or place >= first)
                if is_asked and (ground := shape.under(reading)) is not None:
                    yield ground

    def _best(
        self, grounds: Iterable[Ground], configured: Sequence[Level]
    ) -> tuple[Ground | None, Sequence[Level]]:
        """The reading that agrees, else the one that leaves least, if that is little enough.

        Validations take a forward pass each. Reports take training: they are computed again at
        once under a reading that fits the validations, later under the best of the others.
        """
        allowed = EXPLAINED * self.bench.recorded.misfit(configured)
        reports = [level for level in configured if level.what == "report"]
        is_far = any(level.beyond(CLEAR * level.tolerance) > 0.0 for level in reports)
        # Of the end a reading is told as well as of a start, where neither is near as configured.
        ends = [level for level in configured if level.what == "after"]
        has_end = any(level.misfit > 0.0 for level in ends)
        best: tuple[Ground | None, Sequence[Level]] = (None, configured)
        later: list[tuple[float, int, Ground]] = []

        def better(ground: Ground) -> tuple[Ground | None, Sequence[Level]]:
            levels = self.bench.levels(ground)
            left = self._left(ground, levels)
            # One figure agrees by chance with some reading. Another base has no end.
            start, recorded = before_the_end(levels), before_the_end(configured)
            is_whole = len(levels) > 1 and len(start) == len(recorded)
            if not ground.is_sound:
                is_whole = is_whole and (left > 0.0 or misfit(levels) == 0.0)
                # A report that is hardly beyond its noise agrees by chance with some training, and
                # without a validation any report of another optimiser does.
                is_exact = all(level.beyond(SAME) == 0.0 for level in start)
                is_told = (
                    is_far
                    if ground.shape is not None
                    else self.bench.recorded.before is not None or (is_far and has_end)
                )
                is_whole = is_whole and (is_exact or is_told)
            slack = max((level.tolerance - SAME for level in levels), default=0.0)
            is_near = off(levels)[0] <= READ + slack or left > 0.0
            if not (is_whole and is_near and left <= allowed):
                return best
            pairs = (best, (ground, levels))
            return min(pairs, key=lambda each: (self._left(*each), *off(each[1])))

        for number, ground in enumerate(grounds):
            if best[0] is not None and max(off(best[1])) <= EXACT:
                return best
            # What fits the validations best so far has to be trained, too.
            if later and self.bench.is_mostly_over:
                break
            if self.bench.is_late:
                return best
            screened = self._screened(ground)
            if screened == 0.0:
                best = better(ground)
            elif screened <= allowed:
                later.append((screened, number, ground))
        for _, _, ground in sorted(later, key=lambda entry: entry[:2])[:TRAINED]:
            if not self.bench.is_late and self._left(*best) > 0.0:
                best = better(ground)
        return best

    def _left(self, ground: Ground | None, levels: Sequence[Level]) -> float:
        """The misfit of what was recorded, nats; of the end none where a sound start is exact."""
        start = before_the_end(levels)
        is_sound = ground is not None and ground.is_sound
        if is_sound and start and all(level.beyond(EXACT) == 0.0 for level in start):
            return 0.0
        return self.bench.recorded.misfit(levels)

    @cached_property
    def _few(self) -> dict[int, float]:
        """The loss as configured over the batches on which readings are screened, nats."""
        return {count: self.bench.before(self.bench.usual, count)[0] for count in SCREENED}

    def _screened(self, ground: Ground) -> float:
        """The misfit of the validations; infinite where a few batches show that it is large."""
        usual = [each for each in self.bench.validations(self.bench.usual) if each.what == "before"]
        try:
            if usual and ground.shape is not self.bench.usual:
                for count, slack in SCREENED.items():
                    shift = self.bench.before(ground.shape or ground, count)[0] - self._few[count]
                    if not abs(usual[0].off - shift) <= slack + abs(shift) / 2:
                        return math.inf
            return self._left(ground, self.bench.validations(ground))
        except InputError:
            # Rows of text have no prompt to mask.
            return math.inf


def _different(grounds: Iterable[Ground]) -> Iterator[Ground]:
    """Those that are not an earlier one under another name."""
    seen: list[tuple[Settings, Parts]] = []
    for ground in grounds:
        if (ground.settings, ground.parts) not in seen:
            seen.append((ground.settings, ground.parts))
            yield ground
