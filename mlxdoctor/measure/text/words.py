"""The words of a text in any script, and how much two texts share."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise

#: Characters beyond which a text is no answer, whoever gave it: no more of it is looked at.
LONGEST = 1_000_000
#: Scripts that put no space between words: kana, Han, Hangul, Thai.
_UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f\uf900-\ufaff"


def words(text: str) -> list[str]:
    """Lower-case words in order; each character of an unspaced script is one."""
    found: list[str] = []
    for run in _run().findall(text.lower()):
        found.extend(run if _is_unspaced().match(run) else (run,))
    return found


def vocabulary(text: str) -> set[str]:
    """The different lower-case words; of an unspaced script, its pairs of characters."""
    found: set[str] = set()
    for run in _run().findall(text.lower()):
        if len(run) > 1 and _is_unspaced().match(run):
            found.update(first + second for first, second in pairwise(run))
        else:
            found.add(run)
    return found


def rarity(texts: Iterable[set[str]]) -> dict[str, float]:
    """How telling each word is, in nats: log((texts + 1) / texts with the word)."""
    texts = list(texts)
    counts = Counter(word for text in texts for word in text)
    return {word: math.log((len(texts) + 1) / count) for word, count in counts.items()}


def shared_share(first: set[str], second: set[str], weights: Mapping[str, float]) -> float:
    """Weight of the words that both have over that of the lighter text, in [0, 1]."""
    lighter = min(sum(weights[word] for word in text) for text in (first, second))
    return sum(weights[word] for word in first & second) / lighter if lighter > 0 else 0.0


# Compiled on first use: most runs have no answers to compare, and Unicode ranges take a while.
@cache
def _run() -> re.Pattern[str]:
    return re.compile(rf"[{_UNSPACED}]+|[^\W{_UNSPACED}]+")


@cache
def _is_unspaced() -> re.Pattern[str]:
    return re.compile(f"[{_UNSPACED}]")
