"""What the adapter was really trained to predict.

What it finds. An adapter that learned to predict the token it was just given (identity) or the
one after the next (skip) instead of the next one, that learned padding, that learned the prompt
although it was to be masked, that forgot the end token or expects it at once, that predicts the
run's own answers worse than the base model does, or that learned nothing.

Why it matters. Labels that are shifted, padded or masked wrongly give a loss that falls as
nicely as a right one. The model itself is the only witness of what it was trained on.

How it is measured. Base and tuned model read rows of the run's own data. For each region of a
row (prompt, answer, end token, padding after it) and each shift (0, 1 and 2 tokens ahead), the
tuned model's mean loss is subtracted from the base model's. The unit is the row: a change
counts when the sign test over rows is significant and the mean change is large enough in nats.

When it is wrong. Answers that repeat one token are predicted equally well at every shift. A
padding token right after the row is learned in every sound run of mlx-lm, whose loss covers it;
that is reported as a note. Rows where the base model is already certain have nothing to learn.

What to do. Compare with `mlxdoctor labels`, which shows the targets that mlx-lm would make of
the same rows, and with `mlxdoctor probe` for a trainer of your own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import Cost, Inconclusive, check, limit
from mlxdoctor.evidence.supervision import Role
from mlxdoctor.evidence.token_losses import RowLosses, RowPass, TokenLosses
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.finding import Finding, Measurement, Severity
from mlxdoctor.text_statistics import sign_test

SHIFT_NAMES = {0: "the token it was just given", 2: "the token after the next"}


@dataclass(frozen=True)
class Limits:
    """When a change of the loss over rows says what was learned."""

    significance: float = limit(0.01, unit="p-value, sign test over rows", source="convention")
    rows: int = limit(8, unit="rows", source="fewer cannot reach p < 0.01 in a sign test")
    shift_margin: float = limit(
        0.5, unit="nats per token", source="a constant guess is equally good at every shift"
    )
    worse: float = limit(0.1, unit="nats per token", source="a loss 10% up on a perplexity")
    unchanged: float = limit(
        0.01, unit="nats per token", source="rounding in half precision is below"
    )
    to_learn: float = limit(
        0.3, unit="nats per token", source="below, the base model already knows the answers"
    )
    likely: float = limit(0.5, unit="probability", source="the greedy choice")
    unlikely: float = limit(0.1, unit="probability", source="never the greedy choice in practice")
    padding_gain: float = limit(1.0, unit="nats", source="the id became at least e times likelier")
    prompt_share: float = limit(
        0.5, unit="prompt's improvement over the answer's", source="half as much, where none is due"
    )


@dataclass(frozen=True)
class _Change:
    """A quantity in nats over rows, for both models. Gains are positive where it fell."""

    base: NDArray[np.float64]
    tuned: NDArray[np.float64]

    @property
    def gains(self) -> NDArray[np.float64]:
        return self.base - self.tuned

    @property
    def gain(self) -> float:
        return float(self.gains.mean()) if len(self.gains) else 0.0

    @property
    def p_value(self) -> float:
        return sign_test(self.gains)

    def fell(self, limits: Limits, by: float = 0.0) -> bool:
        return self.gain > by and self.p_value < limits.significance

    def rose(self, limits: Limits, by: float = 0.0) -> bool:
        return self.gain < -by and self.p_value < limits.significance

    @property
    def measured(self) -> dict[str, Measurement]:
        return {
            "rows": len(self.gains),
            "base_loss": _rounded(self.base),
            "tuned_loss": _rounded(self.tuned),
            "p_value": self.p_value,
        }


@check(
    codes={
        "base-broken": "the base model cannot predict the run's data at all",
        "not-finite": "the tuned model's losses are not finite",
        "identity-learned": "the adapter learned to repeat the token it was just given",
        "skip-learned": "the adapter learned to predict the token after the next",
        "padding-learned": "the adapter learned to go on with padding",
        "first-padding-learned": "the adapter learned one padding token after the row",
        "end-token-unlearned": "the end token is not expected after the answer",
        "end-token-everywhere": "the end token is expected before the answer",
        "prompt-learned": "the adapter learned the prompt, which was to be masked",
        "answers-worse": "the answers trained on are predicted worse than by the base model",
        "held-out-worse": "only held-out answers are predicted worse than by the base model",
        "nothing-learned": "the adapter changes nothing on the rows it was trained on",
    },
    cost=Cost.FORWARD,
    limits=Limits(),
)
def learned_targets(
    losses: TokenLosses, tokenizer: Tokenizer | None, limits: Limits
) -> Iterator[Finding]:
    """Compare both models' losses by region and shift."""
    yield from _base(losses, limits)
    if losses.load_failure is not None:
        raise Inconclusive(f"the adapter could not be loaded: {losses.load_failure}")
    rows = [row for row in losses.rows if row.tuned is not None]
    if len(rows) < limits.rows:
        raise Inconclusive(f"{len(rows)} rows are too few to decide; {limits.rows} are needed")
    broken = [row for row in rows if not np.isfinite(_tuned(row).next).all()]
    if broken:
        yield Finding(
            code="learned-targets.not-finite",
            severity=Severity.ERROR,
            message=(
                f"The tuned model's losses are not finite on {len(broken)} of {len(rows)} rows: "
                "its weights or activations are NaN or infinite."
            ),
            measured={"rows": len(rows), "not_finite": len(broken)},
            expected="finite losses",
            fix="Do not use this adapter; find the last good checkpoint with `mlxdoctor bisect`.",
        )
        return
    yield from _shifts(rows, limits)
    yield from _padding(rows, losses, tokenizer, limits)
    yield from _end(rows, limits)
    if losses.mask_prompt:
        yield from _prompt(rows, limits)
    yield from _answers(rows, limits)


def _base(losses: TokenLosses, limits: Limits) -> Iterator[Finding]:
    uniform = math.log(losses.vocab_size)
    means = np.array([_mean(row, row.base, 1, Role.ANSWER) for row in losses.rows])
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
    yield Finding(
        code="learned-targets.base-broken",
        severity=Severity.ERROR,
        message=f"The base model {what}: it, its tokenizer or the data is broken.",
        measured={
            "rows": len(losses.rows),
            "not_finite": not_finite,
            "base_loss": _rounded(known),
            "uniform_loss": round(uniform, 3),
        },
        expected="a loss well below that of guessing among all tokens",
        fix="Check that tokenizer and model belong together, and load the base model again.",
    )


def _shifts(rows: Sequence[RowLosses], limits: Limits) -> Iterator[Finding]:
    following = _region(rows, 1, Role.ANSWER)
    for shift, symptom in ((0, "identity-learned"), (2, "skip-learned")):
        other = _region(rows, shift, Role.ANSWER)
        more_gain = other.gains - following.gains
        better = following.tuned - other.tuned
        decides = all(
            len(values) >= limits.rows
            and values.mean() > limits.shift_margin
            and sign_test(values) < limits.significance
            for values in (more_gain, better)
        )
        if decides and other.fell(limits):
            yield Finding(
                code=f"learned-targets.{symptom}",
                severity=Severity.ERROR,
                message=(
                    f"The adapter was trained to predict {SHIFT_NAMES[shift]}: its loss for that "
                    f"is {_rounded(other.tuned)} (base {_rounded(other.base)}), for the next "
                    f"token {_rounded(following.tuned)} (base {_rounded(following.base)})."
                ),
                measured={
                    **other.measured,
                    "next_base_loss": _rounded(following.base),
                    "next_tuned_loss": _rounded(following.tuned),
                    "rows_better_at_shift": int(np.sum(better > 0)),
                },
                expected="the largest improvement for the next token",
                fix="Make targets[i] the token after inputs[i], shifted exactly once.",
            )


def _padding(
    rows: Sequence[RowLosses], losses: TokenLosses, tokenizer: Tokenizer | None, limits: Limits
) -> Iterator[Finding]:
    for pad_id in losses.pad_ids:
        tried = [row for row in rows if pad_id in row.base.padding]
        first = _change(tried, partial(_first_padding, pad_id))
        rest = _change(tried, partial(_later_padding, pad_id))
        name = tokenizer.decode([pad_id]) if tokenizer is not None else f"token {pad_id}"
        if rest.fell(limits, limits.padding_gain) and _likely(rest.tuned, limits):
            yield Finding(
                code="learned-targets.padding-learned",
                severity=Severity.WARNING,
                message=(
                    f"After a row and one padding token ({name!r}) the adapter expects more of "
                    f"it, with probability {_probability(rest.tuned):.2f} (base "
                    f"{_probability(rest.base):.2f}): padding was trained on."
                ),
                measured={**rest.measured, "pad_id": pad_id, "pad_text": name},
                expected="padding left out of the loss",
                fix="Mask padding out of the loss.",
            )
        elif first.fell(limits, limits.padding_gain) and _likely(first.tuned, limits):
            yield Finding(
                code="learned-targets.first-padding-learned",
                severity=Severity.INFO,
                message=(
                    f"The adapter expects one padding token ({name!r}) after the row, with "
                    f"probability {_probability(first.tuned):.2f}: mlx-lm's loss covers it."
                ),
                measured={**first.measured, "pad_id": pad_id, "pad_text": name},
                expected="harmless where generation stops at the end token",
            )


def _end(rows: Sequence[RowLosses], limits: Limits) -> Iterator[Finding]:
    after = _change(rows, lambda _, one: one.end_after_answer)
    if len(after.gains) >= limits.rows and not _likely(after.tuned, limits):
        had_it = _likely(after.base, limits)
        is_unlikely = _probability(after.tuned) < limits.unlikely
        has_end = [row for row in rows if np.any(row.roles == Role.END)]
        learned_answers = _region(rows, 1, Role.ANSWER).fell(limits, limits.shift_margin)
        never_learned = len(has_end) >= limits.rows and learned_answers and after.gain <= 0
        if is_unlikely and ((had_it and after.rose(limits)) or never_learned):
            yield Finding(
                code="learned-targets.end-token-unlearned",
                severity=Severity.ERROR if had_it else Severity.WARNING,
                message=(
                    "After a complete answer, the adapter expects the end token with probability "
                    f"{_probability(after.tuned):.3f}; the base model, with "
                    f"{_probability(after.base):.3f}."
                ),
                measured=after.measured,
                expected="the end token after the answer",
                fix="Put the end token at the end of every row, and do not mask it.",
            )
    start = _change(rows, lambda _, one: one.end_at_start)
    if len(start.gains) >= limits.rows and _likely(start.tuned, limits):
        if _likely(start.base, limits) or not start.fell(limits):
            return
        yield Finding(
            code="learned-targets.end-token-everywhere",
            severity=Severity.ERROR,
            message=(
                "Where the answer should begin, the adapter expects the end token with "
                f"probability {_probability(start.tuned):.2f} (base "
                f"{_probability(start.base):.2f})."
            ),
            measured=start.measured,
            expected="the first token of the answer",
            fix="Look for empty answers and for end tokens used as padding in the loss.",
        )


def _prompt(rows: Sequence[RowLosses], limits: Limits) -> Iterator[Finding]:
    having = [row for row in rows if {Role.PROMPT, Role.ANSWER} <= set(row.roles[2:].tolist())]
    prompt = _region(having, 1, Role.PROMPT)
    answer = _region(having, 1, Role.ANSWER)
    excess = prompt.gains - limits.prompt_share * answer.gains
    if (
        len(excess) < limits.rows
        or not answer.fell(limits)
        or not prompt.fell(limits, limits.worse)
    ):
        return
    if excess.mean() > 0 and sign_test(excess) < limits.significance:
        yield Finding(
            code="learned-targets.prompt-learned",
            severity=Severity.WARNING,
            message=(
                f"The prompt was to be masked, but its loss fell from {_rounded(prompt.base)} to "
                f"{_rounded(prompt.tuned)}, beside the answer's from {_rounded(answer.base)} to "
                f"{_rounded(answer.tuned)}: the adapter was trained on it."
            ),
            measured={
                **prompt.measured,
                "answer_base_loss": _rounded(answer.base),
                "answer_tuned_loss": _rounded(answer.tuned),
            },
            expected="no improvement on tokens that carry no loss",
            fix="Set the targets of the prompt to the ignored index.",
        )


def _answers(rows: Sequence[RowLosses], limits: Limits) -> Iterator[Finding]:
    train = [row for row in rows if row.split == "train"]
    held_out = [row for row in rows if row.split != "train"]
    trained = _region(train or held_out, 1, Role.ANSWER)
    kept = _region(held_out, 1, Role.ANSWER)
    if len(trained.gains) < limits.rows:
        raise Inconclusive(f"{len(trained.gains)} rows with an answer are too few to decide")
    if trained.rose(limits, limits.worse):
        yield Finding(
            code="learned-targets.answers-worse",
            severity=Severity.ERROR,
            message=(
                f"The tuned model's loss on the answers is {_rounded(trained.tuned)}, above the "
                f"base model's {_rounded(trained.base)} on the same rows: training did harm."
            ),
            measured=trained.measured,
            expected="a lower loss on the rows that were trained on",
            fix="Do not use this adapter; see what else is wrong with rate, scale and labels.",
        )
    elif train and len(kept.gains) >= limits.rows and kept.rose(limits, limits.worse):
        yield Finding(
            code="learned-targets.held-out-worse",
            severity=Severity.WARNING,
            message=(
                f"On held-out answers the loss rose from {_rounded(kept.base)} to "
                f"{_rounded(kept.tuned)}, while it is {_rounded(trained.tuned)} on those trained "
                "on."
            ),
            measured=kept.measured,
            expected="held-out answers predicted at least as well as before",
            fix="Stop earlier: `mlxdoctor bisect` finds the best checkpoint.",
        )
    yield from _nothing(train or held_out, trained, limits)


def _nothing(rows: Sequence[RowLosses], answers: _Change, limits: Limits) -> Iterator[Finding]:
    moved = float(np.mean([np.abs(_tuned(row).next - row.base.next).mean() for row in rows]))
    base_loss = float(np.mean(answers.base))
    if moved >= limits.unchanged or base_loss < limits.to_learn:
        return
    yield Finding(
        code="learned-targets.nothing-learned",
        severity=Severity.ERROR,
        message=(
            f"With the adapter, losses on {len(rows)} rows of the run's own data differ from the "
            f"base model's by {moved:.2g} nats per token: nothing was learned."
        ),
        measured={**answers.measured, "mean_difference": moved},
        expected="a loss below the base model's on the rows that were trained on",
        fix="Check that the adapter is attached, trainable, and that the rate is not too low.",
    )


def _region(rows: Sequence[RowLosses], shift: int, role: Role) -> _Change:
    """Mean loss a row over the targets of one role, on rows that have some at every shift."""
    having = [row for row in rows if np.any(row.roles[2:] == role)]
    return _change(having, lambda row, one: _mean(row, one, shift, role))


def _change(rows: Sequence[RowLosses], value: Callable[[RowLosses, RowPass], float]) -> _Change:
    """One figure a row; rows where it is not defined are left out."""
    pairs = [(value(row, row.base), value(row, _tuned(row))) for row in rows]
    values = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    values = values[np.isfinite(values).all(axis=1)]
    return _Change(values[:, 0], values[:, 1])


def _mean(row: RowLosses, one: RowPass, shift: int, role: Role) -> float:
    losses = one.shifted(shift)
    chosen = losses[row.roles[shift : shift + len(losses)] == role]
    return float(chosen.mean()) if len(chosen) else math.nan


def _tuned(row: RowLosses) -> RowPass:
    if row.tuned is None:
        raise ValueError("a row without the tuned model's losses")
    return row.tuned


def _first_padding(pad_id: int, row: RowLosses, one: RowPass) -> float:
    return float(one.padding[pad_id][0])


def _later_padding(pad_id: int, row: RowLosses, one: RowPass) -> float:
    return float(one.padding[pad_id][1:].mean())


def _likely(values: NDArray[np.float64], limits: Limits) -> bool:
    return bool(len(values)) and _probability(values) > limits.likely


def _probability(values: NDArray[np.float64]) -> float:
    """Of the median row."""
    return math.exp(-float(np.median(values)))


def _rounded(values: NDArray[np.float64]) -> float:
    return round(float(np.mean(values)), 3) if len(values) else math.nan
