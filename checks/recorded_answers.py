"""Whose answers were recorded.

What it finds. Recorded answers that are the base model's where the tuned model answers otherwise:
the adapter was not loaded when they were made.

Why it matters. `mlx_lm.generate` without `--adapter-path` answers as well as ever. A person then
compares a fine-tune that nobody asked with what was hoped for, and mends a training that was
sound.

How it is measured. Both models answer the recorded prompts again, greedily, each prompt as the row
of the data asks it that has the same question (with its system prompt), others in the base's chat
template. Only prompts to which they answer differently tell anything, and only where the recorded
answer is not the one that was hoped for, which both may give. A recorded answer is a model's if it
is the same, cut off or going on, or if it begins as that model's own for three words more than as
the other's. Where the file has the base model's answers beside the tuned model's, the two are
compared with each other: it does not matter then how, and which, prompts were asked.

When it is wrong. Answers that were sampled may be neither model's: nothing is said of them. An
adapter that changes little gives few telling prompts.

What to do. Answer again with the adapter: `mlx_lm.generate --adapter-path ...`, or
`mlx_lm.load(model, adapter_path=...)`, with the chat template.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from mlxdoctor.check import Inconclusive, NotApplicable, check, limit
from mlxdoctor.finding import Measurement, Seen, Sign, Symptom
from mlxdoctor.measure.text.outputs import answer_words
from mlxdoctor.models.generations import (
    AskedAgain,
    Generation,
    Generations,
    RecordedGenerations,
)


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
    prompts: int = limit(
        8,
        unit="prompts recorded with both models' answers, and as many others that are asked",
        source="as for every comparison of answers",
    )
    alike: float = limit(
        0.9,
        unit="share of them that were answered alike",
        source="one model says the same to the same prompt, save for a tie",
    )


@check(
    codes={
        "base-answers": Symptom.error(
            "the recorded answers are the base model's",
            says="[The answers recorded as the tuned model's are those recorded as the base "
            "model's on {alike} of {recorded_twice:* prompt}, and the two models themselves answer "
            "{differ} of {prompts} differently|Of {telling:* recorded answer} {base} begin as the "
            "base model's own do, word for word, and none as the tuned model's]: the adapter was "
            "not loaded when they were made.",
            expected="the tuned model's answers",
            fix="Answer the prompts again with the adapter: `mlx_lm.generate --adapter-path "
            "FOLDER`, or `mlx_lm.load(model, adapter_path=FOLDER)`.",
        ),
    },
    limits=Limits(),
)
def recorded_answers(
    recorded: RecordedGenerations | None,
    asked: AskedAgain | None,
    answers: Generations | None,
    limits: Limits,
) -> Iterator[Sign | Seen]:
    """Compare the recorded answers with both models' own."""
    if recorded is None and asked is None:
        raise NotApplicable("no answers were recorded")
    own = [item.own for item in asked.items] if asked is not None else []
    if not own and answers is not None and answers.how == "produced":
        own = [item for item in answers.distinct if item.base is not None]
    twice = _recorded_twice(recorded.distinct, own, limits) if recorded is not None else None
    if twice is not None:
        yield twice
    elif asked is not None:
        yield from _by_the_same_prompts(asked, limits)
    else:
        raise Inconclusive("the recorded prompts were not asked again")


def _recorded_twice(
    recorded: Sequence[Generation], own: Sequence[Generation], limits: Limits
) -> Sign | None:
    """Answers recorded of both models that are alike, where the models here answer differently."""
    # What was hoped for, either model may have answered.
    beside = [item for item in recorded if item.base is not None and not _is_as_expected(item)]
    alike = sum(answer_words(item.tuned) == answer_words(item.base or "") for item in beside)
    differing = sum(not _same(item.tuned, item.base or "", limits) for item in own)
    is_enough = min(len(own), len(beside)) >= limits.prompts
    if not is_enough or alike < limits.alike * len(beside) or differing < limits.share * len(own):
        return None
    measured = {"alike": alike, "recorded_twice": len(beside)}
    return Sign("base-answers", measured | {"differ": differing, "prompts": len(own)})


def _by_the_same_prompts(asked: AskedAgain, limits: Limits) -> Iterator[Sign | Seen]:
    differing = [
        item for item in asked.items if not _same(item.own.base or "", item.own.tuned, limits)
    ]
    telling = [item for item in differing if not _is_as_expected(item.recorded)]
    of_base = of_tuned = 0
    for item in differing:
        base, tuned, recorded = item.own.base or "", item.own.tuned, item.recorded.tuned
        of_tuned += _is_of(recorded, tuned, base, limits)
        of_base += not _is_as_expected(item.recorded) and _is_of(recorded, base, tuned, limits)
    if len(differing) < limits.telling:
        raise Inconclusive(
            f"only {len(differing)} of {len(asked.items)} recorded prompts are answered "
            "differently by the two models"
        )
    measured: dict[str, Measurement] = {
        "prompts": len(differing),
        "telling": len(telling),
        "base": of_base,
        "tuned": of_tuned,
    }
    if of_tuned >= limits.share * len(differing):
        yield Seen(
            "Of {prompts:* recorded answer} {tuned} begin as the tuned model's do.", measured
        )
        return
    if len(telling) < limits.telling:
        why = "nearly all recorded answers are the expected ones, which either model may give"
        raise Inconclusive(why)
    if of_base < limits.share * len(telling) or of_tuned:
        raise Inconclusive("the recorded answers are neither model's: sampled, or asked otherwise")
    yield Sign("base-answers", measured)


def _is_as_expected(item: Generation) -> bool:
    return bool(item.expected) and answer_words(item.tuned) == answer_words(item.expected or "")


def _is_of(recorded: str, own: str, other: str, limits: Limits) -> bool:
    """Whether what was recorded is a model's own answer rather than the other model's."""
    if _same(recorded, own, limits):
        return True
    return _shared(recorded, own) >= _shared(recorded, other) + limits.words


def _shared(first: str, second: str) -> int:
    """How many words two texts begin with alike."""
    words = zip(answer_words(first), answer_words(second), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], words))


def _same(first: str, second: str, limits: Limits) -> bool:
    """Whether the shorter is how the longer begins. A last word may be cut off."""
    shorter, longer = sorted((answer_words(first), answer_words(second)), key=len)
    if len(shorter) < limits.words:
        return shorter == longer
    return longer[: len(shorter) - 1] == shorter[:-1] and longer[len(shorter) - 1].startswith(
        shorter[-1]
    )
