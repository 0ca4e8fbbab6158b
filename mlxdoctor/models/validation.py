"""The rows a run was validated on, and both models' losses on them, measured when asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.kind import Missing, NoSuchThing, NotThere, RunView
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.supervision import SupervisedRows, build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models.load import LoadedModels, load
from mlxdoctor.models.losses import (
    LONGEST_ROW,
    SHORTEST_ROW,
    Meter,
    RowLosses,
    evenly,
)
from mlxdoctor.safety.errors import InputError

SPLIT = "valid"
#: Parameters times tokens of one model that take about a second on a slow machine.
AFFORDABLE_WORK = 3e9

#: How many rows -> both models' losses on them.
Measure = Callable[[int], tuple[RowLosses, ...]]


@dataclass(frozen=True)
class ValidationRows:
    """The validation split as the trainer reads it, to be measured on demand.

    Running a model is slow, and most runs need no more than `TokenLosses` has.

    Attributes:
        sources: the data file, the tokenizer's and the models' files.
        total: rows that a validation of the whole split looks at.
        affordable: how many of them can be measured in about a second.
        measure: losses on so many rows, evenly spaced.
        measure_unfused: as `measure` does, with the adapter beside the base in place of the fused
            model; None unless both are there.
    """

    kind: ClassVar[str] = "validation rows"
    needs_models: ClassVar[bool] = True

    sources: tuple[Source, ...]
    total: int
    affordable: int
    measure: Measure
    measure_unfused: Measure | None = None

    @classmethod
    def find(cls, run: RunView) -> ValidationRows:
        """The validation split, where there is one."""
        dataset = run.need(Dataset)
        if SPLIT not in dataset.splits:
            raise NotThere("the data has no validation split")
        if run.get(SupervisedRows) is None and run.cannot_have(SupervisedRows):
            raise NoSuchThing(run.why_missing(SupervisedRows))
        tokenizer, models, adapter = run.need(Tokenizer), run.need(LoadedModels), run.files.adapter
        rows = build(dataset, tokenizer, run.get(TrainingConfig), split=SPLIT)
        meter = Meter(models, tokenizer, run.progress, run.budget)
        validation = prepare(meter, rows)
        if run.files.tuned is None or adapter is None:
            return validation

        def unfused(count: int) -> tuple[RowLosses, ...]:
            beside = replace(meter, models=load(models.base, adapter))
            return prepare(beside, rows).measure(count)

        return replace(validation, measure_unfused=unfused)


def prepare(meter: Meter, rows: SupervisedRows) -> ValidationRows:
    """A split to be measured; no model is run before `measure` is called.

    Args:
        meter: measures rows with both models.
        rows: the validation split, as configured.
    """
    # Rows left over after the last whole batch are never looked at.
    whole = [rows.rows[place] for batch in rows.batches for place in batch]
    rows = replace(rows, rows=tuple(whole or rows.rows), batches=())

    def measure(count: int) -> tuple[RowLosses, ...]:
        places = evenly(len(rows.rows), count)
        chosen = replace(rows, rows=tuple(rows.rows[place] for place in places))
        if not any(row.length >= SHORTEST_ROW for row in chosen.rows):
            return ()
        try:
            losses = meter.measure([chosen])
        except Missing as spent:
            raise InputError(None, str(spent)) from None
        return tuple(sorted(losses.rows, key=lambda row: row.index))

    mean = sum(min(row.length, LONGEST_ROW) for row in rows.rows) / max(len(rows.rows), 1)
    affordable = int(AFFORDABLE_WORK / max(mean * meter.models.base.parameter_count, 1.0))
    return ValidationRows(
        sources=rows.sources,
        total=rows.total_rows - rows.total_rows % rows.batch_size or rows.total_rows,
        affordable=min(len(rows.rows), affordable),
        measure=measure,
    )
