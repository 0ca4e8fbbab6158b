"""The experiment for a cause in the run's own trainer: the fault put into ours."""

from __future__ import annotations

from mlxdoctor.causes import Cause
from mlxdoctor.reproduce.bench import Bench
from mlxdoctor.reproduce.condition import Condition
from mlxdoctor.reproduce.observation import Observation
from mlxdoctor.reproduce.rules import Judgement, Question, Trials, judge_injection


def try_injection(bench: Bench, cause: Cause, question: Question, plain: Trials) -> Judgement:
    """Rerun with each form of the fault, the severest first, until one is the same failure.

    Args:
        plain: reruns as recorded, which are sound.
    """
    from mlxdoctor.reproduce.forms import FAULTS

    def is_same(seed: int, one: Observation) -> bool:
        del seed
        return question.is_recreated(one)

    best: Judgement | None = None
    for fault in (FAULTS[name] for name in cause.inject):
        for severity in reversed(fault.severities):
            condition = Condition(
                "injection",
                f"with the fault {fault.id} ({severity})",
                bench.case.iterations,
                fault=fault.id,
                severity=severity,
            )
            injected = bench.until_decided(
                condition, bench.case.seeds, question, cause.id, is_same, screen=True
            )
            judgement = judge_injection(question, plain, injected)
            if best is None or _order(judgement) > _order(best):
                best = judgement
            if judgement.verdict == "confirmed":
                return judgement
    return best or Judgement("undecided", "no form of this fault is known")


def _order(judgement: Judgement) -> tuple[int, float]:
    return ("refuted", "undecided", "confirmed").index(judgement.verdict), judgement.strength
