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
from itertools import takewhile

from mlxdoctor.check import Inconclusive, NotApplicable, check
from mlxdoctor.finding import Seen, Sign, Symptom
from mlxdoctor.measure.text.outputs import answer_words
from mlxdoctor.models.generations import (
    AskedAgain,
    Generation,
    Generations,
    RecordedGenerations,
)

#: Words that two answers must have in common: shorter ones agree by chance.
WORDS = 3
#: Prompts that the models answer differently: one may be a coincidence. And prompts recorded with
#: both models' answers, and as many others that are asked, as for every comparison of answers.
TELLING, PROMPTS = 2, 8
#: Share of the telling prompts that show whose answers they are: greedy answers differ now and
#: then by a tie in half precision. Share of the recorded ones that were answered alike: one model
#: says the same to the same prompt, save for a tie.
SHARE, ALIKE = 0.75, 0.9


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
)
def recorded_answers(
    recorded: RecordedGenerations | None,
    asked: AskedAgain | None,
    answers: Generations | None,
) -> Iterator[Sign | Seen]:
    """Compare the recorded answers with both models' own."""
    if recorded is None and asked is None:
        raise NotApplicable("no answers were recorded")
    own = [item.own for item in asked.items] if asked is not None else []
    if not own and answers is not None and answers.how == "produced":
        own = [item for item in answers.distinct if item.base is not None]
    twice = _recorded_twice(recorded.distinct, own) if recorded is not None else None
    if twice is not None:
        yield twice
    elif asked is not None:
        yield _by_the_same_prompts(asked)
    else:
        raise Inconclusive("the recorded prompts were not asked again")


def _recorded_twice(recorded: Sequence[Generation], own: Sequence[Generation]) -> Sign | None:
    """Answers recorded of both models that are alike, where the models here answer differently."""
    # What was hoped for, either model may have answered.
    beside = [item for item in recorded if item.base is not None and not _is_as_expected(item)]
    alike = sum(answer_words(item.tuned) == answer_words(item.base or "") for item in beside)
    differing = sum(not _same(item.tuned, item.base or "") for item in own)
    is_enough = min(len(own), len(beside)) >= PROMPTS
    if not is_enough or alike < ALIKE * len(beside) or differing < SHARE * len(own):
        return None
    measured = {"alike": alike, "recorded_twice": len(beside)}
    return Sign("base-answers", measured | {"differ": differing, "prompts": len(own)})


def _by_the_same_prompts(asked: AskedAgain) -> Sign | Seen:
    prompts = telling = of_base = of_tuned = 0
    for item in asked.items:
        base, tuned, recorded = item.own.base or "", item.own.tuned, item.recorded.tuned
        if _same(base, tuned):
            continue
        prompts += 1
        of_tuned += _is_of(recorded, tuned, base)
        if not _is_as_expected(item.recorded):
            telling += 1
            of_base += _is_of(recorded, base, tuned)
    if prompts < TELLING:
        raise Inconclusive(
            f"only {prompts} of {len(asked.items)} recorded prompts are answered differently by "
            "the two models"
        )
    measured = {"prompts": prompts, "telling": telling, "base": of_base, "tuned": of_tuned}
    if of_tuned >= SHARE * prompts:
        sentence = "Of {prompts:* recorded answer} {tuned} begin as the tuned model's do."
        return Seen(sentence, measured)
    if telling < TELLING:
        why = "nearly all recorded answers are the expected ones, which either model may give"
        raise Inconclusive(why)
    if of_base < SHARE * telling or of_tuned:
        raise Inconclusive("the recorded answers are neither model's: sampled, or asked otherwise")
    return Sign("base-answers", measured)


def _is_as_expected(item: Generation) -> bool:
    return bool(item.expected) and answer_words(item.tuned) == answer_words(item.expected or "")


def _is_of(recorded: str, own: str, other: str) -> bool:
    """Whether what was recorded is a model's own answer rather than the other model's."""
    return _same(recorded, own) or _shared(recorded, own) >= _shared(recorded, other) + WORDS


def _shared(first: str, second: str) -> int:
    """How many words two texts begin with alike."""
    words = zip(answer_words(first), answer_words(second), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], words))


def _same(first: str, second: str) -> bool:
    """Whether the shorter is how the longer begins. A last word may be cut off."""
    shorter, longer = sorted((answer_words(first), answer_words(second)), key=len)
    if len(shorter) < WORDS:
        return shorter == longer
    last = len(shorter) - 1
    return longer[:last] == shorter[:-1] and longer[last].startswith(shorter[-1])
