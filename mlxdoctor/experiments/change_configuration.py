"""A cause that a change of the configuration cures: rerun with the change, and with a placebo.

causes.toml names the change (`change`), and what the report advises is tried first. Of others the
mildest that cures is kept: a rate a thousand times too high is still too high after one division.
"""

from __future__ import annotations

from dataclasses import replace

from mlxdoctor.causes import Cause
from mlxdoctor.experiments import counterfactual
from mlxdoctor.experiments.shared.bench import Bench, Failure
from mlxdoctor.experiments.shared.observation import Condition
from mlxdoctor.experiments.shared.recipe import Recipe, changed_values
from mlxdoctor.experiments.shared.rules import Question, Ruling, Trials, judge_change, undecided
from mlxdoctor.report import Fix

#: Keys after whose change the held-out loss is over other tokens.
_OTHER_TOKENS = frozenset({"max_seq_length", "mask_prompt"})


@counterfactual(of="failing", shows=lambda cause: cause.change is not None)
def change_configuration(
    bench: Bench, cause: Cause, question: Question, plain: Trials
) -> Ruling | None:
    """Rerun with the change, the advised or the mildest that cures; None: nothing to change."""
    fixes = bench.failure.fixes(bench.lab.recipe.config, cause)
    if not fixes:
        return None
    better = _better(next(iter(fixes[0].after)), bench.failure)
    first = next(seed for seed, one in plain.items() if question.shows(one))
    for fix in fixes:
        condition = _condition(bench.lab.recipe, bench.failure, fix)
        seen = bench.observe(condition, first, question, cause.id)
        if not question.is_cured(plain[first], seen, better) and fix is not fixes[-1]:
            continue
        changed = bench.changed(condition, question, cause.id, plain, better)
        ruling = judge_change(question, plain, {}, changed, better, what=condition.label)
        if ruling.verdict == "confirmed":
            ruling = bench.against_placebo(condition, question, plain, changed, better=better)
            break
    gone = not any(question.shows(one) for one in changed.values())
    if ruling.verdict == "refuted" and gone and "iters" in fix.after:
        # An earlier stop can miss the minimum on its other side.
        reason = "stopped earlier it shows no symptom, but held-out answers are no better either"
        ruling = undecided(reason, "more validation rows, or longer reruns (--iters)")
    return replace(ruling, fix=fix)


def _better(key: str, failure: Failure) -> float | None:
    """The share of the held-out loss that a cure takes away; None: it can't be compared."""
    if key in _OTHER_TOKENS:
        return None
    return failure.limits.better_earlier if key == "iters" else failure.limits.better


def _condition(recipe: Recipe, failure: Failure, fix: Fix) -> Condition:
    key, after = next(iter(fix.after.items()))
    before = fix.before[key]
    if key == "iters":
        # The rerun is shorter than the run, and may be too short for the stop that is advised.
        share = failure.iterations * after / before
        shorter = after if after < failure.iterations else max(1, round(share))
        return Condition("change", f"iters {failure.iterations} → {shorter}", shorter)
    label = f"{key} {before} → {after}"
    return Condition("change", label, failure.iterations, changed_values(recipe, fix))
