"""Whether a trainer's loss trains each position on the token that follows it.

What it finds. Targets that are the input itself, or two tokens ahead, or behind; prompts and
padding that are trained; end tokens that never are; rows without a trained token; rows whose
tokens count differently.

Why it matters. A model trained on the token it was just given learns to repeat; one trained two
ahead learns to skip; both have a falling loss. Nothing in the code needs to look wrong.

How it is measured. From the gradient of the loss with respect to the logits, which is negative at
the target of a position and zero where the position does not count. A target is compared with
the tokens around it wherever those differ from each other; padding is a run of padding tokens up to
a row's end; prompts end where the chat template opens the last answer.

When it is wrong. Losses that compare whole distributions (distillation, preferences) push towards
several tokens at once: then nothing is said of targets. Prompts are trained on purpose in many
runs, which is a note here. mlx-lm itself trains one padding token after every row.

What to do. Targets are `tokens[:, 1:]` for inputs `tokens[:, :-1]`, with a mask on the targets
that ends with the row's own end token.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import Inconclusive, check, limit
from mlxdoctor.finding import Finding, Measurement, Severity
from mlxdoctor.measure.training_step.measurement import Alignment, TrainingStep

#: Where the extra padding target of mlx-lm is described.
UPSTREAM = "https://github.com/ml-explore/mlx-lm/pull/1697"
_NAMES = {
    -1: ("shifted-back", "the token before it"),
    0: ("identity", "the token it was just given"),
    2: ("shifted-twice", "the token two places on"),
    3: ("shifted-twice", "the token three places on"),
}


@dataclass(frozen=True)
class Limits:
    """When an alignment is called one."""

    positions: int = limit(8, unit="positions", source="that tell the offsets apart, at least")
    agreement: float = limit(
        0.9,
        unit="share of the positions",
        source="sound steps: 1.0 at the next token; misaligned ones: 1.0 at another",
        false_alarms="0 of 254 sound steps on four bases (reports/probe.md)",
    )
    hard: float = limit(
        0.5, unit="share of the positions", source="below, the loss is not one of single targets"
    )
    prompt: float = limit(
        0.5, unit="share of the prompts' tokens", source="a template's last line is not the prompt"
    )
    uneven: float = limit(
        0.05,
        unit="coefficient of variation",
        source="sound steps: at most 9e-5",
        false_alarms="0 of 254 sound steps",
    )


@check(
    codes={
        "nothing-trained": "no position has a gradient",
        "identity": "each position is trained on the token it was given",
        "shifted-twice": "each position is trained on a token further on than the next",
        "shifted-back": "each position is trained on the token before it",
        "mixed-targets": "targets follow no single offset",
        "rows-without-targets": "rows of the batch have no trained token",
        "padding-trained": "padding is trained",
        "padding-target": "one padding token after each row is trained, as mlx-lm does",
        "prompt-trained": "prompts are trained",
        "end-token-untrained": "the end token is never a target although rows have it",
        "no-end-token": "no row has an end token",
        "uneven-weights": "tokens of one batch weigh differently",
    },
    limits=Limits(),
)
def step_alignment(step: TrainingStep, limits: Limits) -> Iterator[Finding]:
    """Compare what each position is trained on with the tokens around it."""
    alignment = step.alignment
    if alignment is None:
        raise Inconclusive(step.unseen or f"the loss cannot be computed: {step.failure}")
    if step.forward is not None and not math.isfinite(step.forward.loss):
        raise Inconclusive("the loss is not finite, and neither is its gradient")
    trained = alignment.trained
    if not trained.any():
        yield _finding(
            "nothing-trained",
            Severity.ERROR,
            f"None of {trained.size} positions has a gradient: the mask leaves nothing, or the "
            f"loss does not depend on the logits.",
            {"positions": int(trained.size)},
            fix="print the mask's sum, and build the mask on the targets",
        )
        return
    if alignment.hard < limits.hard:
        raise Inconclusive("the loss pushes towards whole distributions, not single targets")
    wrong = list(_offset(alignment, limits))
    yield from wrong
    yield from _rows(alignment)
    yield from _padding(alignment)
    if not wrong:
        yield from _prompts(alignment, limits)
        yield from _ends(alignment)
    yield from _weights(alignment, limits)


def _offset(alignment: Alignment, limits: Limits) -> Iterator[Finding]:
    shares, count = alignment.offsets
    if count < limits.positions:
        raise Inconclusive(f"only {count} positions tell one offset from another")
    best = max(shares, key=lambda one: shares[one])
    measured: dict[str, Measurement] = {"positions": count} | {
        f"share_at_{offset:+d}": round(share, 4) for offset, share in shares.items()
    }
    if shares[best] < limits.agreement:
        parts = ", ".join(f"{share:.0%} at {offset:+d}" for offset, share in shares.items())
        yield _finding(
            "mixed-targets",
            Severity.ERROR,
            f"Targets follow no single offset from their positions ({parts}).",
            measured,
            fix="print inputs and targets of a row side by side",
        )
    elif best != 1:
        symptom, what = _NAMES[best]
        yield _finding(
            symptom,
            Severity.ERROR,
            f"{shares[best]:.0%} of {count} positions are trained on {what}; a language model "
            f"needs the next one.",
            measured,
            fix="shift once: inputs tokens[:, :-1], targets tokens[:, 1:]",
        )


def _rows(alignment: Alignment) -> Iterator[Finding]:
    empty = [int(row) for row in np.flatnonzero(~alignment.trained.any(axis=1))]
    if empty:
        yield _finding(
            "rows-without-targets",
            Severity.WARNING,
            f"{len(empty)} of {len(alignment.inputs)} rows have no trained token.",
            {"rows": len(empty), "of": len(alignment.inputs)},
            fix="leave out rows whose answer was cut off, or raise the length limit",
        )


def _padding(alignment: Alignment) -> Iterator[Finding]:
    beyond = _beyond(alignment)
    by_row = beyond.sum(axis=1)
    if not by_row.any():
        return
    measured: dict[str, Measurement] = {
        "padding": int(by_row.sum()),
        "trained": int(alignment.trained.sum()),
    }
    if by_row.max() == 1:
        yield _finding(
            "padding-target",
            Severity.WARNING,
            f"In {int(by_row.sum())} of {len(by_row)} rows, the padding token after the row's end "
            f"is trained: mlx-lm's default loss counts one position too many ({UPSTREAM}).",
            measured,
            fix="let the mask end with the row's last token: steps < lengths, not <=",
        )
        return
    yield _finding(
        "padding-trained",
        Severity.ERROR,
        f"{int(by_row.sum())} of {int(alignment.trained.sum())} trained positions are padding: "
        f"the model learns to go on after the end.",
        measured,
        fix="multiply the loss by a mask that ends with each row's last token",
    )


def _beyond(alignment: Alignment) -> NDArray[np.bool_]:
    """bool (rows, positions): trained, with a padding token after the row's end as target."""
    width = alignment.inputs.shape[1]
    places = np.arange(1, width + 1)[None, :]
    # Rows that fill the width have no padding that could be told from their last target.
    padded = alignment.row_lengths[:, None] < width
    is_pad = np.isin(alignment.targets, alignment.pad_ids)
    beyond: NDArray[np.bool_] = (
        alignment.trained & padded & is_pad & (places >= alignment.row_lengths[:, None])
    )
    return beyond


def _prompts(alignment: Alignment, limits: Limits) -> Iterator[Finding]:
    known = alignment.prompt_lengths > 0
    if not known.any():
        return
    places = np.arange(1, alignment.inputs.shape[1] + 1)[None, :]
    inside = (places < alignment.prompt_lengths[:, None]) & known[:, None]
    share = float(alignment.trained[inside].mean()) if inside.any() else 0.0
    if share >= limits.prompt:
        yield _finding(
            "prompt-trained",
            Severity.INFO,
            f"{share:.0%} of the prompts' tokens are trained as well as the answers'.",
            {"share": share, "rows": int(known.sum())},
            fix="mask the prompt if only answers are to be learned (mlx-lm: mask_prompt: true)",
        )


def _ends(alignment: Alignment) -> Iterator[Finding]:
    if not alignment.end_ids:
        return
    is_end = np.isin(alignment.inputs, alignment.end_ids)
    within = np.arange(alignment.inputs.shape[1])[None, :] < alignment.row_lengths[:, None]
    has = (is_end & within).any(axis=1)
    taught = np.isin(alignment.targets, alignment.end_ids).any(axis=1)
    rows = len(alignment.inputs)
    if taught.any():
        return
    if has.any():
        yield _finding(
            "end-token-untrained",
            Severity.ERROR,
            f"{int(has.sum())} of {rows} rows have an end token, and none is trained on it: the "
            f"model does not learn to stop.",
            {"rows_with_end": int(has.sum()), "rows": rows},
            fix="let the mask include the end token; where padding is the end token, mask by "
            "length, not by token",
        )
    else:
        yield _finding(
            "no-end-token",
            Severity.WARNING,
            f"None of {rows} rows has an end token within this batch's width: the model does not "
            f"learn to stop.",
            {"rows": rows},
            fix="append the end token to every row",
        )


def _weights(alignment: Alignment, limits: Limits) -> Iterator[Finding]:
    weights = np.abs(alignment.weights[alignment.trained]).astype(np.float64)
    spread = float(weights.std() / weights.mean()) if weights.mean() else 0.0
    if spread > limits.uneven:
        yield _finding(
            "uneven-weights",
            Severity.INFO,
            f"Tokens of this batch weigh between {weights.min():.2g} and {weights.max():.2g} in "
            f"the loss: tokens of short rows may count more than those of long ones.",
            {"smallest": float(weights.min()), "largest": float(weights.max()), "spread": spread},
            fix="divide by the number of supervised tokens of the batch, unless that is intended",
        )


def _finding(
    symptom: str,
    severity: Severity,
    message: str,
    measured: dict[str, Measurement],
    *,
    fix: str,
) -> Finding:
    return Finding(
        code=f"step-alignment.{symptom}",
        severity=severity,
        message=message,
        measured=measured,
        expected="each answer token, its end token included, trained from the position before it",
        fix=fix,
    )
