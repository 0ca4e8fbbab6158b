"""Rows that ask the same, and whether their answers contradict each other."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mlxdoctor.engines.text import vocabulary, words
from mlxdoctor.evidence.prompt_answer import Pair

_NUMBER = re.compile(r"[-+]?[\d.,]*\d%?")
#: Longer answers (words) differ by chance; more answers to a prompt were meant to differ.
_SHORT, _MOST_ANSWERS = 40, 10
#: Share of the shorter answer's rare words: the same words in another order share all of them,
#: other facts in one sentence 0.4.
_ALIKE = 0.5
#: Different answers of a classifier at most, and rows for each at least.
_LABELS, _ROWS_PER_LABEL = 50, 10


@dataclass(frozen=True)
class Contradictions:
    """Rows whose prompt has another answer elsewhere.

    Attributes:
        outvoted: rows with a short answer that says something else than the most frequent
            answer to the same prompt, and is a number or the answer to another prompt too:
            answers that only this prompt has may be meant to differ.
        exclusive: of these, rows where both answers are numbers, or labels.
        prompts: different prompts of the rows that are outvoted.
    """

    outvoted: tuple[int, ...]
    exclusive: tuple[int, ...]
    prompts: int


def contradictions(pairs: Sequence[Pair]) -> Contradictions:
    """Compare the answers to the same prompt; rows without a prompt are left out."""
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row, pair in enumerate(pairs):
        if pair.prompt:
            rows_of[pair.prompt].append(row)
    again = [
        rows
        for rows in rows_of.values()
        if len(rows) > 1 and len({pairs[row].answer for row in rows}) > 1
    ]
    if not again:
        return Contradictions((), (), 0)
    answers = [" ".join(pair.answer.split()).casefold() for pair in pairs]
    prompts_of: dict[str, set[str]] = defaultdict(set)
    for pair, answer in zip(pairs, answers, strict=True):
        prompts_of[answer].add(pair.prompt)
    are_labels = len(prompts_of) <= min(_LABELS, len(pairs) / _ROWS_PER_LABEL)

    repeated = {answers[row]: vocabulary(answers[row]) for rows in again for row in rows}
    weights = _rarity(repeated.values())
    short = {answer for answer in repeated if answer and len(words(answer)) <= _SHORT}
    outvoted: list[int] = []
    exclusive: list[int] = []
    prompts = 0
    for rows in again:
        counts = Counter(answers[row] for row in rows)
        usual = counts.most_common(1)[0][0]
        against = [
            row
            for row in rows
            if (answer := answers[row]) != usual
            and {answer, usual} <= short
            and len(counts) <= _MOST_ANSWERS
            and (len(prompts_of[answer]) > 1 or _are_numbers(answer, usual))
            and _shared(repeated[answer], repeated[usual], weights) < _ALIKE
        ]
        prompts += bool(against)
        outvoted += against
        exclusive += [row for row in against if are_labels or _are_numbers(answers[row], usual)]
    return Contradictions(tuple(sorted(outvoted)), tuple(sorted(exclusive)), prompts)


def _are_numbers(*answers: str) -> bool:
    return all(_NUMBER.fullmatch(answer.strip(" .$€£")) for answer in answers)


def _rarity(texts: Iterable[set[str]]) -> dict[str, float]:
    """How telling each word is, in nats: log((texts + 1) / texts with the word)."""
    texts = list(texts)
    counts = Counter(word for text in texts for word in text)
    return {word: math.log((len(texts) + 1) / count) for word, count in counts.items()}


def _shared(first: set[str], second: set[str], weights: Mapping[str, float]) -> float:
    """Weight of the words that both have over that of the lighter text, in [0, 1]."""
    lighter = min(sum(weights[word] for word in text) for text in (first, second))
    return sum(weights[word] for word in first & second) / lighter if lighter > 0 else 0.0
