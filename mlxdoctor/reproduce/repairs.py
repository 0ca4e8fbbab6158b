"""Rows repaired, left out or put in another order for a rerun: each a `Fault`, put in likewise."""

import json
import random
import shutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mlxdoctor.evidence.dataset import Dataset, Row, Split
from mlxdoctor.measure.text.leftovers import Leftover, left_in, leftovers
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.batches import Batches
from mlxdoctor.twin.faults import fault
from mlxdoctor.twin.parts import Parts
from mlxdoctor.twin.settings import Settings

#: Added to the seed that orders the rows.
OTHER_SEED = 1000


def mended(row: Row, split: Split, named: Collection[Leftover]) -> Row | None:
    """A row without what was left in it; None where it is not known what belongs there.

    What can be mended is, whether it was named or hidden by what was.
    """
    for leftover in leftovers():
        pair = split.pair(row)
        if leftover.search(pair) is None or not (leftover.mend or leftover in named):
            continue
        texts = {text: leftover.mended(text) for text in (pair.prompt, pair.answer)}
        row = json.loads(json.dumps(row), object_hook=partial(_replaced, texts))
        if leftover.search(split.pair(row)) is not None:
            return None
    return row


def _replaced(texts: Mapping[str, str], part: Row) -> Row:
    return {
        key: texts.get(value, value) if isinstance(value, str) else value
        for key, value in part.items()
    }


def repaired(split: Split) -> dict[int, Row | None]:
    """The rows in which something was left, by their place: mended; None: left out."""
    spoilt = list(left_in(split, range(len(split.rows))))
    named = [each.leftover for each in spoilt]
    places = dict.fromkeys(place for each in spoilt for place in each.rows)
    return {place: mended(split.rows[place], split, named) for place in places}


def mends_all(settings: Settings) -> bool:
    """Whether the repair mends every row that it is about, and leaves none out."""
    repairs = repaired(Dataset.read(Path(settings.data)).splits["train"])
    return bool(repairs) and None not in repairs.values()


def _left_out(
    settings: Settings, parts: Parts, _severity: Any, *, at_random: bool
) -> tuple[Settings, Parts]:
    """Training rows in which something was left are mended or left out, or as many at random."""
    source, folder = Path(settings.data), Path(settings.adapter_path) / "data"
    train = Dataset.read(source).splits["train"]
    repairs = repaired(train)
    count, gone = len(train.rows), sum(row is None for row in repairs.values())
    if count - gone < settings.batch_size:
        left = f"{count - gone} rows left without those that the findings name"
        raise InputError(train.path, f"has {left}, fewer than a batch")
    if at_random:
        repairs = dict.fromkeys(random.Random(settings.seed).sample(range(count), gone))
    shutil.copytree(source, folder, dirs_exist_ok=True)
    rows = (repairs.get(place, row) for place, row in enumerate(train.rows))
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows if row is not None)
    (folder / train.path.name).write_text(text, "utf-8")
    return replace(settings, data=str(folder)), parts


_MENDED = "mending or leaving out the rows that the findings name"
rows_left_out = fault(_MENDED, "bad-data", "every row")(partial(_left_out, at_random=False))
_AT_RANDOM = "placebo: as many rows left out at random"
others_left_out = fault(_AT_RANDOM, "bad-data", "every row")(partial(_left_out, at_random=True))


@fault("placebo: another order of the rows", "bad-data", "every row")
def other_order(settings: Settings, parts: Parts, _severity: Any) -> tuple[Settings, Parts]:
    """The training batches come in the order of another seed."""

    def batches(settings: Settings) -> Batches:
        other = parts.batches(replace(settings, seed=settings.seed + OTHER_SEED))
        return parts.batches(settings)._replace(train=other.train)

    return settings, replace(parts, batches=batches)
