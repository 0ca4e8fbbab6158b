"""Metrics as one JSON document: trainer_state.json and histories kept whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mlxdoctor.evidence.log_formats.json_lines import RecordReader
from mlxdoctor.evidence.log_formats.names import STEPS, canonical, is_report, snake_case
from mlxdoctor.evidence.log_formats.segments import Rows

#: Keys under which trainers keep a list of records.
_HISTORIES = ("log_history", "history", "logs", "metrics", "records", "train_loss_history")


def is_document(value: Any) -> bool:
    """Whether a parsed JSON value holds a history of training."""
    return any(True for _ in _records(value)) or bool(_columns(value))


def read_document(value: Any, rows: Rows) -> None:
    """Add the records of a document to `rows`; line numbers count records from 1."""
    reader = RecordReader(rows)
    for number, record in enumerate(_records(value), 1):
        reader.add(number, record)
    columns = _columns(value)
    if columns and not reader.read_rows:
        for number, one in enumerate(zip(*columns.values(), strict=True), 1):
            reader.add(number, dict(zip(columns, one, strict=True)))


def _records(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        for one in value:
            if isinstance(one, dict) and is_report(canonical(key) for key in one):
                yield one
        return
    if not isinstance(value, dict):
        return
    for key in _HISTORIES:
        history = value.get(key)
        if not isinstance(history, list):
            continue
        for one in history:
            if isinstance(one, dict):
                yield one
            elif key == "train_loss_history":
                yield from _bare(one)


def _bare(one: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(one, list) and len(one) == 2:
        yield {"step": one[0], "train_loss": one[1]}
    elif isinstance(one, int | float) and not isinstance(one, bool):
        yield {"train_loss": one}


def _columns(value: Any) -> dict[str, list[Any]]:
    """`{"iterations": [...], "train_loss": [...]}`: the lists of the longest length."""
    if not isinstance(value, dict):
        return {}
    lists = {
        key: one
        for key, one in value.items()
        if isinstance(one, list) and one and all(isinstance(x, int | float) for x in one)
    }
    losses = [len(one) for key, one in lists.items() if canonical(key) == "train_loss"]
    if not losses:
        return {}
    same = {key: one for key, one in lists.items() if len(one) == losses[0]}
    return {
        "iteration" if snake_case(key) in (*STEPS, "iterations") else key: one
        for key, one in same.items()
    }
