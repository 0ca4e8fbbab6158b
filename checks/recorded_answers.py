"""Whose answers were recorded.

What it finds. Recorded answers that are the base model's, word for word, where the tuned model
answers otherwise: the adapter was not loaded when they were made.

Why it matters. `mlx_lm.generate` without `--adapter-path` answers as well as ever. A person then
compares a fine-tune that nobody asked with what was hoped for, and mends a training that was
sound.

How it is measured. Both models answer the recorded prompts again, greedily, in the base's chat
template. Only prompts to which they answer differently tell anything. A recorded answer is a
model's if the shorter of the two texts is the beginning of the other, in words.

When it is wrong. Answers that were sampled, or asked with another system prompt, are neither
model's: nothing is said of them. An adapter that changes little gives few telling prompts.

What to do. Answer again with the adapter: `mlx_lm.generate --adapter-path ...`, or
`mlx_lm.load(model, adapter_path=...)`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mlxdoctor.check import Cost, Inconclusive, check, limit
from mlxdoctor.finding import Seen, Sign, Symptom
from mlxdoctor.measure.asked_again import AskedAgain
from mlxdoctor.measure.text.words import words


@dataclass(frozen=True)
class Limits:
    """When recorded answers are one model's."""

    words: int = limit(
        3, unit="words that two answers must have in common", source="shorter ones agree by chance"
    )
    telling: int = limit(
        2, unit="prompts that the models answer differently", source="one may be a coincidence"
    )
    share: float = limit(
        0.75,
        unit="share of the telling prompts",
        source="greedy answers differ now and then by a tie in half precision",
    )


@check(
    codes={
        "base-answers": Symptom.error(
            "the recorded answers are the base model's",
            expected="the tuned model's answers",
            fix="Answer the prompts again with the adapter: `--adapter-path FOLDER`.",
        )
    },
    cost=Cost.FORWARD,
    limits=Limits(),
)
def recorded_answers(asked: AskedAgain, limits: Limits) -> Iterator[Sign | Seen]:
    """Compare the recorded answers with both models' own."""
    telling = [one for one in asked.items if not _same(one.base, one.tuned, limits)]
    if len(telling) < limits.telling:
        raise Inconclusive(
            f"only {len(telling)} of {len(asked.items)} recorded prompts are answered differently "
            "by the two models"
        )
    of_base = sum(_same(one.recorded, one.base, limits) for one in telling)
    of_tuned = sum(_same(one.recorded, one.tuned, limits) for one in telling)
    measured = {"prompts": len(telling), "base": of_base, "tuned": of_tuned}
    if of_base >= limits.share * len(telling) and not of_tuned:
        yield Sign(
            "base-answers",
            f"Of {len(telling)} recorded answers {of_base} are word for word the base model's, and "
            "none is the tuned model's: the adapter was not loaded when they were made.",
            measured,
        )
    elif of_tuned >= limits.share * len(telling):
        yield Seen(
            f"Of {len(telling)} recorded answers {of_tuned} are word for word the tuned model's.",
            measured,
        )
    else:
        raise Inconclusive("the recorded answers are neither model's: sampled, or asked otherwise")


def _same(first: str, second: str, limits: Limits) -> bool:
    """Whether the shorter is how the longer begins. A last word may be cut off."""
    one, other = sorted((words(first), words(second)), key=len)
    if len(one) < limits.words:
        return one == other
    return other[: len(one) - 1] == one[:-1] and other[len(one) - 1].startswith(one[-1])
