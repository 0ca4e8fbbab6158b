"""Whether pairs have a chosen and a rejected answer that differ.

What it finds. Rows whose chosen and rejected answers are the same text.

Why it matters. A pair of one text teaches nothing.

How it is measured. The last messages of both answers are compared character by character, white
space at both ends aside.

When it is wrong. Pairs in a form that is not read here (nested objects of another trainer) are left
out.

What to do. Leave the equal pairs out, and look for the line of the script that writes both answers
from one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlxdoctor.check import DoesNotArise, Inconclusive, check
from mlxdoctor.evidence.dataset import Dataset, Split
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Severity, Sign, Symptom, some_of

#: Keys of the two answers, as trainers name them.
CHOSEN, REJECTED = "chosen", "rejected"
#: Shares of the pairs: a few copies do no harm, and of half of them the run is without effect.
FEW, MOSTLY = 0.02, 0.5


@check(
    codes={
        "alike": Symptom.warning(
            "chosen and rejected answers are the same text",
            says="In {alike} of {pairs:* pair} of {file} the chosen and the rejected answer are "
            "the same text.",
            expected="two different answers in every pair",
            fix="Leave out the pairs whose two answers are the same, and look for the line of the "
            "script that writes both from one.",
        ),
    },
)
def preference_rows(dataset: Dataset, log: TrainingLog | None) -> Iterator[Sign]:
    """Compare the two answers of each pair."""
    train = dataset.splits.get("train")
    if train is None or not _pairs(train):
        has_pairs = train is not None and train.rows and CHOSEN in train.rows[0]
        if log is not None and log.is_preference and has_pairs:
            raise Inconclusive("the answers of the pairs are in a form that is not read")
        raise DoesNotArise("the rows are no pairs of answers")
    for split in (train, dataset.splits.get("valid")):
        pairs = _pairs(split) if split is not None else []
        same = [place for place, (chosen, other) in enumerate(pairs, 1) if chosen == other]
        if split is None or not same or (share := len(same) / len(pairs)) < FEW:
            continue
        counts = {"alike": len(same), "pairs": len(pairs)}
        where = f"{split.path.name}, pair {some_of([str(place) for place in same])}"
        severity = Severity.ERROR if split is train and share >= MOSTLY else None
        yield Sign("alike", {**counts, "file": split.path.name}, where=where, severity=severity)


def _pairs(split: Split) -> list[tuple[str, str]]:
    """The chosen and the rejected answer of each row; rows that are no pair are left out."""
    answers = [(_last_said(row.get(CHOSEN)), _last_said(row.get(REJECTED))) for row in split.rows]
    return [
        (chosen.strip(), rejected.strip())
        for chosen, rejected in answers
        if chosen is not None and rejected is not None
    ]


def _last_said(value: Any) -> str | None:
    """A text, or the last message of a conversation; None for what is no text."""
    if isinstance(value, Mapping):
        value = value.get("messages", value.get("content"))
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        value = value[-1].get("content") if isinstance(value[-1], Mapping) else value[-1]
    return value if isinstance(value, str) else None
