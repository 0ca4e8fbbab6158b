"""One description for any set of texts: training rows, recorded answers, a template's output.

`describe` says what a set of texts looks like, and judges nothing. The functions below it measure
one text, as characters, words or token ids. What needs every word is measured on an even sample.
"""

import random
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, takewhile
from statistics import median

#: Texts that the dear statistics are measured on, evenly spaced, and characters of each.
SAMPLE, READ = 400, 4_000
#: Characters at the end of a text that are looked at, and of a word that is.
TAIL = 80
#: Characters beyond which a text is not split into words.
LONGEST = 1_000_000
#: Words of a text whose order is looked at, texts with fewer are left out, and random deals: four
#: words that are dealt out anew stand beside each other in half of the deals as before.
ORDERED_WORDS, FEWEST_WORDS, DEALS = 100, 6, 8

#: What chat templates write around turns, and special tokens written out.
CONTROL = re.compile(
    r"<\|[^<>|\s]{1,40}\|>|<\uff5c[^<>|\s]{1,40}\uff5c>|</?s>|<(?:start|end)_of_turn>"
    r"|\[\|[^\[\]|\s]{1,40}\|\]|<(?:bos|eos|pad|unk)>|\[/?INST\]|<</?SYS>>|\[(?:PAD|UNK|SEP|CLS|EOS|BOS)\]"
)
#: The special tokens that end an answer, written out.
END_TEXTS = (
    "<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|end|>", "<|return|>",
    "</s>", "<eos>", "<end_of_turn>", "[EOS]", "[|endofturn|]",
)  # fmt: skip
#: What a finished text ends with, closing quotes and brackets aside.
_FINAL = re.compile(r"[^\w\s,;(\[{<&'’\-–—/]['\"”’»)\]}*_`]*\s*\Z")
_WORD = re.compile(r"(?<!\w)[^\W\d_]+(?!\w)")
_LAST_WORD = re.compile(r"(?:^|\s)([^\W\d_]+)\Z")
#: Words so frequent that any text of sentences has them: English, German, French, Spanish,
#: Italian, Portuguese, Dutch.
_WORD_LIST = """
the of a an and to in is for or with that by as on it are be from not this at which
der die das und ist nicht ein eine zu den von mit für auf dem sich des im
le la les et est une un du dans que pour qui pas sur au en ne
el los las y es que por para con se del lo como
il lo gli di che non per una con del della sono
o os as e é uma do da em não com para no na
het een van en is dat niet op te met voor zijn
"""
_FUNCTION_WORDS = frozenset(_WORD_LIST.split())
#: Scripts that put no space between words (kana, Han, Hangul, Thai): a sign of them, and a run of
#: them or of others. Compiled on first use: Unicode ranges take a while.
_UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f\uf900-\ufaff"
_SIGN, _RUN = f"[{_UNSPACED}]", rf"[{_UNSPACED}]+|[^\W{_UNSPACED}]+"


@dataclass(frozen=True)
class Cut:
    """Whether many different texts stop at one length, as after an export that cuts them.

    Attributes:
        length: of the longest text, in characters.
        share: of the different texts, those of just that length.
        unfinished: of those, the share without a final sign (full stop, bracket, quotation mark).
        mid_word: of those, the share whose last word only begins a word that other texts have.
        shorter_finished: of the shorter texts, the share with a final sign; 0 without any.
        words: of letters alone, the median of how many those of just that length have.
    """

    length: int
    share: float
    unfinished: float
    mid_word: float
    shorter_finished: float
    words: float


@dataclass(frozen=True)
class WordOrder:
    """How often neighbouring words meet again in another text.

    In sentences the same words meet again ("of the", "such as") far more often than when the
    words of each text are dealt out anew.

    Attributes:
        texts: with at least four words.
        words: of them, the first hundred of each.
        shared: different words that several texts have.
        function_words: the share of words that hold sentences together.
        again: pairs of neighbours that stand in several texts, counted once in each.
        dealt: the mean of that count where each text's words are dealt out anew.
    """

    texts: int
    words: int
    shared: int
    function_words: float
    again: int
    dealt: float

    @property
    def ratio(self) -> float:
        """How many times as many as by chance; 1 for words in no order."""
        return self.again / self.dealt if self.dealt else float("inf")


@dataclass(frozen=True)
class TextFacts:
    """What a set of texts looks like.

    Attributes:
        distinct: how many different texts there are, white space at both ends aside.
        order: of the words of an even sample of 400 texts, 4,000 characters of each.
    """

    distinct: int
    top_text: str
    cut: Cut
    order: WordOrder


def describe(texts: Sequence[str]) -> TextFacts:
    """Describe a set of texts."""
    stripped = [text.strip() for text in texts]
    counts = Counter(stripped)
    return TextFacts(
        distinct=len(counts),
        top_text=counts.most_common(1)[0][0],
        cut=cut_at_one_length(list(dict.fromkeys(texts))),
        order=word_order([text[:READ] for text in _some(stripped)]),
    )


def evenly(count: int, most: int = SAMPLE) -> list[int]:
    """At most so many places, evenly spaced, the first and the last among them."""
    chosen = min(count, most)
    return [round(i * (count - 1) / max(1, chosen - 1)) for i in range(chosen)]


def ends(text: str, most: int = READ // 2) -> str:
    """A text, or so many characters of its beginning and its end where it is longer than both."""
    return text if len(text) <= 2 * most else f"{text[:most]}\n{text[-most:]}"


# Whole sets of texts.


def cut_at_one_length(texts: Sequence[str]) -> Cut:
    """How many texts stop at the greatest length, and whether they look cut there."""
    length = max(map(len, texts))
    longest = [text for text in texts if len(text) == length]
    shorter = [text for text in texts if 0 < len(text) < length]
    known = {word for text in _some(texts) for word in text[:READ].split()[:-1]}
    begun = {word[:n] for word in known if len(word) <= TAIL for n in range(1, len(word))} - known
    lasts = [match[1] for text in _some(longest) if (match := _LAST_WORD.search(text[-TAIL:]))]
    return Cut(
        length,
        len(longest) / len(texts),
        1.0 - _finished(_some(longest)),
        sum(word in begun for word in lasts) / len(_some(longest)),
        _finished(_some(shorter)),
        median(len(_WORD.findall(text[:READ])) for text in _some(longest)),
    )


def word_order(texts: Sequence[str]) -> WordOrder:
    """Count the neighbours that meet again in the order given, and in others."""
    rng = random.Random(0)
    firsts = (text.split(None, ORDERED_WORDS)[:ORDERED_WORDS] for text in texts)
    kept = [[word.lower() for word in row] for row in firsts if len(row) >= FEWEST_WORDS]
    count = sum(map(len, kept))
    function_words = sum(word in _FUNCTION_WORDS for row in kept for word in row)
    dealt = [_again([rng.sample(row, len(row)) for row in kept]) for _ in range(DEALS)]
    return WordOrder(
        texts=len(kept),
        words=count,
        shared=sum(n > 1 for n in Counter(word for row in kept for word in set(row)).values()),
        function_words=function_words / count if count else 0.0,
        again=_again(kept),
        dealt=sum(dealt) / DEALS,
    )


def _again(texts: Sequence[Sequence[str]]) -> int:
    meets = Counter(pair for row in texts for pair in set(pairwise(row)))
    return sum(count for count in meets.values() if count > 1)


def _finished(texts: Sequence[str]) -> float:
    return sum(map(is_finished, texts)) / len(texts) if texts else 0.0


def _some(texts: Sequence[str]) -> list[str]:
    return [texts[i] for i in evenly(len(texts))]


# One text.


def is_finished(text: str) -> bool:
    """Whether a text ends with a final sign: a full stop, a bracket, a quotation mark."""
    return _FINAL.search(text[-TAIL:]) is not None


def words(text: str) -> list[str]:
    """Lower-case words in order; each character of a script without spaces is one."""
    runs: list[str] = re.findall(_RUN, text.lower())
    if text.isascii() or not re.search(_SIGN, text):
        return runs
    return [word for run in runs for word in (run if re.match(_SIGN, run) else (run,))]


def vocabulary(text: str) -> set[str]:
    """The different lower-case words; of a script without spaces, its pairs of characters."""
    runs = set(re.findall(_RUN, text.lower()))
    if text.isascii() or not re.search(_SIGN, text):
        return runs
    unspaced = {run for run in runs if len(run) > 1 and re.match(_SIGN, run)}
    return (runs - unspaced) | {sign + after for run in unspaced for sign, after in pairwise(run)}


# One text as a sequence of units: words, characters or token ids.


def in_common(units: Iterable[Hashable], others: Iterable[Hashable]) -> int:
    """How many units two sequences begin with together."""
    pairs = zip(units, others, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def ngrams(units: Sequence[Hashable], n: int) -> list[tuple[Hashable, ...]]:
    """All passages of n neighbouring units."""
    return [tuple(units[i : i + n]) for i in range(len(units) - n + 1)]


def distinct_n(units: Sequence[Hashable], n: int) -> float:
    """Unique n-grams over n-grams (Li et al. 2016, distinct-n); 1.0 where there is none."""
    grams = ngrams(units, n)
    return len(set(grams)) / len(grams) if grams else 1.0


def top_share(units: Sequence[Hashable]) -> tuple[Hashable | None, float]:
    """The most frequent unit and the share of all units that it makes up."""
    if not units:
        return None, 0.0
    unit, count = Counter(units).most_common(1)[0]
    return unit, count / len(units)


def run_share(units: Sequence[Hashable], shortest: int = 4) -> float:
    """Share of the units that stand in runs of one unit, at least `shortest` long."""
    lengths = [len(list(run)) for _, run in groupby(units)]
    return sum(length for length in lengths if length >= shortest) / len(units) if units else 0.0


def tail_loop(units: Sequence[Hashable], longest_period: int = 24) -> tuple[int, int]:
    """The longest loop at the end: its period, and the units it covers.

    A loop is a suffix in which every unit equals the one a period before it. The first
    period counts as covered. `(0, 0)` where no suffix repeats.
    """
    best = (0, 0)
    for period in range(1, min(longest_period, len(units) // 2) + 1):
        matched = 0
        for i in range(len(units) - 1, period - 1, -1):
            if units[i] != units[i - period]:
                break
            matched += 1
        if matched >= period and matched + period > best[1]:
            best = (period, matched + period)
    return best


def word_f1(units: Sequence[Hashable], expected: Sequence[Hashable]) -> float:
    """Overlap of two bags of words: 2·common / (both) (Rajpurkar et al. 2016)."""
    common = sum((Counter(units) & Counter(expected)).values())
    return 2 * common / (len(units) + len(expected)) if common else 0.0
