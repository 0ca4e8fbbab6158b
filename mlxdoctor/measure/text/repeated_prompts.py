"""Rows that ask the same, and whether their answers contradict each other."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mlxdoctor.check import limit
from mlxdoctor.engines.text import vocabulary, words
from mlxdoctor.evidence.prompt_answer import Pair

_NUMBER = re.compile(r"[-+]?[\d.,]*\d%?")
#: What `pair_of` makes of a row without a prompt.
_NO_PROMPT = ("", "[]")


@dataclass(frozen=True)
class ContradictionLimits:
    """When two answers to the same prompt contradict each other."""

    short_words: int = limit(40, unit="words", source="longer answers differ by chance")
    alike: float = limit(
        0.5,
        unit="share of the shorter answer's rare words",
        source="the same words in another order share all, other facts in one sentence 0.4",
    )
    most_answers: int = limit(10, unit="answers", source="more to a prompt were meant to differ")
    labels: int = limit(50, unit="different answers in all rows", source="classes of a classifier")
    rows_per_label: int = limit(10, unit="rows", source="fewer for each are no labels")


@dataclass(frozen=True)
class Contradictions:
    """Rows whose prompt has another answer elsewhere.

    Attributes:
        varied: rows whose prompt is answered in several ways that do not contradict each other.
        outvoted: rows with a short answer that says something else than the most frequent
            answer to the same prompt, and is a number or the answer to another prompt too:
            answers that only this prompt has may be meant to differ.
        exclusive: of these, rows where both answers are numbers, or labels.
        prompts: different prompts of the rows that are outvoted.
    """

    varied: tuple[int, ...]
    outvoted: tuple[int, ...]
    exclusive: tuple[int, ...]
    prompts: int


def contradictions(pairs: Sequence[Pair], limits: ContradictionLimits) -> Contradictions:
    """Compare the answers to the same prompt; rows without a prompt are left out."""
    rows_of: dict[str, list[int]] = defaultdict(list)
    for at, pair in enumerate(pairs):
        if pair.prompt not in _NO_PROMPT:
            rows_of[pair.prompt].append(at)
    answers = [" ".join(pair.answer.split()).casefold() for pair in pairs]
    repeated = [rows for rows in rows_of.values() if len({answers[at] for at in rows}) > 1]
    prompts_of: dict[str, set[str]] = defaultdict(set)
    for pair, answer in zip(pairs, answers, strict=True):
        prompts_of[answer].add(pair.prompt)
    labels = len(prompts_of) <= min(limits.labels, len(pairs) / limits.rows_per_label)

    said = {answers[at]: vocabulary(answers[at]) for rows in repeated for at in rows}
    weights = rarity(said.values())
    short = {answer for answer in said if answer and len(words(answer)) <= limits.short_words}
    varied: list[int] = []
    outvoted: list[int] = []
    exclusive: list[int] = []
    prompts = 0
    for rows in repeated:
        counts = Counter(answers[at] for at in rows)
        usual = counts.most_common(1)[0][0]
        against = [
            at
            for at in rows
            if answers[at] != usual
            and {answers[at], usual} <= short
            and len(counts) <= limits.most_answers
            and (len(prompts_of[answers[at]]) > 1 or _are_numbers(answers[at], usual))
            and shared_share(said[answers[at]], said[usual], weights) < limits.alike
        ]
        if not against:
            varied += rows
            continue
        prompts += 1
        outvoted += against
        exclusive += [at for at in against if labels or _are_numbers(answers[at], usual)]
    return Contradictions(
        tuple(sorted(varied)), tuple(sorted(outvoted)), tuple(sorted(exclusive)), prompts
    )


def _are_numbers(*answers: str) -> bool:
    return all(_NUMBER.fullmatch(answer.strip(" .$€£")) for answer in answers)


def rarity(texts: Iterable[set[str]]) -> dict[str, float]:
    """How telling each word is, in nats: log((texts + 1) / texts with the word)."""
    texts = list(texts)
    counts = Counter(word for text in texts for word in text)
    return {word: math.log((len(texts) + 1) / count) for word, count in counts.items()}


def shared_share(first: set[str], second: set[str], weights: Mapping[str, float]) -> float:
    """Weight of the words that both have over that of the lighter text, in [0, 1]."""
    lighter = min(sum(weights[word] for word in text) for text in (first, second))
    return sum(weights[word] for word in first & second) / lighter if lighter > 0 else 0.0
