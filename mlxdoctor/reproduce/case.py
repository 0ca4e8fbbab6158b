"""What is known of a run before the first experiment, and which causes are tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mlxdoctor.causes import Cause, KnowledgeBase
from mlxdoctor.check import discover
from mlxdoctor.diagnosis import Diagnosed, diagnose, rank
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.finding import Outcome, Severity
from mlxdoctor.judge.remedy import fix_for
from mlxdoctor.reproduce.criteria import Limits
from mlxdoctor.reproduce.rules import Question
from mlxdoctor.reproduce.symptoms import Signs, key_sign, recorded_signs, signs_of

#: Leading causes that are tried.
CAUSES = 3


@dataclass(frozen=True)
class Case:
    """What is known of the recorded run before the first experiment.

    Attributes:
        outcomes: of the checks on it.
        knowledge: the causes, and the groups of findings.
        recorded: its symptoms.
        limits: the thresholds.
        seeds: those that are tried, the run's own first.
        iterations: of each rerun.
        usual: key -> the range of values that is usual for the run's model.
    """

    outcomes: tuple[Outcome, ...]
    knowledge: KnowledgeBase
    recorded: Signs
    limits: Limits
    seeds: tuple[int, ...]
    iterations: int
    usual: Mapping[str, tuple[float, float]] = field(default_factory=dict)

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
        wanted = signs_of(cause, self.recorded, self.knowledge)
        return self._question(wanted, key_sign(cause, self.recorded, self.knowledge))

    def _question(self, wanted: frozenset[str], key: str | None = None) -> Question:
        known = (self.recorded, self.knowledge, self.limits)
        return Question(wanted, key, *known, len(self.seeds))


def case_of(
    outcomes: tuple[Outcome, ...],
    knowledge: KnowledgeBase,
    *,
    limits: Limits,
    seeds: tuple[int, ...],
    recorded_iterations: int,
    iterations: int | None = None,
    usual: Mapping[str, tuple[float, float]] | None = None,
) -> Case:
    """The case of a run; its reruns are as long as its onset asks for.

    Args:
        iterations: of each rerun, instead.
        usual: as in `Case`.
    """
    ranked = diagnose(outcomes, knowledge)
    length = iterations or length_of(
        onset_of(outcomes), ranked[0].cause if ranked else None, limits, recorded_iterations
    )
    recorded = recorded_signs(outcomes, knowledge)
    return Case(outcomes, knowledge, recorded, limits, seeds, length, usual or {})


def onset_of(outcomes: Iterable[Outcome]) -> int | None:
    """The first iteration at which an error shows in the loss; None where none does."""
    marking = {one.name for one in discover() if one.marks_onset}
    onsets = [
        one.onset
        for outcome in outcomes
        if outcome.check in marking
        for one in outcome.findings
        if one.onset is not None and one.severity is Severity.ERROR
    ]
    return min(onsets, default=None)


def length_of(onset: int | None, leading: Cause | None, limits: Limits, recorded: int) -> int:
    """Iterations that decide: past the onset, within the limits, no more than were recorded."""
    if leading is not None and leading.change is not None and leading.change.key == "iters":
        wanted = limits.past_minimum * onset if onset else limits.longest_overfitting
        return max(1, min(recorded, wanted, limits.longest_overfitting))
    wanted = limits.usual if onset is None else limits.past_onset * onset
    return max(1, min(recorded, limits.longest, max(limits.shortest, wanted)))


def candidates(case: Case, config: TrainingConfig, asked: Sequence[str]) -> list[Diagnosed]:
    """The causes to try: those asked for, the leading ones, and their rivals, best first.

    A rival is a cause that shares a symptom and whose change restores a known value: what
    lowers the rate cures a scale that is too large just as well.
    """
    every = {one.cause.id: one for one in rank(case.outcomes, case.knowledge)}
    leading = diagnose(case.outcomes, case.knowledge)[:CAUSES]
    # To re-create a cause that the evidence all but rules out would prove nothing.
    near = leading[0].score - case.limits.margin if leading else 0.0
    chosen = [one.cause.id for one in leading if not one.cause.inject or one.score > near]
    chosen += [
        name
        for name, one in every.items()
        if one.cause.change is not None
        and one.cause.change.operation == "set"
        and fix_for(one.cause.change, config) is not None
        and signs_of(one.cause, case.recorded, case.knowledge) & case.recorded.errors
    ]
    unsupported = {
        name: Diagnosed(case.knowledge.causes[name], float("-inf"), (), (), (), ())
        for name in asked
        if name not in every
    }
    known = every | unsupported
    wanted = dict.fromkeys((*chosen, *asked))
    return sorted((known[name] for name in wanted), key=lambda one: -one.score)
