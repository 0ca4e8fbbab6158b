"""Report lines made of named numbers.

`Iter 10: Train loss 2.3, It/sec 1.0` of mlx-lm and its kin, `step 10/100  loss 0.1`,
`it=67 micro=7/10 loss=3.2`, and the dictionaries that trainers print.

The words between the numbers decide what a line means. Each new sequence of words is
understood once, and a pattern made from it reads all the lines that look alike.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from mlxdoctor.evidence.logs.json_records import SUMMARY_KEYS
from mlxdoctor.evidence.logs.lines import NUMBER, to_number
from mlxdoctor.evidence.logs.log_format import LineFormat, LogSoFar
from mlxdoctor.evidence.logs.metric_names import STEPS, canonical, is_report, unique
from mlxdoctor.evidence.logs.shapes import Shape, axis_of
from mlxdoctor.evidence.logs.words import MAX_KNOWN, of_split, pattern, renamed

#: A number that is not part of a word; `Peak58.9` is a number after a word nonetheless.
_NUMBERS = re.compile(rf"(?:(?<![\w.])|(?<=[Pp]eak)|(?<=[Pp]eak mem))({NUMBER})")
#: What a line must hold to be worth splitting.
_HINT = re.compile(
    r"(?:iter|iteration|step|\bit)s?['\"]?\s{0,4}[#:=]?\s{0,4}['\"]?\d|\{\s{0,4}['\"]|GRAD",
    re.IGNORECASE,
)
#: Where the report begins in a line that a progress bar or a logger's prefix opens.
_HEAD = re.compile(
    r"(?:Epoch\s+\d+\s*[:,]\s*)?(?:Iter|Iteration|\biter|\biteration)\s+\d|\{\s*['\"]"
)
#: Text that shows the line is a progress bar, which is a format of its own.
_BAR = re.compile(r"\d%\||it/s\b|s/it\b|\[\d+:\d\d")

_STEP = re.compile(
    r"(?:^|[^\w])(iter|iteration|step|it|global_step)s?\s*(?:[#:=]\s*)?$", re.IGNORECASE
)
_KEY = re.compile(r"['\"]([^'\"]{1,80})['\"]\s*:\s*['\"]?$")
_ASSIGNED = re.compile(r"(?<![\w./-])([^\W\d][\w./-]*)\s*=\s*$")
_EPOCH = re.compile(r"(?:^|[^\w])epoch\s*(?:[#:=]\s*)?$", re.IGNORECASE)
_DELIMITER = re.compile(r"[,|;(\[{•]|:\s|\s{2,}|\s-\s")
#: What follows the count of updates in a report, and does not in a sentence.
_AFTER_STEP = re.compile(
    r"\s*[:|,;\])}·'\"-]|\s{2,}|\s+[\w./-]+\s*=|\s+(?:train(?:ing)?|val(?:idation)?)?\s*loss\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"\b(?:the|was|is|are|to|of|at|after|has|had|a|an|went|with|by)\b")
_DICTIONARY = re.compile(r"\s*\{.*['\"]", re.DOTALL)
#: What stands between the count of updates and how many there are to be.
_TOTAL = ("/", "of")
#: How a line of a patched trainer begins that reports single micro-batches.
_OF_MICRO_BATCH = "[GRAD-DBG]"
#: What is in a line on a batch that was left out.
_LEFT_OUT = "SKIPPED"

#: Sequences of words remembered; a text that is no log has as many as lines.
MAX_PLANS = 4096
#: Numbers in a line that are looked at.
MAX_NUMBERS = 64
#: Beginnings of a report in a line; one with more is no report behind a progress bar.
MAX_HEADS = 8
#: Blanks in a name; one with more is a sentence.
MAX_BLANKS = 4

#: A column for each number of a line; None where it is no metric.
_Columns = Sequence[str | None]


@dataclass(frozen=True)
class _Plan:
    """How to read the lines with one sequence of words.

    Attributes:
        pattern: matches them.
        shape: takes the numbers at the places `keep`.
        total: the place of the number of updates to be made; None where it is not said.
    """

    pattern: re.Pattern[str]
    shape: Shape
    keep: tuple[int, ...]
    total: int | None


class NamedNumbers(LineFormat):
    """Reads a line by the words in it."""

    name = "iter lines"
    priority = 30
    understood = "the output of mlx_lm.lora (both kinds), mlx-lm-lora, mlx-vlm and mlx-tune"
    example = "Iter 10: Train loss 2.5, It/sec 1.0\nIter 20: Train loss nan, It/sec 1.0\n"

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        self._plans: dict[tuple[str, ...], _Plan | None] = {}

    def read(self, number: int, line: str) -> bool:
        """Whether the line is a report, and is now a row."""
        if not _HINT.search(line):
            return False
        heads = [match.start() for match in _HEAD.finditer(line)]
        if len(heads) > MAX_HEADS:
            return False
        body = line[heads[-1] :] if heads else line
        if not heads and _BAR.search(line):
            return False
        pieces = _NUMBERS.split(body, maxsplit=MAX_NUMBERS)
        words, numbers = tuple(pieces[0::2]), pieces[1::2]
        plan = self._plan(words, numbers) if numbers else None
        if plan is None:
            return False
        values = [to_number(text) for text in numbers]
        if any(values[index] is None for index in plan.keep):
            return False
        plan.shape.values.append(tuple(float(values[index] or 0.0) for index in plan.keep))
        plan.shape.lines.append(number)
        self.count += 1
        if plan.total is not None and (total := values[plan.total]) is not None:
            self.notes.announce(number, total)
        if body == line:
            self.learn(plan.pattern, plan.shape)
        return True

    def _plan(self, words: tuple[str, ...], numbers: Sequence[str]) -> _Plan | None:
        if words in self._plans:
            return self._plans[words]
        plan = self._understand(words, numbers)
        if len(self._plans) < MAX_PLANS:
            self._plans[words] = plan
        return plan

    def _understand(self, words: tuple[str, ...], numbers: Sequence[str]) -> _Plan | None:
        """How lines with these words are read; None where they are no reports."""
        if (said := _said(words)) is None:
            return None
        columns, step, total = said
        keep = tuple(i for i, column in enumerate(columns) if column is not None or i == step)
        shape = self.rows.shape(
            tuple(columns[place] for place in keep),
            None if step is None else keep.index(step),
            axis_of(None if step is None else _step_word(words[step])),
        )
        fixed = {} if total is None else {total: numbers[total]}
        return _Plan(pattern(words, keep, fixed), shape, keep, total)


@lru_cache(maxsize=MAX_KNOWN)
def _said(words: tuple[str, ...]) -> tuple[_Columns, int | None, int | None] | None:
    """What the numbers between these words are, and which of them count the updates so far and
    in all; None where the words are those of no report."""
    before = words[:-1]
    step = next((place for place, text in enumerate(before) if _step_word(text)), None)
    totals = [place for place, text in enumerate(before) if place and text.strip() in _TOTAL]
    names = [
        None if place == step or place in totals else _name(text)
        for place, text in enumerate(before)
    ]
    columns = _columns(words, names)
    if not _is_report(words, columns, step):
        return None
    return columns, step, step + 1 if step is not None and step + 1 in totals else None


def _step_word(before: str) -> str | None:
    """The word for an update that ends `before`: iter, step, ...; None where there is none."""
    if match := _STEP.search(before):
        return match.group(1).lower()
    key = _KEY.search(before)
    return key.group(1).lower() if key and key.group(1).lower() in STEPS else None


def _name(before: str) -> str | None:
    """The name of the number that follows `before`, or None."""
    if _EPOCH.search(before):
        return "epoch"
    if match := _KEY.search(before) or _ASSIGNED.search(before):
        return match.group(1)
    text = before.rstrip(" :=\t'\"")
    text = _DELIMITER.split(text)[-1].strip(" '\"")
    return text if text and text[0].isalpha() and len(text) <= 60 else None


def _columns(words: Sequence[str], names: Sequence[str | None]) -> _Columns:
    """The metrics that the numbers are, by the names that the line gives them."""
    if SUMMARY_KEYS.intersection(filter(None, names)):
        return [None] * len(names)
    if _is_of_micro_batch(words):
        names = ["micro_loss" if name == "loss" else name for name in names]
    elif any(_LEFT_OUT in text for text in words):
        return [name and f"skipped_batch_{name}" for name in names]
    elif any(name is not None and name.count(" ") > MAX_BLANKS for name in names):
        return [None] * len(names)
    names = renamed(names, of_split(words[:-1], names))
    chosen = [None if name is None else canonical(name) for name in names]
    return unique(chosen, [name or "" for name in names])


def _is_of_micro_batch(words: Sequence[str]) -> bool:
    return words[0].lstrip().startswith(_OF_MICRO_BATCH)


def _is_report(words: Sequence[str], columns: _Columns, step: int | None) -> bool:
    """Whether the words are those of a report, not of a sentence with a number and a loss."""
    if _is_of_micro_batch(words):
        return any(columns)
    if not is_report(filter(None, columns)) or any(map(_SENTENCE.search, words[:-1])):
        return False
    if step is None:
        # Without an iteration only a printed dictionary is surely a report.
        return bool(_DICTIONARY.match(words[0]))
    # A line may be cut off where the total would stand.
    following = [text for text in words[step + 1 : step + 3] if text.strip() not in _TOTAL]
    first = next(i for i, name in enumerate(columns) if name is not None and name != "epoch")
    is_set_off = bool(following) and _AFTER_STEP.match(following[0]) is not None
    return (step < first and is_set_off) or "{" in words[0]
