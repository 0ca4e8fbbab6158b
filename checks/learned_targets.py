"""What the adapter was really trained to predict.

What it finds. An adapter that learned to predict the token it was just given (identity), the one
before that, or the one after the next (skip) instead of the next one, that learned padding, that
learned the prompt although it was to be masked, that forgot the end token or expects it at once,
that predicts the run's own answers worse than the base model does, or that learned nothing.

Why it matters. Labels that are shifted, padded or masked wrongly give a loss that falls as
nicely as a right one. The model itself is the only witness of what it was trained on.

How it is measured. Base and tuned model read rows of the run's own data. For each region of a
row (prompt, answer, end token, padding after it) and each shift (-1 to 2 tokens ahead), the tuned
model's mean loss is subtracted from the base model's. The unit is the row: a change counts when
the sign test over rows is significant and the mean change is large enough in nats.

When it is wrong. Answers that repeat one token are predicted equally well at every shift. A
padding token right after the row is learned in every sound run of mlx-lm, whose loss covers it;
that is reported as a note. Of a model that predicts the answers worse than a blind guess, padding
is not judged. Rows where the base model is already certain have nothing to learn.

What to do. Compare with the label strip of the report, which shows the targets that mlx-lm
would make of the same rows. In a trainer of your own, print one row's inputs and targets side by
side: each target is the token after its input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import Cost, Inconclusive, check, limit
from mlxdoctor.evidence.supervision import Role
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom, Unsought
from mlxdoctor.judge.learned_end import EndLimits, learned_end
from mlxdoctor.judge.learned_padding import PaddingLimits, learned_padding
from mlxdoctor.measure.losses.row_changes import (
    LossChange,
    change,
    is_likely,
    is_memorised,
    mean_of,
    prefers_shift,
    probability,
    region,
    region_mean,
    tuned_pass,
)
from mlxdoctor.measure.text.statistics import sign_test
from mlxdoctor.models.losses import RowLosses, TokenLosses

SHIFT_NAMES = {
    0: "the token it was just given",
    2: "the token after the next",
    -1: "the token before the one it was given",
}


@dataclass(frozen=True)
class Limits(PaddingLimits, EndLimits):
    """When a change of the loss over rows says what was learned."""

    shift_margin: float = limit(
        0.5, unit="nats per token", source="a constant guess is equally good at every shift"
    )
    worse: float = limit(0.1, unit="nats per token", source="a loss 10% up on a perplexity")
    unchanged: float = limit(
        0.01, unit="nats per token", source="rounding in half precision is below"
    )
    readable: float = limit(
        0.5,
        unit="of a blind guess's loss, to the tuned model",
        source="sound runs of a base that is above guessing end at 0.2 of it; where the base is "
        "broken its own answers tell (14 of 15)",
    )
    above_uniform: float = limit(
        1.5,
        unit="nats",
        source="as loss-level: a sound mixture of experts begins 1.2 nats above on tokens "
        "it never saw",
        false_alarms="0 of 94 sound runs",
    )
    memorised: float = limit(
        0.5, unit="nats per token", source="fixtures: 0.1 in sound runs, 1.3 in the overfitted"
    )
    prompt_share: float = limit(
        0.5,
        unit="share of its loss that the prompt lost, over the same share of the answer",
        source="fixtures: 0.8 with the prompt in the loss, below 0 with it masked",
    )
    prompt_worse: float = limit(
        1.0,
        unit="nats per token",
        source="fixtures: 1.4 to 3.4 after a ruinous rate, 0.2 in a sound run with a mask",
    )


@check(
    codes={
        "base-broken": Symptom.error(
            "the base model cannot predict the run's data at all",
            expected="a loss well below that of guessing among all tokens",
            fix="Check that tokenizer and model belong together, and load the base model again.",
        ),
        "not-finite": Symptom.error(
            "the tuned model's losses are not finite",
            expected="finite losses",
            fix="Do not use this adapter; diagnose its earlier checkpoints with --adapter FILE.",
        ),
        "identity-learned": Symptom.error(
            "the adapter learned to repeat the token it was just given",
            expected="the largest improvement for the next token",
            fix="Make targets[i] the token after inputs[i], shifted exactly once.",
        ),
        "skip-learned": Symptom.error(
            "the adapter learned to predict the token after the next",
            expected="the largest improvement for the next token",
            fix="Make targets[i] the token after inputs[i], shifted exactly once.",
        ),
        "previous-learned": Symptom.error(
            "the adapter learned to predict the token before the one it was given",
            expected="the largest improvement for the next token",
            fix="Let inputs and targets change places: inputs are tokens[:-1], targets tokens[1:].",
        ),
        "padding-learned": Symptom.error(
            "the adapter learned to go on with padding",
            expected="padding left out of the loss, and the end token after the answer",
            fix="Mask padding out of the loss, and put it after the end token.",
        ),
        "end-token-repeated": Symptom.error(
            "the adapter learned to go on with end tokens",
            expected="padding left out of the loss",
            fix="Mask the loss by each row's length, not by token.",
        ),
        "first-padding-learned": Symptom.info(
            "the adapter learned one padding token after the row",
            expected="harmless where generation stops at the end token",
        ),
        "end-token-unlearned": Symptom.error(
            "the end token is not expected after the answer",
            expected="the end token after the answer",
            fix="Put the end token at the end of every row, and do not mask it.",
        ),
        "end-token-everywhere": Symptom.error(
            "the end token is expected before the answer",
            expected="the first token of the answer",
            fix="Look for empty answers and for end tokens used as padding in the loss.",
        ),
        "prompt-learned": Symptom.error(
            "the adapter learned the prompt, which was to be masked",
            expected="no improvement on tokens that carry no loss",
            fix="Set the targets of the prompt to the ignored index.",
        ),
        "prompt-worse": Symptom.error(
            "the prompt is predicted much worse than by the base model",
            expected="prompts predicted about as well as before",
            fix="Lower the learning rate, or stop earlier.",
        ),
        "answers-worse": Symptom.error(
            "the answers trained on are predicted worse than by the base model",
            expected="a lower loss on the rows that were trained on",
            fix="Do not use this adapter; see what else is wrong with rate, scale and labels.",
        ),
        "held-out-worse": Symptom.warning(
            "only held-out answers are predicted worse than by the base model",
            expected="held-out answers predicted at least as well as before",
            fix="Stop earlier, or use the checkpoint nearest to the lowest validation loss.",
        ),
        "memorised": Symptom.warning(
            "answers trained on are predicted far better than held-out ones",
            expected="about the same loss on rows that were not trained on",
            fix="Train on more data or for fewer iterations.",
        ),
        "nothing-learned": Symptom.error(
            "the adapter changes nothing on the rows it was trained on",
            expected="a loss below the base model's on the rows that were trained on",
            fix="Check that the adapter is attached, trainable, and that the rate is not too low.",
        ),
    },
    cost=Cost.FORWARD,
    limits=Limits(),
    rerun_symptom=True,
)
def learned_targets(
    losses: TokenLosses, tokenizer: Tokenizer | None, limits: Limits
) -> Iterator[Sign | Seen | Unsought]:
    """Compare both models' losses by region and shift."""
    base = list(_base(losses, limits))
    yield from base
    if losses.load_failure is not None:
        raise Inconclusive("the adapter could not be loaded on this base model")
    rows = [row for row in losses.rows if row.tuned is not None]
    if len(rows) < limits.rows:
        raise Inconclusive(f"{len(rows)} rows are too few to decide; {limits.rows} are needed")
    broken = [row for row in rows if not np.isfinite(tuned_pass(row).next).all()]
    if broken:
        yield Sign(
            "not-finite",
            f"The tuned model's losses are not finite on {len(broken)} of {len(rows)} rows: its "
            "weights or activations are NaN or infinite.",
            {"rows": len(rows), "not_finite": len(broken)},
        )
        return
    if any(one.severity is Severity.ERROR for one in base):
        return
    shifted = list(_shifts(rows, limits))
    yield from shifted
    if _is_lost(rows, losses):
        why = "the tuned model predicts the answers worse than a blind guess would"
        yield Unsought(("padding-learned", "end-token-repeated"), why)
    elif not shifted:
        # A model that repeats what it is given expects padding after padding, trained or not.
        yield from _padding(rows, losses, tokenizer, limits)
    yield from _end(rows, limits)
    yield from _prompt(rows, losses.mask_prompt, limits)
    yield from _answers(rows, limits)


def _base(losses: TokenLosses, limits: Limits) -> Iterator[Sign]:
    uniform = math.log(losses.vocab_size)
    means = np.array([region_mean(row, row.base, 1, Role.ANSWER) for row in losses.rows])
    not_finite = sum(not np.isfinite(row.base.next).all() for row in losses.rows)
    known = means[np.isfinite(means)]
    above = bool(len(known)) and float(known.mean()) > uniform
    if not not_finite and not (above and sign_test(known - uniform) < limits.significance):
        return
    what = (
        f"gives losses that are not finite on {not_finite} of {len(losses.rows)} rows"
        if not_finite
        else f"has a loss of {known.mean():.2f} on the answers, above {uniform:.2f} for guessing"
    )
    # A small sound base, sure of other words, may be above as well; text that was learned since
    # is none that it cannot read.
    is_far = not_finite or float(known.mean()) > uniform + limits.above_uniform
    after = [
        region_mean(row, row.tuned, 1, Role.ANSWER) for row in losses.rows if row.tuned is not None
    ]
    is_learned = bool(after) and float(np.mean(after)) < limits.readable * uniform
    verdict = "it, its tokenizer or the data is broken" if is_far else "it knows no such text"
    yield Sign(
        "base-broken",
        f"The base model {what}: {verdict}.",
        {
            "rows": len(losses.rows),
            "not_finite": not_finite,
            "base_loss": mean_of(known),
            "uniform_loss": round(uniform, 3),
        },
        severity=Severity.ERROR if is_far else Severity.INFO if is_learned else Severity.WARNING,
    )


def _shifts(rows: Sequence[RowLosses], limits: Limits) -> Iterator[Sign]:
    following = region(rows, 1, Role.ANSWER)
    if len(following.gains) < limits.rows:
        return
    wrong = [(0, "identity-learned"), (2, "skip-learned")]
    if all(row.base.previous is not None for row in rows):
        wrong.append((-1, "previous-learned"))
    preferred = [
        (float(region(rows, shift, Role.ANSWER).tuned.mean()), shift, symptom)
        for shift, symptom in wrong
        if prefers_shift(rows, shift, limits.significance, limits.shift_margin)
    ]
    # Of several the one that it predicts best is what it was trained on.
    for _, shift, symptom in sorted(preferred)[:1]:
        other = region(rows, shift, Role.ANSWER)
        yield Sign(
            symptom,
            f"The adapter was trained to predict {SHIFT_NAMES[shift]}: its loss for that is "
            f"{mean_of(other.tuned)} (base {mean_of(other.base)}), for the next token "
            f"{mean_of(following.tuned)} (base {mean_of(following.base)}).",
            {
                **other.measured,
                "next_base_loss": mean_of(following.base),
                "next_tuned_loss": mean_of(following.tuned),
                "rows_better_at_shift": int(np.sum(other.tuned < following.tuned)),
            },
        )


def _is_lost(rows: Sequence[RowLosses], losses: TokenLosses) -> bool:
    """Whether what the tuned model expects after a row says nothing any more."""
    tuned = region(rows, 1, Role.ANSWER).tuned
    return bool(len(tuned)) and float(tuned.mean()) > math.log(losses.vocab_size)


def _padding(
    rows: Sequence[RowLosses], losses: TokenLosses, tokenizer: Tokenizer | None, limits: Limits
) -> Iterator[Sign]:
    for pad_id in losses.pad_ids:
        yield from _padded_with(pad_id, rows, losses, tokenizer, limits)


def _padded_with(
    pad_id: int,
    rows: Sequence[RowLosses],
    losses: TokenLosses,
    tokenizer: Tokenizer | None,
    limits: Limits,
) -> Iterator[Sign]:
    is_own, is_end = pad_id == losses.pad_ids[0], pad_id in losses.end_token_ids
    found = learned_padding(rows, pad_id, is_own=is_own, is_end=is_end, limits=limits)
    if found is None:
        return
    name = tokenizer.decode([pad_id]) if tokenizer is not None else f"token {pad_id}"
    token: dict[str, Measurement] = {"pad_id": pad_id, "pad_text": name}
    first, rest = found.first, found.rest
    if found.what == "end":
        yield Sign(
            "end-token-repeated",
            f"After a row the adapter expects end token after end token ({name!r}), with "
            f"probability {probability(rest.tuned):.2f} (base {probability(rest.base):.3f}): "
            "rows were padded with the end token, and the padding was trained on.",
            {**rest.measured, **token},
        )
    elif found.what == "more":
        at_start = found.at_start.is_broken
        instead, where = (found.at_start, "begin") if at_start else (found.at_end, "end")
        what = (
            f"Where the answer should {where}, the adapter's likeliest token is padding "
            f"({name!r}) on {instead.tuned} of {instead.prompts} rows"
            if instead.is_broken
            else f"After a row and one padding token ({name!r}) the adapter expects more of "
            f"it, with probability {probability(rest.tuned):.3f} (base "
            f"{probability(rest.base):.3f})"
        )
        yield Sign(
            "padding-learned",
            f"{what}: padding was trained on.",
            {**rest.measured, **token, "rows_with_padding_instead": instead.tuned},
        )
    else:
        yield Sign(
            "first-padding-learned",
            f"The adapter expects a padding token ({name!r}) right after the row with "
            f"probability {probability(first.tuned):.2f}, and no more of them: mlx-lm's loss "
            "covers the first.",
            {**first.measured, **token},
        )


def _end(rows: Sequence[RowLosses], limits: Limits) -> Iterator[Sign | Seen]:
    yield from _end_after_answer(rows, limits)
    start = change(rows, lambda one: one.end_at_start)
    if len(start.gains) < limits.rows or is_likely(start.base, limits.likely):
        return
    if is_likely(start.tuned, limits.likely) and start.fell(limits.significance):
        yield Sign(
            "end-token-everywhere",
            "Where the answer should begin, the adapter expects the end token with probability "
            f"{probability(start.tuned):.2f} (base {probability(start.base):.2f}).",
            start.measured,
        )


def _end_after_answer(rows: Sequence[RowLosses], limits: Limits) -> Iterator[Sign | Seen]:
    found = learned_end(rows, limits)
    if found is None:
        return
    after = found.after
    said = (
        f"After a complete answer, the tuned model expects the end token with probability "
        f"{probability(after.tuned):.3f}, the base model with {probability(after.base):.3f}"
    )
    if found.is_unlearned:
        what = ", while the answers themselves were learned" if found.while_learning else ""
        yield Sign(
            "end-token-unlearned",
            f"{said}{what} ({len(after.gains)} rows).",
            {
                **after.measured,
                "base_answer_loss": mean_of(found.answers.base),
                "tuned_answer_loss": mean_of(found.answers.tuned),
            },
            severity=None if found.is_certain else Severity.WARNING,
        )
    else:
        yield Seen(f"{said} ({len(after.gains)} rows).", after.measured)


def _prompt(rows: Sequence[RowLosses], mask_prompt: bool, limits: Limits) -> Iterator[Sign]:
    having = [row for row in rows if {Role.PROMPT, Role.ANSWER} <= set(row.roles[2:].tolist())]
    if len(having) < limits.rows:
        return
    prompt, answer = (region(having, 1, role) for role in (Role.PROMPT, Role.ANSWER))
    fell_to = f"from {mean_of(prompt.base)} to {mean_of(prompt.tuned)}"
    if prompt.rose(limits.significance, limits.prompt_worse):
        why = "training did not cover them" if mask_prompt else "and they were trained on"
        yield Sign(
            "prompt-worse",
            f"The loss on the prompts rose {fell_to}; {why}.",
            prompt.measured,
            # Masked, prompts are forgotten by sound runs too: 19 of 160 of the ward, 11 of 44 of
            # a real model. The answers tell.
            severity=Severity.INFO if mask_prompt else None,
        )
    learned = prompt.fell(limits.significance, limits.worse) and answer.fell(limits.significance)
    excess = prompt.gains / prompt.base - limits.prompt_share * answer.gains / answer.base
    is_too_much = excess.mean() > 0 and sign_test(excess) < limits.significance
    if mask_prompt and learned and is_too_much:
        yield Sign(
            "prompt-learned",
            f"The prompt was to be masked, but its loss fell {fell_to}, beside the answer's from "
            f"{mean_of(answer.base)} to {mean_of(answer.tuned)}: the adapter was trained on it.",
            {
                **prompt.measured,
                "answer_base_loss": mean_of(answer.base),
                "answer_tuned_loss": mean_of(answer.tuned),
            },
        )


def _answers(rows: Sequence[RowLosses], limits: Limits) -> Iterator[Sign | Seen]:
    held_out = [row for row in rows if row.split != "train"]
    train = [row for row in rows if row.split == "train"]
    trained, kept = (region(some, 1, Role.ANSWER) for some in (train or held_out, held_out))
    if len(trained.gains) < limits.rows:
        raise Inconclusive(f"{len(trained.gains)} rows with an answer are too few to decide")
    has_both = bool(train) and len(kept.gains) >= limits.rows
    if trained.rose(limits.significance, limits.worse):
        yield Sign(
            "answers-worse",
            f"The tuned model's loss on the answers is {mean_of(trained.tuned)}, above the base "
            f"model's {mean_of(trained.base)} on the same rows: training did harm.",
            trained.measured,
        )
    elif has_both and kept.rose(limits.significance, limits.worse):
        yield Sign(
            "held-out-worse",
            f"On held-out answers the loss rose from {mean_of(kept.base)} to "
            f"{mean_of(kept.tuned)}, while it is {mean_of(trained.tuned)} on those trained on.",
            kept.measured,
        )
    elif has_both and is_memorised(trained, kept, limits.significance, limits.memorised):
        yield Sign(
            "memorised",
            f"The loss is {mean_of(trained.tuned)} on answers trained on and "
            f"{mean_of(kept.tuned)} on held-out ones; for the base model they are "
            f"{mean_of(trained.base)} and {mean_of(kept.base)}.",
            {**kept.measured, "trained_loss": mean_of(trained.tuned)},
        )
    if not trained.rose(limits.significance, limits.worse):
        for what, those in (("held out", kept), ("trained on", trained)):
            if len(those.gains) >= limits.rows and those.fell(limits.significance, limits.worse):
                yield Seen(
                    f"The loss on answers {what} is {mean_of(those.tuned)}, the base model's "
                    f"{mean_of(those.base)} ({len(those.gains)} rows).",
                    those.measured,
                    # Rows trained on get better by heart, too.
                    learned=what == "held out" or not held_out,
                )
    yield from _nothing(train or held_out, trained, limits)


def _nothing(rows: Sequence[RowLosses], answers: LossChange, limits: Limits) -> Iterator[Sign]:
    moved = float(np.mean([np.abs(tuned_pass(row).next - row.base.next).mean() for row in rows]))
    if moved < limits.unchanged and float(np.mean(answers.base)) >= limits.to_learn:
        yield Sign(
            "nothing-learned",
            f"With the adapter, losses on {len(rows)} rows of the run's own data differ from the "
            f"base model's by {moved:.2g} nats per token: nothing was learned.",
            {**answers.measured, "mean_difference": moved},
        )
