"""Whether the words of many texts stand in an order, told from the texts alone.

In sentences the same words meet again and again ("of the", "such as"): pairs of neighbours come
again in other texts far more often than they do when the words of each text are dealt out anew.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from mlxdoctor.measure.text.words import LONGEST

#: Words that hold sentences together, so frequent that any text of sentences has them: English,
#: German, French, Spanish, Italian, Portuguese, Dutch.
_BINDING_WORDS = """
the of a an and to in is for or with that by as on it are be from not this at which
der die das und ist nicht ein eine zu den von mit für auf dem sich des im
le la les et est une un du dans que pour qui pas sur au en ne
el los las y es que por para con se del lo como
il lo gli di che non per una con del della sono
o os as e é uma do da em não com para no na
het een van en is dat niet op te met voor zijn
"""
_BINDING = frozenset(_BINDING_WORDS.split())
_CLOSES = {")": "(", "]": "[", "}": "{"}
_BRACKET = re.compile(r"[()\[\]{}]")
#: Words of a text that are read, and texts of fewer words that are left out.
MOST_WORDS, FEWEST_WORDS = 100, 4
#: How often the words are dealt out anew.
DEALS = 8


@dataclass(frozen=True)
class WordOrder:
    """How often neighbours meet again in another text.

    Attributes:
        texts: with at least four words.
        words: of them, the first hundred of each.
        binding: the share of words that hold sentences together.
        again: pairs of neighbours that stand in several texts, counted once in each.
        dealt: the mean of that count where each text's words are dealt out anew.
    """

    texts: int
    words: int
    binding: float
    again: int
    dealt: float

    @property
    def ratio(self) -> float:
        """How many times as many as by chance; 1 for words in no order."""
        return self.again / self.dealt if self.dealt else float("inf")


def word_order(texts: Sequence[str], seed: int = 0) -> WordOrder:
    """Count the neighbours that meet again in the order given, and in others."""
    rng = random.Random(seed)
    found = [[word.lower() for word in text.split(None, MOST_WORDS)[:MOST_WORDS]] for text in texts]
    kept = [words for words in found if len(words) >= FEWEST_WORDS]
    count = sum(map(len, kept))
    binding = sum(word in _BINDING for words in kept for word in words)
    dealt = [_again([rng.sample(words, len(words)) for words in kept]) for _ in range(DEALS)]
    share = binding / count if count else 0.0
    return WordOrder(len(kept), count, share, _again(kept), sum(dealt) / DEALS)


def is_nested(text: str) -> bool | None:
    """Whether each bracket is closed by its own kind, in turn.

    None for a text without any, and for one that is too long to be an answer that somebody wrote.
    """
    signs = _BRACKET.findall(text) if len(text) <= LONGEST else []
    open_: list[str] = []
    for sign in signs:
        if sign not in _CLOSES:
            open_.append(sign)
        elif not open_ or open_.pop() != _CLOSES[sign]:
            return False
    return not open_ if signs else None


def _again(texts: Sequence[Sequence[str]]) -> int:
    meets = Counter(pair for words in texts for pair in set(pairwise(words)))
    return sum(count for count in meets.values() if count > 1)
