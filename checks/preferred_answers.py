"""Whether the model came to prefer the chosen answers of its pairs.

What it finds. A run on pairs after which the rejected answers are likelier than before, beside the
chosen ones: on all rows, or on held-out rows alone.

Why it matters. The loss of such a run says only that what it was asked for came true. A lost minus
sign, or two keys in the wrong order, ask for the opposite.

How it is measured. Both models read the chosen and the rejected answer of 16 pairs of each split.
By how many nats the chosen one is likelier than the rejected one is the margin, and by how much
training raised it is held against zero with a sign test over the pairs.

When it is wrong. Where both answers of a pair are good, or a run was to unlearn something, a margin
that falls may be meant.

What to do. Work one pair out by hand: raising the log-likelihood of the chosen answer has to lower
the loss. Then read three pairs of each file.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.finding import Measurement, Seen, Sign, Symptom
from mlxdoctor.measure.text.statistics import SIGNIFICANCE, sign_test
from mlxdoctor.models.losses import ENOUGH_ROWS
from mlxdoctor.models.preference_margins import PreferenceMargins

_SAYS = (
    "Training raised the margin of the chosen answer over the rejected one in {raised} of {pairs} "
    "pairs {of} (in the median by {gain:.2f} nats)"
)


@check(
    codes={
        "reversed": Symptom.error(
            "the rejected answers became likelier than the chosen ones",
            says=f"{_SAYS}: the run learned the opposite.",
            expected="a margin between chosen and rejected that rises",
            fix="Look for a lost minus sign in the loss, or for chosen and rejected in the wrong "
            "order.",
        ),
        "held-out-reversed": Symptom.error(
            "on held-out pairs the rejected answers became likelier",
            says=f"{_SAYS}, and of those trained on by {{trained_gain:.2f}}: what one file calls "
            "chosen the other calls rejected.",
            expected="a margin that rises on both",
            fix="Read ten pairs of the training file and ten of the validation file: in one of "
            "them chosen and rejected are swapped.",
        ),
        "unmoved": Symptom.info(
            "training left the margins of the pairs as they were",
            says=f"{_SAYS}: that may be chance.",
            expected="a margin between chosen and rejected that rises",
            fix="Set beta to 0.1, raise the learning rate, and see whether the two answers differ.",
        ),
    },
)
def preferred_answers(margins: PreferenceMargins) -> Iterator[Sign | Seen]:
    found = {
        name: _figures(name, gains)
        for name, gains in margins.gains.items()
        if len(gains) >= ENOUGH_ROWS
    }
    if not found:
        raise Inconclusive(f"fewer than {ENOUGH_ROWS} pairs of each split could be measured")
    way = {name: _way(margins.gains[name]) for name in found}
    last = "valid" if "valid" in found else "train"
    if way.get("train") == 1 and way[last] == -1:
        yield Sign("held-out-reversed", {**found[last], "trained_gain": found["train"]["gain"]})
    elif -1 in way.values():
        yield Sign("reversed", found[next(name for name in (last, "train") if way[name] == -1)])
    elif way[last] == 1:
        yield Seen(f"{_SAYS}.", found[last], learned=True)
    elif not any(way.values()):
        yield Sign("unmoved", found[last])


def _figures(name: str, gains: NDArray[np.float64]) -> dict[str, Measurement]:
    counts = {"raised": int((gains > 0).sum()), "pairs": len(gains)}
    of = "of the validation file" if name == "valid" else "of those trained on"
    return {**counts, "of": of, "gain": float(np.median(gains))}


def _way(gains: NDArray[np.float64]) -> int:
    """1 where margins rose, -1 where they fell, 0 where either may be chance."""
    return int(np.sign(np.median(gains))) if sign_test(gains) < SIGNIFICANCE else 0
