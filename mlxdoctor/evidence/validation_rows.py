"""The rows a run was validated on, and both models' losses on them, measured when asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from mlxdoctor.evidence.source import Source
from mlxdoctor.measure.text.plain_formats import PlainFormat
from mlxdoctor.measure.token_losses import RowLosses

#: (format or None for the configured one, how many rows) -> both models' losses on them.
Measure = Callable[[PlainFormat | None, int], tuple[RowLosses, ...]]


@dataclass(frozen=True)
class ValidationRows:
    """The validation split as the trainer reads it, to be measured on demand.

    Running a model is slow, and most runs need no more than `TokenLosses` has.

    Attributes:
        sources: the data file, the tokenizer's and the models' files.
        split: the split's name, as in `TokenLosses`.
        total: rows that a validation of the whole split looks at.
        affordable: how many of them can be measured in about a second.
        formats: other formats in which these rows can be written.
        measure: losses on so many rows, evenly spaced, in one of the formats; a row that
            a format does not fit is left out.
        measure_unfused: the same as configured, with the adapter beside the base in place of
            the fused model; None unless both are there.
    """

    kind: ClassVar[str] = "validation rows"

    sources: tuple[Source, ...]
    split: str
    total: int
    affordable: int
    formats: tuple[PlainFormat, ...]
    measure: Measure
    measure_unfused: Callable[[int], tuple[RowLosses, ...]] | None = None
