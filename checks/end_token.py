"""The tuned model ends at once, or never.

What it finds. Answers that are empty or begin with the end token, and answers that run into the
length limit although the base model and the expected answer are shorter.

Why it matters. A model that ends at once says nothing; one that never ends wastes every token
after the answer. Both come from training and are invisible in the loss.

How it is measured. The unit is the prompt; shares have Wilson intervals and are compared with
the base model on the same prompts (exact McNemar, or a sequential test on few prompts). An
answer counts as never ending when it reached the length limit without the end token and is
longer than the expected one. With fewer than 8 prompts finding nothing is inconclusive.

When it is wrong. Training on long answers makes a sound model longer than its base: where no
expected answer is known, never ending is only a warning. The end token is taken from the
recording or the tokenizer; where it is unknown, nothing has ended.

What to do. See in the report's label strip whether a row's last supervised token is the end
token, once, and whether padding is trained on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from mlxdoctor.check import Inconclusive, check, limit
from mlxdoctor.evidence.supervision import Role, SupervisedRows
from mlxdoctor.finding import Seen, Severity, Sign, Symptom, Unsought
from mlxdoctor.judge.learned import LIKELY, change, is_likely
from mlxdoctor.measure.text.outputs import Output, OutputPair, answer_words, answered, rate_of
from mlxdoctor.measure.text.prompt_rates import AGAINST_BASE, RateLimits, is_raised, too_few
from mlxdoctor.models.generations import Generations
from mlxdoctor.models.losses import TokenLosses

_END_ROWS = "Check that every training row ends with the token that ends generation."


@dataclass(frozen=True)
class Limits(RateLimits):
    """When an answer is empty or endless."""

    longer_than_expected: float = limit(
        1.2, unit="times the expected answer", source="room for another way to say it"
    )
    cut_short: float = limit(
        0.5,
        unit="share of the base model's answers that the length limit cuts",
        source="0.42 at most in 64 runs of which it was said; 0.6 in two sound DPO runs that "
        "answer at more length",
    )


def _symptom(meaning: str, what: str, expected: str, fix: str) -> Symptom:
    said = f"The tuned model {what} on {{tuned_hits}} of {{prompts:* prompt}}; {AGAINST_BASE}."
    return Symptom.warning(meaning, says=said, expected=expected, fix=fix)


@check(
    codes={
        "empty-answers": _symptom(
            "the answer is empty: the end token comes first",
            "ends at once, without an answer,",
            "an answer before the end token",
            "Check that only the last token of each answer is the end token, and that prompts "
            "have the format used in training.",
        ),
        "never-ends": _symptom(
            "the answer runs into the length limit without the end token",
            "runs into the length limit without the end token",
            "the end token after the answer",
            _END_ROWS,
        ),
    },
    limits=Limits(),
    rerun_symptom=True,
)
def end_token(
    generations: Generations,
    *,
    rows: SupervisedRows | None,
    losses: TokenLosses | None,
    limits: Limits,
) -> Iterator[Sign | Seen | Unsought]:
    """Report how answers end, as shares of prompts."""
    prompts = answered(generations)
    empty = rate_of(prompts, lambda _, output: not output.content, limits)
    if is_raised(empty, limits):
        severity = Severity.ERROR if empty.is_broken else None
        yield Sign("empty-answers", empty.measured, severity=severity)
    yield from _endless(prompts, rows, losses, limits)
    if all(pair.tuned.has_ended for pair in prompts):
        yield Seen("All {prompts:* answer} end by themselves.", {"prompts": len(prompts)})
    if (few := too_few(len(prompts))) is not None:
        raise Inconclusive(few)


def _endless(
    prompts: Sequence[OutputPair],
    rows: SupervisedRows | None,
    losses: TokenLosses | None,
    limits: Limits,
) -> Iterator[Sign | Unsought]:
    # Where some expected answers are known, the others say nothing about a right length.
    lengths = [pair for pair in prompts if pair.item.expected is not None] or prompts
    typical = _typical_length(rows)
    counted = rate_of(lengths, partial(_is_endless, limits, typical), limits)
    # Where the tuned model's own answers end, the base's say nothing against them.
    if min(counted.base or 0, counted.tuned) > limits.cut_short * counted.prompts:
        why = f"the length limit cuts {counted.base} of {counted.prompts} of the base's, too"
        yield Unsought(("never-ends",), why)
    elif is_raised(counted, limits):
        knows_length = typical is not None or lengths[0].item.expected is not None
        is_more = counted.base is not None and counted.interval.share >= limits.tuned_share
        is_sure = counted.is_broken or _expects_no_end(losses)
        severity = Severity.ERROR if knows_length and is_more and is_sure else None
        yield Sign("never-ends", counted.measured, severity=severity)


def _expects_no_end(losses: TokenLosses | None) -> bool:
    """Whether the tuned model, after a complete answer of the rows, goes on, as it did before."""
    compared = losses.compared if losses is not None else ()
    after = change(compared, lambda row: row.end_after_answer)
    return after.is_enough and not is_likely(after.tuned, LIKELY) and after.gain <= 0


def _is_endless(limits: Limits, typical: float | None, pair: OutputPair, output: Output) -> bool:
    if output.has_ended or not output.from_tokens or not output.max_tokens:
        return False
    if len(output.units) < output.max_tokens:
        return False
    if pair.item.expected is None:
        return typical is None or len(output.units) > limits.longer_than_expected * typical
    expected = max(1, len(answer_words(pair.item.expected)))
    # A loop of signs has no words: it is as long as its tokens.
    length = max(len(output.words), len(output.units) // 2)
    return length > limits.longer_than_expected * expected


def _typical_length(rows: SupervisedRows | None) -> float | None:
    """Tokens of the median answer trained on; a row of plain text is continued from its half."""
    if rows is None or not rows.rows:
        return None
    counts = [int((row.roles == Role.ANSWER).sum()) for row in rows.rows]
    return median(counts) / (1 if any(row.prompt_length for row in rows.rows) else 2)
