"""The values that a progress bar shows."""

from __future__ import annotations

import re

from mlxdoctor.evidence.logs.log_format import LineFormat, LogSoFar, Nature
from mlxdoctor.evidence.logs.metric_names import canonical, is_report, unique
from mlxdoctor.evidence.logs.text_stream import NUMBER, to_number
from mlxdoctor.evidence.logs.words import behind_bar

_BAR = re.compile(r"(?<![\d,])(\d[\d,]{0,20})/(\d[\d,]{0,20})\s{0,8}\[([^\]]*)\]?")
_POSTFIX = re.compile(
    rf"([A-Za-z][\w /-]{{0,60}}?)['\"]?\s{{0,8}}[=:]\s{{0,8}}['\"]?({NUMBER})(?![:\d])"
)
_PLAIN = re.compile(rf"((?:\b[A-Za-z]{{1,20}}[ _]){{0,2}}loss)\s{{1,4}}({NUMBER})", re.IGNORECASE)
#: What the description in front of a bar may say.
_EPOCH = re.compile(r"\bep(?:och)?\W{0,4}(\d{1,6})(?:\s?/\s?(\d{1,6}))?", re.IGNORECASE)
_STEP = re.compile(r"\b(?:iter|iteration|step)s?\W{0,4}\d", re.IGNORECASE)

#: A report that is glued to the end of a bar.
_REPORT = re.compile(r"Iter|iter|step|Step|epoch|Epoch|\{['\"]")

_Held = tuple[int, tuple[float, ...], int, dict[str, float]]


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
        self._total = 0

    def read(self, number: int, line: str) -> bool:
        """Whether the line holds a progress bar with a loss."""
        if "[" not in line or "%" not in line or "oss" not in line:
            return False
        found, end = False, 0
        for bar in _BAR.finditer(line):
            done, of, postfix = bar.groups()
            said = line[end : bar.start()]
            end = bar.end()
            described = _values(behind_bar(said))
            values = _values(postfix) or described
            if not is_report(values) or (values is described and _STEP.search(said)):
                continue
            found = True
            epoch = _EPOCH.search(behind_bar(said))
            step, total = int(done.replace(",", "")), int(of.replace(",", ""))
            if epoch is not None:
                values["epoch"] = float(epoch.group(1))
                total *= int(epoch.group(2) or 1)
            place = (values.get("epoch", 0.0), float(step))
            if self._held is not None and self._held[1] != place:
                self.finish()
            self._held = (number, place, total, values)
        return found and not _REPORT.search(line[end:])

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


def _values(text: str) -> dict[str, float]:
    """The named numbers in what stands beside a bar."""
    found = [
        (name.rsplit(",", 1)[-1].strip(), value)
        for name, number in _POSTFIX.findall(text) or _PLAIN.findall(text)
        if (value := to_number(number)) is not None
    ]
    names = unique([canonical(name) for name, _ in found], [name for name, _ in found])
    return {name: value for name, (_, value) in zip(names, found, strict=True) if name is not None}
