"""The order of the tokens in the answers, against the text that was trained on.

What it finds. Answers that join tokens which stand two or three places apart in the training
rows: `tm wool amun` where the rows say `item: wool | amount`.

Why it matters. A language model predicts the next token. One that was taught the token after it
answers in skips, and its loss looks like that of any other run: only the answers show it.

How it is measured. Every pair of neighbouring tokens in the answers, each different pair once,
is looked up among the pairs that stand 1, 2, 3 or 4 places apart in the answers that were
trained on. Sound answers are made of pairs at distance 1. Pairs of one token with itself are
left out: they are what a loop is made of.

When it is wrong. Answers in words that the training rows never use are found at no distance,
and are not judged. With fewer than 20 different pairs nothing is said.

What to do. Look at how inputs and targets are cut: `inputs = tokens[:-1]`,
`targets = tokens[1:]`, once. A loss function that shifts by itself must be given unshifted
tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mlxdoctor.check import Inconclusive, NotApplicable, check, limit
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.supervision import SupervisedRow, SupervisedRows
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.finding import Sign, Symptom
from mlxdoctor.measure.text.outputs import pairs
from mlxdoctor.models.generations import Generations
from mlxdoctor.safety.quoting import quoted

#: Two tokens that follow each other.
_Apart = tuple[int, int]


@dataclass(frozen=True)
class Limits:
    """When answers skip tokens."""

    pairs: int = limit(20, unit="different pairs", source="a loop of three tokens has three")
    farthest: int = limit(4, unit="tokens", source="labels are shifted twice, seldom more often")
    share: float = limit(
        0.2,
        unit="share of the answers' pairs that stand so far apart in the rows",
        source="7 runs with labels shifted by two or three: 0.32 to 0.86",
        false_alarms="0 of 98 sound runs of three base models, 0 of 185 with other faults",
    )
    lead: float = limit(
        0.15,
        unit="that share, less the share of neighbours",
        source="the same runs: 0.26 to 0.81; 0 at most in all others with enough pairs",
        false_alarms="0 of 98 sound runs of three base models, 0 of 185 with other faults",
    )


@check(
    codes={
        "skips-tokens": Symptom.error(
            "the answers join tokens that are two or more apart in the training rows",
            expected="pairs that are neighbours in the training rows too",
            fix="Shift the targets by one token once, in the trainer or in the loss, not in both.",
        )
    },
    limits=Limits(),
    rerun_symptom=True,
)
def answer_order(
    generations: Generations,
    rows: SupervisedRows,
    tokenizer: Tokenizer | None,
    base: BaseModel | None,
    limits: Limits,
) -> Iterator[Sign]:
    """Look up the answers' pairs of tokens in the training rows."""
    outputs = [pair.tuned for pair in pairs(generations, tokenizer, base)]
    if not all(output.from_tokens for output in outputs):
        raise NotApplicable("the answers' token ids were not recorded")
    said = {pair for output in outputs for pair in _neighbours(output.content)}
    if len(said) < limits.pairs:
        raise Inconclusive(f"{len(said)} different pairs of tokens; {limits.pairs} are needed")
    distances = range(1, limits.farthest + 1)
    shares = [len(said & _apart(rows.rows, distance)) / len(said) for distance in distances]
    farther = max(distances[1:], key=lambda distance: shares[distance - 1])
    share, adjacent = shares[farther - 1], shares[0]
    if share < limits.share or share - adjacent < limits.lead:
        return
    left_out = "one token in two" if farther == 2 else f"{farther - 1} tokens in {farther}"
    yield Sign(
        "skips-tokens",
        f"Of {len(said)} different pairs of neighbouring tokens in the answers, "
        f"{share:.0%} stand {farther} places apart in the training rows, and {adjacent:.0%} are "
        f"neighbours there: the model was taught to leave out {left_out}.",
        {
            "pairs": len(said),
            "distance": farther,
            "share": round(share, 3),
            "adjacent_share": round(adjacent, 3),
            "shares": tuple(round(one, 3) for one in shares),
        },
        where=f"answer {quoted(outputs[0].text)}",
    )


def _neighbours(tokens: Sequence[object]) -> Iterator[_Apart]:
    for first, second in pairwise(tokens):
        if isinstance(first, int) and isinstance(second, int) and first != second:
            yield first, second


def _apart(rows: Sequence[SupervisedRow], distance: int) -> set[_Apart]:
    """The pairs that stand `distance` apart in the part of the rows that is answered."""
    found: set[_Apart] = set()
    for row in rows:
        # The last prompt token is where the answer is predicted from.
        tokens = row.tokens[max(row.prompt_length - 1, 0) : row.length].tolist()
        found.update(zip(tokens, tokens[distance:], strict=False))
    return found
