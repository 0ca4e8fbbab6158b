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

from mlxdoctor.evidence.log_formats.names import STEPS, canonical, is_report, unique
from mlxdoctor.evidence.log_formats.segments import Rows, Shape, axis_of
from mlxdoctor.evidence.log_formats.series import Notes
from mlxdoctor.evidence.log_formats.text import NUMBER, to_number

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
_STEP = re.compile(
    r"(?:^|[^\w])(iter|iteration|step|it|global_step)s?\s*(?:[#:=]\s*)?$", re.IGNORECASE
)
_EPOCH = re.compile(r"(?:^|[^\w])epoch\s*(?:[#:=]\s*)?$", re.IGNORECASE)
_ASSIGNED = re.compile(r"(?<![\w./-])([^\W\d][\w./-]*)\s*=\s*$")
_KEY = re.compile(r"['\"]([^'\"]{1,80})['\"]\s*:\s*['\"]?$")
_DELIMITER = re.compile(r"[,|;(\[{•]|:\s|\s{2,}|\s-\s")
#: What follows the count of updates in a report, and does not in a sentence.
_AFTER_STEP = re.compile(
    r"\s*[:|,;\])}·'\"-]|\s{2,}|\s+[\w./-]+\s*=|\s+(?:train(?:ing)?|val(?:idation)?)?\s*loss\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"\b(?:the|was|is|are|to|of|at|after|has|had|a|an|went|with|by)\b")
#: Text that shows the line is a progress bar, which has a reader of its own.
_BAR = re.compile(r"\d%\||it/s\b|s/it\b|\[\d+:\d\d")
_SUMMARY = ("train_runtime", "total_flos", "train_samples_per_second")

#: Sequences of words remembered; a text that is no log has as many as lines.
MAX_PLANS = 4096
#: Numbers in a line that are looked at.
MAX_NUMBERS = 64


@dataclass(frozen=True)
class _Plan:
    """How to read the lines with one sequence of words."""

    pattern: re.Pattern[str]
    shape: Shape
    keep: tuple[int, ...]
    total: int | None


class PairReader:
    """Reads one line at a time into `rows`."""

    def __init__(self, rows: Rows, notes: Notes) -> None:
        self._rows = rows
        self._notes = notes
        self._plans: dict[tuple[str, ...], _Plan | None] = {}
        self._recent: list[_Plan] = []
        self._is_regular = True

    def read_alike(self, numbered: Sequence[tuple[int, str]]) -> bool:
        """Whether all lines have the words of the last report, and are now rows.

        Once they have not, it is not tried again: a log with validations between has few such
        stretches.
        """
        if not (self._recent and self._is_regular):
            return False
        plan = self._recent[0]
        every = re.compile(f"^{plan.pattern.pattern}$", re.MULTILINE)
        found = every.findall("\n".join(line for _, line in numbered))
        self._is_regular = len(found) == len(numbered) and every.groups > 1
        if not self._is_regular:
            return False
        try:
            values = [tuple(map(float, groups)) for groups in found]
        except ValueError:
            return False
        plan.shape.values.extend(values)
        plan.shape.lines.extend(number for number, _ in numbered)
        return True

    def read_like(self, number: int, line: str) -> bool:
        """Whether the line has the words of a report that was read, and is now a row, too."""
        for plan in self._recent:
            if match := plan.pattern.fullmatch(line):
                try:
                    plan.shape.values.append(tuple(map(float, match.groups())))
                except ValueError:
                    break
                plan.shape.lines.append(number)
                return True
        return False

    def read(self, number: int, line: str) -> bool:
        """Whether the line was a report with words not read before, and is now a row."""
        if not _HINT.search(line):
            return False
        heads = [match.start() for match in _HEAD.finditer(line)]
        body = line[heads[-1] :] if heads else line
        if not heads and _BAR.search(line):
            return False
        pieces = _NUMBERS.split(body, maxsplit=MAX_NUMBERS)
        words, numbers = tuple(pieces[0::2]), pieces[1::2]
        if not numbers:
            return False
        if words in self._plans:
            plan = self._plans[words]
        else:
            plan = self._understand(words, numbers)
            if len(self._plans) < MAX_PLANS:
                self._plans[words] = plan
        if plan is None:
            return False
        values = [to_number(text) for text in numbers]
        if any(values[index] is None for index in plan.keep):
            return False
        plan.shape.values.append(tuple(float(values[index] or 0.0) for index in plan.keep))
        plan.shape.lines.append(number)
        if plan.total is not None and (total := values[plan.total]) is not None:
            self._notes.announced.append((number, int(total)))
        if body == line:
            self._recent = [plan, *(one for one in self._recent if one is not plan)][:6]
        return True

    def _understand(self, words: tuple[str, ...], numbers: list[str]) -> _Plan | None:
        names = [_name(before) for before in words[:-1]]
        step = next((i for i, before in enumerate(words[:-1]) if _step_word(before)), None)
        total = None
        for index, before in enumerate(words[:-1]):
            if index and before.strip() in ("/", "of"):
                names[index] = None
                total = index if index - 1 == step else total
        # The trainer's closing summary repeats names with another meaning.
        if any(name in _SUMMARY for name in names):
            return None
        if step is not None:
            names[step] = None
        prefix = ""
        if words[0].lstrip().startswith("[GRAD-DBG]"):
            names = ["micro_loss" if name == "loss" else name for name in names]
        elif any("SKIPPED" in before for before in words):
            prefix = "skipped_batch_"
        elif any(name is not None and " " in name and name.count(" ") > 4 for name in names):
            return None
        columns = unique(
            [
                None if name is None else prefix + name if prefix else canonical(name)
                for name in names
            ],
            [name or "" for name in names],
        )
        if not self._is_row(words, columns, step):
            return None
        keep = tuple(i for i, column in enumerate(columns) if column is not None or i == step)
        kept = tuple(columns[i] for i in keep)
        stepped = None if step is None else keep.index(step)
        axis = axis_of(None if step is None else _step_word(words[step]))
        return _Plan(
            _pattern(words, keep, {} if total is None else {total: numbers[total]}),
            self._rows.shape(kept, stepped, axis),
            keep,
            total,
        )

    @staticmethod
    def _is_row(words: tuple[str, ...], columns: tuple[str | None, ...], step: int | None) -> bool:
        named = [i for i, column in enumerate(columns) if column is not None]
        names = [column for column in columns if column is not None]
        if words[0].lstrip().startswith("[GRAD-DBG]"):
            return bool(named)
        if not is_report(names):
            return False
        if any(_SENTENCE.search(before) for before in words[:-1]):
            return False
        metrics = [i for i in named if columns[i] != "epoch"]
        if step is not None:
            following = words[step + 1]
            if following.strip() in ("/", "of"):
                following = words[step + 2]
            return (step < metrics[0] and bool(_AFTER_STEP.match(following))) or "{" in words[0]
        # Without an iteration only a printed dictionary is surely a report.
        return words[0].lstrip().startswith("{") and bool(re.search(r"['\"]", words[0]))


def _pattern(
    words: tuple[str, ...], keep: tuple[int, ...], fixed: dict[int, str]
) -> re.Pattern[str]:
    """A pattern for lines with these words; `fixed` numbers must not change."""
    parts = []
    for index, before in enumerate(words[:-1]):
        # Never given back: `1-1-1-1` could be divided in too many ways.
        one = re.escape(fixed[index]) if index in fixed else r"[-+0-9.eEnaNifINFty]++"
        parts.append(re.escape(before) + (f"({one})" if index in keep else one))
    return re.compile("".join(parts) + re.escape(words[-1]))


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
    if match := _KEY.search(before):
        return match.group(1)
    if match := _ASSIGNED.search(before):
        return match.group(1)
    text = before.rstrip(" :=\t'\"")
    text = _DELIMITER.split(text)[-1].strip(" '\"")
    return text if text and text[0].isalpha() and len(text) <= 60 else None
