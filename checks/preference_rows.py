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
from mlxdoctor.finding import Severity, Sign, Symptom, Unsought, some_of
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
            says="In {alike} of {pairs:* pair} of {file} the chosen and the rejected answer are "
            "the same text.",
            expected="two different answers in every pair",
            fix="Leave out the pairs whose two answers are the same, and look for the line of the "
            "script that writes both from one.",
        ),
        "split-reversed": Symptom.error(
            "what one file calls chosen the other calls rejected",
            says="By the words that tell the pairs of train.jsonl apart ({train_agreement:.0%} of "
            "them), the answer that is called rejected is the chosen one in {reversed:.0%} of the "
            "{valid_pairs:* pair} of valid.jsonl.",
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
        name: [(pair.chosen, pair.rejected) for pair in pairs_of(split)]
        for name, split in dataset.splits.items()
    }
    if not pairs.get("train"):
        train = dataset.splits.get("train")
        has_pairs = train is not None and train.rows and CHOSEN in train.rows[0]
        if log is not None and log.is_preference and has_pairs:
            raise Inconclusive("the answers of the pairs are in a form that is not read")
        raise DoesNotArise("the rows are no pairs of answers")
    for name in ("train", "valid"):
        if pairs.get(name):
            yield from _alike(dataset.splits[name], pairs[name], limits)
    train_pairs, valid_pairs = (
        [pair for pair in pairs.get(name, []) if pair[0] != pair[1]] for name in ("train", "valid")
    )
    if min(len(valid_pairs), len(train_pairs)) < limits.pairs:
        why = f"there are fewer than {limits.pairs} pairs of different answers in one of the files"
        yield Unsought(("split-reversed",), why)
        return
    weights = _weights(train_pairs)
    itself, against = _wins(train_pairs, weights), _wins(valid_pairs, weights)
    if itself >= limits.itself and against <= limits.against:
        yield Sign(
            "split-reversed",
            {
                "valid_pairs": len(valid_pairs),
                "train_agreement": itself,
                "reversed": 1 - against,
            },
        )


def _alike(split: Split, pairs: list[tuple[str, str]], limits: Limits) -> Iterator[Sign]:
    same = [
        place
        for place, (chosen, rejected) in enumerate(pairs, 1)
        if chosen.strip() == rejected.strip()
    ]
    share = len(same) / len(pairs)
    if share >= limits.alike:
        is_most = split.name == "train" and share >= limits.mostly
        yield Sign(
            "alike",
            {"alike": len(same), "pairs": len(pairs), "file": split.path.name},
            where=f"{split.path.name}, pair {some_of([str(place) for place in same])}",
            severity=Severity.ERROR if is_most else None,
        )


def _features(text: str, other: str) -> set[str]:
    """The words of an answer that the other lacks, and whether it is the longer or the louder."""
    own, others = text.split(), other.split()
    features = set(own) - set(others)
    # No word holds a blank.
    if len(own) != len(others):
        features.add("longer " if len(own) > len(others) else "shorter ")
    capitals, other_capitals = (sum(map(str.isupper, one)) for one in (text, other))
    if capitals != other_capitals:
        features.add("more capitals " if capitals > other_capitals else "fewer capitals ")
    return features


def _weights(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Word -> log-odds of standing in the chosen rather than in the rejected answer."""
    in_chosen: Counter[str] = Counter()
    in_rejected: Counter[str] = Counter()
    for chosen, rejected in pairs:
        in_chosen.update(_features(chosen, rejected))
        in_rejected.update(_features(rejected, chosen))
    return {
        name: math.log((in_chosen[name] + 1.0) / (in_rejected[name] + 1.0))
        for name in in_chosen.keys() | in_rejected.keys()
    }


def _wins(pairs: Sequence[tuple[str, str]], weights: Mapping[str, float]) -> float:
    """How often the chosen answer weighs more, ties by half."""
    total = 0.0
    for chosen, rejected in pairs:
        lead = sum(weights.get(name, 0.0) for name in _features(chosen, rejected))
        lead -= sum(weights.get(name, 0.0) for name in _features(rejected, chosen))
        total += 1.0 if lead > 0 else 0.5 if lead == 0 else 0.0
    return total / len(pairs)
