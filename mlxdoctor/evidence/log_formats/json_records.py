"""Metrics as JSON: one object a line, or one document that holds them all."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any

from mlxdoctor.evidence.json_text import as_float
from mlxdoctor.evidence.logs.log_format import (
    LIKE_NUMBER,
    DocumentFormat,
    LineFormat,
    LogFormat,
    LogSoFar,
    Shape,
    axis_of,
)
from mlxdoctor.evidence.logs.metric_names import (
    ROLES,
    STEPS,
    SUMMARY_KEYS,
    canonical,
    is_report,
    snake_case,
    unique,
    without_mean,
)
from mlxdoctor.evidence.logs.text_stream import MAX_RECORD, is_count, to_number

#: Keys of a row of training data or of a generation: such a file is not a log.
DATA_KEYS = frozenset(
    ("text", "messages", "prompt", "completion", "response", "tuned", "base", "chosen", "rejected")
)
#: Parts of the rows that losses are named by, too: whole numbers are how many rows they have.
SPLIT_NAMES = ("train", "val", "valid", "validation")
#: Keys under which trainers keep a list of records.
_HISTORIES = ("log_history", "history", "logs", "metrics", "records")
#: Where a record says how many updates there are to be.
_TOTALS = ("total_steps", "max_steps")
#: What a trainer's state says of the run: how far it came.
_STATED = ("global_step", "epoch")
#: Values of a list that is a course, and what makes lists one, beside a count and a reward.
MIN_LIST = 2
_OF_A_COURSE = frozenset({"train_loss", "val_loss"})
#: What a record under any other key has, so that it is one of a course.
_COUNTED = frozenset((*STEPS, "epoch"))


#: A name and a value, as an object over several lines has them; and lines that it may have.
_MEMBER = re.compile(r'^\s*"[^"]{1,80}"\s*:\s*[^\[{\s][^\[{]*$')
MAX_LINES = 80


class JsonLines(LineFormat):
    """One object a line, or over several lines: callbacks, wandb and other exports."""

    name = "JSON lines"
    priority = 10
    understood = "JSON lines of metrics"
    example = '{"step": 1, "train_loss": 2.5, "lr": 1e-5}\n{"step": 2, "train_loss": NaN}\n'

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        self._last: Shape | None = None
        #: The members of an object that is open, as one is of which a part was copied.
        self._open: list[str] | None = []

    def read(self, number: int, line: str) -> bool:
        if not line.startswith('{"'):
            return self._over_lines(number, line.strip())
        text = line.strip().rstrip(",")
        if not text.endswith("}") or len(text) > MAX_RECORD:
            # An object that a kill cut off is left out: its last number may be half of one.
            return "}" not in line
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            return True
        if isinstance(record, dict) and (shape := _add(self, number, record)) is not None:
            self._last = shape
            if len(shape.columns) == len(record):
                self._look_at(record, text, shape)
        return True

    def _over_lines(self, number: int, text: str) -> bool:
        """A line of an object that stands on several, as in a part of a trainer's state."""
        members = self._open
        if text == "{":
            self._open = []
        elif members is not None and _MEMBER.match(text) and len(members) < MAX_LINES:
            members.append(text)
        else:
            self._open = None
            if not members or text not in ("}", "},"):
                return False
            with suppress(ValueError):
                record = json.loads("{" + "".join(members).rstrip(",") + "}")
                # One that nothing counts is a result.
                if not _COUNTED.isdisjoint(record):
                    _add(self, number, record)
        return True

    def _look_at(self, record: Mapping[str, Any], text: str, shape: Shape) -> None:
        """Learn how a record of nothing but numbers looks, if it is spaced in a usual way."""
        for colon, comma in ((": ", ", "), (":", ",")):
            keys = (f"{re.escape(json.dumps(key))}{colon}" for key in record)
            inside = comma.join(f"{key}({LIKE_NUMBER})" for key in keys)
            pattern = re.compile(rf"\{{{inside}\}}")
            if pattern.fullmatch(text):
                self.learn(pattern, shape)

    def finish(self) -> None:
        """Forget a lone object that names no iteration: it is a result, not a log."""
        last = self._last
        is_counted = last is None or last.axis != "row" or "epoch" in last.columns
        if self.count == 1 and last is not None and not is_counted:
            del last.lines[:], last.values[:]
            self.count = 0


class JsonHistory(DocumentFormat):
    """A list of records, or a column a metric; line numbers count records from 1."""

    name = "JSON history"
    priority = 50
    understood = "trainer_state.json"
    example = '{"log_history": [{"step": 1, "loss": 2.5},\n {"step": 2, "loss": 2.25}]}\n'

    def read(self, document: Any) -> str | None:
        inner = document.values() if isinstance(document, dict) else ()
        # `{"loss_history": {"iters": [...], "train": [...], "val": [...]}}`
        courses = chain.from_iterable(map(_columns, inner))
        for records in (_records(document), _columns(document), courses):
            for number, record in enumerate(records, 1):
                _add(self, number, record)
            if self.count:
                _announce(self, 1, document if isinstance(document, dict) else {})
                break
        if isinstance(document, dict) and "log_history" in document:
            # How far the run came, which is further than its last report.
            self.notes.header |= {
                key: str(document[key]) for key in _STATED if as_float(document.get(key))
            }
        return "" if self.count else None


def _add(reader: LogFormat, number: int, record: Mapping[str, Any]) -> Shape | None:
    """Add a record to the rows; None where it does not report on training.

    The columns of its shape are in the order of the record.
    """
    if not (DATA_KEYS.isdisjoint(record) and SUMMARY_KEYS.isdisjoint(record)):
        if "train_runtime" in record and (mean := as_float(record.get("train_loss"))) is not None:
            reader.notes.mean_losses.append(mean)
        return None
    if record.get("skipped") is True:
        reader.notes.remark(reader.notes.skips, number, '"skipped": true')
    if any(type(record.get(split)) is int for split in SPLIT_NAMES):
        return None
    if any(isinstance(value, dict | list) for value in record.values()):
        record = _flat(record)
    stated = (
        (key, to_number(value) if isinstance(value, str) else as_float(value))
        for key, value in record.items()
    )
    numbers = {key: number for key, number in stated if number is not None}
    # Where a loss is null, the record reports the rest.
    columns, steps = _meaning(
        tuple(numbers), tuple(key for key, one in record.items() if one is None)
    )
    if not columns:
        return None
    if not reader.notes.announced:
        _announce(reader, number, record)
    values = list(numbers.values())
    place, name = next((step for step in steps if is_count(values[step[0]])), (None, None))
    shape = reader.log.shape(columns, place, axis_of(name))
    shape.append(number, values)
    reader.count += 1
    return shape


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with what lies in an object of its own beside the rest: `reward_total`.

    Of a list of objects, one for each pass over what was sampled, the last.
    """
    flat: dict[str, Any] = {}
    for key, value in record.items():
        last = value[-1] if isinstance(value, list) and value else value
        inner = last if isinstance(last, dict) else {"": value}
        flat |= {f"{key}_{name}" if name else key: part for name, part in inner.items()}
    return flat


def _announce(reader: LogFormat, number: int, record: Mapping[str, Any]) -> None:
    """Note how many updates there are to be, where a record or a document says so."""
    total = next((as_float(record[key]) for key in _TOTALS if key in record), None)
    if total is not None:
        reader.notes.announce(number, total)


@lru_cache(maxsize=4096)
def _meaning(
    keys: tuple[str, ...], nulls: tuple[str, ...]
) -> tuple[tuple[str | None, ...], tuple[tuple[int, str], ...]]:
    """The metric of each key, none where no key is of training; and place and name of counters."""
    names = [snake_case(key) for key in keys]
    metrics = [None if name in STEPS else canonical(name) for name in names]
    columns = unique(metrics, keys)
    steps = tuple((names.index(name), name) for name in STEPS if name in names)
    told = (*filter(None, columns), *(canonical(key) for key in nulls))
    is_told = is_report(told, counted=bool(steps) or "epoch" in told)
    return (columns if is_told and any(columns) else ()), steps


def _records(document: Any) -> Iterator[Mapping[str, Any]]:
    histories = {"": document}
    if isinstance(document, dict):
        # Those of the usual names first, else any list of counted records.
        usual = {key: each for key, each in document.items() if each and key.endswith(_HISTORIES)}
        histories = usual or document
    for key, history in histories.items():
        for entry in history if isinstance(history, list) else ():
            is_counted = isinstance(entry, dict) and not _COUNTED.isdisjoint(entry)
            if is_counted or (isinstance(entry, dict) and (not key or key in usual)):
                yield entry


def _columns(document: Any) -> Iterator[Mapping[str, Any]]:
    """`{"iterations": [...], "train_loss": [...]}`: the lists of one length, side by side.

    Losses of validations may have lists of their own, and steps: `val_steps` and `val_loss`.
    """
    lists = {
        key: column
        for key, column in (document.items() if isinstance(document, dict) else ())
        if isinstance(column, list) and all(isinstance(value, int | float) for value in column)
    }
    records = list[tuple[float, Mapping[str, Any]]]()
    is_counted = False
    steps = {str(at) for key, column in lists.items() if _counted(key) in STEPS for at in column}
    for key, by_step in document.items() if steps else ():
        # `{"step": [1, 2, ...], "dev_chrf": {"10": 38.4, "20": 36.0}}`
        if isinstance(by_step, dict) and steps.issuperset(by_step):
            records += [(0.0, {"step": int(at), key: value}) for at, value in by_step.items()]
    for size in dict.fromkeys(map(len, lists.values())):
        own = {key: column for key, column in lists.items() if len(column) == size}
        names = {*filter(None, unique(map(canonical, own), own))}
        columns = {_counted(key): column for key, column in own.items()}
        # Figures of rows or of kinds of rows are no course.
        is_course = not names.isdisjoint(_OF_A_COURSE) or not _COUNTED.isdisjoint(columns)
        is_course |= any(without_mean(name) in ROLES["reward"] for name in names)
        if size < MIN_LIST or not (is_course and is_report(names)):
            continue
        is_counted |= not _COUNTED.isdisjoint(columns)
        for place, values in enumerate(zip(*columns.values(), strict=True), 1):
            records.append((place / size, dict(zip(columns, values, strict=True))))
    # Where nothing counts them, validations lie evenly among the reports.
    yield from (one for _, one in (records if is_counted else sorted(records, key=itemgetter(0))))


def _counted(key: str) -> str:
    """The name of a list of steps, be they those of a split; any other key as it is."""
    name = re.sub(rf"^(?:{'|'.join(SPLIT_NAMES)}|eval)_", "", snake_case(key))
    return "iteration" if name in (*STEPS, "iterations") else key
