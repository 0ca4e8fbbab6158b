"""What the words between the numbers of a line say: names, counters, units.

Home-made trainers print `key = value`, `key: value` or `key value`, in any order and with any
separators; `parse` takes such a line apart.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from mlxdoctor.evidence.logs.log_format import LIKE_NUMBER
from mlxdoctor.evidence.logs.metric_names import CANONICAL, KNOWN, canonical, snake_case, unique
from mlxdoctor.evidence.logs.text_stream import NUMBER

#: Numbers in a line that are looked at.
MAX_NUMBERS = 256

#: A number that is not part of a word, save in `Peak58.9`, and the suffix that stands for
#: thousands or millions.
_NUMBERS = re.compile(rf"(?:(?<![\w.])|(?<=[Pp]eak)|(?<=[Pp]eak mem))({NUMBER}(?:[kKM](?![\w/]))?)")
#: When a line was written; a logger puts it first.
_TIMES = re.compile(
    r"\b\d{4}[-/.]\d\d?[-/.]\d\d?(?:[T _]{1,4}\d\d?:\d\d(?::\d\d(?:[.,]\d+)?)?)?"
    r"(?:Z\b|\s?[+-]\d\d:?\d\d\b)?"
    r"|\b\d\d?[-/.]\d\d?(?:[-/.]\d{2,4})?[T ,]{1,4}\d\d?:\d\d(?::\d\d(?:[.,]\d+)?)?"
    r"|(?<![\d:.])\d\d?:\d\d:\d\d(?:[.,]\d+)?(?![\d:])|(?<![\d:.])\d\d?:\d\d(?![\d:])"
)
#: A time that was taken, in two or more units.
_DURATION = re.compile(r"(?<![\w.])(?:(\d{1,4})h )?(\d{1,4})m (\d{1,2}(?:\.\d+)?)s\b")
#: Where a progress bar begins, and what stands behind its percentage.
_BAR = re.compile(r"\s{0,8}\d{1,3}%\s?\|")
#: A scalar as NumPy, MLX and torch print it.
_SCALAR = re.compile(
    rf"(?:[\w.]{{0,30}}\b)?(?:array|tensor|float\d\d|bfloat\d\d)\(\s{{0,4}}({NUMBER})"
    r"(?:,[^()]{0,80})?\)"
)
#: `loss(avg)=2.5`.
_OF_WHICH = re.compile(r"(?<=\w)\(([A-Za-z]\w{0,15})\)(?=\s{0,2}[=:])")
#: A counter's letter or word glued to its number.
_GLUED = re.compile(
    r"(?<![\w.])(E|Ep|EP|B|S|IT|It|epoch|Epoch|ep|step|Step|iter|Iter|it|batch|Batch)(?=\d)"
    r"|(?<![\w.])([ebs])(?=\d+(?:/\d|\s?[|:,;\]]|\s[ebs]\d))"
)
_COUNTER = re.compile(
    r"(?:^|(?<=[^\w/.-]))(?:(?P<epoch>epochs?|ep|e)|(?P<batch>batch(?:es)?|b)"
    r"|(?P<step>global[_ ]step|steps?|iterations?|iters?|its?|updates?|up(?=\.)|s|i))"
    r"\.?(?:\s(?:no\.?|number|idx|index))?['\"]?\s*(?:(?:[#:=\[(@*~]|->|=>|→)\s*){0,2}['\"]?$",
    re.IGNORECASE,
)
#: What stands before a word for a batch that was counted for something else.
_OF_OTHERS = re.compile(
    r"\b(?:skipped|total|max|num|per|warm-?up|remaining|left|bad|good|micro|every|last|best|failed"
    r"|number of|of|dropped|empty|eval|val|test)[\s_-]$",
    re.IGNORECASE,
)
_TOTAL = ("/", "of", "out of", "/ ")
_KEY = re.compile(r"['\"]([^'\"]{1,80})['\"]\s*[:=]\s*['\"]?$")
_DELIMITER = re.compile(
    r"[,|;(\[{}\])•·→⇒│┃║»]|:\s|\s{2,}|\s[-–—>~]+\s|--+|\t|[.!?]\s|\.\.+|…|[^\w\s./%@#'\"*=:&+-]\s?"
)
_UNIT = re.compile(
    r"\s?(?:(?:k|M)?(?:seconds?|secs?|ms|µs|s|iterations?|iters?|its?|it|tokens?|toks?|samples?"
    r"|steps?|ex|rows|GiB|GB|G|MiB|MB|%)(?:/(?:seconds?|sec|s|iteration|iter|it|step|batch))?)"
    r"(?![\w=:])"
)
#: A unit of time that its number is glued to.
_SECONDS = re.compile(r"^[mµ]?s\b")
#: A score of so many words or answers: `BLEU-2 65.8`, `pass@1: 0.4`.
_ORDER = re.compile(
    r"\b(bleu|rouge|hits?|recall|precision|ndcg|pass|top|mean|maj|best)[-@](\d{1,3})\b",
    re.IGNORECASE,
)
_VERB = re.compile(r"\s(?:is|was|of|at|now|progression|history)$", re.IGNORECASE)
_WHICH = re.compile(
    r"^(?:(?:with|has|had) )?(?:an? |the |its |our )?(?:(?:initial|final|last|current) )?(?=\w)",
    re.IGNORECASE,
)
_SENTENCE = re.compile(
    r"\b(?:the|was|is|are|to|of|at|after|has|had|a|an|went|with|by|from|for|we|my|our)\b",
    re.IGNORECASE,
)
_SPLITS = {
    "val": re.compile(
        r"\b(?:val|valid|validation|validating|validate|eval|evaluation|evaluating|held-?out)\b",
        re.IGNORECASE,
    ),
    "dev": re.compile(r"\bdev\b", re.IGNORECASE),
    "test": re.compile(r"\b(?:test|testing)\b", re.IGNORECASE),
}
_RATES = frozenset(
    alias
    for name in ("iterations_per_second", "seconds_per_iteration", "tokens_per_second")
    for alias in CANONICAL[name]
)


@dataclass(frozen=True)
class Words:
    """A line taken apart.

    Attributes:
        names: the name of each number, in the line's own words, of its split where it says
            that it is of one; None for a counter or none.
        counters: word -> place, of the numbers that count: "epoch", "step" or "batch".
        totals: place of a counter -> place of how many there are to be.
        is_sentence: whether the words around the numbers are those of a sentence.
    """

    names: tuple[str | None, ...]
    counters: dict[str, int]
    totals: dict[int, int]
    is_sentence: bool

    @cached_property
    def columns(self) -> tuple[str | None, ...]:
        """The metric of each number, or None."""
        canonicals = [None if name is None else canonical(name) for name in self.names]
        return unique(canonicals, [name or "" for name in self.names])


def before_bar(line: str) -> str:
    """What stands before a progress bar; the line where there is none."""
    bar = _BAR.search(line)
    return line[: bar.start()] if bar else line


def cleaned(line: str) -> str:
    """The line without times, a progress bar behind it, and what is printed around a scalar."""
    line = before_bar(line)
    if ":" in line:
        line = _TIMES.sub("", line)
    if "m " in line:
        line = _DURATION.sub(_in_seconds, line)
    if "(" in line:
        line = _OF_WHICH.sub(r"_\1", _SCALAR.sub(r"\1", line))
    if "-" in line or "@" in line:
        line = _ORDER.sub(r"\1_\2", line)
    return _GLUED.sub(lambda match: f"{match[0]} ", line)


def _in_seconds(taken: re.Match[str]) -> str:
    hours, minutes, seconds = (float(part or 0) for part in taken.groups())
    return f"{3600.0 * hours + 60.0 * minutes + seconds:g}s"


def split(line: str) -> tuple[tuple[str, ...], list[str]]:
    """The texts of a line (one more than numbers), and its numbers."""
    pieces = _NUMBERS.split(line, maxsplit=MAX_NUMBERS)
    return tuple(pieces[0::2]), pieces[1::2]


def understand(texts: tuple[str, ...]) -> Words:
    """What the texts around a line's numbers say."""
    before = texts[:-1]
    totals = {
        place - 1: place
        for place, text in enumerate(before)
        if place and text.strip().lower() in _TOTAL
    }
    counters = _counters(before, totals)
    places = set(counters.values()) | set(totals.values())
    begun = min(counters.values(), default=0)
    names = tuple(
        None
        if place in places
        else _named(text, texts[place + 1], is_first=not place, is_prefix=place < begun)
        for place, text in enumerate(before)
    )
    # `skipped batches: 27/50`.
    names = tuple(
        f"{names[place - 1]} of"
        if place in totals.values() and place - 1 not in counters.values() and names[place - 1]
        else name
        for place, name in enumerate(names)
    )
    said = " ".join(text for place, text in enumerate(before) if place not in totals.values())
    return Words(
        tuple(_of_split(before, names)), counters, totals, _SENTENCE.search(said) is not None
    )


def _counters(before: Sequence[str], totals: dict[int, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    # In `23s 8ms/step` the letter is a unit.
    spoken = [_SECONDS.sub("", text) if place else text for place, text in enumerate(before)]
    for place, text in enumerate(spoken):
        if place in totals.values() or (match := _COUNTER.search(text)) is None:
            continue
        kind = match.lastgroup or ""
        if not _OF_OTHERS.search(text[: match.start(kind)]):
            found.setdefault(kind, place)
    if "step" not in found and "batch" not in found:
        bare = [
            place
            for place in totals
            if place not in found.values()
            # What may stand before a bare `12/100`.
            and (
                not re.search(r"[^\W\d]", before[place])
                or before[place].rstrip().endswith(tuple("[(|]>#"))
            )
        ]
        if len(bare) > 1 and "epoch" not in found:
            # `[1/3] 25/375 loss 0.5`.
            found["epoch"], *bare = bare
        first = next(iter(bare), None)
        # `#20 loss 2.5`, `20 | loss 2.5`, `eval 20: loss 2.5`.
        signs = {"": "|:", "eval": ":", "val": ":"}.get(before[0].strip().lower(), "")
        is_cell = before[1:] and before[1].lstrip()[:1] in tuple(signs)
        leads = is_cell or before[0].rstrip().endswith("#")
        if first is None and "epoch" not in found and leads:
            first = 0
        if first is not None:
            found["step"] = first
    return found


def counter_word(before: str) -> str:
    """The word for what a number counts that follows `before`; "" where there is none."""
    match = _COUNTER.search(before)
    word = match[match.lastgroup or ""] if match else ""
    return word.lower().rstrip("s").replace(" ", "_")


def _of_split(before: Sequence[str], names: Sequence[str | None]) -> list[str | None]:
    """The names in a line, with its split where it says that it is of validation or of a test."""
    plain = unique([name and canonical(name) for name in names], map(str, names))
    if "val_loss" in plain or any("train" in name.lower() for name in names if name):
        return list(names)
    # The words up to the first loss that are part of no name tell.
    around = []
    for text, name in zip(before, names, strict=True):
        around.append(text.rpartition(name)[0] if name else text)
        if name and "loss" in name.lower():
            break
    part = next((part for part, sign in _SPLITS.items() if sign.search(" ".join(around))), "")
    return [name and f"{part} {name}".lstrip() for name in names]


def _named(text: str, after: str, *, is_first: bool, is_prefix: bool) -> str | None:
    """The name of the number between `text` and `after`; None where it has none.

    Before the counters, where loggers put lines of code and processes, only a known name is one,
    or the key of a dictionary.
    """
    name = _name(text, is_first=is_first)
    is_other = is_prefix and not _KEY.search(text)
    if is_other and name is not None and snake_case(name) not in KNOWN:
        return None
    unit = _UNIT.match(after)
    said = snake_case(unit.group()) if unit else ""
    if said in _RATES:
        if name is None:
            return unit.group().strip() if unit else None
    elif name is not None and said in ("mb", "mi_b", "mib") and "mem" in name.lower():
        return f"{name} mb"
    return name


def _name(text: str, *, is_first: bool) -> str | None:
    if not is_first and (unit := _UNIT.match(text)):
        text = text[unit.end() :]
    text = text.rstrip(" :=\t'\"~≈@*_`#→>")
    text = _DELIMITER.split(text)[-1]
    text = re.sub(r"^[\W\d_]+", "", text.strip(" '\"*_`"))
    text = _VERB.sub("", _WHICH.sub("", text))
    if not text or len(text) > 60:
        return None
    return text


def pattern(
    line: str, texts: Sequence[str], keep: Sequence[int], fixed: dict[int, str]
) -> re.Pattern[str] | None:
    """A pattern for lines that look like this one, whose groups are the numbers that are kept.

    Args:
        line: as it stands in the log.
        texts: what stands around its numbers once it is cleaned.
        keep: the places of the numbers to be read.
        fixed: place -> a number that must not change.

    Returns:
        None where the line was cleaned of more than the time it was written at.
    """
    parts = []
    for place, before in enumerate(texts[:-1]):
        digits = re.escape(fixed[place]) if place in fixed else LIKE_NUMBER
        parts.append(re.escape(before) + (f"({digits})" if place in keep else digits))
    parts.append(re.escape(texts[-1]))
    time = _TIMES.search(line)
    if time is not None and time.start() <= len(texts[0]):
        before = re.escape(line[: time.start()])
        written = re.sub(r"\d", r"\\d", re.escape(time[0]))
        parts[0] = before + written + parts[0].removeprefix(before)
    like = re.compile("".join(parts))
    return like if like.fullmatch(line) else None
