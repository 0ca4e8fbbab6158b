"""Rows repaired, left out or put in another order for a rerun: each a `Fault`, put in likewise."""

import json
import random
import shutil
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mlxdoctor.evidence.dataset import Dataset, Pair, Row, Split
from mlxdoctor.measure.text.leftovers import Leftover, left_in, leftovers
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.batches import Batches
from mlxdoctor.twin.faults import fault
from mlxdoctor.twin.parts import Parts
from mlxdoctor.twin.settings import Settings

#: Added to the seed that orders the rows.
OTHER_SEED = 1000


def named_rows(split: Split, what: Collection[str]) -> frozenset[int]:
    """The rows of a split, by their place, that a finding of one of these names is about.

    Of rows that repeat each other the first is not among them; of rows that contradict each
    other all are: nobody knows which is right.
    """
    pairs = list(map(split.pair, split.rows))
    answers: dict[str, set[str]] = defaultdict(set)
    for pair in pairs:
        answers[pair.prompt].add(pair.answer)
    looked_at = range(len(pairs)) if "leftovers" in what else ()
    left = {row for spoilt in left_in(split, looked_at) for row in spoilt.rows}
    seen: set[Pair] = set()
    places: set[int] = set()
    for place, (row, pair) in enumerate(zip(split.rows, pairs, strict=True)):
        problems = {
            "duplicates": pair in seen,
            "contradictory": len(answers[pair.prompt]) > 1,
            "leftovers": place in left,
            "empty": not pair.answer.strip(),
            "other format": split.features.format_of(row) != split.format,
        }
        if any(problems[name] for name in what):
            places.add(place)
        seen.add(pair)
    return frozenset(places)


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


def repaired(split: Split, what: Collection[str]) -> dict[int, Row | None]:
    """The rows that findings of these names are about, by their place: mended; None: left out."""
    repairs: dict[int, Row | None] = dict.fromkeys(named_rows(split, what))
    if "leftovers" in what:
        others = named_rows(split, set(what) - {"leftovers"})
        named = [spoilt.leftover for spoilt in left_in(split, range(len(split.rows)))]
        for place in repairs.keys() - others:
            repairs[place] = mended(split.rows[place], split, named)
    return repairs


def mends_all(settings: Settings, what: Collection[str]) -> bool:
    """Whether the repair mends every row that it is about, and leaves none out."""
    repairs = repaired(Dataset.read(Path(settings.data)).splits["train"], what)
    return bool(repairs) and None not in repairs.values()


def _left_out(settings: Settings, what: Collection[str], *, at_random: bool) -> Settings:
    """Repair the training rows that findings of these names are about, or leave out as many."""
    source, folder = Path(settings.data), Path(settings.adapter_path) / "data"
    train = Dataset.read(source).splits["train"]
    repairs = repaired(train, what)
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
    return replace(settings, data=str(folder))


@fault("mending or leaving out the rows that the findings name", "bad-data", ())
def rows_left_out(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Training rows are mended, or left out."""
    return _left_out(settings, severity, at_random=False), parts


@fault("placebo: as many rows left out at random", "bad-data", ())
def others_left_out(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """As many training rows are left out at random."""
    return _left_out(settings, severity, at_random=True), parts


@fault("another order of the rows", "bad-data", "every row")
def other_order(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """The training batches come in the order of another seed."""
    del severity

    def batches(settings: Settings) -> Batches:
        other = parts.batches(replace(settings, seed=settings.seed + OTHER_SEED))
        return parts.batches(settings)._replace(train=other.train)

    return settings, replace(parts, batches=batches)
