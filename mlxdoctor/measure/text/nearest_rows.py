"""What is expected to a prompt, beside what the rows with the most similar prompts teach.

Answers that are joined to the wrong rows, cut, converted (`00124` to `124`) or given away by their
prompts take up more or less of these than the answers that are expected do.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.engines.text import word_f1
from mlxdoctor.evidence.dataset import Pair

#: Rows that are looked through, and the most similar ones of these to each prompt.
EXAMINED, NEAREST = 2_000, 5


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", unicodedata.normalize("NFC", text))


@dataclass(frozen=True)
class Compared:
    """A figure of expected answers and of the rows' answers to similar prompts, means over prompts.

    Attributes:
        error: standard error of the difference, over prompts.
        place: of the prompt at which they differ most.
        row: of the similar row that differs most from it.
    """

    expected: float
    taught: float
    error: float
    place: int
    row: int

    @property
    def difference(self) -> float:
        """The figure of the expected answers less that of the rows'."""
        return self.expected - self.taught


def nearest(prompts: Sequence[str], asked: Sequence[str]) -> NDArray[np.int64]:
    """The rows with the most words in common with each prompt that is asked (Jaccard).

    Args:
        prompts: those of the rows.

    Returns:
        Their places, most similar first, int64 (asked, at most `NEAREST`).
    """
    step = -(-len(prompts) // EXAMINED)
    places = np.arange(0, len(prompts), step)
    known = [set(_words(prompts[place])) for place in places.tolist()]

    def ranked(text: str) -> NDArray[np.int64]:
        words = set(_words(text))
        alike = np.array([len(words & own) / max(len(words | own), 1) for own in known])
        return np.asarray(places[np.argsort(-alike, kind="stable")[:NEAREST]])

    return np.array([ranked(text) for text in asked])


def taken_up(rows: Sequence[Pair], wanted: Sequence[Pair], near: NDArray[np.int64]) -> Compared:
    """The share of the answers' words that stand in their own prompts."""
    return _compared(
        [_share(pair) for pair in wanted],
        [[_share(rows[row]) for row in each] for each in near],
        near,
    )


def agreement(
    columns: tuple[Sequence[str], Sequence[str]], wanted: Sequence[Pair], near: NDArray[np.int64]
) -> Compared:
    """How much of the expected answers two columns of the rows have (F1): the other one first."""

    def of(column: Sequence[str]) -> list[list[float]]:
        return [
            [word_f1(_words(column[row]), _words(pair.answer)) for row in each]
            for pair, each in zip(wanted, near, strict=True)
        ]

    other, own = map(of, columns)
    return _compared([float(np.mean(each)) for each in other], own, near)


def _share(pair: Pair) -> float:
    prompt, answer = set(_words(pair.prompt)), _words(pair.answer)
    return sum(word in prompt for word in answer) / len(answer) if answer else 0.0


def _compared(
    expected: Sequence[float], taught: Sequence[Sequence[float]], near: NDArray[np.int64]
) -> Compared:
    first, second = np.array(expected), np.array([np.mean(each) for each in taught])
    apart = first - second
    place = int(np.argmax(np.abs(apart)))
    error = float(apart.std(ddof=1)) / np.sqrt(len(apart))
    means = float(first.mean()), float(second.mean())
    row = int(np.argmax(np.abs(np.array(taught[place]) - first[place])))
    return Compared(*means, float(error), place, int(near[place][row]))
