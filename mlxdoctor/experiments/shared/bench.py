"""Where the experiments of one run are made: the failure in question, and what was seen so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from mlxdoctor.causes import Cause, KnowledgeBase
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.experiments.shared.laboratory import Laboratory
from mlxdoctor.experiments.shared.observation import Condition, Observation
from mlxdoctor.experiments.shared.rules import (
    Limits,
    Question,
    Ruling,
    Trials,
    judge_change,
    needed,
)
from mlxdoctor.experiments.shared.symptoms import Signs, recorded_signs
from mlxdoctor.finding import Outcome, Severity
from mlxdoctor.judge.remedy import fix_for, needed_values
from mlxdoctor.report import Fix

_IRRELEVANT = {
    "another order": "another order of the rows",
    "random rows": "as many rows left out at random",
}


@dataclass(frozen=True)
class Failure:
    """What is known of the recorded run before the first experiment.

    Attributes:
        outcomes: of the checks on it.
        knowledge: the causes, and the groups of findings.
        limits: the thresholds.
        seeds: those that are tried, the run's own first.
        iterations: of each rerun.
        usual: key -> the range of values that is usual for the run's model.
        least: iterations that show the failure at the least; 0: as the onset and the limits say.
    """

    outcomes: tuple[Outcome, ...]
    knowledge: KnowledgeBase
    limits: Limits
    seeds: tuple[int, ...]
    iterations: int
    usual: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    least: int = 0

    @cached_property
    def recorded(self) -> Signs:
        """Its symptoms."""
        return recorded_signs(self.outcomes, self.knowledge)

    @property
    def everything(self) -> Question:
        """Whether a rerun shows any symptom of the run: an error, if it has one."""
        return self._question(self.recorded.errors or self.recorded.all)

    @property
    def onset(self) -> int | None:
        """When the recorded loss went wrong."""
        return onset_of(self.outcomes)

    def question(self, cause: Cause) -> Question:
        """Whether a rerun shows the symptoms of one cause."""
        return self._question(self.recorded.of(cause), self.recorded.key(cause))

    def _question(self, wanted: frozenset[str], key: str | None = None) -> Question:
        return Question(wanted, key, self.recorded, self.limits, len(self.seeds))

    def fixes(self, config: TrainingConfig, cause: Cause) -> list[Fix]:
        """The change: as the report advises it, as it stands, to the usual range, well into it."""
        usual = self.usual
        speaking = [
            one
            for outcome in self.outcomes
            for one in outcome.findings
            if cause.weights.get(one.code, 0.0) > 0
        ]
        factor = cause.change.value if cause.change is not None else 1
        inner = {
            key: (min(low * factor, high), max(high / factor, low))
            for key, (low, high) in usual.items()
            if isinstance(factor, int | float) and factor > 0
        }
        fixes: dict[str, Fix] = {}
        for ranges in (needed_values(speaking), {}, usual, inner):
            fix = fix_for(cause.change, config, ranges)
            if fix is not None:
                fixes.setdefault(str(fix.after), fix)
        return list(fixes.values())


def onset_of(outcomes: Iterable[Outcome]) -> int | None:
    """The first iteration at which an error shows in the loss; None where none does."""
    onsets = [
        one.onset
        for outcome in outcomes
        if outcome.marks_onset
        for one in outcome.findings
        if one.onset is not None and one.severity is Severity.ERROR
    ]
    return min(onsets, default=None)


def is_about_length(cause: Cause | None) -> bool:
    """Whether another number of iterations cures a cause."""
    return cause is not None and cause.change is not None and cause.change.key == "iters"


def length_of(onset: int | None, leading: Cause | None, limits: Limits, recorded: int) -> int:
    """Iterations that decide: past the onset, within the limits, no more than were recorded."""
    if is_about_length(leading):
        wanted = limits.past_minimum * onset if onset else limits.longest_overfitting
        return max(1, min(recorded, wanted, limits.longest_overfitting))
    wanted = limits.usual if onset is None else limits.past_onset * onset
    return max(1, min(recorded, limits.longest, max(limits.shortest, wanted)))


@dataclass(frozen=True)
class Trial:
    """One rerun as the report lists it.

    Attributes:
        cause: the cause it was made for; None where it serves all of them.
        shows: whether it has the symptom that was asked for.
    """

    cause: str | None
    condition: Condition
    seed: int
    observation: Observation
    shows: bool


@dataclass(frozen=True)
class Bench:
    """Where reruns are made and written down, each once.

    Attributes:
        trials: the notebook: every rerun, in the order in which it was asked for. The one
            thing that grows, so that what was seen survives an experiment that is cut short.
    """

    lab: Laboratory
    failure: Failure
    trials: list[Trial] = field(default_factory=list)

    def observe(
        self, condition: Condition, seed: int, question: Question, cause: str | None = None
    ) -> Observation:
        """Make one rerun, or recall it.

        Raises:
            InputError: training is not possible under this condition.
            BudgetSpent: there was not enough time for it.
        """
        seen = self.lab.observe(condition, seed)
        if not any(one.condition == condition and one.seed == seed for one in self.trials):
            self.trials.append(Trial(cause, condition, seed, seen, question.shows(seen)))
        return seen

    def shortened(self) -> Bench:
        """The same bench, its reruns no longer than the time for all of them allows.

        What a step and an examination take is measured by a trial of a few iterations.

        Raises:
            InputError: training is not possible as recorded.
            BudgetSpent: there was not enough time even for that.
        """
        failure, limits = self.failure, self.failure.limits
        least = max(limits.least, failure.onset or 0, failure.least)
        has_choice = 0 < self.lab.budget < math.inf and failure.iterations > least
        if not has_choice:
            return self
        condition = Condition("trial", "a few iterations, for the time they take", limits.trial)
        seen = self.lab.observe(condition, failure.seeds[0])
        fixed = max(seen.seconds - limits.trial * seen.step_seconds, 0.0)
        room = self.lab.budget / limits.reruns - fixed
        affordable = int(room / max(seen.step_seconds, 1e-6))
        iterations = min(failure.iterations, max(least, affordable))
        return replace(self, failure=replace(failure, iterations=iterations))

    def plain(self) -> dict[int, Observation]:
        """Rerun as recorded, with as many seeds as it takes for enough of them to agree."""
        condition = Condition("as recorded", "rerun as recorded", self.failure.iterations)
        question, enough = self.failure.everything, needed(len(self.failure.seeds))
        found: dict[int, Observation] = {}
        for seed in self.failure.seeds:
            found[seed] = self.observe(condition, seed, question)
            shown = sum(question.shows(one) for one in found.values())
            if shown >= enough or len(found) - shown >= enough:
                break
        return found

    def until_decided(
        self,
        condition: Condition,
        seeds: Sequence[int],
        question: Question,
        cause: str,
        is_success: Callable[[int, Observation], bool],
        *,
        screen: bool = False,
    ) -> dict[int, Observation]:
        """Seeds until enough have succeeded, or enough can't any more.

        Args:
            screen: give up after the first failure: there are other severities.
        """
        of = len(self.failure.seeds)
        found: dict[int, Observation] = {}
        succeeded = 0
        for seed in seeds:
            found[seed] = self.observe(condition, seed, question, cause)
            succeeded += is_success(seed, found[seed])
            failed = len(found) - succeeded
            if succeeded >= needed(of) or failed > of - needed(of) or (screen and not succeeded):
                break
        return found

    def changed(
        self,
        condition: Condition,
        question: Question,
        cause: str,
        plain: Trials,
        better: float | None = None,
    ) -> Trials:
        """Rerun the seeds that fail under a condition that should cure, until it is decided.

        Args:
            plain: reruns as recorded, of which at least one fails.
            better: as in `Question.is_cured`.
        """

        def is_cured(seed: int, one: Observation) -> bool:
            return question.is_cured(plain[seed], one, better)

        failing = [seed for seed, one in plain.items() if question.shows(one)]
        return self.until_decided(condition, failing, question, cause, is_cured)

    def against_placebo(
        self,
        condition: Condition,
        question: Question,
        plain: Trials,
        changed: Trials,
        *,
        better: float | None = None,
        placebo: Condition | None = None,
    ) -> Ruling:
        """The verdict on a condition that cures, beside an irrelevant one, which must not.

        Args:
            plain, changed, better: as in `changed`, and what it gave.
            placebo: the irrelevant condition; another order of the rows by default.
        """
        what = placebo or Condition(
            "another order", "placebo: another order of the rows", self.failure.iterations
        )
        alike = {seed: self.observe(what, seed, question) for seed in changed}
        words = {"what": condition.label, "irrelevant": _IRRELEVANT[what.kind]}
        return judge_change(question, plain, alike, changed, better, **words)
