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

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.finding import Measurement, Seen, Sign, Symptom
from mlxdoctor.measure.text.statistics import Paired
from mlxdoctor.models.scoring import Scores
from mlxdoctor.safety.quoting import quoted

#: Prompts scored for both models: 7 pairs cannot reach p < 0.01 by flipping signs.
PROMPTS = 8
_SAYS = (
    "By {name}, the tuned model scores {tuned_score:.3g} on {prompts:* prompt}, the base model "
    "{base_score:.3g}."
)


@check(
    codes={
        "worse-than-base": Symptom.error(
            "the user's score is lower than the base model's",
            says=_SAYS,
            expected="a score at least as high as the base model's",
            fix="Read the answers with the largest loss.",
        ),
        "always-the-same": Symptom.warning(
            "the user's score is the same for every answer",
            says="By {name}, every answer of both models scores {tuned_score:.3g} ({prompts:* "
            "prompt}): no answer is as wanted, or the function sees no difference.",
            expected="a score that tells answers apart",
            fix="Let the function score an expected answer: it should be high.",
        ),
        "unscored-answers": Symptom.warning(
            "the scoring function failed on some answers",
            says="{name} gave no number for {unscored:* answer} ({reason}).",
            expected="a finite number for every answer",
            fix="Let the scoring function return a number for any text, the empty one included.",
        ),
    },
)
def score(scores: Scores) -> Iterator[Sign | Seen]:
    count, reason = scores.unscored
    if count:
        yield Sign("unscored-answers", {"name": scores.name, "unscored": count, "reason": reason})
    scored = [(item.base, item.tuned, item) for item in scores.items if item.base is not None]
    if len(scored) < PROMPTS:
        raise Inconclusive(f"{len(scored)} prompts scored for both models; {PROMPTS} are needed")
    base, tuned, items = zip(*scored, strict=True)
    compared = Paired.of(base, tuned)
    measured: dict[str, Measurement] = {"name": scores.name, "prompts": len(scored)}
    measured |= compared.measured("score")
    if compared.differs(-1):
        worst = min(items, key=lambda item: item.tuned - (item.base or 0.0))
        yield Sign("worse-than-base", measured, where=f"prompt {quoted(worst.prompt)}")
    elif len({*base, *tuned}) == 1:
        yield Sign("always-the-same", measured)
    else:
        yield Seen(_SAYS, measured, learned=compared.differs(1))
