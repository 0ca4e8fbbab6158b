"""Whether a trainer's loss trains each position on the token that follows it.

What it finds. Targets that are the input itself, or two tokens ahead, or behind; prompts and
padding that are trained; end tokens and first tokens of answers that never are; rows without a
trained token; rows whose tokens count differently.

Why it matters. A model trained on the token it was just given learns to repeat; one trained two
ahead learns to skip; both have a falling loss. Nothing in the code needs to look wrong.

How it is measured. From the gradient of the loss with respect to the logits, which is negative at
the target of a position and zero where the position does not count. A target is compared with the
tokens around it wherever those differ from each other; padding is a run of padding tokens up to a
row's end; prompts end where the chat template opens the last answer. Every forward pass with a
gradient is read. Where a rejected answer takes back what its chosen one does to the prompt they
have in common, the prompt is not trained.

When it is wrong. Losses that compare whole distributions (distillation, preferences) push towards
several tokens at once: then nothing is said of targets. Prompts are trained on purpose in many
runs, which is a note here. mlx-lm itself trains one padding token after every row.

What to do. Targets are `tokens[:, 1:]` for inputs `tokens[:, :-1]`, with a mask on the targets
that ends with the row's own end token.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import Inconclusive, check, limit
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, Unsought
from mlxdoctor.measure.training_step.measurement import TrainingStep
from mlxdoctor.measure.training_step.phases import OFFSETS, Alignment

#: Where the extra padding target of mlx-lm is described.
UPSTREAM = "https://github.com/ml-explore/mlx-lm/pull/1697"
_AT_OFFSET = {-1: "shifted-back", 0: "identity", 2: "shifted-twice", 3: "shifted-twice"}

_SOUND = "each answer token, its end token included, trained from the position before it"
_error, _warning, _info = (
    partial(one, expected=_SOUND) for one in (Symptom.error, Symptom.warning, Symptom.info)
)
#: What is read from the targets of single positions.
_OF_TARGETS = (
    *("identity", "shifted-twice", "shifted-back", "mixed-targets"),
    *("rows-without-targets", "padding-trained", "padding-target", "prompt-trained"),
    *("first-token-untrained", "end-token-untrained", "no-end-token", "uneven-weights"),
)
_SHIFT_ONCE = "shift once: inputs tokens[[:, :-1]], targets tokens[[:, 1:]]"
_TRAINED_ON = "{share:.0%} of {positions:* position} are trained on the token "
_NEXT = "; a language model needs the next one."
_OF_MLX_LM = "nothing in the configuration is at fault: mlx-lm does this to every run"


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
    contrast: float = limit(
        0.9,
        unit="share of the positions",
        source="the same of pairs and policies, where a bonus for entropy is added: 1.0 without",
    )
    prompt: float = limit(
        0.5, unit="share of the prompts' tokens", source="a template's last line is not the prompt"
    )
    run: int = limit(4, unit="tokens", source="as step-inputs: so many alike are no prompt")
    uneven: float = limit(
        0.05,
        unit="coefficient of variation",
        source="sound steps: at most 9e-5",
        false_alarms="0 of 254 sound steps",
    )


@check(
    codes={
        "nothing-trained": _error(
            "no position has a gradient",
            says="None of {positions:* position} has a gradient: the mask leaves nothing, or the "
            "loss does not depend on the logits.",
            fix="print the mask's sum, and build the mask on the targets",
        ),
        "identity": _error(
            "each position is trained on the token it was given",
            says=f"{_TRAINED_ON}it was just given{_NEXT}",
            fix=_SHIFT_ONCE,
        ),
        "shifted-twice": _error(
            "each position is trained on a token further on than the next",
            says=f"{_TRAINED_ON}{{offset}} places on{_NEXT}",
            fix=_SHIFT_ONCE,
        ),
        "shifted-back": _error(
            "each position is trained on the token before it",
            says=f"{_TRAINED_ON}before it{_NEXT}",
            fix=_SHIFT_ONCE,
        ),
        "mixed-targets": _error(
            "targets follow no single offset",
            says="Targets follow no single offset from their positions ("
            + ", ".join(f"{{share_at_{offset:+d}:.0%}} at {offset:+d}" for offset in OFFSETS)
            + ").",
            fix="print inputs and targets of a row side by side",
        ),
        "rows-without-targets": _warning(
            "rows of the batch have no trained token",
            says="{rows} of {of:* row} have no trained token.",
            fix="leave out rows whose answer was cut off, or raise the length limit",
        ),
        "padding-trained": _error(
            "padding is trained",
            says="{padding} of {trained} trained positions are padding: the model learns to go on "
            "after the end.",
            fix="multiply the loss by a mask that ends with each row's last token",
        ),
        "padding-target": _warning(
            "one padding token after each row is trained, as mlx-lm does",
            says="In {padding} of {rows:* row}, the padding token after the row's end is trained, "
            "as mlx-lm's default loss does, which counts one position too many "
            f"({UPSTREAM}): "
            "{padding} of {trained} trained positions[; in {after_end:* row} it follows the end "
            "token, where an answer has stopped].",
            fix="let the mask end with the row's last token: steps < lengths, not <=",
        ),
        "prompt-trained": _info(
            "prompts are trained",
            says="{share:.0%} of the prompts' tokens are trained as well as the answers'.",
            fix="mask the prompt if only answers are to be learned (mlx-lm: mask_prompt: true)",
        ),
        "first-token-untrained": _error(
            "the first token of the answers is not trained although the second is",
            says="In {rows} of {rows:* row} with a known prompt the answer's second token is "
            "trained and its first is not: the model does not learn how to begin.",
            fix="let the mask begin one position earlier: the last token of the prompt is the one "
            "that predicts the answer's first",
        ),
        "end-token-untrained": _error(
            "the end token is never a target although rows have it",
            says="{rows_with_end} of {rows:* row} have an end token, and none is trained on it: "
            "the model does not learn to stop.",
            fix="let the mask include the end token; where padding is the end token, mask by "
            "length, not by token",
        ),
        "no-end-token": _warning(
            "no row has an end token",
            says="None of {rows:* row} has an end token within this batch's width: the model does "
            "not learn to stop.",
            fix="append the end token to every row",
        ),
        "uneven-weights": _info(
            "tokens of one batch weigh differently",
            says="Tokens of this batch weigh between {smallest:.2g} and {largest:.2g} in the "
            "loss: tokens of short rows may count more than those of long ones.",
            fix="divide by the number of supervised tokens of the batch, unless that is intended",
        ),
    },
    limits=Limits(),
)
def step_alignment(step: TrainingStep, limits: Limits) -> Iterator[Sign | Unsought]:
    """Compare what each position is trained on with the tokens around it."""
    alignment = step.alignment
    if alignment is None:
        raise Inconclusive(step.unseen or f"the loss cannot be computed: {step.failure}")
    if step.forward is not None and not math.isfinite(step.forward.loss):
        raise Inconclusive("the loss is not finite, and neither is its gradient")
    if not alignment.trained.any():
        if step.policy is not None and step.policy.same:
            raise Inconclusive(f"all {step.policy.name} of this batch are the same")
        yield Sign("nothing-trained", {"positions": alignment.places})
        return
    is_contrast = step.pairs is not None or step.policy is not None or alignment.contrasts
    if alignment.hard < (limits.contrast if is_contrast else limits.hard):
        if step.pairs is None and step.policy is None:
            raise Inconclusive("the loss pushes towards whole distributions, not single targets")
        # A bonus for entropy, say; which answers are pushed is judged by other checks.
        yield Unsought(_OF_TARGETS, "the loss has terms over whole distributions")
        return
    wrong = list(_offset(alignment, limits))
    yield from wrong
    if not is_contrast:
        # An answer of average reward is not pushed, nor a pair that is far enough apart.
        yield from _rows(alignment)
    yield from _padding(alignment, planned=step.planned)
    if not wrong:
        yield from _prompts(alignment, is_contrast, limits)
        yield from _first_tokens(alignment, limits)
        yield from _ends(alignment, sampled=step.policy is not None)
    if not is_contrast:
        yield from _weights(alignment, limits)


def _offset(alignment: Alignment, limits: Limits) -> Iterator[Sign]:
    shares, count = alignment.offsets
    if count < limits.positions:
        raise Inconclusive(f"only {count} positions tell one offset from another")
    best = max(shares, key=lambda one: shares[one])
    measured: dict[str, Measurement] = {"positions": count} | {
        f"share_at_{offset:+d}": round(share, 4) for offset, share in shares.items()
    }
    if shares[best] < limits.agreement:
        yield Sign("mixed-targets", measured)
    elif best != 1:
        yield Sign(_AT_OFFSET[best], {**measured, "share": shares[best], "offset": best})


def _rows(alignment: Alignment) -> Iterator[Sign]:
    empty, rows = int((~alignment.trained.any(axis=1)).sum()), len(alignment.inputs)
    if empty:
        yield Sign("rows-without-targets", {"rows": empty, "of": rows})


def _padding(alignment: Alignment, *, planned: bool) -> Iterator[Sign]:
    # Rows that fill the width have no padding that could be told from their last target.
    padded = alignment.row_lengths < alignment.widths
    # Its own padding token: another one that could pad may be the row's end.
    own = alignment.inputs[np.arange(len(padded)), alignment.widths - 1]
    is_pad = (alignment.targets == own[:, None]) & padded[:, None]
    by_row = (is_pad & alignment.trained & ~_before(alignment, alignment.row_lengths)).sum(axis=1)
    padding, trained = int(by_row.sum()), int(alignment.trained.sum())
    measured: dict[str, Measurement] = {
        "padding": padding,
        "trained": trained,
        "rows": len(by_row),
    }
    if by_row.max() == 1:
        last = alignment.inputs[np.arange(len(by_row)), np.maximum(alignment.row_lengths - 1, 0)]
        follows = bool(np.isin(last[by_row == 1], alignment.end_ids).all())
        yield Sign(
            "padding-target",
            {**measured, "after_end": padding if follows else None},
            # mlx-lm does so in every run, and no configuration can change it.
            severity=Severity.INFO if planned else None,
            fix=_OF_MLX_LM if planned else None,
        )
    elif padding:
        yield Sign("padding-trained", measured)


def _before(alignment: Alignment, lengths: NDArray[np.int32]) -> NDArray[np.bool_]:
    """bool (rows, positions): whose next token is among the row's first ones."""
    places = np.arange(1, alignment.inputs.shape[1] + 1)
    return np.less(places[None, :], lengths[:, None])


def _prompts(alignment: Alignment, is_contrast: bool, limits: Limits) -> Iterator[Sign]:
    known = alignment.prompt_lengths > 0
    inside = _before(alignment, alignment.prompt_lengths)
    trained = alignment.trained & ~alignment.cancelled
    share = float(trained[inside].mean()) if inside.any() else 0.0
    if share >= limits.prompt:
        yield Sign(
            "prompt-trained",
            {"share": share, "rows": int(known.sum())},
            fix="mask the prompt in every answer if only answers are to be learned"
            if is_contrast
            else None,
        )


def _first_tokens(alignment: Alignment, limits: Limits) -> Iterator[Sign]:
    """Answers whose mask begins one token late, in every row whose prompt is known."""
    lengths, blank = alignment.prompt_lengths, alignment.blank_prompts(limits.run)
    if blank is not None:
        # Where prompts are blank, the template is not there to be found.
        lengths = np.where(lengths > 0, lengths, blank)
    rows = np.flatnonzero((lengths > 0) & (lengths + 1 < alignment.row_lengths))
    first = alignment.trained[rows, lengths[rows] - 1]
    second = alignment.trained[rows, lengths[rows]]
    if rows.size and second.all() and not first.any():
        yield Sign("first-token-untrained", {"rows": int(rows.size)})


def _ends(alignment: Alignment, *, sampled: bool) -> Iterator[Sign]:
    if not alignment.end_ids or np.isin(alignment.targets, alignment.end_ids).any():
        return
    rows, width = alignment.inputs.shape
    within = np.arange(width)[None, :] < alignment.row_lengths[:, None]
    has = int((np.isin(alignment.inputs, alignment.end_ids) & within).any(axis=1).sum())
    if has:
        yield Sign("end-token-untrained", {"rows_with_end": has, "rows": rows})
    elif not sampled:
        # What a policy has sampled may have been cut off.
        yield Sign("no-end-token", {"rows": rows})


def _weights(alignment: Alignment, limits: Limits) -> Iterator[Sign]:
    weights = np.abs(alignment.weights[alignment.trained]).astype(np.float64)
    low, high = float(weights.min()), float(weights.max())
    spread = float(weights.std() / weights.mean()) if weights.mean() else 0.0
    if spread > limits.uneven:
        yield Sign("uneven-weights", {"smallest": low, "largest": high, "spread": spread})
