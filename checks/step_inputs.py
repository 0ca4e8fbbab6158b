"""Whether the model is given what it is to learn from.

What it finds. Rows of one token repeated; prompts that reach the model as one token repeated, with
answers after them; rows of several documents, where the last token of one is trained to begin the
next, or one sees the other.

Why it matters. A model that is given blank prompts learns answers to nothing: the loss falls, and
the questions it is asked afterwards are not what it was trained on. What crosses the border between
two packed documents teaches that one question follows from another's answer.

How it is measured. From the tokens of the model's own calls. A prompt is blank where every row
begins with a run of one token that ends where training begins. A border between documents is an end
token followed by what the chat template begins a conversation with, if that never stands within
one. Whether a document sees the one before it is measured: the first one's tokens are put in
another order in the model's own call, and the second one's logits are compared.

When it is wrong. Rows that are padded on the left begin with such a run too; they are told by a
batch whose rows all end at its right edge. Packing without a border in the attention is common in
pre-training, and harms little there.

What to do. Print the tokens of one row, decoded, as the model gets them. Mask the loss where a
document ends, and give the attention a mask with a block for each.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from mlxdoctor.check import Inconclusive, check, limit
from mlxdoctor.finding import Severity, Sign, Symptom, Unsought
from mlxdoctor.measure.training_step.measurement import TrainingStep
from mlxdoctor.measure.training_step.phases import Alignment

_SOUND = "rows of text, each with its own prompt"
_error, _warning = (partial(one, expected=_SOUND) for one in (Symptom.error, Symptom.warning))
_BORDERS = ("border-trained", "border-attended")


@dataclass(frozen=True)
class Limits:
    """When a run of one token is no text."""

    run: int = limit(4, unit="tokens", source="so many alike at the start of every row is no text")


@check(
    codes={
        "constant": _error(
            "rows of the batch are one token repeated",
            says="{constant} of {rows:* row} are one token repeated.",
            fix="print the batch's tokens: an array was made and never filled",
        ),
        "blank-prompt": _error(
            "prompts reach the model as one token repeated",
            says="In {rows} of {rows:* row} every token before the trained ones is token {token} "
            "({shortest} to {longest} of them): the model never sees a prompt.",
            fix="mask the prompt in the loss, not in the model's inputs",
        ),
        "border-trained": _warning(
            "the end of a document is trained to begin the next one in its row",
            says="{trained} of {borders:* border} between packed documents are trained: the end of "
            "one learns to begin the next.",
            expected="no target across a border",
            fix="leave the first token of each packed document out of the loss",
        ),
        "border-attended": _warning(
            "a packed document sees the one before it",
            says="{rows} of {of:* row} hold several documents, and the second one's logits change "
            "with the first one's tokens.",
            expected="a document whose logits do not depend on another's",
            fix="give the attention a mask with a block for each document, or do not pack",
        ),
    },
    limits=Limits(),
)
def step_inputs(step: TrainingStep, limits: Limits) -> Iterator[Sign | Unsought]:
    """Look at the tokens that the model was given."""
    alignment = step.alignment
    if alignment is None:
        raise Inconclusive(step.unseen or f"the loss cannot be computed: {step.failure}")
    rows = list(zip(alignment.inputs, alignment.widths, strict=True))
    constant = sum(bool(width > 1 and (row[:width] == row[0]).all()) for row, width in rows)
    if constant:
        yield Sign(
            "constant",
            {"constant": constant, "rows": len(rows)},
            severity=None if constant == len(rows) else Severity.WARNING,
        )
    if constant < len(rows):
        yield from _blank(alignment, limits)
    yield from _borders(step, alignment)


def _blank(alignment: Alignment, limits: Limits) -> Iterator[Sign]:
    runs = alignment.blank_prompts(limits.run)
    if runs is None:
        return
    rows = np.flatnonzero(alignment.trained.any(axis=1))
    token, shortest, longest = int(alignment.inputs[rows[0], 0]), runs[rows].min(), runs[rows].max()
    yield Sign(
        "blank-prompt",
        {
            "rows": int(rows.size),
            "token": token,
            "shortest": int(shortest),
            "longest": int(longest),
        },
    )


def _borders(step: TrainingStep, alignment: Alignment) -> Iterator[Sign | Unsought]:
    borders = [(row, start) for row, starts in enumerate(alignment.starts) for start in starts]
    if not borders:
        yield Unsought(_BORDERS, "no row has a second document that could be told from a turn")
        return
    rows = len({row for row, _ in borders})
    trained = sum(bool(alignment.trained[row, start - 1]) for row, start in borders)
    measured = {"borders": len(borders), "trained": trained, "rows": rows}
    if trained:
        yield Sign("border-trained", measured)
    if step.crosses:
        yield Sign("border-attended", {**measured, "of": len(alignment.inputs)})
