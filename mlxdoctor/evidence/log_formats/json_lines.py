"""Metrics as JSON, one object a line: callbacks, wandb and other exports."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from mlxdoctor.evidence.log_formats.names import STEPS, canonical, is_report, snake_case, unique
from mlxdoctor.evidence.log_formats.segments import Rows, Shape, axis_of
from mlxdoctor.evidence.log_formats.series import Axis
from mlxdoctor.evidence.log_formats.text import is_count, to_number

#: Lines parsed together: one call for many lines is twice as fast as one for each.
BATCH = 4096
#: A longer line is no row of metrics (characters).
MAX_RECORD = 1 << 20

#: Sets of keys remembered, and of those the ones that are read by a pattern.
MAX_PLANS = 4096
MAX_PATTERNS = 6

_VALUE = r"([-+0-9.eEnaNifINFty]+)"

#: Keys of a row of training data or of a generation: such a file is not a log.
DATA_KEYS = frozenset(
    ("text", "messages", "prompt", "completion", "response", "tuned", "base", "chosen", "rejected")
)
_PLAIN = frozenset((int, float))
_SUMMARY = frozenset(("train_runtime", "total_flos", "train_samples_per_second"))


class RecordReader:
    """Collects JSON lines and reads them in batches into `rows`."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._pending: list[str] = []
        self._numbers: list[int] = []
        self._plans: dict[tuple[str, ...], _Plan] = {}
        self._patterns: list[tuple[re.Pattern[str], Shape]] = []
        self._batch = 1
        self.read_rows = 0

    def read(self, number: int, line: str) -> bool:
        """Whether the line looks like a JSON object, which will be read by `flush`."""
        for pattern, shape in self._patterns:
            if match := pattern.fullmatch(line):
                try:
                    shape.values.append(tuple(map(float, match.groups())))
                except ValueError:
                    break
                shape.lines.append(number)
                self.read_rows += 1
                return True
        text = line.strip().rstrip(",")
        if not (text.startswith("{") and text.endswith("}") and len(text) <= MAX_RECORD):
            return False
        self._pending.append(text)
        self._numbers.append(number)
        if len(self._pending) >= self._batch:
            self.flush()
            # Small batches at first, so that the patterns of a regular file are found early.
            self._batch = min(2 * self._batch, BATCH)
        return True

    def flush(self) -> None:
        """Read what was collected."""
        pending, numbers = self._pending, self._numbers
        self._pending, self._numbers = [], []
        if not pending:
            return
        try:
            # A line that ends one object and begins another would shift the numbering.
            records = json.loads("[" + ",".join(pending) + "]")
            if len(records) != len(pending):
                raise ValueError("more than one object in a line")
        except (ValueError, RecursionError):
            records = [_parse(text) for text in pending]
        for number, record, text in zip(numbers, records, pending, strict=True):
            if isinstance(record, dict):
                self.add(number, record)
                self._learn(record, text)

    def _learn(self, record: Mapping[str, Any], text: str) -> None:
        """Make a pattern of a record of numbers; it reads its like without parsing JSON."""
        plan = self._plans.get(tuple(record))
        if plan is None or len(self._patterns) >= MAX_PATTERNS:
            return
        for pair, item in ((": ", ", "), (":", ",")):
            parts = item.join(re.escape(json.dumps(key)) + pair + _VALUE for key in record)
            pattern = re.compile(r"\{" + parts + r"\}")
            if pattern.fullmatch(text) and all(
                one.pattern != pattern.pattern for one, _ in self._patterns
            ):
                self._patterns.append((pattern, self._rows.shape(*plan.in_order)))

    def finish(self) -> None:
        """Read the rest; a lone object that names no iteration is a result, not a log."""
        self.flush()
        if self.read_rows == 1:
            for plan in self._plans.values():
                if plan.shape.axis == "row" and "epoch" not in plan.shape.columns:
                    plan.shape.values.clear()
                    plan.shape.lines.clear()
                    self.read_rows = 0

    def add(self, number: int, record: Mapping[str, Any]) -> bool:
        """One record; False where it does not report on training."""
        keys = tuple(record)
        plan = self._plans.get(keys)
        if plan is not None:
            values = plan.pick(record)
            # Exact types: a bool, a text or a null takes the careful way.
            if _PLAIN.issuperset(map(type, values)):
                plan.shape.values.append(values)
                plan.shape.lines.append(number)
                self.read_rows += 1
                return True
        return self._add_carefully(number, record)

    def _add_carefully(self, number: int, record: Mapping[str, Any]) -> bool:
        if not DATA_KEYS.isdisjoint(record) or not _SUMMARY.isdisjoint(record):
            return False
        numbers = {key: value for key, one in record.items() if (value := _number(one)) is not None}
        step = step_key(numbers)
        names = [key for key in numbers if key != step and snake_case(key) not in STEPS]
        columns = unique([canonical(name) for name in names], names)
        kept = {name: key for name, key in zip(columns, names, strict=True) if name is not None}
        if not is_report(kept):
            return False
        keys = tuple(kept.values()) if step is None else (*kept.values(), step)
        shape = self._rows.shape(
            tuple(kept) if step is None else (*kept, None),
            None if step is None else len(kept),
            axis_of(None if step is None else snake_case(step)),
        )
        # A text or a null may be a number in the next record: those are read one by one.
        if len(numbers) == len(record) and len(self._plans) < MAX_PLANS:
            back = {key: name for name, key in kept.items()}
            order = tuple(back.get(key) for key in record)
            place = None if step is None else list(record).index(step)
            self._plans[tuple(record)] = _Plan(_picker(keys), shape, (order, place, shape.axis))
        shape.values.append([numbers[key] for key in keys])
        shape.lines.append(number)
        self.read_rows += 1
        return True


@dataclass(frozen=True)
class _Plan:
    """How the values of a record fill a shape.

    Attributes:
        pick: takes the values from a record, as `shape` orders them.
        shape: where they go.
        in_order: columns, step and axis of a shape in the record's own order.
    """

    pick: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    shape: Shape
    in_order: tuple[tuple[str | None, ...], int | None, Axis]


def _picker(keys: tuple[str, ...]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    if len(keys) > 1:
        return itemgetter(*keys)
    return lambda record: (record[keys[0]],)


def step_key(record: Mapping[str, float]) -> str | None:
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


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
