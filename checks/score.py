"""The user's own score of the answers.

What it finds. A tuned model that scores significantly lower than its base model on the same
prompts, by a measure of the user's own.

Why it matters. Only the user knows what the fine-tune was for. A voice, a format or a rule
can be lost while every general measure looks fine.

How it is measured. The function named by the user gives every answer a number, higher being
better. The differences between tuned and base model, prompt by prompt, are tested with a paired
permutation test; the mean difference is given with its bootstrap interval.

When it is wrong. It is as right as the function. Few prompts find only large differences.

What to do. Read the answers on the prompts with the largest loss first; they are named in the
finding.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import Inconclusive, check, limit
from mlxdoctor.finding import Measurement, Seen, Sign, Symptom
from mlxdoctor.measure.text.statistics import mean_interval, paired_permutation
from mlxdoctor.models.scoring import Scores
from mlxdoctor.safety.quoting import quoted


@dataclass(frozen=True)
class Limits:
    """When a score is worse."""

    prompts: int = limit(
        8, unit="prompts", source="7 pairs cannot reach p < 0.01 by flipping signs"
    )
    significance: float = limit(0.01, unit="p-value, paired permutation", source="convention")


@check(
    codes={
        "worse-than-base": Symptom.error(
            "the user's score is lower than the base model's",
            says="By {name}, the tuned model scores {tuned_score:.3g} on {prompts:* prompt}, the "
            "base model {base_score:.3g}.",
            expected="a score at least as high as the base model's",
            fix="Read the answers with the largest loss; an earlier checkpoint may be better.",
        ),
        "unscored-answers": Symptom.warning(
            "the scoring function failed on some answers",
            says="{name} gave no number for {unscored:* answer} ({reason}).",
            expected="a finite number for every answer",
            fix="Let the scoring function return a number for any text, the empty one included.",
        ),
    },
    limits=Limits(),
)
def score(scores: Scores, limits: Limits) -> Iterator[Sign | Seen]:
    """Compare the scores of both models."""
    count, reason = scores.unscored
    if count:
        yield Sign("unscored-answers", {"name": scores.name, "unscored": count, "reason": reason})
    known = [(item, item.base) for item in scores.items if item.base is not None]
    if len(known) < limits.prompts:
        raise Inconclusive(
            f"{len(known)} prompts scored for both models; {limits.prompts} are needed"
        )
    tuned = np.array([item.tuned for item, _ in known])
    base = np.array([score for _, score in known])
    p_value = paired_permutation(tuned - base)
    interval = mean_interval(tuned - base)
    measured: dict[str, Measurement] = {
        "name": scores.name,
        "prompts": len(known),
        "base_score": float(base.mean()),
        "tuned_score": float(tuned.mean()),
        "difference": interval.share,
        "difference_low": interval.low,
        "difference_high": interval.high,
        "p_value": p_value,
    }
    if interval.share < 0 and p_value < limits.significance:
        worst = known[int((tuned - base).argmin())][0]
        yield Sign("worse-than-base", measured, where=f"prompt {quoted(worst.prompt)}")
    elif np.ptp([*tuned, *base]) == 0:
        raise Inconclusive(f"every answer of both models scores {tuned[0]:.3g}")
    else:
        yield Seen(
            "By {name}, the tuned model scores {tuned_score:.3g} on {prompts:* prompt}, the base "
            "model {base_score:.3g}.",
            measured,
            learned=interval.share > 0 and p_value < limits.significance,
        )
