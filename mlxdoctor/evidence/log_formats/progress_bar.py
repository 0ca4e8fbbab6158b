"""The values that a progress bar shows."""

from __future__ import annotations

import re

from mlxdoctor.evidence.logs.lines import NUMBER, to_number
from mlxdoctor.evidence.logs.log_format import LineFormat, LogSoFar
from mlxdoctor.evidence.logs.metric_names import canonical, is_report

_BAR = re.compile(r"(?<![\d,])(\d[\d,]{0,20})/(\d[\d,]{0,20})\s{0,8}\[([^\]]*)\]?")
_POSTFIX = re.compile(rf"([A-Za-z][\w /-]{{0,60}}?)\s{{0,8}}=\s{{0,8}}({NUMBER})")


class ProgressBar(LineFormat):
    """`1%|▊ | 10/1000 [00:32<53:42, loss=3.4]`, where nothing else in the log reports a loss.

    A bar is redrawn more often than its values change: of the redraws at one step the
    last counts, and a step that repeats the values of the one before is not a report.
    """

    name = "progress bar"
    priority = 90
    example = "10%|#  | 10/99 [00:01<00:09, loss=2.5]\r20%|## | 20/99 [00:02<00:08, loss=2.25]\n"

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        self._before: dict[str, float] = {}
        self._held: tuple[int, int, int, dict[str, float]] | None = None

    def read(self, number: int, line: str) -> bool:
        """Whether the line holds a progress bar with a loss."""
        found = False
        for done, of, postfix in _BAR.findall(line) if "=" in line else ():
            values = {
                canonical(name.split(",")[-1]): value
                for name, text in _POSTFIX.findall(postfix)
                if (value := to_number(text)) is not None
            }
            if not is_report(values):
                continue
            found = True
            step, total = int(done.replace(",", "")), int(of.replace(",", ""))
            if self._held is not None and self._held[1] != step:
                self.finish()
            self._held = (number, step, total, values)
        return found

    def finish(self) -> None:
        """Keep the last redraw of the step before."""
        if self._held is None:
            return
        number, step, total, row = self._held
        self._held = None
        if row == self._before:
            return
        self._before = row
        self.add(number, ("step", step), row, fallback=True)
        if not self.notes.announced or self.notes.announced[-1][1] != total:
            self.notes.announced.append((number, total))
