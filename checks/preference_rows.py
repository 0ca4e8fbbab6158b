"""Whether pairs have a chosen and a rejected answer, the same way round in every file.

What it finds. Rows whose chosen and rejected answers are the same text; and a training file in
which what the validation file calls chosen is called rejected.

Why it matters. A pair of one text teaches nothing. Pairs the wrong way round teach the opposite,
with a loss that falls as it should.

How it is measured. Texts are compared word for word. For the order, words are weighed by how much
oftener they stand in the chosen than in the rejected answers of the training file (and the number
of words, likewise); then the validation pairs are weighed with them. In files that agree the
chosen answer wins as often as not, or far oftener; that it loses nearly always takes a file that
is the wrong way round.

When it is wrong. Files of two different tasks may disagree in style. Read a few pairs of each.

What to do. Leave the equal pairs out; swap the keys in the file that is wrong.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mlxdoctor.check import DoesNotArise, Inconclusive, check, limit
from mlxdoctor.evidence.dataset import Dataset, Split
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, Unsought, some_of
from mlxdoctor.measure.pairs import CHOSEN, pairs_of


@dataclass(frozen=True)
class Limits:
    """When pairs are no pairs."""

    alike: float = limit(0.02, unit="share of the pairs", source="a few copies do no harm")
    mostly: float = limit(
        0.5, unit="share of the pairs", source="half of the run is without effect"
    )
    pairs: int = limit(20, unit="pairs of each file", source="fewer agree or not by chance")
    itself: float = limit(
        0.75, unit="share of the training pairs", source="the words tell the training pairs apart"
    )
    against: float = limit(
        0.1, unit="share of the validation pairs", source="by chance 2 of 20 in 2 of 10,000 cases"
    )


@check(
    codes={
        "alike": Symptom.warning(
            "chosen and rejected answers are the same text",
            expected="two different answers in every pair",
            fix="Leave out the pairs whose two answers are the same, and look for the line of the "
            "script that writes both from one.",
        ),
        "split-reversed": Symptom.error(
            "what one file calls chosen the other calls rejected",
            expected="pairs the same way round in both files",
            fix="Read three pairs of each file, and swap the keys chosen and rejected in the file "
            "that is wrong.",
        ),
    },
    limits=Limits(),
)
def preference_rows(
    dataset: Dataset, log: TrainingLog | None, limits: Limits
) -> Iterator[Sign | Unsought]:
    """Compare the two answers of each pair, and the files with each other."""
    pairs = {
        name: [(one.chosen, one.rejected) for one in pairs_of(split)]
        for name, split in dataset.splits.items()
    }
    train = pairs.get("train", [])
    if not train:
        if log is not None and log.is_preference and CHOSEN in _keys(dataset):
            raise Inconclusive("the answers of the pairs are in a form that is not read")
        raise DoesNotArise("the rows are no pairs of answers")
    for name in ("train", "valid"):
        if pairs.get(name):
            yield from _alike(dataset.splits[name], pairs[name], limits)
    valid = [one for one in pairs.get("valid", []) if one[0] != one[1]]
    different = [one for one in train if one[0] != one[1]]
    if min(len(valid), len(different)) < limits.pairs:
        why = f"there are fewer than {limits.pairs} pairs of different answers in one of the files"
        yield Unsought(("split-reversed",), why)
        return
    weights = _weights(different)
    itself, against = _wins(different, weights), _wins(valid, weights)
    if itself >= limits.itself and against <= limits.against:
        yield Sign(
            "split-reversed",
            f"By the words that tell the pairs of train.jsonl apart ({itself:.0%} of them), the "
            f"answer that is called rejected is the chosen one in {1 - against:.0%} of the "
            f"{len(valid)} pairs of valid.jsonl.",
            {
                "train_pairs": len(different),
                "valid_pairs": len(valid),
                "train_agreement": itself,
                "valid_agreement": against,
            },
        )


def _keys(dataset: Dataset) -> set[str]:
    train = dataset.splits.get("train")
    return set(train.rows[0]) if train is not None and train.rows else set()


def _alike(split: Split, pairs: list[tuple[str, str]], limits: Limits) -> Iterator[Sign]:
    same = [place for place, (one, other) in enumerate(pairs, 1) if one.strip() == other.strip()]
    share = len(same) / len(pairs)
    if share < limits.alike:
        return
    measured: dict[str, Measurement] = {"alike": len(same), "pairs": len(pairs)}
    is_most = split.name == "train" and share >= limits.mostly
    yield Sign(
        "alike",
        f"In {len(same)} of {len(pairs)} pairs of {split.path.name} the chosen and the rejected "
        "answer are the same text.",
        measured,
        where=f"{split.path.name}, pair {some_of([str(place) for place in same])}",
        severity=Severity.ERROR if is_most else None,
    )


def _features(text: str, other: str) -> set[str]:
    """The words of an answer that the other lacks, and whether it is the longer or the louder."""
    mine, theirs = text.split(), other.split()
    found = set(mine) - set(theirs)
    # No word holds a blank.
    if len(mine) != len(theirs):
        found.add("longer " if len(mine) > len(theirs) else "shorter ")
    loud, quiet = (sum(map(str.isupper, one)) for one in (text, other))
    if loud != quiet:
        found.add("more capitals " if loud > quiet else "fewer capitals ")
    return found


def _weights(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Word -> log-odds of standing in the chosen rather than in the rejected answer."""
    chosen: Counter[str] = Counter()
    rejected: Counter[str] = Counter()
    for one, other in pairs:
        chosen.update(_features(one, other))
        rejected.update(_features(other, one))
    return {
        name: math.log((chosen[name] + 1.0) / (rejected[name] + 1.0))
        for name in chosen.keys() | rejected.keys()
    }


def _wins(pairs: Sequence[tuple[str, str]], weights: Mapping[str, float]) -> float:
    """How often the chosen answer weighs more, ties by half."""
    total = 0.0
    for one, other in pairs:
        lead = sum(weights.get(name, 0.0) for name in _features(one, other))
        lead -= sum(weights.get(name, 0.0) for name in _features(other, one))
        total += 1.0 if lead > 0 else 0.5 if lead == 0 else 0.0
    return total / len(pairs)
