"""The values that a progress bar shows."""

from __future__ import annotations

import re

from mlxdoctor.evidence.logs.log_format import LineFormat, LogSoFar, Nature
from mlxdoctor.evidence.logs.metric_names import is_report
from mlxdoctor.evidence.logs.text_stream import to_numbers
from mlxdoctor.evidence.logs.words import MAX_NUMBERS, before_bar, cleaned, split, understand

_BAR = re.compile(r"(?<![\d,])(\d[\d,]{0,20})/(\d[\d,]{0,20})\s{0,8}\[([^\]]*)\]?")
#: A description with a step of its own, which is a report by itself where it holds a loss.
_STEP = re.compile(r"\b(?:iter|iteration|step)s?\W{0,4}\d", re.IGNORECASE)
#: What a bar says of its own speed.
_OWN = frozenset(("iterations_per_second", "seconds_per_iteration"))
#: A report that is glued to the end of a bar.
_REPORT = re.compile(r"Iter|iter|step|Step|epoch|Epoch|\{['\"]")

_Held = tuple[int, tuple[float, float], float, dict[str, float]]


class ProgressBar(LineFormat):
    """`1%|▊ | 10/1000 [00:32<53:42, loss=3.4]`, where nothing else in the log reports a loss.

    A bar is redrawn more often than its values change: of the redraws at one step the
    last counts, and a step that repeats the values of the one before is not a report.
    """

    name = "progress bar"
    priority = 25
    example = "10%|#  | 10/99 [00:01<00:09, loss=2.5]\r20%|## | 20/99 [00:02<00:08, loss=2.25]\n"

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        self._before: dict[str, float] = {}
        self._held: _Held | None = None
        self._total = 0.0

    def read(self, number: int, line: str) -> bool:
        """Whether the line holds a progress bar with a loss."""
        if "[" not in line or "%" not in line or "oss" not in line:
            return False
        has_report, end = False, 0
        for bar in _BAR.finditer(line):
            before, end = before_bar(line[end : bar.start()]), bar.end()
            if not _STEP.search(before):
                has_report |= self._hold(number, f"{before} | step {bar[1]}/{bar[2]} | {bar[3]}")
            elif "oss" in bar[3]:
                has_report |= self._hold(number, f"step {bar[1]}/{bar[2]} | {bar[3]}")
        return has_report and not _REPORT.search(line[end:])

    def _hold(self, number: int, text: str) -> bool:
        """Whether a bar's text is a report; it counts once the next step is drawn."""
        texts, numbers = split(cleaned(text))
        if len(numbers) >= MAX_NUMBERS:
            return False
        words, values = understand(texts), to_numbers(numbers)
        row = {
            column: value
            for column, value in zip(words.columns, values, strict=bool(values))
            if column is not None and column not in _OWN
        }
        step, epoch = words.counters.get("step"), words.counters.get("epoch")
        if step is None or not is_report(row):
            return False
        total = values[words.totals[step]] if step in words.totals else 0.0
        if epoch is not None:
            row["epoch"] = values[epoch]
            total *= values[words.totals[epoch]] if epoch in words.totals else 1.0
        place = (row.get("epoch", 0.0), values[step])
        if self._held is not None and self._held[1] != place:
            self.finish()
        self._held = (number, place, total, row)
        return True

    def finish(self) -> None:
        """Keep the last redraw of the step before."""
        if self._held is None:
            return
        number, (_, step), total, row = self._held
        self._held = None
        if row == self._before:
            return
        self._before = row
        self.add(number, ("step", step), row, nature=Nature.FALLBACK)
        if total != self._total:
            self._total = total
            self.notes.announce(number, total)
