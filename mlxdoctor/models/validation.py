"""The rows a run was validated on, and both models' losses on them, measured when asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset, Split
from mlxdoctor.evidence.kind import Missing, NoSuchThing, NotThere, RunView
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.supervision import Role, SupervisedRow, SupervisedRows, build
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

#: Formats in which people write a question and its answer without a chat template.
_PATTERNS = (
    "{prompt} {answer}",
    "{prompt}\n{answer}",
    "{prompt}\n\n{answer}",
    "Q: {prompt}\nA: {answer}",
    "Question: {prompt}\nAnswer: {answer}",
    "User: {prompt}\nAssistant: {answer}",
    "USER: {prompt} ASSISTANT: {answer}",
    "USER: {prompt}\nASSISTANT: {answer}",
    "### Instruction:\n{prompt}\n\n### Response:\n{answer}",
    "[INST] {prompt} [/INST] {answer}",
    "<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>",
)


@dataclass(frozen=True)
class PlainFormat:
    """One way to write a question and its answer as text, the end token following.

    Attributes:
        pattern: with `{prompt}` and `{answer}`; None for the row as it is, cut before its
            end token.
        apart: prompt and answer are tokenized one by one, as trainers with a mask do;
            else the whole text is, which may join their tokens where they meet.
    """

    pattern: str | None
    apart: bool

    def __str__(self) -> str:
        return "no end token" if self.pattern is None else self.pattern.replace("\n", "\\n")


WITHOUT_END = PlainFormat(None, apart=False)
#: Every other format that is tried.
PLAIN_FORMATS = tuple(
    PlainFormat(pattern, apart) for pattern in _PATTERNS for apart in (True, False)
)


#: (format or None for the configured one, how many rows) -> both models' losses on them.
Measure = Callable[[PlainFormat | None, int], tuple[RowLosses, ...]]


@dataclass(frozen=True)
class ValidationRows:
    """The validation split as the trainer reads it, to be measured on demand.

    Running a model is slow, and most runs need no more than `TokenLosses` has.

    Attributes:
        sources: the data file, the tokenizer's and the models' files.
        total: rows that a validation of the whole split looks at.
        affordable: how many of them can be measured in about a second.
        formats: other formats in which these rows can be written.
        measure: losses on so many rows, evenly spaced, in one of the formats; a row that
            a format does not fit is left out.
        measure_unfused: as `measure` does, as configured, with the adapter beside the base in
            place of the fused model; None unless both are there.
    """

    kind: ClassVar[str] = "validation rows"
    needs_models: ClassVar[bool] = True

    sources: tuple[Source, ...]
    total: int
    affordable: int
    formats: tuple[PlainFormat, ...]
    measure: Measure
    measure_unfused: Callable[[int], tuple[RowLosses, ...]] | None = None

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
        validation = prepare(meter, rows, dataset)
        if run.files.tuned is None or adapter is None:
            return validation

        def unfused(count: int) -> tuple[RowLosses, ...]:
            beside = replace(meter, models=load(models.base, adapter))
            return prepare(beside, rows, dataset).measure(None, count)

        return replace(validation, measure_unfused=unfused)


def prepare(meter: Meter, rows: SupervisedRows, dataset: Dataset) -> ValidationRows:
    """A split to be measured; no model is run before `measure` is called.

    Args:
        meter: measures rows with both models.
        rows: the validation split, as configured.
        dataset: what they were made from.
    """
    # Rows left over after the last whole batch are never looked at.
    whole = [rows.rows[place] for batch in rows.batches for place in batch]
    rows = replace(rows, rows=tuple(whole or rows.rows), batches=())

    def write(some: SupervisedRows, plain: PlainFormat) -> SupervisedRows:
        return rewritten(some, dataset.splits[rows.split], meter.tokenizer, plain)

    def measure(plain: PlainFormat | None, count: int) -> tuple[RowLosses, ...]:
        places = evenly(len(rows.rows), count)
        chosen = replace(rows, rows=tuple(rows.rows[place] for place in places))
        if plain is not None:
            chosen = write(chosen, plain)
        if not any(row.length >= SHORTEST_ROW for row in chosen.rows):
            return ()
        try:
            losses = meter.measure([chosen])
        except Missing as spent:
            raise InputError(None, str(spent)) from None
        if plain is not None and losses.left_out:
            # A format that was tried on too few rows is not one that does not fit.
            raise InputError(None, losses.left_out, "raise it with --budget")
        return tuple(sorted(losses.rows, key=lambda row: row.index))

    first = replace(rows, rows=rows.rows[:1])
    formats = tuple(plain for plain in PLAIN_FORMATS if _differs(first, write(first, plain)))
    has_end = any(Role.END in row.roles for row in first.rows)
    mean = sum(min(row.length, LONGEST_ROW) for row in rows.rows) / max(len(rows.rows), 1)
    affordable = int(AFFORDABLE_WORK / max(mean * meter.models.base.parameter_count, 1.0))
    return ValidationRows(
        sources=rows.sources,
        total=rows.total_rows - rows.total_rows % rows.batch_size or rows.total_rows,
        affordable=min(len(rows.rows), affordable),
        formats=(WITHOUT_END, *formats) if has_end else formats,
        measure=measure,
    )


def _differs(configured: SupervisedRows, plain: SupervisedRows) -> bool:
    """Whether a format fits the data, and is not what the chat template writes."""
    return any(
        written.tokens.tolist() != row.tokens[: len(written.tokens)].tolist()
        for row, written in zip(configured.rows, plain.rows, strict=False)
    )


def rewritten(
    rows: SupervisedRows,
    split: Split,
    tokenizer: Tokenizer,
    plain: PlainFormat,
) -> SupervisedRows:
    """The same rows in another format; those of several turns are left out.

    Args:
        rows: as configured; masking and sequence limit are kept.
        split: the data that `rows` was made from.
    """
    if plain.pattern is None:
        return replace(rows, rows=tuple(map(_without_end, rows.rows)), batches=())
    before, after = plain.pattern.split("{answer}")
    changed = []
    for row in rows.rows:
        pair = split.turn(split.rows[row.index])
        if pair is not None:
            start, rest = before.replace("{prompt}", pair[0]), pair[1] + after
            head = tokenizer.encode(start)
            whole = (
                head + tokenizer.encode(rest, add_special_tokens=False)
                if plain.apart
                else tokenizer.encode(start + rest)
            )
            changed.append(_written(row, rows, len(head), whole, tokenizer.eos_token_id))
    return replace(rows, rows=tuple(changed), batches=())


def _without_end(row: SupervisedRow) -> SupervisedRow:
    ends = np.flatnonzero(row.roles == Role.END)
    if not len(ends):
        return row
    last = int(ends[-1])
    return replace(
        row,
        tokens=row.tokens[:last],
        roles=row.roles[:last],
        length=min(row.length, last),
        padded=row.padded or last < row.length,
    )


def _written(
    row: SupervisedRow, rows: SupervisedRows, prompt: int, tokens: list[int], end: int | None
) -> SupervisedRow:
    """A row of so many tokens of a prompt, and of an answer; the end token is added."""
    if end is not None and tokens[-1:] != [end]:
        tokens = [*tokens, end]
    roles = np.full(len(tokens), Role.ANSWER, dtype=np.int8)
    roles[:prompt] = Role.PROMPT
    if end is not None:
        roles[-1] = Role.END
    length = min(len(tokens), rows.max_seq_length)
    return replace(
        row,
        tokens=np.array(tokens, dtype=np.int32),
        offset=prompt if rows.mask_prompt else 0,
        prompt_length=prompt,
        length=length,
        roles=roles,
        padded=length < rows.max_seq_length,
    )
