"""Whether one part of a file answers like questions otherwise than the rest of it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.engines.text import sampled

_WORD = re.compile(r"\w+")
#: Rows that are read at most, and the fewest that are tested of a part.
ROWS, TESTED = 1000, 20
#: Share of a label in the part that is learned from, over that in the other, to be tested.
MET = 0.2
#: Different answers at most, and of all rows: more are no labels.
LABELS, LABEL_SHARE = 50, 0.2
#: Share of a question's words that the other part must know, to tell its answer by them.
KNOWN = 0.8
#: Cuts that are tried, evenly spaced.
CUTS = 17

Matrix = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Relabelling:
    """The cut at which the two parts of a file differ most in how they answer.

    Attributes:
        row: the first row of the second part, from 0.
        within: of the larger part, the share of rows whose answer is told by the words of the
            question, learned from its other rows.
        across: the same of the smaller part, learned from the larger.
        tested: how many rows of the smaller part that is.
    """

    row: int
    within: float
    across: float
    tested: int


def relabelling(prompts: Sequence[str], answers: Sequence[str]) -> Relabelling | None:
    """The cut with the greatest difference; None of rows that are no labelled questions.

    A naive Bayes classifier (Bernoulli, on words) tells labels by the words of a question. Rows
    of the smaller part count whose words and label the larger part has as well.
    """
    places = sampled(len(prompts), ROWS)
    labels = {text: number for number, text in enumerate(dict.fromkeys(answers))}
    if not 2 <= len(labels) <= min(LABELS, LABEL_SHARE * len(places)):
        return None
    words = _words([prompts[place] for place in places])
    wanted = np.array([labels[answers[place]] for place in places])
    best = None
    for cut in np.linspace(0.1, 0.9, CUTS):
        parts = np.arange(len(places)) < round(cut * len(places))
        larger = parts if parts.sum() * 2 > len(parts) else ~parts
        model, known = _learned(words[larger], wanted[larger], len(labels))
        share = words @ known / np.maximum(words.sum(axis=1), 1)
        # Of rows that are sorted by their labels, a part has hardly any of the other part's.
        here, there = (
            np.bincount(wanted[part], minlength=len(labels)) / part.sum()
            for part in (larger, ~larger)
        )
        tested = ~larger & (share >= KNOWN) & ((here > 0) & (here >= MET * there))[wanted]
        if tested.sum() < TESTED:
            continue
        across = _right(model, words[tested], wanted[tested])
        within = _within(words[larger], wanted[larger], len(labels))
        if best is None or within - across > best.within - best.across:
            row = places[int(parts.sum())]
            best = Relabelling(row, within, across, int(tested.sum()))
    return best


def _words(texts: Sequence[str]) -> Matrix:
    """Which words each text has: float32 (texts, words)."""
    numbers: dict[str, int] = {}
    rows = [
        [numbers.setdefault(word, len(numbers)) for word in set(_WORD.findall(text.lower()))]
        for text in texts
    ]
    words = np.zeros((len(texts), len(numbers)), np.float32)
    for row, present in zip(words, rows, strict=True):
        row[present] = 1.0
    return words


def _learned(words: Matrix, wanted: Labels, labels: int) -> tuple[Any, Matrix]:
    """Weights and biases of a classifier, and which words it has met."""
    members = np.eye(labels, dtype=np.float32)[wanted]
    counts, totals = members.T @ words, members.sum(axis=0)
    chances = (counts + 0.5) / (totals[:, None] + 1.0)
    weights = np.log(chances) - np.log1p(-chances)
    biases = np.log1p(-chances).sum(axis=1) + np.log(np.maximum(totals, 1e-9))
    return (weights, biases), (counts.sum(axis=0) > 0).astype(np.float32)


def _right(model: Any, words: Matrix, wanted: Labels) -> float:
    weights, biases = model
    return float(((words @ weights.T + biases).argmax(axis=1) == wanted).mean())


def _within(words: Matrix, wanted: Labels, labels: int) -> float:
    """Each half of the rows, drawn at random, told by the other half."""
    half = np.random.default_rng(0).permutation(len(wanted)) % 2 == 0
    shares = [
        _right(_learned(words[learned], wanted[learned], labels)[0], words[told], wanted[told])
        for learned, told in ((half, ~half), (~half, half))
    ]
    return sum(shares) / 2
