"""Whether a run ended where its rows can take a model: what a few updates of the twin reach.

A run that ends far above that has learned too little, or was destroyed. Where the settings hold it
back, changing one of them back shows which. Of a plan, its own settings are held against the same.
"""

import math
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.kind import Missing, NoSuchThing, RunView
from mlxdoctor.evidence.mlx_lm_defaults import MLX_LM_LORA_DEFAULTS
from mlxdoctor.evidence.other_runs import PlannedRun
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.supervision import of_preferences
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.judge.rate import usual_rates
from mlxdoctor.measure.text.outputs import answer_words
from mlxdoctor.models.generations import Generations
from mlxdoctor.models.load import LoadedModels
from mlxdoctor.models.losses import Figures, ratio
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.time_budget import Pace
from mlxdoctor.twin.batches import Batch
from mlxdoctor.twin.held_back import changed_back, highest_rate, shown, updates_of
from mlxdoctor.twin.parts import Parts
from mlxdoctor.twin.replay import Replay
from mlxdoctor.twin.rerun import (
    AsConfigured,
    deadline_of,
    in_few_widths,
    recorded_settings,
    says_how,
)
from mlxdoctor.twin.settings import Settings

_NO_TIME = "the time was over before the twin had made its updates"
#: Updates that the twin makes, and the fewest that tell anything.
UPDATES, FEWEST_UPDATES = 30, 8
#: Of the time, what the first updates may take: others are compared with as many.
FIRST = 0.3
#: Of the time left, what as many of the run's own updates take as there is time for.
PART = 0.7
#: Batches on which losses are compared, and the fewest of validation rows.
HELD, FEWEST_HELD = 10, 3
#: Of the time, what measuring one model may take: there are four at the least.
MEASURED = 0.1
#: Times the middle of the usual rates at which the twin tries once more: the better one counts.
FASTER = 3.0
#: Share of the untouched model's loss that the twin gains at the least: rows that teach less tell
#: nothing in so few updates.
VISIBLE = 0.05
#: Of what the twin gained, by which a run that ends above it is looked into.
SHORT = 0.2
#: Of what all of the run's own updates gain, by which a run that ends above them lacks something.
LACKING = 0.05
#: Of what the twin gained on rows that it was trained on, its gain on others where these rows teach
#: what holds beyond them: 0.99 and more in 13 runs of tasks that follow rules.
ALIKE = 0.9
#: Of that gap, or of what the twin gained if that is less, what the right change leaves at most.
CLOSED = 0.5
#: Of a run's loss, what the twin has where the run is far off: 0.03 in two runs whose answers were
#: wrong; 0.31 and 0.46 in sound ones of few modules and of Adafactor.
LITTLE = 0.2
#: Nats a token below which a loss is low, and by which the twin's is lower where a run is far off.
POOR = 0.3
#: Shares of the answers that are right below which a model answers wrongly, and from which on it
#: answers rightly; fewest answers that tell, and most words of an answer that a model gives as it
#: was taught, or not.
RIGHT, ALMOST_ALL, ENOUGH_ANSWERS, SHORT_ANSWER = 0.5, 0.9, 8, 24


@dataclass(frozen=True)
class Reach:
    """Where a run ended, and what the twin reaches in a few updates on the same rows.

    Losses are means over the answers, or over whole rows of text, in nats a token.

    Attributes:
        split, rows: whose rows, "validation" or "training", and how many.
        untouched: the base model's loss.
        tuned: the tuned model's; of a plan, that after `updates` updates with its own settings.
        reached: the twin's, after `updates` updates of Adam at `rate`.
        noise: the standard error of `tuned` less `reached`, over batches.
        tuned_on_trained, reached_on_trained: the same on rows that both were trained on.
        own: the twin's after `own_updates` with the run's own settings; None where it was not
            asked, or there was no time.
        own_updates: as many, unless the run makes fewer.
        setting: the one that holds the run back; empty where none does, or none was looked for.
        before, after: its value, and the one in its place, with which the twin's loss is `cured`.
        planned: the updates that a plan is to make; None of a run that was made.
        whole: the twin's after all of the run's updates, with its own settings, or after so many
            (`whole_updates`) that it is far below the run's; None where the log was computed again
            step for step, or there was no time.
        is_replayed: whether both the first losses of the log and its last one are those that the
            files give: then trainer and file are what they are said to be.
        is_unseen: whether the rows are of the training split, and the twin was trained on others.
        left_out: what there was no time for, as a clause; else empty.
        assumes_adam: whether the run's own settings name no optimizer, and Adam stood for it.
        right: of the short answers to held-out rows, the share that is as the rows have it; NaN
            where too few are known. Long ones are said in other words by any model.
    """

    kind: ClassVar[str] = "reach"
    needs_models: ClassVar[bool] = True
    trains: ClassVar[bool] = True

    sources: tuple[Source, ...]
    split: str
    rows: int
    untouched: float
    tuned: float
    reached: float
    noise: float
    updates: int
    rate: float
    tuned_on_trained: float = math.nan
    reached_on_trained: float = math.nan
    own: float | None = None
    setting: str = ""
    before: str = ""
    after: str = ""
    cured: float | None = None
    own_updates: int = UPDATES
    planned: int | None = None
    whole: float | None = None
    whole_updates: int | None = None
    is_replayed: bool = False
    is_unseen: bool = False
    left_out: str = ""
    assumes_adam: bool = False
    right: float = math.nan

    @property
    def is_of_the_settings(self) -> bool:
        """Whether the run's own settings fall short too, by half of what the run lacks."""
        if self.own is None:
            return False
        gained = self.untouched - self.reached
        lacking = min(self.tuned - self.reached, gained)
        least = 0.0 if self.is_far else SHORT * gained
        return self.own - self.reached > max(least, CLOSED * lacking)

    @property
    def shortfall(self) -> float:
        """Of what the twin gained, the share that the run has not."""
        gained = self.untouched - self.reached
        return (self.tuned - self.reached) / gained if gained > 0 else math.nan

    @property
    def lacking(self) -> float:
        """Of what all of the run's own updates gain, the share that it has not; NaN if unknown."""
        gained = self.untouched - (math.nan if self.whole is None else self.whole)
        return (self.tuned - (self.whole or 0.0)) / gained if gained > 0 else math.nan

    @property
    def is_ahead(self) -> bool:
        """Whether it is better than the base, and than the twin."""
        return self.tuned <= self.reached and self.has_gained

    @property
    def teaches_more(self) -> bool:
        """Whether what the twin learned of some training rows holds for those it did not see."""
        gained = self.untouched - self.reached
        least = ALIKE * (self.untouched - self.reached_on_trained)
        return self.is_unseen and gained >= max(least, self.untouched / 2)

    @property
    def is_as_good(self) -> bool:
        """Whether it learned what mlx-lm's trainer learns with the same settings."""
        return self.lacking <= LACKING

    @property
    def is_only_slow(self) -> bool:
        """Whether a plan gets there by as many updates as gain like its first ones: at the most."""
        gained = self.untouched - self.tuned
        most = gained * (self.planned or 0) / self.own_updates
        return gained > 0 and most >= self.untouched - self.reached

    @property
    def tells(self) -> bool:
        """Whether these rows teach enough in so few updates to hold the run against it."""
        return self.untouched - self.reached > VISIBLE * self.untouched

    @property
    def is_far(self) -> bool:
        """Whether the twin's loss is a small part of that of a run that was made, and far below.

        A plan is held against it by a few updates, and may have many to make.
        """
        return self.planned is None and is_far(self.tuned, self.reached)

    @property
    def is_far_from_own(self) -> bool:
        """The same of the twin's with the run's own settings."""
        return self.whole is not None and is_far(self.tuned, self.whole)

    @property
    def answers_rightly(self) -> bool:
        """Whether it gives the answers of held-out rows: it lacks nothing, whatever its loss is.

        Of smoothed labels, or beside tokens that the base never put out, it has a floor.
        """
        return self.right >= ALMOST_ALL

    @property
    def answers_wrongly(self) -> bool:
        """Whether it mostly gives other answers; what its loss tells of low ones is enough."""
        return self.right < RIGHT and self.tuned >= POOR

    @property
    def falls_short(self) -> bool:
        """Whether the run is to be looked into: it lacks much of what the rows teach."""
        is_low = self.is_far or not self.shortfall <= SHORT
        return self.tells and is_low and not self.answers_rightly

    @property
    def has_gained(self) -> bool:
        """Whether the tuned model is visibly better than its base on these rows."""
        return self.untouched - self.tuned > VISIBLE * self.untouched

    @classmethod
    def find(cls, run: RunView) -> "Reach":
        """Measured within the time that the run's options name."""
        config, log = run.get(TrainingConfig), run.get(TrainingLog)
        if of_preferences(config, log, run.get(Dataset)):
            raise NoSuchThing("pairs and rewards are not learned by their likelihood")
        is_planned = run.get(PlannedRun) is not None
        if is_planned and not run.options.allow_model:
            raise Missing("no updates were made; make some with --steps")
        if run.options.replay is False:
            raise Missing("nothing was computed again, because of --no-replay; leave it out")
        models = None if is_planned else run.need(LoadedModels)
        if models is not None and "tuned" not in models.names:
            raise Missing("the adapter could not be loaded on this base model")
        try:
            return _reach(run, models)
        except InputError as error:
            # That the rows can't be read is told by the checks of the rows.
            raise Missing(f"nothing could be trained: {error}") from None


def _reach(run: RunView, models: LoadedModels | None) -> Reach:
    usual = run.need(AsConfigured)
    settings, parts = usual.settings, in_few_widths(usual.parts)
    if settings.iters < FEWEST_UPDATES:
        raise NoSuchThing(f"the run is {settings.iters} batches long: too few to tell anything")
    if models is None:
        # A warm-up may well be longer than what is tried.
        settings = replace(settings, lr_schedule=None, learning_rate=highest_rate(settings))
    # Asked before the time begins to run, of which it takes its own share.
    replay = run.get(Replay) if models is not None else None
    # Of the batches that it was given: with accumulation it made fewer updates of them.
    updates = min(UPDATES, settings.iters)
    return _Measuring(run, models, settings, parts, replay, updates, deadline_of(run)).reach()


def is_far(run: float, twin: float) -> bool:
    """Whether the twin's loss is a small part of the run's, and far below; nats a token."""
    return twin <= LITTLE * run and run - twin >= POOR


@dataclass(frozen=True)
class _Losses:
    """Of one model, over the fixed batches and over the first ones of training."""

    held: Figures
    held_tokens: Figures
    trained: float

    @property
    def mean(self) -> float:
        """Over the fixed batches, nats a token."""
        return float(self.held.sum() / self.held_tokens.sum())

    def noise_beside(self, other: "_Losses") -> float:
        """The standard error of the difference of the means, over batches."""
        if not math.isfinite(self.mean):
            return 0.0
        spread = ratio(self.held - other.held, self.held_tokens)[1]
        return spread / math.sqrt(len(self.held))


#: Of a model whose loss was not finite on the way.
_LOST = _Losses(np.array([math.inf]), np.array([1.0]), math.inf)


@dataclass
class _Measuring:
    """The models of a run that was made; of a plan there are none.

    Attributes:
        held: the batches to compare on, of so many as there is time for.
        trained: the first ones of training, likewise.
        measuring: seconds that one model takes on both.
    """

    run: RunView
    models: LoadedModels | None
    settings: Settings
    parts: Parts
    replay: Replay | None
    updates: int
    deadline: float
    held: list[Batch] = field(default_factory=list)
    trained: list[Batch] = field(default_factory=list)
    split: str = "training"
    is_unseen: bool = False
    measuring: float = 0.0

    def reach(self) -> Reach:
        reference = self._reference()
        self._take_batches(reference)
        untouched = self._untouched()
        slow, fast = (float(f"{times * reference.learning_rate:.2g}") for times in (1.0, FASTER))
        first = self._after(replace(reference, learning_rate=slow), self.updates, FIRST)
        if first is None:
            raise Missing(_NO_TIME)
        tuned = self._tuned()
        found = self._found(untouched, tuned, first, slow)
        # Before the other rate, since it may take all of the time.
        whole, made = (None, None) if found.falls_short else self._whole(tuned)
        # Not of a run that is past the first by far, or where no twin can be much lower.
        is_past = found.tells and found.shortfall <= -SHORT
        is_there = is_past or tuned.mean <= SHORT * untouched.mean
        faster = replace(reference, learning_rate=fast)
        other = first if is_there else self._after(faster, self.updates) or first
        if not math.isfinite(min(first.mean, other.mean)):
            raise Missing("the twin's own training on these rows does not stay finite")
        if other.mean < first.mean:
            found = self._found(untouched, tuned, other, fast)
        found = replace(found, whole=whole, whole_updates=made)
        if not (found.falls_short or self._is_explained) and found.answers_wrongly:
            found = self._to_the_end(found, untouched, tuned, reference)
        return self._explained(found, reference) if found.falls_short else found

    @property
    def _is_explained(self) -> bool:
        """Whether a faulty trainer, another scale or factors elsewhere explain the log's losses."""
        if self.replay is None:
            return False
        reading, is_moved = self.replay.reading, bool(self.replay.scale or self.replay.rearranged)
        return is_moved or (reading is not None and not reading.sound)

    def _right(self) -> float:
        """Of the short answers to held-out rows, the share that is right; see `Reach`."""
        if self.models is None or self.split != "validation":
            return math.nan
        answers = self.run.get(Generations)
        pairs = [
            (answer_words(item.tuned), answer_words(item.expected))
            for item in (answers.items if answers is not None else ())
            if item.expected
        ]
        short = [own == wanted for own, wanted in pairs if len(wanted) <= SHORT_ANSWER]
        is_enough = len(short) >= max(ENOUGH_ANSWERS, len(pairs) / 2)
        # Where nearly all want one answer, that it is given shows nothing.
        most = max(Counter(tuple(wanted) for _, wanted in pairs).values(), default=0)
        is_told = is_enough and most < ALMOST_ALL * len(pairs)
        return float(np.mean(short)) if is_told else math.nan

    def _stated(self, found: Reach) -> Reach | None:
        """With the run's own settings, or those that stand for it; None where it left too few."""
        if says_how(self.run):
            return found
        # The settings are mlx-lm's defaults, and not the run's.
        if not says_how(self.run, assumes_adam=True):
            return None
        self.settings = replace(
            recorded_settings(self.run, assumes_adam=True),
            adapter_path=self.settings.adapter_path,
            clear_cache_threshold=self.settings.clear_cache_threshold,
        )
        return replace(found, assumes_adam=True)

    def _to_the_end(
        self, found: Reach, untouched: _Losses, tuned: _Losses, reference: Settings
    ) -> Reach:
        """Against an update of the twin for each of the run's batches, if these reach far less."""
        settings, few = self.settings, self.updates
        stated = self._stated(found)
        if stated is None:
            return found
        self.updates = max(self.settings.iters, few)
        made = self._after(replace(reference, learning_rate=found.rate), self.updates)
        if made is not None:
            longer = self._found(untouched, tuned, made, found.rate)
            if longer.is_far:
                return replace(longer, assumes_adam=stated.assumes_adam, whole=found.whole)
        self.settings, self.updates = settings, few
        return found

    def _found(self, untouched: _Losses, tuned: _Losses, reached: _Losses, rate: float) -> Reach:
        return Reach(
            sources=() if self.models is None else self.models.sources,
            split=self.split,
            is_unseen=self.is_unseen,
            rows=sum(len(batch.indices) for batch in self.held),
            untouched=untouched.mean,
            tuned=tuned.mean,
            reached=reached.mean,
            noise=tuned.noise_beside(reached),
            updates=self.updates,
            rate=rate,
            tuned_on_trained=tuned.trained,
            reached_on_trained=reached.trained,
            own_updates=self._own_updates(self.settings),
            planned=updates_of(self.settings) if self.models is None else None,
            own=tuned.mean if self.models is None else None,
            right=self._right(),
        )

    def _untouched(self) -> _Losses:
        """The base model's losses; the batches are as many as there is time to measure on."""
        models = self.models
        base = self.parts.load(self.settings)[0] if models is None else models.select("base")
        begun = time.monotonic()
        losses = self._losses(base, MEASURED * (self.deadline - begun), self.deadline)
        self.measuring = time.monotonic() - begun
        # An update takes longer than a batch that is only measured.
        batch = self.measuring / (len(self.held) + len(self.trained))
        if time.monotonic() + FEWEST_UPDATES * batch > self.deadline:
            raise Missing(_NO_TIME)
        return losses

    def _tuned(self) -> _Losses:
        """The losses of the tuned model, or of what stands for it."""
        if self.models is not None:
            return self._losses(self.models.select("tuned"))
        own = self._after_own(self.settings)
        if own is None:
            raise Missing("the time was over before the plan's own updates were made")
        return own

    def _whole(self, tuned: _Losses) -> tuple[float | None, int | None]:
        """The loss after all of the run's updates, made again, or after as many as there is time.

        Fewer only tell where they leave far less than the run has.

        Returns:
            The loss, and how many updates led to it where they are not all; None for either.
        """
        is_asked = self.replay is not None and not self.replay.is_step_for_step
        # A trainer that is known to compute something else lacks what mlx-lm's learns.
        if not is_asked or self._is_explained or not says_how(self.run):
            return None, None
        every, few = updates_of(self.settings), self.updates
        made, count = self._after_own(self.settings, every), None
        if made is None:
            made = self._after_own(self.settings, every, PART)
            count, self.updates = self.updates, few
        if made is None or not math.isfinite(made.mean):
            return None, None
        is_told = count is None or is_far(tuned.mean, made.mean)
        return (made.mean, count) if is_told else (None, None)

    def _reference(self) -> Settings:
        """The run's rows and layers, with an optimiser, a schedule and a rate that learn."""
        config = self.run.get(TrainingConfig)
        config = config or TrainingConfig((), self.run.files.roots[0], {}, "mlx-lm")
        lora = {**MLX_LM_LORA_DEFAULTS, "dropout": 0.0}
        values = {**config.values, "lora_parameters": lora, "fine_tune_type": "lora"}
        rates = usual_rates(replace(config, values=values), self.run.get(BaseModel))
        assert rates is not None, "the values are those of a run with LoRA"
        return replace(
            self.settings,
            optimizer="adam",
            optimizer_config={},
            lr_schedule=None,
            learning_rate=math.sqrt(rates[0] * rates[1]),
            fine_tune_type="lora",
            lora_parameters=lora,
            num_layers=-1,
            grad_accumulation_steps=1,
            resume_adapter_file=None,
            max_seq_length=max(self.settings.max_seq_length, Settings.max_seq_length),
        )

    def _take_batches(self, reference: Settings) -> None:
        """Choose the batches to compare on, and the first ones of training."""
        try:
            masked = replace(reference, mask_prompt=True)
            rows = self.parts.encode(masked, None)
        except InputError:
            # Rows of text have no prompt.
            masked, rows = reference, self.parts.encode(reference, None)
        made = self.parts.batches(masked)
        batches = list(islice(made.train(rows.train), self.updates + HELD))
        self.trained = batches[:HELD]
        known = {row.tokens.tobytes() for row in rows.train}
        held = tuple(row for row in rows.valid if row.tokens.tobytes() not in known)
        if len(held) >= FEWEST_HELD * masked.batch_size:
            self.held, self.split = list(made.evaluation(held, HELD)), "validation"
        else:
            self.held = batches[self.updates :]
            seen = {row for batch in batches[: self.updates] for row in batch.indices}
            self.is_unseen = not any(row in seen for batch in self.held for row in batch.indices)

    def _losses(self, model: Any, seconds: float = math.inf, deadline: float = math.inf) -> _Losses:
        """The losses on the batches.

        Args:
            seconds: after which fewer will do, for all that is measured later, too.
            deadline: of `time.monotonic`, before which the fewest have to be measured.
        """
        from mlxdoctor.twin.masked_loss import exact_loss, losses_of

        each = []
        for batches in (self.held, self.trained):
            pace = Pace(FEWEST_HELD, deadline, time.monotonic() + seconds / 2)
            each.append(losses_of(model, pace.taken(batches), exact_loss))
            if len(each[-1][0]) < min(FEWEST_HELD, len(batches)):
                raise Missing(_NO_TIME)
            del batches[len(each[-1][0]) :]
        (held, tokens), (trained, counts) = each
        mean = sum(trained) / sum(counts) if sum(counts) else math.nan
        return _Losses(np.array(held), np.array(tokens), mean)

    def _after(
        self, settings: Settings, updates: int, share: float | None = None
    ) -> _Losses | None:
        """The losses after so many updates; None where they could not be made in time.

        Args:
            share: of the time left, after which fewer updates will do, for this and all later.
        """
        from mlxdoctor.twin.loop import first_losses
        from mlxdoctor.twin.prepared import prepared

        start = prepared(settings, self.parts)
        # Nothing is validated in between, which would change the order of the batches.
        start = replace(start, rows=replace(start.rows, valid=()))
        now, last = time.monotonic(), self.deadline - self.measuring
        iterations = updates * settings.grad_accumulation_steps
        needed = iterations if share is None else FEWEST_UPDATES
        pace = Pace(needed, last, None if share is None else now + share * (last - now))
        made = 0
        for loss in pace.taken(first_losses(start, iterations)):
            if not math.isfinite(loss):
                return _LOST
            made += 1
        if not pace.is_enough:
            return None
        reached = self._losses(start.model)
        if share is not None:
            self.updates = made
        return reached if math.isfinite(reached.mean) else _LOST

    def _own_updates(self, settings: Settings) -> int:
        return min(self.updates, updates_of(settings))

    def _after_own(
        self, settings: Settings, updates: int | None = None, share: float | None = None
    ) -> _Losses | None:
        """The same with these settings, as far as mlx-lm takes them."""
        # No more than a run of these settings makes.
        updates = updates or self._own_updates(settings)
        try:
            return self._after(settings, updates, share)
        except InputError:
            return None

    def _explained(self, found: Reach, reference: Settings) -> Reach:
        """What the run's own settings reach, and the one without which they reach more."""
        if self.replay is not None:
            found = replace(found, is_replayed=self.replay.agrees)
            # Where no reading of the log is known, the settings still tell.
            if self.replay.reading is not None and not self.replay.trains_as_read:
                return found
        if found.own is None:
            stated = self._stated(found)
            if stated is None:
                return found
            found = stated
            own = self._after_own(self.settings)
            if own is None:
                return replace(found, left_out="no time was left to try the run's own settings")
            found = replace(found, own=own.mean)
        if not found.is_of_the_settings:
            if found.own_updates >= updates_of(self.settings):
                return replace(found, whole=found.own)
            return found if found.is_replayed else self._made_whole(found)
        assert found.own is not None, "its settings were tried"
        gap, gained = found.own - found.reached, found.untouched - found.reached
        for name, changed in changed_back(self.settings, reference, found.rate):
            after = self._after_own(changed)
            if after is None:
                left_out = "no time was left to try every change of the settings"
                return replace(found, left_out=left_out)
            # Where it ended above the untouched model, half of that way is still no learning.
            if after.mean - found.reached < CLOSED * min(gap, gained):
                values = shown(self.settings, name), shown(changed, name)
                found = replace(found, setting=name, before=values[0], after=values[1])
                return replace(found, cured=after.mean)
        return found

    def _made_whole(self, found: Reach) -> Reach:
        """With all of the run's updates: a rate that is too high may destroy a model late."""
        made = self._after_own(self.settings, updates_of(self.settings))
        if made is None:
            return found
        as_found = replace(found, own=made.mean)
        return as_found if as_found.is_of_the_settings else replace(found, whole=made.mean)
