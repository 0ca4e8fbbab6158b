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
from dataclasses import dataclass, field, replace

import numpy as np

from mlxdoctor.evidence.logs.log_format import LineFormat, LogSoFar, Nature, Shape, axis_of
from mlxdoctor.evidence.logs.metric_names import SUMMARY_KEYS, is_report
from mlxdoctor.evidence.logs.text_stream import is_count, to_number
from mlxdoctor.evidence.logs.words import (
    MAX_NUMBERS,
    cleaned,
    counter_word,
    pattern,
    split,
    understand,
)

#: What a line must hold to be worth taking apart.
_HINT = re.compile(
    r"loss|perplexity|\bppl\b|\bce\b|\bnll\b|xent|cross.?entropy|['\"]reward", re.IGNORECASE
)
#: Where a report begins behind a progress bar that it is glued to.
_GLUED = re.compile(r"\d%\|.*?\[[^\]]*\]\s*(?=Iter\w*\s+\d|\{\s*['\"])")
#: A dictionary that a trainer prints: its epoch is a metric, and its lines are in order.
_DICTIONARY = re.compile(r"[^{}]*\{.*['\"]", re.DOTALL)
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


@dataclass
class _Plan:
    """How to read the lines with one sequence of words.

    Attributes:
        shape: takes the numbers at the places `keep`.
        keep: the places.
        step: the place of the count of updates, or None.
        total: the places of how many there are to be, and of that by which it is multiplied.
        missing: how many more of these lines there have to be before they count.
        held: number and row of those that were there.
    """

    shape: Shape
    keep: tuple[int, ...]
    step: int | None
    total: tuple[int, ...]
    missing: int = 0
    held: list[tuple[int, list[float]]] = field(default_factory=list)


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
        self._epochs = log.shape(("epoch",), None, "row", nature=Nature.MARK)
        self._total = 0.0
        self._last: list[float] = []

    def read(self, number: int, line: str) -> bool:
        """Whether the line is a report, or the beginning of an epoch."""
        if not _HINT.search(line):
            return self._begins_epoch(number, line)
        text = cleaned(_GLUED.sub("", line) if "%|" in line else line)
        texts, numbers = split(text)
        plan = self._plan(texts) if 0 < len(numbers) < MAX_NUMBERS else None
        if plan is None:
            return False
        values = [to_number(digits) for digits in numbers]
        row = [value for place in plan.keep if (value := values[place]) is not None]
        step = 0.0 if plan.step is None else values[plan.step]
        if len(row) < len(plan.keep) or not is_count(step or 0.0):
            return False
        # A bar is redrawn while its description stays.
        if "%|" in line and np.array_equal(row, self._last, equal_nan=True):
            return True
        self._last = row
        self._announce(number, [values[place] or 1.0 for place in plan.total])
        plan.held.append((number, row))
        plan.missing = max(plan.missing - 1, 0)
        if not plan.missing:
            self._keep(plan)
            if like := pattern(line, texts, plan.keep, {p: numbers[p] for p in plan.total[:1]}):
                self.learn(like, plan.shape)
        return True

    def _keep(self, plan: _Plan) -> None:
        for number, row in plan.held:
            plan.shape.append(number, row)
        # A lone line on validation shows no log.
        self.count += len(plan.held) if plan.shape.nature is not Nature.BESIDE else 0
        plan.held.clear()

    def _announce(self, number: int, totals: Sequence[float]) -> None:
        total = float(np.prod(totals)) if totals else self._total
        if total != self._total:
            self._total = total
            self.notes.announce(number, total)

    def _begins_epoch(self, number: int, line: str) -> bool:
        match = _EPOCH.match(cleaned(line)) if "poch" in line or "POCH" in line else None
        if match is None or _OVER.search(match[3]):
            return False
        self._epochs.append(number, [float(match[1])])
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
        if any(_LEFT_OUT in text for text in texts):
            words = replace(
                words, names=tuple(name and f"skipped_batch_{name}" for name in words.names)
            )
        columns = words.columns
        if SUMMARY_KEYS.intersection(filter(None, columns)):
            return None
        if "micro" in columns:
            # Of one of the batches that an update is accumulated from.
            columns = tuple("micro_loss" if name == "train_loss" else name for name in columns)
        losses = {"train_loss", "val_loss", "micro_loss"}.intersection(filter(None, columns))
        # What a dictionary says is a report, whatever counts it.
        is_plain = _DICTIONARY.match(texts[0]) is not None
        is_counted = step is not None or is_plain
        if not losses and not (is_counted and is_report(filter(None, columns))):
            return None
        clock = step if is_counted else epoch
        nature = Nature.PLAIN
        if not is_counted:
            nature = Nature.FALLBACK if epoch is None else Nature.EPOCH
            if epoch is None and "train_loss" not in losses:
                nature = Nature.BESIDE
        keep = tuple(
            place
            for place, column in enumerate(columns)
            if column is not None or place in (step, epoch)
        )
        first = min(place for place, column in enumerate(columns) if column is not None)
        is_doubtful = (
            words.is_sentence
            or (clock is None and nature is not Nature.BESIDE)
            or (clock is not None and clock > first)
        )
        axis = "epoch" if clock is not None and clock == epoch else "step"
        counter = counter_word(texts[clock]) or "step" if clock is not None else None
        shape = self.log.shape(
            tuple("epoch" if place == epoch else columns[place] for place in keep),
            None if clock is None else keep.index(clock),
            "epoch" if axis == "epoch" else axis_of(counter),
            nature=nature,
        )
        total = _total(words.counters, words.totals)
        return _Plan(shape, keep, step, total, MIN_REPEATS if is_doubtful and not is_plain else 0)


def _total(counters: dict[str, int], totals: dict[int, int]) -> tuple[int, ...]:
    """The place of the number of updates to be, and of that of the epochs that it is for each."""
    step, epoch = counters.get("step", counters.get("batch")), counters.get("epoch")
    if step is None or step not in totals:
        return ()
    places = [totals[step]]
    if epoch is not None and epoch in totals and (counters.get("batch") == step or epoch < step):
        places.append(totals[epoch])
    return tuple(places)
