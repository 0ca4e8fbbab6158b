"""What the experiments of one run share: the laboratory, the case, and what was seen so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mlxdoctor.reproduce.case import Case
from mlxdoctor.reproduce.condition import Condition, Kind
from mlxdoctor.reproduce.criteria import needed
from mlxdoctor.reproduce.laboratory import Laboratory
from mlxdoctor.reproduce.observation import Observation
from mlxdoctor.reproduce.rules import Question


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
    case: Case
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

    def plain(self) -> dict[int, Observation]:
        """Rerun as recorded, with as many seeds as it takes for enough of them to agree."""
        condition = Condition("as recorded", "rerun as recorded", self.case.iterations)
        question, enough = self.case.everything, needed(len(self.case.seeds))
        found: dict[int, Observation] = {}
        for seed in self.case.seeds:
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
        of = len(self.case.seeds)
        found: dict[int, Observation] = {}
        succeeded = 0
        for seed in seeds:
            found[seed] = self.observe(condition, seed, question, cause)
            succeeded += is_success(seed, found[seed])
            failed = len(found) - succeeded
            if succeeded >= needed(of) or failed > of - needed(of) or (screen and not succeeded):
                break
        return found

    def placebo(
        self,
        question: Question,
        seeds: Iterable[int],
        kind: Kind = "another order",
        label: str = "placebo: another order of the rows",
    ) -> dict[int, Observation]:
        """Rerun with an irrelevant change, which must not cure."""
        condition = Condition(kind, label, self.case.iterations)
        return {seed: self.observe(condition, seed, question) for seed in seeds}
