"""Metrics as one JSON document: trainer_state.json and histories kept whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mlxdoctor.evidence.logs.json_document import read_document
from mlxdoctor.evidence.logs.json_records import Records
from mlxdoctor.evidence.logs.log_format import WholeFormat
from mlxdoctor.evidence.logs.metric_names import STEPS, canonical, is_report, snake_case

#: Keys under which trainers keep a list of records.
_HISTORIES = ("log_history", "history", "logs", "metrics", "records", "train_loss_history")

#: What W&B adds to the last value of each metric.
_SUMMARY_KEYS = frozenset(("_runtime", "_step"))


class JsonHistory(WholeFormat):
    """A list of records, or a column a metric; line numbers count records from 1."""

    name = "JSON history"
    priority = 50
    understood = "trainer_state.json"
    example = '{"log_history": [{"step": 1, "loss": 2.5},\n {"step": 2, "loss": 2.25}]}\n'
    grows = False
    marks = ("log_history", "train_loss_history")

    def begins(self, head: str) -> bool:
        """An object or a list; where a second one follows on the next line, it is no document."""
        first, _, rest = head.partition("\n")
        many = first.rstrip().endswith("}") and rest.lstrip().startswith("{")
        return head[:1] in ("{", "[") and not many

    def read(self, texts: Iterator[str]) -> Iterator[str] | None:
        """Read it if it is no longer than the limit `json_bytes`."""
        value, again = read_document(texts)
        records = Records(self.rows)
        for found in (_records(value), _columns(value)):
            if not self.count:
                self.count = sum(records.add(number, one) for number, one in enumerate(found, 1))
        return None if self.count else again


def _records(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        for one in value:
            if isinstance(one, dict) and is_report(canonical(key) for key in one):
                yield one
        return
    if not isinstance(value, dict):
        return
    if _SUMMARY_KEYS & value.keys():
        yield value
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


def _columns(value: Any) -> Iterator[Mapping[str, Any]]:
    """`{"iterations": [...], "train_loss": [...]}`: the lists that are as long as the losses."""
    if not isinstance(value, dict):
        return
    lists = {
        key: one
        for key, one in value.items()
        if isinstance(one, list) and one and all(isinstance(x, int | float) for x in one)
    }
    losses = [len(one) for key, one in lists.items() if canonical(key) == "train_loss"]
    if not losses:
        return
    same = {
        "iteration" if snake_case(key) in (*STEPS, "iterations") else key: one
        for key, one in lists.items()
        if len(one) == losses[0]
    }
    for values in zip(*same.values(), strict=True):
        yield dict(zip(same, values, strict=True))
