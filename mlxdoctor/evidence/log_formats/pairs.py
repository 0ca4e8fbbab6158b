"""Lines of two figures and nothing else: a step and a loss, as short scripts print them."""

import re

from mlxdoctor.evidence.logs.log_format import LineFormat, LogSoFar, Nature
from mlxdoctor.evidence.logs.metric_names import canonical, unique
from mlxdoctor.evidence.logs.text_stream import NUMBER, to_number

#: A counter, of how many perhaps; the split perhaps; a figure that is no count; and perhaps named
#: ones, or a sign of the best so far.
_PAIR = re.compile(
    rf"\s{{0,40}}[\[(#]?(\d{{1,9}})(?:/\d{{1,9}})?[\])]?[\s,;:|]{{1,40}}"
    rf"(?:([a-z-]{{2,12}})[\s:=]{{1,40}})?((?=\S{{0,9}}[.an]){NUMBER})"
    rf"(?:\s{{1,9}}(?:\*|[a-z_]{{1,12}}={NUMBER})){{0,4}}\s*",
    re.IGNORECASE,
)
#: Lines with a rising counter before they are taken for a log, and lines that are held until then.
_LINES, _HELD = 3, 64


class Pairs(LineFormat):
    """Reads `20 3.0992` and `40 valid 2.8`, where nothing else in the log reports a loss."""

    name = "pairs"
    priority = 97
    understood = "lines of a step and a loss alone"
    example = "10 2.5\n20 2.25\n20 valid 2.5\n30 2.125\n40 2.0\n"

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        self._is_log = False
        self._held: list[tuple[int, str, float, float]] = []

    def read(self, number: int, line: str) -> bool:
        match = _PAIR.fullmatch(line)
        value = to_number(match[3]) if match else None
        if match is None or value is None or value < 0:
            return False
        word = match[2] or "loss"
        name = unique([canonical(word)], [word])[0]
        if name not in ("train_loss", "val_loss"):
            return False
        self._held = [*self._held[-_HELD:], (number, name, float(match[1]), value)]
        steps = [step for _, each, step, _ in self._held if each == "train_loss"]
        if not self._is_log and steps[-2:] != sorted(set(steps[-2:])):
            self._held = self._held[-1:]
        self._is_log |= len(steps) >= _LINES
        if self._is_log:
            for place, each, step, figure in self._held:
                shape = self.log.shape((None, each), 0, nature=Nature.FALLBACK)
                shape.append(place, [step, figure])
            self.count += len(self._held)
            self._held.clear()
        return True
