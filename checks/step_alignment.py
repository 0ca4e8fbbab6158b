"""Whether a trainer's loss trains each position on the token that follows it.

What it finds. Rows and prompts that reach the model as one token repeated; targets that are the
input itself, or two tokens ahead, or behind; prompts and padding that are trained; end tokens and
first tokens of answers that never are; rows without a trained token.

Why it matters. A model trained on the token it was just given learns to repeat; one trained two
ahead learns to skip; one given blank prompts learns answers to nothing. All have a falling loss,
and nothing in the code needs to look wrong.

How it is measured. From the tokens of the model's own calls, and the gradient of the loss with
respect to the logits, which is negative at the target of a position and zero where the position
does not count. A target is compared with the tokens around it wherever those differ from each
other; padding is a run of padding tokens up to a row's end; prompts end where the chat template
opens the last answer. A model whose logits change before the token that is changed sees ahead. A
prompt is blank where every row begins with a run of one token that ends
where training begins. Every forward pass with a gradient is read.

When it is wrong. Losses that compare whole distributions (distillation, preferences) push towards
several tokens at once: then nothing is said of targets. Prompts are trained on purpose in many
runs, which is a note here; of losses of pairs and of policies it is not said. mlx-lm itself trains
one padding token after every row.

What to do. Print the tokens of one row, decoded, as the model gets them. Targets are `tokens[:,
1:]` for inputs `tokens[:, :-1]`, with a mask on the targets that ends with the row's own end token.
"""

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, Unsought
from mlxdoctor.measure.training_step.measurement import TrainingStep
from mlxdoctor.measure.training_step.values import OFFSETS, SINGLE, Alignment

#: Where the extra padding target of mlx-lm is described.
_UPSTREAM = "https://github.com/ml-explore/mlx-lm/pull/1697"

_SOUND = "each answer token, its end token included, trained from the position before it"
_error = partial(Symptom.error, expected=_SOUND)
_warning = partial(Symptom.warning, expected=_SOUND)
_info = partial(Symptom.info, expected=_SOUND)
_AT_OFFSET = {-1: "before it", 0: "it was just given", 2: "2 places on", 3: "3 places on"}
_OF_MLX_LM = "nothing in the configuration is at fault: mlx-lm does this to every run"
#: Fewest positions that tell one offset from another.
_POSITIONS = 8
#: Least share of the trained positions with a single target, in losses of pairs and policies: 1.0
#: unless a bonus for entropy is added.
_CONTRAST = 0.9
#: Share of the trained positions that no sound loss pushes away from their targets.
_AWAY = 0.9
#: Share of the positions that see the row's last token: none in a causal model, half where the mask
#: is the wrong way round.
_AHEAD = 0.05
#: Least share of the prompts' tokens that are trained; a template's last line is less.
_PROMPT = 0.5
#: Fewest equal tokens at the start of every row that are no text.
_RUN = 4
#: Least share of the positions that agree on one offset: 1.0 in sound steps and in misaligned ones
#: (0 of 254 sound steps on four bases below, reports/probe.md).
_AGREEMENT = 0.9

CODES = {
    "blank-prompt": _error(
        "rows or prompts reach the model as one token repeated",
        says="[{constant} of {rows:* row} are one token repeated.|In {rows} of {rows:* row} every "
        "token before the trained ones is token {token} ({shortest} to {longest} of them): the "
        "model never sees a prompt.]",
        expected="rows of text, each with its own prompt",
        fix="print the batch's tokens, and mask prompts in the loss, not in the model's inputs",
    ),
    "no-targets": _error(
        "rows of the batch, or all of them, have no trained token",
        says="{rows} of {of:* row} have no trained token[: no position has a gradient, of "
        "{positions:,}].",
        fix="[print the mask's sum, and build the mask on the targets: the loss has to depend on "
        "the logits of {positions:* position}|leave out rows whose answer was cut off, or raise "
        "the length limit]",
    ),
    "misaligned": _error(
        "positions are trained on other tokens than the next one",
        says="[{share:.0%} of {positions:* position} are trained on the token {which}; a language "
        "model needs the next one|Targets follow no single offset from their positions ("
        + ", ".join(f"{{share_at_{offset:+d}:.0%}} at {offset:+d}" for offset in OFFSETS)
        + ")].",
        fix="shift once: inputs tokens[[:, :-1]], targets tokens[[:, 1:]]; print those of a row "
        "side by side",
    ),
    "sees-ahead": _error(
        "positions see the token that they are to predict",
        says="In {share:.0%} of the positions the logits change with the row's last token: the "
        "model sees what it is to predict.",
        fix="give the attention a causal mask, under which a position sees none after it",
    ),
    "pushed-away": _error(
        "the targets are made less likely",
        says="{away} of {trained} trained positions are pushed away from their targets: the sign "
        "of the loss is the wrong way round.",
        fix="minimise the cross-entropy, which is minus the log probability",
    ),
    "padding-trained": _error(
        "padding is trained",
        says="{padding} of {trained} trained positions are padding: the model learns to go on "
        "after the end.",
        fix="multiply the loss by a mask that ends with each row's last token",
    ),
    "padding-target": _warning(
        "one padding token after each row is trained, as mlx-lm does",
        says="In {padding} of {rows:* row}, the padding token after the row's end is trained. "
        "mlx-lm's default loss does that too, as it counts one position too many "
        f"({_UPSTREAM}). It concerns {{padding}} of {{trained}} trained positions[; in "
        "{after_end:* row} it follows the end token, where an answer has stopped].",
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
    "no-end-token": _error(
        "no end token is trained",
        says="[{rows_with_end} of {rows:* row} have an end token, and none is trained on it|None "
        "of {rows:* row} has an end token within this batch's width]: the model does not learn to "
        "stop.",
        fix="end every row with the end token, and let the mask include it; where padding is the "
        "end token, mask by length, not by token",
    ),
}


@check(codes=CODES)
def step_alignment(step: TrainingStep) -> Iterator[Sign | Unsought]:
    alignment = step.alignment
    if alignment is None:
        raise Inconclusive(step.unread)
    yield from _inputs(alignment)
    if step.forward is not None and not math.isfinite(step.forward.loss):
        raise Inconclusive("the loss is not finite, and neither is its gradient")
    if not alignment.trained.any():
        if step.policy is not None and step.policy.all_same:
            raise Inconclusive(f"all {step.policy.names[0]} of this batch are the same")
        rows = len(alignment.inputs)
        positions = int(alignment.widths.sum())
        yield Sign("no-targets", {"rows": rows, "of": rows, "positions": positions})
        return
    if alignment.hard < (_CONTRAST if step.is_contrast else SINGLE):
        if step.preferences is None:
            raise Inconclusive("the loss pushes towards whole distributions, not single targets")
        # The check step-preferences judges which answers are pushed.
        of_targets = tuple(CODES.keys() - {"blank-prompt", "no-targets"})
        yield Unsought(of_targets, "the loss has terms over whole distributions")
        return
    wrong = list(_offset(alignment))
    yield from wrong
    weights = alignment.weights[alignment.trained]
    away = int((weights < 0).sum())
    # Rewards below the others push answers away, as rejected ones of pairs are.
    if step.policy is None and step.preferences is None and away >= _AWAY * len(weights):
        yield Sign("pushed-away", {"away": away, "trained": len(weights)})
    yield from _padding(alignment, planned=step.planned)
    if not wrong and (step.sees_ahead or 0.0) > _AHEAD:
        yield Sign("sees-ahead", {"share": step.sees_ahead})
    if not wrong:
        yield from _first_tokens(alignment)
        yield from _ends(alignment, sampled=step.policy is not None)
    # Losses of pairs and policies leave out some answers, such as those of average reward.
    if step.is_contrast:
        return
    if empty := int((~alignment.trained.any(axis=1)).sum()):
        counts = {"rows": empty, "of": len(alignment.inputs)}
        yield Sign("no-targets", counts, severity=Severity.WARNING)
    inside = _before(alignment, alignment.prompt_lengths)
    share = float(alignment.trained[inside].mean()) if inside.any() else 0.0
    if share >= _PROMPT and not wrong:
        prompts = int((alignment.prompt_lengths > 0).sum())
        yield Sign("prompt-trained", {"share": share, "rows": prompts})


def _inputs(alignment: Alignment) -> Iterator[Sign]:
    """Inputs that are one token repeated."""
    rows = list(zip(alignment.inputs, alignment.widths, strict=True))
    constant = sum(bool(width > 1 and (row[:width] == row[0]).all()) for row, width in rows)
    if constant:
        severity = None if constant == len(rows) else Severity.WARNING
        yield Sign("blank-prompt", {"constant": constant, "rows": len(rows)}, severity=severity)
    runs = alignment.blank_prompts(_RUN)
    if runs is not None and not constant:
        trained = np.flatnonzero(alignment.trained.any(axis=1))
        token, lengths = int(alignment.inputs[trained[0], 0]), runs[trained]
        blank = {"token": token, "shortest": int(lengths.min()), "longest": int(lengths.max())}
        yield Sign("blank-prompt", {"rows": int(trained.size), **blank})


def _offset(alignment: Alignment) -> Iterator[Sign]:
    shares, count = alignment.offsets
    if count < _POSITIONS:
        raise Inconclusive(f"only {count} positions tell one offset from another")
    best = max(shares, key=lambda offset: shares[offset])
    measured: dict[str, Measurement] = {"positions": count} | {
        f"share_at_{offset:+d}": round(share, 4) for offset, share in shares.items()
    }
    if shares[best] < _AGREEMENT:
        yield Sign("misaligned", measured)
    elif best != 1:
        yield Sign("misaligned", {**measured, "share": shares[best], "which": _AT_OFFSET[best]})


def _padding(alignment: Alignment, *, planned: bool) -> Iterator[Sign]:
    # Rows that fill their width have no padding.
    rows, padded = np.arange(len(alignment.inputs)), alignment.row_lengths < alignment.widths
    # A padded row ends with its padding token; another such token may be the row's own end.
    pad_tokens = alignment.inputs[rows, alignment.widths - 1]
    is_pad = (alignment.targets == pad_tokens[:, None]) & padded[:, None]
    by_row = (is_pad & alignment.trained & ~_before(alignment, alignment.row_lengths)).sum(axis=1)
    padding, trained = int(by_row.sum()), int(alignment.trained.sum())
    measured = {"padding": padding, "trained": trained, "rows": len(rows)}
    if by_row.max() == 1:
        last = alignment.inputs[rows, np.maximum(alignment.row_lengths - 1, 0)]
        follows = bool(np.isin(last[by_row == 1], alignment.end_ids).all())
        figures = {**measured, "after_end": padding if follows else None}
        # No configuration of mlx-lm can change it.
        severity, fix = (Severity.INFO, _OF_MLX_LM) if planned else (None, None)
        yield Sign("padding-target", figures, severity=severity, fix=fix)
    elif padding:
        yield Sign("padding-trained", measured)


def _before(alignment: Alignment, lengths: NDArray[np.int32]) -> NDArray[np.bool_]:
    """bool (rows, positions): whether the next token is among the first `lengths` of its row."""
    next_positions = np.arange(1, alignment.inputs.shape[1] + 1)
    return np.less(next_positions[None, :], lengths[:, None])


def _first_tokens(alignment: Alignment) -> Iterator[Sign]:
    """Answers whose mask begins one token late, in every row whose prompt is known."""
    lengths, blank = alignment.prompt_lengths, alignment.blank_prompts(_RUN)
    if blank is not None:
        # A blank prompt has no template that would mark its end.
        lengths = np.where(lengths > 0, lengths, blank)
    is_trained = alignment.trained.any(axis=1)
    rows = np.flatnonzero(is_trained & (lengths > 0) & (lengths + 1 < alignment.row_lengths))
    first = alignment.trained[rows, lengths[rows] - 1]
    second = alignment.trained[rows, lengths[rows]]
    if rows.size and second.all() and not first.any():
        yield Sign("first-token-untrained", {"rows": int(rows.size)})


def _ends(alignment: Alignment, *, sampled: bool) -> Iterator[Sign]:
    if not alignment.end_ids or np.isin(alignment.targets, alignment.end_ids).any():
        return
    rows, width = alignment.inputs.shape
    is_text = np.arange(width)[None, :] < alignment.row_lengths[:, None]
    ends = int((np.isin(alignment.inputs, alignment.end_ids) & is_text).any(axis=1).sum())
    # Sampled answers may have been cut off.
    if ends or not sampled:
        figures = {"rows_with_end": ends or None, "rows": rows}
        # Windows of a text end anywhere.
        is_full = bool((alignment.row_lengths == alignment.widths).all())
        is_window = is_full and not (alignment.prompt_lengths > 0).any()
        severity = Severity.INFO if is_window else Severity.WARNING
        yield Sign("no-end-token", figures, severity=None if ends else severity)
