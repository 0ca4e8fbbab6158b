"""Report lines made of named numbers, whoever prints them.

`Iter 10: Train loss 2.3, It/sec 1.0` of mlx-lm and its kin, `{'loss': 2.3, 'epoch': 0.5}`,
`Epoch 1/2 Batch 15/1000 Loss: 2.3 LR: 1e-5`, `[12/100] loss=2.3`, `Epoch 3 complete. Average
loss: 2.3`, `Validation loss: 2.3`: numbers with names, counted by something, in any spelling.
What could also be a sentence counts once it is there three times.

The words between the numbers decide what a line means. Each new sequence of words is understood
once, and a pattern made from it reads all the lines that look alike.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan

from mlxdoctor.evidence.logs.json_records import SUMMARY_KEYS
from mlxdoctor.evidence.logs.lines import is_count, to_number
from mlxdoctor.evidence.logs.log_format import LineFormat, LogSoFar
from mlxdoctor.evidence.logs.metric_names import canonical, is_report, unique
from mlxdoctor.evidence.logs.series import Axis
from mlxdoctor.evidence.logs.shapes import Nature, Shape, axis_of
from mlxdoctor.evidence.logs.words import (
    MAX_NUMBERS,
    Words,
    cleaned,
    counter_word,
    pattern,
    split,
    understand,
)

#: What a line must hold to be worth taking apart.
_HINT = re.compile(
    r"loss|perplexity|\bppl\b|\bce\b|\bnll\b|xent|cross.?entropy|['\"]reward|\[GRAD-DBG\]",
    re.IGNORECASE,
)
#: Where a report begins behind a progress bar that it is glued to.
_GLUED = re.compile(r"\d%\|.*?\[[^\]]*\]\s*(?=Iter\w*\s+\d|\{\s*['\"])")
#: A dictionary that a trainer prints: its epoch is a metric, and its lines are in order.
_DICTIONARY = re.compile(r"[^{}]*\{.*['\"]", re.DOTALL)
#: How a line of a patched mlx-lm begins that reports single micro-batches.
_OF_MICRO_BATCH = "[GRAD-DBG]"
#: What is in a line on a batch that was left out.
_LEFT_OUT = "SKIPPED"
#: A line that says nothing but that an epoch begins.
_EPOCH = re.compile(
    r"^\W{0,20}(?:(?:start(?:ing|ed)?|begin(?:ning|s)?|training|running)\s(?:of\s)?)?"
    r"epoch\s{0,3}[:#=\[]?\s{0,3}(\d{1,6})(?:\s{0,2}(?:/|of)\s{0,2}(\d{1,6}))?(?![\d.])(.{0,60})$",
    re.IGNORECASE,
)
_OVER = re.compile(r"\b(?:done|complete|finish|end|took|saved|summary|best)", re.IGNORECASE)

#: Sequences of words remembered; a text that is no log has as many as lines.
MAX_PLANS = 4096
#: How often a line has to be there that could be a sentence.
MIN_REPEATS = 3

_Row = tuple[int, tuple[float, ...]]


@dataclass
class _Plan:
    """How to read the lines with one sequence of words.

    Attributes:
        shape: takes the numbers at the places `keep`.
        keep: the places.
        step: the place of the count of updates, or None.
        total: the place of how many there are to be, and by what it is to be multiplied.
        words: what the texts say.
        left: how many more of these lines there have to be before they count.
        held: those that were there.
    """

    shape: Shape
    keep: tuple[int, ...]
    step: int | None
    total: tuple[int, int | None] | None
    words: Words
    left: int = 0
    held: list[_Row] = field(default_factory=list)


class NamedValues(LineFormat):
    """Reads lines of named numbers that no other format knows."""

    name = "named values"
    priority = 95
    understood = "lines with a step or an epoch and a loss (`step 10 | loss 2.5`), as mlx_lm.lora, \
mlx-lm-lora, mlx-vlm, mlx-tune and others print them"
    example = (
        "Epoch 1/2 Batch 1/100 Loss: 2.5 Grad norm: 0.5 LR: 1e-05 | 19.2 s/it\n"
        "Epoch 1/2 Batch 2/100 Loss: nan Grad norm: 0.5 LR: 1e-05 | 19.2 s/it\n"
    )

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        self._plans: dict[tuple[str, ...], _Plan | None] = {}
        self._marks = log.rows.shape(("epoch",), None, "row", nature=Nature.MARK)
        self._total = 0.0
        self._last: _Row = (0, ())

    def read(self, number: int, line: str) -> bool:
        """Whether the line is a report, or the beginning of an epoch."""
        if not _HINT.search(line):
            return self._begins_epoch(number, line)
        text = cleaned(_GLUED.sub("", line) if "%|" in line else line)
        texts, numbers = split(text)
        plan = self._plan(texts) if 0 < len(numbers) < MAX_NUMBERS else None
        if plan is None:
            return False
        values = [to_number(one) for one in numbers]
        row = tuple(0.0 if (one := values[place]) is None else one for place in plan.keep)
        if any(values[place] is None for place in plan.keep):
            return False
        if plan.step is not None and not is_count(values[plan.step] or 0.0):
            return False
        # A bar is redrawn while its description stays.
        if text != line and _equal(row, self._last[1]) and "%|" in line:
            return True
        self._last = (number, row)
        self._announce(number, plan, values)
        self._keep(number, plan, row)
        if text == line and not plan.left:
            fixed = {plan.total[0]: numbers[plan.total[0]]} if plan.total else {}
            self.learn(pattern(texts, plan.keep, fixed), plan.shape)
        return True

    def _keep(self, number: int, plan: _Plan, row: tuple[float, ...]) -> None:
        plan.held.append((number, row))
        if plan.left:
            plan.left -= 1
        if plan.left:
            return
        for line, values in plan.held:
            plan.shape.lines.append(line)
            plan.shape.values.append(values)
        # A lone line on validation shows no log.
        self.count += len(plan.held) if plan.shape.nature is not Nature.BESIDE else 0
        plan.held.clear()

    def _announce(self, number: int, plan: _Plan, values: Sequence[float | None]) -> None:
        if plan.total is None:
            return
        place, epochs = plan.total
        total = values[place] or 0.0
        times = 1.0 if epochs is None else values[epochs] or 1.0
        whole = total * times
        if whole != self._total:
            self._total = whole
            self.notes.announce(number, whole)

    def _begins_epoch(self, number: int, line: str) -> bool:
        if "poch" not in line and "POCH" not in line:
            return False
        match = _EPOCH.match(cleaned(line))
        if match is None or _OVER.search(match.group(3)):
            return False
        self._marks.lines.append(number)
        self._marks.values.append((float(match.group(1)),))
        return True

    def _plan(self, texts: tuple[str, ...]) -> _Plan | None:
        if texts in self._plans:
            return self._plans[texts]
        plan = self._understand(texts)
        if len(self._plans) < MAX_PLANS:
            self._plans[texts] = plan
        return plan

    def _understand(self, texts: tuple[str, ...]) -> _Plan | None:
        """How lines with these texts are read; None where they are no reports."""
        words = understand(texts)
        step = words.counters.get("step", words.counters.get("batch"))
        epoch = words.counters.get("epoch")
        is_micro_batch = texts[0].lstrip().startswith(_OF_MICRO_BATCH)
        names = [_special(name, texts, is_micro_batch=is_micro_batch) for name in words.names]
        if SUMMARY_KEYS.intersection(filter(None, names)):
            return None
        columns = unique(
            [None if name is None else canonical(name) for name in names],
            [name or "" for name in names],
        )
        losses = {"train_loss", "val_loss"}.intersection(filter(None, columns))
        # What a dictionary or a line on a micro-batch says is a report, whatever counts it.
        is_plain = is_micro_batch or _DICTIONARY.match(texts[0]) is not None
        is_counted = step is not None or is_plain
        if not losses and not (is_counted and (is_micro_batch or is_report(filter(None, columns)))):
            return None
        clock = step if step is not None or is_plain else epoch
        nature = Nature.PLAIN
        if is_plain:
            nature = Nature.PLAIN
        elif step is None and epoch is not None:
            nature = Nature.EPOCH
        elif step is None and "train_loss" not in losses:
            nature = Nature.BESIDE
        keep = tuple(
            place
            for place, column in enumerate(columns)
            if column is not None or place in (step, epoch)
        )
        first = min(place for place, one in enumerate(columns) if one is not None)
        is_doubtful = words.is_sentence or (clock is None and nature is not Nature.BESIDE)
        is_doubtful = is_doubtful or (clock is not None and clock > first)
        is_doubtful = is_doubtful and not is_plain
        shape = self.rows.shape(
            tuple("epoch" if place == epoch else columns[place] for place in keep),
            None if clock is None else keep.index(clock),
            _axis(texts, clock, epoch),
            fallback=clock is None and nature is not Nature.BESIDE and not is_plain,
            nature=nature,
        )
        left = MIN_REPEATS if is_doubtful else 0
        return _Plan(shape, keep, step, _total(words, step, epoch), words, left)


def _special(name: str | None, texts: Sequence[str], *, is_micro_batch: bool) -> str | None:
    """The name of a number in a line on one micro-batch, or on a batch that was left out."""
    if is_micro_batch and name == "loss":
        return "micro_loss"
    if name is not None and any(_LEFT_OUT in text for text in texts):
        return f"skipped_batch_{name}"
    return name


def _axis(texts: Sequence[str], clock: int | None, epoch: int | None) -> Axis:
    if clock is None:
        return "row"
    return "epoch" if clock == epoch else axis_of(counter_word(texts[clock]) or "step")


def _total(words: Words, step: int | None, epoch: int | None) -> tuple[int, int | None] | None:
    """The place of the number of updates to be, and of that of the epochs that it is for each."""
    if step is None or step not in words.totals:
        return None
    is_of_epoch = epoch is not None and (
        words.counters.get("batch") == step or "step" not in words.counters or epoch < step
    )
    epochs = words.totals.get(epoch) if epoch is not None and is_of_epoch else None
    return words.totals[step], epochs


def _equal(one: Sequence[float], other: Sequence[float]) -> bool:
    return len(one) == len(other) and all(
        a == b or (isnan(a) and isnan(b)) for a, b in zip(one, other, strict=True)
    )
