"""The rows of a validation, made ready to be measured when a check asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mlxdoctor.evidence.supervision import Role, SupervisedRow, SupervisedRows, build
from mlxdoctor.evidence.validation_rows import ValidationRows
from mlxdoctor.measure import forward
from mlxdoctor.measure.text.plain_formats import PLAIN_FORMATS, WITHOUT_END, PlainFormat, rewritten
from mlxdoctor.measure.token_losses import RowLosses

if TYPE_CHECKING:
    from mlxdoctor.evidence.config import TrainingConfig
    from mlxdoctor.evidence.dataset import Dataset
    from mlxdoctor.evidence.tokenizer import Tokenizer
    from mlxdoctor.measure.models import LoadedModels

SPLIT = "valid"
#: Parameters times tokens of one model that take about a second on a slow machine.
AFFORDABLE_WORK = 3e9


def prepare(
    models: LoadedModels,
    tokenizer: Tokenizer,
    dataset: Dataset,
    config: TrainingConfig | None,
    *,
    known: Sequence[RowLosses] = (),
    unfused: Callable[[], LoadedModels] | None = None,
    progress: forward.Progress | None = None,
) -> ValidationRows:
    """The validation split, encoded; no model is run before `measure` is called.

    Args:
        models: the base and the tuned model.
        tokenizer: the base model's.
        dataset: the run's data.
        config: for masking, sequence limit and batch size.
        known: rows of the split that were measured with `models` already.
        unfused: loads the base model with the adapter, where `models` has it fused.
        progress: called batch by batch while measuring.

    Raises:
        InputError: there is no validation split, or it has no row that can be read.
    """
    rows = build(dataset, tokenizer, config, split=SPLIT)
    # Rows left over after the last whole batch are never looked at.
    whole = [rows.rows[place] for batch in rows.batches for place in batch]
    rows = replace(rows, rows=tuple(whole or rows.rows), batches=())
    split = dataset.splits[SPLIT]
    first = replace(rows, rows=rows.rows[:1])
    formats = tuple(
        plain
        for plain in PLAIN_FORMATS
        if _differs(first, rewritten(first, split, dataset.features, tokenizer, plain))
    )
    has_end = any(Role.END in row.roles for row in first.rows)

    done = {row.index: row for row in known}

    def losses(used: LoadedModels, plain: PlainFormat | None, count: int) -> tuple[RowLosses, ...]:
        chosen = _evenly(rows.rows, count)
        old = done if used is models and plain is None else {}
        new = replace(rows, rows=tuple(row for row in chosen if row.index not in old))
        if plain is not None:
            new = rewritten(new, split, dataset.features, tokenizer, plain)
        found = {row.index: old[row.index] for row in chosen if row.index in old}
        if any(row.length >= forward.SHORTEST_ROW for row in new.rows):
            measured = forward.measure(
                used, tokenizer, [new], max_rows=count, pad_ids=(rows.pad_id,), progress=progress
            )
            found |= {row.index: row for row in measured.rows}
        return tuple(found[index] for index in sorted(found))

    return ValidationRows(
        sources=rows.sources,
        split=SPLIT,
        total=_validated(rows),
        affordable=min(len(rows.rows), _affordable(rows.rows, models.base.parameter_count)),
        formats=(WITHOUT_END, *formats) if has_end else formats,
        measure=partial(losses, models),
        measure_unfused=None if unfused is None else lambda count: losses(unfused(), None, count),
    )


def _differs(configured: SupervisedRows, plain: SupervisedRows) -> bool:
    """Whether a format fits the data, and is not what the chat template writes."""
    return any(
        one.tokens.tolist() != row.tokens[: len(one.tokens)].tolist()
        for row, one in zip(configured.rows, plain.rows, strict=False)
    )


def _validated(rows: SupervisedRows) -> int:
    whole = rows.total_rows - rows.total_rows % rows.batch_size
    return whole or rows.total_rows


def _affordable(rows: Sequence[SupervisedRow], parameters: int) -> int:
    mean = sum(min(row.length, forward.LONGEST_ROW) for row in rows) / max(len(rows), 1)
    return int(AFFORDABLE_WORK / max(mean * parameters, 1.0))


def _evenly(rows: tuple[SupervisedRow, ...], wanted: int) -> tuple[SupervisedRow, ...]:
    count = min(len(rows), wanted)
    return tuple(rows[round(i * (len(rows) - 1) / max(1, count - 1))] for i in range(count))
