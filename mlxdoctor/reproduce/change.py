"""The experiment for a cause that a change of the configuration cures."""

from __future__ import annotations

from collections.abc import Sequence

from mlxdoctor.causes import Cause
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.judge.remedy import Fix, fix_for
from mlxdoctor.reproduce.bench import Bench
from mlxdoctor.reproduce.case import Case
from mlxdoctor.reproduce.condition import Condition
from mlxdoctor.reproduce.observation import Observation
from mlxdoctor.reproduce.recipe import Recipe, changed_values
from mlxdoctor.reproduce.rules import Judgement, Question, Trials, judge_change

#: Keys after whose change the held-out loss is over other tokens.
_OTHER_TOKENS = frozenset({"max_seq_length", "mask_prompt"})


def fixes_for(config: TrainingConfig, case: Case, cause: Cause) -> list[Fix]:
    """The change, mildest first: as it stands, to the usual range, and well into it."""
    usual = case.usual
    factor = cause.change.value if cause.change is not None else 1
    inner = {
        key: (min(low * factor, high), max(high / factor, low))
        for key, (low, high) in usual.items()
        if isinstance(factor, int | float) and factor > 0
    }
    fixes: dict[str, Fix] = {}
    for ranges in ({}, usual, inner):
        fix = fix_for(cause.change, config, ranges)
        if fix is not None:
            fixes.setdefault(str(fix.after), fix)
    return list(fixes.values())


def try_change(
    bench: Bench, cause: Cause, question: Question, plain: Trials, fixes: Sequence[Fix]
) -> tuple[Judgement, Fix]:
    """Rerun with the change, the mildest that cures, and with a placebo.

    Args:
        plain: reruns as recorded, of which at least one fails.
        fixes: at least one.

    Returns:
        The verdict, and the change that it is over.
    """
    failing = [seed for seed, one in plain.items() if question.shows(one)]
    better = _better(next(iter(fixes[0].after)), bench.case)

    def is_cured(seed: int, one: Observation) -> bool:
        return question.is_cured(plain[seed], one, better)

    judgement, tried = Judgement("refuted", "no change was made"), fixes[0]
    changed: Trials = {}
    for fix in fixes:
        condition = _condition(bench.lab.recipe, bench.case, fix)
        first = bench.observe(condition, failing[0], question, cause.id)
        if not is_cured(failing[0], first) and fix is not fixes[-1]:
            continue
        changed = bench.until_decided(condition, failing, question, cause.id, is_cured)
        judgement = judge_change(question, plain, {}, changed, better, what=condition.label)
        tried = fix
        if judgement.verdict == "confirmed":
            placebo = bench.placebo(question, changed)
            what = condition.label
            return judge_change(question, plain, placebo, changed, better, what=what), fix
    gone = not any(question.shows(one) for one in changed.values())
    if judgement.verdict == "refuted" and gone and "iters" in tried.after:
        # An earlier stop can miss the minimum on its other side.
        reason = "stopped earlier it shows no symptom, but held-out answers are no better either"
        return Judgement("undecided", reason), tried
    return judgement, tried


def _better(key: str, case: Case) -> float | None:
    """The share of the held-out loss that a cure takes away; None: it can't be compared."""
    if key in _OTHER_TOKENS:
        return None
    return case.limits.better_earlier if key == "iters" else case.limits.better


def _condition(recipe: Recipe, case: Case, fix: Fix) -> Condition:
    key, after = next(iter(fix.after.items()))
    before = fix.before[key]
    if key == "iters":
        shorter = max(1, round(case.iterations * after / before))
        return Condition("change", f"iters {case.iterations} → {shorter}", shorter)
    label = f"{key} {before} → {after}"
    return Condition("change", label, case.iterations, changed_values(recipe, fix))
