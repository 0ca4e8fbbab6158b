"""Whether answers belong to their prompts, by the rare words that they share.

Words that few rows have (names, numbers, subjects) tie an answer to its prompt, each by
log2(texts / texts with the word) bits. A row is misplaced if its prompt fits the answer of another
row, and its answer the prompt of another row, by a margin that grows with the number of rows; if
these two rows do not fit themselves either; if each match is the best for both of its sides; and
if nothing is merely copied word for word. Whether the rows can tell is measured too: the answers
are dealt out at random, and most rows must then be misplaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.engines.text import vocabulary, words

Ints = NDArray[np.int64]
Scores = NDArray[np.float64]

#: Rows that are examined: a share of 0.1 is then known to within 0.03.
EXAMINED = 400
#: Characters read of each end of a longer text; fewer where there are many texts.
_READ, _LEAST_READ, _READ_IN_ALL = 2_000, 200, 20_000_000
#: What a match must exceed: this share of the other texts, and by so many bits added to
#: log2(rows): a name that one row in twelve has tells rows apart, and no commoner word does.
_STANDING_OUT, _MARGIN, _LEAST_MARGIN = 0.9, -4.0, 3.0
#: Bits by which a better match for the other side may exceed it: a word of every second row.
_SLACK = 1.0
#: Share of the passages from which on a text is a copy of another: then it is a conversation.
_COPIED = 0.3
#: Words in more texts than this share say little, and in more than so many cost much.
_COMMON_SHARE, _COMMON_TEXTS, _LEAST_COMMON = 0.2, 1000, 0.02
#: Neighbouring words that make a copied passage.
_PASSAGE = 5
#: Candidates of which the tie to their own row is looked up.
_CANDIDATES = 32


@dataclass(frozen=True)
class RareWords:
    """Different prompts and different answers, as sets of the rare words that both sides use.

    Attributes:
        of_prompts, of_answers: the numbers of the words of each text.
        in_prompts, in_answers: the numbers of the texts with each word.
        bits: float64 (words,), log2(texts / texts with the word), of the side where it is commoner.
    """

    of_prompts: Sequence[Ints]
    of_answers: Sequence[Ints]
    in_prompts: Sequence[Ints]
    in_answers: Sequence[Ints]
    bits: Scores

    @classmethod
    def of(cls, prompts: Sequence[str], answers: Sequence[str]) -> RareWords:
        """Index different prompts and different answers, of which there may be fewer."""
        numbers: dict[str, int] = {}
        sides = (_numbered(prompts, numbers, grow=True), _numbered(answers, numbers, grow=False))
        share, kept = np.zeros(len(numbers)), np.ones(len(numbers), dtype=np.bool_)
        for side in sides:
            texts = np.bincount(np.concatenate(side), minlength=len(numbers))
            common = max(_COMMON_TEXTS, _LEAST_COMMON * len(side))
            kept &= (texts > 0) & (texts <= max(1, min(_COMMON_SHARE * len(side), common)))
            share = np.maximum(share, texts / len(side))
        renumbered = np.cumsum(kept) - 1
        # Multiples of 2^-20 add up to the same in any order, so that equal ties compare equal.
        bits = np.round(-np.log2(share[kept]) * 2**20) / 2**20
        asked, said = ([renumbered[text[kept[text]]] for text in side] for side in sides)
        return cls(asked, said, _inverted(asked, len(bits)), _inverted(said, len(bits)), bits)

    def tie(self, prompt: int, answer: int) -> float:
        """Bits of the words that a prompt shares with an answer."""
        both = self.of_prompts[prompt], self.of_answers[answer]
        return float(self.bits[np.intersect1d(*both, assume_unique=True)].sum())

    def ties_of_prompt(self, prompt: int) -> Scores:
        """Bits that the prompt shares with each answer, float64 (answers,)."""
        return self._scores(self.of_prompts[prompt], self.in_answers, len(self.of_answers))

    def ties_of_answer(self, answer: int) -> Scores:
        """Bits that the answer shares with each prompt, float64 (prompts,)."""
        return self._scores(self.of_answers[answer], self.in_prompts, len(self.of_prompts))

    def _scores(self, telling: Ints, texts: Sequence[Ints], count: int) -> Scores:
        scores = np.zeros(count)
        for word in telling.tolist():
            scores[texts[word]] += self.bits[word]
        return scores


@dataclass(frozen=True)
class Misplaced:
    """A row whose answer belongs elsewhere.

    Attributes:
        row: its number.
        answer: the number of the answer to its prompt.
        answer_at: a row that holds that answer, and should not.
        prompt: the number of the prompt to its answer.
        rank: where its own answer stands among all answers, and its prompt among all prompts,
            in [0, 1]; answers dealt out at random stand at 0.5 on average.
    """

    row: int
    answer: int
    answer_at: int
    prompt: int
    rank: float


@dataclass(frozen=True)
class Pairing:
    """How many rows hold the answer to another row's prompt.

    Attributes:
        examined: rows looked at.
        telling: of them, the share that is called misplaced when all answers are dealt out at
            random; below some share nothing can be said.
        misplaced: the rows whose answers belong elsewhere; none where too little is telling.
    """

    examined: int
    telling: float
    misplaced: tuple[Misplaced, ...]


def pairing(prompts: Sequence[str], answers: Sequence[str], telling: float) -> Pairing:
    """Look for rows that are misplaced.

    Args:
        prompts: one of each row, not empty.
        answers: likewise.
        telling: the least `Pairing.telling` with which the rows themselves are looked at.
    """
    generator = np.random.default_rng(0)
    prompt_of, answer_of = _numbers(prompts), _numbers(answers)
    ties = RareWords.of(list(dict.fromkeys(prompts)), list(dict.fromkeys(answers)))
    examined = generator.permutation(len(prompts))[:EXAMINED].tolist()
    at_random = [answer_of[row] for row in generator.permutation(len(prompts)).tolist()]

    def misplaced(answer_of: Sequence[int]) -> Iterator[Misplaced]:
        dealt = Dealt(ties, prompt_of, answer_of, _holders(prompt_of), _holders(answer_of))
        texts = list(dict.fromkeys(prompts)), list(dict.fromkeys(answers))
        for row in examined:
            if (found := dealt.misplaced(row)) is None:
                continue
            exchanged = (prompt_of[row], found.answer), (found.prompt, answer_of[row])
            if not any(copied(texts[0][asked], texts[1][said]) for asked, said in exchanged):
                yield found

    share = sum(1 for _ in misplaced(at_random)) / len(examined)
    found = tuple(misplaced(answer_of)) if share >= telling else ()
    return Pairing(len(examined), share, found)


@dataclass(frozen=True)
class Dealt:
    """Rows that hold a prompt and an answer each, not necessarily its own.

    Attributes:
        ties: the words that prompts and answers share.
        prompt_of: the number of the prompt of each row.
        answer_of: the number of the answer of each row.
        with_prompt: the rows that hold each prompt.
        with_answer: the rows that hold each answer.
    """

    ties: RareWords
    prompt_of: Sequence[int]
    answer_of: Sequence[int]
    with_prompt: Sequence[Sequence[int]]
    with_answer: Sequence[Sequence[int]]

    @property
    def margin(self) -> float:
        """Bits by which a match must exceed what is usual, and both rows' own ties."""
        chance = math.log2(len(self.with_prompt) * len(self.with_answer)) / 2
        return max(_LEAST_MARGIN, chance + _MARGIN)

    def misplaced(self, row: int) -> Misplaced | None:
        """Whether both halves of a row fit far better elsewhere, where the others do not fit.

        A chance match is seldom the best for both sides, and seldom has two rows in it that
        do not fit themselves; of answers that changed places, every row has both.
        """
        ties, prompt, answer = self.ties, self.prompt_of[row], self.answer_of[row]
        own = ties.tie(prompt, answer)
        to_answers = ties.ties_of_prompt(prompt)
        theirs = self._best(to_answers, own, self.with_answer)
        if theirs is None or self._is_outdone(to_answers, theirs[0], ties.ties_of_answer):
            return None
        to_prompts = ties.ties_of_answer(answer)
        asked = self._best(to_prompts, own, self.with_prompt)
        if asked is None or self._is_outdone(to_prompts, asked[0], ties.ties_of_prompt):
            return None
        rank = (_rank(to_answers, own) + _rank(to_prompts, own)) / 2
        return Misplaced(row, *theirs, asked[0], rank)

    def _best(
        self, scores: Scores, own: float, holders: Sequence[Sequence[int]]
    ) -> tuple[int, int] | None:
        """The best match far above the own tie and the usual, and a row it does not fit."""
        usual = max(own, float(np.quantile(scores, _STANDING_OUT)))
        matches = np.flatnonzero(scores >= usual + self.margin)
        matches = matches[np.argsort(-scores[matches], kind="stable")][:_CANDIDATES]
        best, least = None, self.margin
        for match in matches.tolist():
            if scores[match] - usual < least:
                break
            rows = holders[match][:_CANDIDATES]
            fits = [self.ties.tie(self.prompt_of[row], self.answer_of[row]) for row in rows]
            worst = int(np.argmin(fits))
            gain = float(scores[match]) - max(usual, fits[worst])
            if gain >= least:
                best, least = (match, rows[worst]), np.nextafter(gain, np.inf)
        return best

    def _is_outdone(self, scores: Scores, match: int, ties_back: Callable[[int], Scores]) -> bool:
        """Whether something else fits the match clearly better."""
        return float(scores[match]) < float(ties_back(match).max()) - _SLACK


def copied(first: str, second: str) -> bool:
    """Whether much of the shorter text stands word for word in the other."""
    shorter, longer = sorted((words(_ends(first)), words(_ends(second))), key=len)
    if len(shorter) < _PASSAGE:
        return shorter == longer
    theirs = set(_passages(longer))
    passages = list(_passages(shorter))
    return sum(one in theirs for one in passages) >= _COPIED * len(passages)


def _numbers(texts: Sequence[str]) -> list[int]:
    """The number of each text among the different ones."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(text, len(numbers)) for text in texts]


def _holders(held: Sequence[int]) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in range(max(held) + 1)]
    for row, text in enumerate(held):
        rows[text].append(row)
    return rows


def _passages(text: list[str]) -> Iterator[tuple[str, ...]]:
    return zip(*(text[at:] for at in range(_PASSAGE)), strict=False)


def _ends(text: str, most: int = _READ) -> str:
    return text if len(text) <= 2 * most else f"{text[:most]} {text[-most:]}"


def _rank(scores: Scores, own: float) -> float:
    return float(np.mean(scores < own) + np.mean(scores == own) / 2)


def _numbered(texts: Sequence[str], numbers: dict[str, int], *, grow: bool) -> list[Ints]:
    """The words of each text as numbers."""
    most = min(_READ, max(_LEAST_READ, _READ_IN_ALL // len(texts)))
    found = []
    for text in texts:
        telling = vocabulary(_ends(text, most))
        if grow:
            own = [numbers.setdefault(word, len(numbers)) for word in telling]
        else:
            own = [numbers[word] for word in telling if word in numbers]
        found.append(np.asarray(own, dtype=np.int64))
    return found


def _inverted(texts: Sequence[Ints], count: int) -> list[Ints]:
    """The texts with each word."""
    telling = np.concatenate(texts)
    owners = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    order = np.argsort(telling, kind="stable")
    return np.split(owners[order], np.searchsorted(telling[order], np.arange(1, count)))
