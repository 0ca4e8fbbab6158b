"""Losses printed as a list: `train_losses: [2.5, 2.25, 2.0]`, a history's dictionary, windows."""

import math
import re

from mlxdoctor.evidence.logs.log_format import TRAIN, LineFormat, LogSoFar
from mlxdoctor.evidence.logs.text_stream import NUMBER, to_number

#: The split perhaps, the losses, and at least three numbers in brackets, quoted or not.
_LIST = re.compile(
    r"(?:(?<![^\W_])(val|valid|validation|eval|test)[ _-])?loss(?:es)?(?:[ _]history)?['\"]?"
    rf"\s?[:=]\s?\[((?:\s{{0,4}}['\"]?{NUMBER}['\"]?\s{{0,4}},){{2,4096}}\s{{0,4}}['\"]?{NUMBER}['\"]?)",
    re.IGNORECASE,
)
_NAMES = {"": "train_loss", "test": "test_loss"}


class Lists(LineFormat):
    """Reads lists of losses, where nothing else in the log reports as many.

    A list that begins as the one before it ends goes on with it: `the last five losses`.
    """

    name = "lists of losses"
    priority = 94
    understood = "lists of losses (`train_losses: [2.5, 2.25, 2.0]`)"
    example = "train_losses: [2.5, 2.25, 2.0]\nvalidation_losses: [2.75, 2.5, 2.25]\n"

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        self._lists: dict[str, list[float]] = {}
        self._line = 0

    def read(self, number: int, line: str) -> bool:
        found = _LIST.findall(line) if "[" in line else ()
        for split, text in found:
            name = _NAMES.get(split.lower(), "val_loss")
            numbers = (to_number(number.strip(" '\"")) for number in text.split(","))
            values = [math.nan if value is None else value for value in numbers]
            known = self._lists.setdefault(name, [])
            common = next((n for n in range(len(values), 0, -1) if known[-n:] == values[:n]), 0)
            known += values[common:]
            self._line = number
        return bool(found)

    def finish(self) -> None:
        """The lists as rows, those of one length side by side."""
        losses = self._lists.get("train_loss", [])
        others = [shape for shape in self.log.shapes if shape.role == TRAIN]
        if sum(map(len, others)) >= len(losses):
            return
        for shape in others:
            del shape.lines[:], shape.values[:]
        columns = {name: one for name, one in self._lists.items() if len(one) == len(losses)}
        for row in zip(*columns.values(), strict=True):
            self.add(self._line, None, dict(zip(columns, row, strict=True)))
