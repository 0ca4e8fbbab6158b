"""Records of named values, as JSON holds them, into rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxdoctor.evidence.logs.lines import is_count, to_number
from mlxdoctor.evidence.logs.metric_names import STEPS, canonical, is_report, snake_case, unique
from mlxdoctor.evidence.logs.shapes import Rows, Shape, axis_of

#: Sets of keys remembered; a text that is no log has as many as lines.
MAX_SHAPES = 4096

#: Keys of a row of training data or of a generation: such a file is not a log.
DATA_KEYS = frozenset(
    ("text", "messages", "prompt", "completion", "response", "tuned", "base", "chosen", "rejected")
)
#: Keys of the trainer's closing summary, which repeats names with another meaning.
SUMMARY_KEYS = frozenset(("train_runtime", "total_flos", "train_samples_per_second"))
_PLAIN = frozenset((int, float))


class Records:
    """Adds records to `rows`.

    Attributes:
        shapes: keys -> the shape of the records with these keys, where all values are numbers.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.shapes: dict[tuple[str, ...], Shape] = {}

    def add(self, number: int, record: Mapping[str, Any]) -> bool:
        """One record; False where it does not report on training."""
        shape = self.shapes.get(tuple(record))
        values = tuple(record.values())
        # Exact types: a bool, a text or a null takes the careful way.
        if shape is None or not _PLAIN.issuperset(map(type, values)):
            if not (DATA_KEYS.isdisjoint(record) and SUMMARY_KEYS.isdisjoint(record)):
                return False
            numbers = {
                key: value for key, one in record.items() if (value := _number(one)) is not None
            }
            shape, values = self._shape(numbers), tuple(numbers.values())
            if shape is None:
                return False
            # A text or a null may be a number in the next record: those are read one by one.
            if len(numbers) == len(record) and len(self.shapes) < MAX_SHAPES:
                self.shapes[tuple(record)] = shape
        shape.values.append(values)
        shape.lines.append(number)
        return True

    def _shape(self, numbers: Mapping[str, float]) -> Shape | None:
        """The shape of a record of numbers; None where it does not report on training."""
        keys = list(numbers)
        step = _step_key(numbers)
        names = [None if snake_case(key) in STEPS else canonical(key) for key in keys]
        columns = unique(names, keys)
        if not is_report(filter(None, columns)):
            return None
        if step is None:
            return self._rows.shape(columns, None, "row")
        return self._rows.shape(columns, keys.index(step), axis_of(snake_case(step)))


def _step_key(record: Mapping[str, float]) -> str | None:
    """The key that counts updates: `iteration` before `step` before `_step`."""
    by_name = {snake_case(key): key for key in reversed(list(record))}
    for name in STEPS:
        key = by_name.get(name)
        if key is not None and is_count(record[key]):
            return key
    return None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return float("inf")
    return to_number(value) if isinstance(value, str) and len(value) <= 40 else None
