"""The base model's own answers.

What it finds. A base model that answers with nothing, with one token over and over, or with
garble, before any adapter is put on it; and, as a note, one whose answers are in order.

Why it matters. A broken base is not mended by training: the weights, their quantisation, the
tokenizer or the prompt format were wrong before it began. A sound one clears them: a loss that
is high at the start then comes from the labels.

How it is measured. An answer is degenerate if it is empty, if one token makes up nearly all of
it, if it holds broken or control characters, or if it stutters, one word four times in a row.
The share of such answers is given with its 95% Wilson interval over prompts. Answers are to the
point if they name the rare words of their own prompt more often than the other answers do
(paired permutation test over prompts). Where they are, a few degenerate ones prove nothing.

When it is wrong. A model that was never taught to chat may answer a chat template with
its end token, or go on in a loop. Answers about something else may come from slightly damaged
weights or from questions that the base never saw, so that they are only noted. Answers recorded
without the base model say nothing. Of rows of text it is asked in their own marks, which it need
not know: what it answers then is not held against it.

What to do. Generate a few answers with the base model alone. If they are garbage there too,
download or convert it again.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from mlxdoctor.check import Inconclusive, NotApplicable, check
from mlxdoctor.engines.text import run_share
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.finding import Sign, Symptom
from mlxdoctor.judge.collapse import is_single
from mlxdoctor.measure.text.outputs import Output, OutputPair, answer_words, pairs
from mlxdoctor.measure.text.statistics import paired_permutation, rate
from mlxdoctor.models.generations import Generations

#: Prompts of which 5 of 5 leave a Wilson interval from 0.57 upwards; and of which p-values are low
#: enough to call a base sound.
FEWEST, ENOUGH = 5, 8
#: Times one word in a row: three are emphasis.
STUTTER = 4
#: Broken characters, and those of control but tabs and ends of lines.
GARBLED = re.compile("[\N{REPLACEMENT CHARACTER}\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f]")
#: Lower end of the interval of the share of prompts: certainly more than half of the answers (0 of
#: 4 sound base models).
SHARE_LOW = 0.5
#: P-value of a paired permutation of prompts: sound base models of 12 prompts have 0.002 to 0.02,
#: noise on weights 0.17 at least (0 of 9 damaged ones are called sound).
RELATED = 0.05


@check(
    codes={
        "degenerate": Symptom.error(
            "the base model itself answers with nothing, one token, or garble",
            says="The base model itself answers {degenerate} of {prompts:* prompt} with nothing, "
            "with one token over and over, or with garble: it was broken before training.",
            expected="answers in sentences",
            fix="Generate with the base model alone; if that is garbage too, convert it again.",
        ),
        "sound": Symptom.info(
            "the base model's own answers are in order",
            says="The base model's own answers are sound: {sound} of {prompts} are text. They take "
            "up words of their own prompt more often than the other answers do.",
        ),
    },
)
def base_answers(generations: Generations, dataset: Dataset | None) -> Iterator[Sign]:
    answered = pairs(generations)
    answers = [pair.base for pair in answered if pair.base is not None]
    if not answers:
        raise NotApplicable("the base model's answers were not recorded")
    if len(answers) < FEWEST:
        raise Inconclusive(f"{len(answers)} prompts; {FEWEST} are needed")
    bad = rate([_is_degenerate(answer) for answer in answers], None)
    gain, p_value = _relatedness(answered)
    is_to_the_point = gain > 0.0 and p_value < RELATED
    measured = {
        "degenerate": bad.tuned,
        "sound": len(answers) - bad.tuned,
        "prompts": len(answers),
        "p_value": p_value,
    }
    if bad.interval.low >= SHARE_LOW or (bad.decided and not is_to_the_point):
        train = dataset.splits.get("train") if dataset is not None else None
        if train is not None and train.format == "text" and generations.how == "produced":
            tuned = [pair.tuned for pair in answered]
            if not rate(list(map(_is_degenerate, tuned)), None).decided:
                # What can be taught to answer in these marks was not broken: it did not know them.
                return
            raise Inconclusive("it was asked in the marks of the rows, which it need not know")
        # What learns to answer rightly was not broken: it did not know what was asked for.
        if not _is_right(answered):
            yield Sign("degenerate", measured)
    elif len(answers) >= ENOUGH and is_to_the_point and not bad.decided:
        yield Sign("sound", measured)


def _is_right(answered: Sequence[OutputPair]) -> bool:
    """Whether most answers of the tuned model are the expected ones, where these are known."""
    known = [pair for pair in answered if pair.item.expected is not None]
    right = [
        answer_words(pair.tuned.text) == answer_words(pair.item.expected or "") for pair in known
    ]
    return bool(right) and float(np.mean(right)) > SHARE_LOW


def _is_degenerate(answer: Output) -> bool:
    # The length limit may cut the last character in two.
    is_garbled = GARBLED.search(answer.text.rstrip("\N{REPLACEMENT CHARACTER}")) is not None
    # Signs without a letter, such as the lines of a table, are all taken for different ones.
    words = enumerate(answer.text.split())
    units = [word if any(map(str.isalpha, word)) else place for place, word in words]
    stutters = run_share(units, STUTTER) > 0
    return not answer.content or is_garbled or stutters or is_single(answer.content)


def _relatedness(answered: Sequence[OutputPair]) -> tuple[float, float]:
    """How much more of a prompt's rare words its own answer names than others do; its p-value."""
    prompts = [set(answer_words(pair.item.prompt)) for pair in answered]
    answers = [set(answer_words(pair.item.base or "")) for pair in answered]
    known = Counter(word for prompt in prompts for word in prompt)
    gains = []
    for place, prompt in enumerate(prompts):
        rare = {word for word in prompt if known[word] <= max(1, len(prompts) // 4)}
        if rare and len(prompts) > 1:
            named = np.array([len(rare & answer) / len(rare) for answer in answers])
            gains.append(named[place] - np.delete(named, place).mean())
    return float(np.mean(gains or [0.0])), paired_permutation(gains)
