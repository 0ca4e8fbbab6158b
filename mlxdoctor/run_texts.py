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
    # A row may be nested as deep as its parser allows: no recursion.
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, Mapping):
            waiting.extend(part.values())
        elif isinstance(part, list | tuple):
            waiting.extend(part)
