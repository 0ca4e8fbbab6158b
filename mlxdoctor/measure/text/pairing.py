"""Whether answers belong to their prompts, and whether those to one prompt contradict each other.

Words that few rows have (names, numbers, subjects) tie an answer to its prompt, each by
log2(texts / texts with the word) bits. A row is misplaced if its prompt fits the answer of another
row, and its answer the prompt of another row, by a margin that grows with the number of rows; if
these two rows do not fit themselves either; if each match is the best for both of its sides; and
if nothing is merely copied word for word. Whether the rows can tell is measured too: the answers
are dealt out at random, and most rows must then be misplaced.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.engines.text import ends, ngrams, vocabulary, words
from mlxdoctor.evidence.dataset import Pair

Ints = NDArray[np.int64]
Scores = NDArray[np.float64]

#: The two sides of a row, as places of a pair.
PROMPT, ANSWER = 0, 1
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
#: Bits are multiples of this, which add up to the same in any order: equal ties compare equal.
_GRAIN = 2.0**-20

_NUMBER = re.compile(r"[-+]?[\d.,]*\d%?")
#: Longer answers (words) differ by chance; more answers to a prompt were meant to differ.
_SHORT, _MOST_ANSWERS = 40, 10
#: Share of the shorter answer's rare words: the same words in another order share all of them,
#: other facts in one sentence 0.4.
_ALIKE = 0.5
#: Different answers of a classifier at most, and rows for each at least.
_LABELS, _ROWS_PER_LABEL = 50, 10


@dataclass(frozen=True)
class RareWords:
    """Different prompts and different answers, as sets of the rare words that both sides use.

    Attributes:
        texts, words: of the prompts, and of the answers.
        places: the numbers of the prompts, and of the answers, with each word.
        bits: of each word, log2(texts / texts with it), of the side where it is commoner.
    """

    texts: Sequence[Sequence[str]]
    words: Sequence[Sequence[Collection[str]]]
    places: Sequence[Mapping[str, Ints]]
    bits: Mapping[str, float]

    @classmethod
    def of(cls, prompts: Sequence[str], answers: Sequence[str]) -> Self:
        """Index different prompts and different answers, of which there may be fewer."""
        sides = []
        for texts in (prompts, answers):
            most = min(_READ, max(_LEAST_READ, _READ_IN_ALL // len(texts)))
            sides.append([vocabulary(ends(text, most)) for text in texts])
        counts = [Counter(word for text in side for word in text) for side in sides]
        bits = {}
        for word in counts[PROMPT].keys() & counts[ANSWER].keys():
            share = 0.0
            for side, count in zip(sides, counts, strict=True):
                common = max(_COMMON_TEXTS, _LEAST_COMMON * len(side))
                is_rare = count[word] <= max(1, min(_COMMON_SHARE * len(side), common))
                share = max(share, count[word] / len(side)) if is_rare else math.inf
            if share < math.inf:
                bits[word] = round(-math.log2(share) / _GRAIN) * _GRAIN
        kept = [[text & bits.keys() for text in side] for side in sides]
        places: list[dict[str, list[int]]] = [defaultdict(list), defaultdict(list)]
        for side, numbers in zip(kept, places, strict=True):
            for number, text in enumerate(side):
                for word in text:
                    numbers[word].append(number)
        arrays = [{word: np.array(found) for word, found in side.items()} for side in places]
        return cls((prompts, answers), kept, arrays, bits)

    def ties(self, side: int, text: int) -> Scores:
        """Bits that a prompt shares with each answer, or an answer with each prompt: float64."""
        other = 1 - side
        scores = np.zeros(len(self.words[other]))
        for word in self.words[side][text]:
            scores[self.places[other][word]] += self.bits[word]
        return scores


@dataclass(frozen=True)
class Misplaced:
    """A row whose answer belongs elsewhere.

    Attributes:
        answer_at: a row that holds the answer to its prompt, and should not.
        rank: where its own answer stands among all answers, and its prompt among all prompts,
            in [0, 1]; answers dealt out at random stand at 0.5 on average.
    """

    row: int
    answer_at: int
    rank: float


@dataclass(frozen=True)
class Pairing:
    """Rows that hold the answer to another row's prompt, of so many examined.

    Attributes:
        telling: the share that is called misplaced when all answers are dealt out at random.
        misplaced: none where too little is telling.
    """

    examined: int
    telling: float
    misplaced: tuple[Misplaced, ...]


def pairing(prompts: Sequence[str], answers: Sequence[str], telling: float) -> Pairing:
    """Look for rows that are misplaced, by their prompts and answers, which are not empty.

    It takes so much of `Pairing.telling`.
    """
    generator = np.random.default_rng(0)
    texts = list(dict.fromkeys(prompts)), list(dict.fromkeys(answers))
    ties = RareWords.of(*texts)
    numbers = [{text: number for number, text in enumerate(side)} for side in texts]
    prompt_of = [numbers[PROMPT][prompt] for prompt in prompts]
    answer_of = [numbers[ANSWER][answer] for answer in answers]
    examined = generator.permutation(len(prompts))[:EXAMINED].tolist()
    at_random = [answer_of[row] for row in generator.permutation(len(prompts)).tolist()]

    def misplaced(answer_of: Sequence[int]) -> tuple[Misplaced, ...]:
        dealt = _Dealt(ties, (prompt_of, answer_of))
        return tuple(filter(None, map(dealt.misplaced, examined)))

    share = len(misplaced(at_random)) / len(examined)
    return Pairing(len(examined), share, misplaced(answer_of) if share >= telling else ())


class _Dealt:
    """Rows that hold a prompt and an answer each, not necessarily its own."""

    def __init__(self, ties: RareWords, held: Sequence[Sequence[int]]) -> None:
        """Of the rows `held` has the number of the prompt, and of the answer."""
        self.ties = ties
        self.held = held
        self.holders: list[dict[int, list[int]]] = [defaultdict(list), defaultdict(list)]
        for side in (PROMPT, ANSWER):
            for row, text in enumerate(held[side]):
                self.holders[side][text].append(row)
        chance = math.log2(len(self.holders[PROMPT]) * len(self.holders[ANSWER])) / 2
        #: Bits by which a match must exceed what is usual, and both rows' own ties.
        self.margin = max(_LEAST_MARGIN, chance + _MARGIN)

    def own(self, row: int) -> float:
        """Bits that the prompt and the answer of a row share."""
        asked, answered = (self.ties.words[side][self.held[side][row]] for side in (PROMPT, ANSWER))
        return sum(self.ties.bits[word] for word in asked if word in answered)

    def misplaced(self, row: int) -> Misplaced | None:
        """Whether both halves of a row fit far better elsewhere, where the others do not fit."""
        own = self.own(row)
        rows, ranks = [], []
        for side in (PROMPT, ANSWER):
            text = self.held[side][row]
            scores = self.ties.ties(side, text)
            best = self._best(scores, own, self.holders[1 - side])
            if best is None:
                return None
            match, holder = best
            if float(scores[match]) < float(self.ties.ties(1 - side, match).max()) - _SLACK:
                return None
            if copied(self.ties.texts[side][text], self.ties.texts[1 - side][match]):
                return None
            rows.append(holder)
            ranks.append(float(np.mean(scores < own) + np.mean(scores == own) / 2))
        return Misplaced(row, rows[PROMPT], sum(ranks) / 2)

    def _best(
        self, scores: Scores, own: float, holders: Mapping[int, Sequence[int]]
    ) -> tuple[int, int] | None:
        """The best match far above the own tie and the usual, and a row it does not fit."""
        usual = max(own, float(np.quantile(scores, _STANDING_OUT)))
        matches = np.flatnonzero(scores >= usual + self.margin)
        matches = matches[np.argsort(-scores[matches], kind="stable")][:_CANDIDATES]
        best, least = None, self.margin
        for match in matches.tolist():
            if scores[match] - usual < least:
                break
            worst = min(holders[match][:_CANDIDATES], key=self.own)
            gain = float(scores[match]) - max(usual, self.own(worst))
            if gain >= least:
                best, least = (match, worst), np.nextafter(gain, np.inf)
        return best


def copied(first: str, second: str) -> bool:
    """Whether much of the shorter text stands word for word in the other."""
    shorter, longer = sorted((words(ends(first, _READ)), words(ends(second, _READ))), key=len)
    if len(shorter) < _PASSAGE:
        return shorter == longer
    theirs = set(ngrams(longer, _PASSAGE))
    passages = ngrams(shorter, _PASSAGE)
    return sum(passage in theirs for passage in passages) >= _COPIED * len(passages)


@dataclass(frozen=True)
class Contradictions:
    """Rows whose prompt has another answer elsewhere.

    Attributes:
        outvoted: rows with a short answer that says something else than the most frequent one to
            the same prompt, and is a number or the answer to another prompt too.
        exclusive: of these, how many rows where both answers are numbers, or labels.
        prompts: different prompts of the rows that are outvoted.
    """

    outvoted: tuple[int, ...]
    exclusive: int
    prompts: int


def contradictions(pairs: Sequence[Pair]) -> Contradictions:
    """Compare the answers to the same prompt; rows without a prompt are left out."""
    answers = [" ".join(pair.answer.split()).casefold() for pair in pairs]
    rows_of, prompts_of = defaultdict[str, list[int]](list), defaultdict[str, set[str]](set)
    for row, pair in enumerate(pairs):
        prompts_of[answers[row]].add(pair.prompt)
        if pair.prompt:
            rows_of[pair.prompt].append(row)
    are_labels = len(prompts_of) <= min(_LABELS, len(pairs) / _ROWS_PER_LABEL)
    again = [rows for rows in rows_of.values() if len({answers[row] for row in rows}) > 1]
    repeated = {answers[row]: vocabulary(answers[row]) for rows in again for row in rows}
    with_word = Counter(word for text in repeated.values() for word in text)
    weights = {word: math.log((len(repeated) + 1) / n) for word, n in with_word.items()}
    short = {answer for answer in repeated if answer and len(words(answer)) <= _SHORT}
    outvoted: list[int] = []
    exclusive = prompts = 0
    for rows in again:
        counts = Counter(answers[row] for row in rows)
        usual = counts.most_common(1)[0][0]
        if usual not in short or len(counts) > _MOST_ANSWERS:
            continue
        others = {
            answer: all(_NUMBER.fullmatch(text.strip(" .$€£")) for text in (answer, usual))
            for answer in counts.keys() & short - {usual}
        }
        against = [
            row
            for row in rows
            if (answer := answers[row]) in others
            and (others[answer] or len(prompts_of[answer]) > 1)
            and _shared(repeated[answer], repeated[usual], weights) < _ALIKE
        ]
        outvoted += against
        exclusive += sum(are_labels or others[answers[row]] for row in against)
        prompts += bool(against)
    return Contradictions(tuple(sorted(outvoted)), exclusive, prompts)


def _shared(first: set[str], second: set[str], weights: Mapping[str, float]) -> float:
    """Weight of the words that both have over that of the lighter text, in [0, 1]."""
    lighter = min(sum(weights[word] for word in text) for text in (first, second))
    return sum(weights[word] for word in first & second) / lighter if lighter > 0 else 0.0
