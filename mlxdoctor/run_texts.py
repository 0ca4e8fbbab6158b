"""All text of a run that may be nobody else's business: its rows, and what the model said."""

from collections.abc import Iterator, Mapping
from typing import Any

from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.models.generations import Generations
from mlxdoctor.run import Run


def texts_of(run: Run) -> Iterator[str]:
    """Every text in every row of every split, nested ones included; every prompt and answer."""
    yield from row_texts(run)
    generations = run.get(Generations)
    for item in generations.items if generations is not None else ():
        yield from filter(None, (item.prompt, item.base, item.tuned, item.expected))


def row_texts(run: Run) -> Iterator[str]:
    """Every text in every row of every split, nested ones included."""
    dataset = run.get(Dataset)
    for split in dataset.splits.values() if dataset is not None else ():
        for row in split.rows:
            yield from _texts(row)


def _texts(value: Any) -> Iterator[str]:
    # No row is nested deeper than the limit `json_depth`.
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)
