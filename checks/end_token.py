"""The tuned model ends at once, or never.

What it finds. Answers that are empty or begin with the end token, answers that run into the
length limit although the base model and the expected answer are shorter, end tokens repeated
without end, and answers followed by a run of one token such as padding.

Why it matters. A model that ends at once says nothing; one that never ends wastes every token
after the answer. Both come from training and are invisible in the loss.

How it is measured. The unit is the prompt; shares have Wilson intervals and are compared with
the base model on the same prompts (exact McNemar, or a sequential test on few prompts). An
answer counts as never ending when it reached the length limit without the end token and is
longer than the expected one. With fewer than 8 prompts finding nothing is inconclusive.

When it is wrong. Training on long answers makes a sound model longer than its base: where no
expected answer is known, never ending is only a warning. The end token is taken from the
tokenizer or the recording; where it is unknown, it is what the base model's answers end with.

What to do. See in the report's label strip whether a row's last supervised token is the end
token, once, and whether padding is trained on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from types import MappingProxyType

from mlxdoctor.check import Inconclusive, check, limit
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.supervision import Role, SupervisedRows
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.finding import Finding, Measurement, Severity
from mlxdoctor.measure.generations import Generations
from mlxdoctor.measure.text.outputs import Output, OutputPair, pairs, words
from mlxdoctor.measure.text.prompt_rates import Rate, RateLimits, is_raised, rate, too_few
from mlxdoctor.measure.text.statistics import run_share, tail_run, top_share
from mlxdoctor.safety.quoting import quoted

#: How chat templates begin a turn.
TURN = re.compile(
    r"<\|im_start\|>|<start_of_turn>|<\|start_header_id\|>|<\|(?:user|assistant)\|>|\[INST\]"
)


@dataclass(frozen=True)
class Limits(RateLimits):
    """When an answer is empty, endless, or followed by padding."""

    repeated_ends: int = limit(
        3, unit="end tokens in a row", source="a sound recording stops at the first"
    )
    padding_run: int = limit(
        4, unit="equal tokens in a row", source="an ellipsis has three dots, padding has more"
    )
    longer_than_expected: float = limit(
        1.2, unit="times the expected answer", source="room for another way to say it"
    )
    padded_share: float = limit(
        0.5,
        unit="share of one token in the answer before the run",
        source="above, there is no answer that is followed by padding",
    )


@dataclass(frozen=True)
class _Symptom:
    """One way to end wrongly, and what to say of it."""

    code: str
    what: str
    expected: str
    fix: str


_EMPTY = _Symptom(
    "end-token.empty-answers",
    "ends at once, without an answer,",
    "an answer before the end token",
    "Check that only the last token of each answer is the end token, and that prompts have the "
    "format used in training.",
)
_ENDLESS = _Symptom(
    "end-token.never-ends",
    "runs into the length limit without the end token",
    "the end token after the answer",
    "Check that every training row ends with the token that ends generation.",
)
_NEXT_TURN = _Symptom(
    "end-token.next-turn",
    "goes on into the next turn of the conversation",
    "the end token where the turn ends",
    "Check that every training row ends with the token that ends generation.",
)
_REPEATED = _Symptom(
    "end-token.repeated-end",
    "repeats the end token",
    "one end token",
    "Check for padding with the end token that is trained on.",
)
_PADDED = _Symptom(
    "end-token.padded-answers",
    "follows its answer with a run of one token",
    "the end token right after the answer",
    "Mask padding out of the loss, and put the end token before it.",
)


@check(
    codes={
        "empty-answers": "the answer is empty: the end token comes first",
        "never-ends": "the answer runs into the length limit without the end token",
        "next-turn": "the answer goes on into the next turn of the conversation",
        "repeated-end": "the end token is repeated",
        "padded-answers": "the answer is followed by a run of one token",
    },
    limits=Limits(),
    decisive=True,
    rerun_symptom=True,
)
def end_token(
    generations: Generations,
    tokenizer: Tokenizer | None,
    base: BaseModel | None,
    rows: SupervisedRows | None,
    limits: Limits,
) -> Iterator[Finding]:
    """Report how answers end, as shares of prompts."""
    found = pairs(generations, tokenizer, base)
    if not found:
        refused = generations.load_failure is not None
        why = "the adapter could not be loaded" if refused else "there is no answer to look at"
        raise Inconclusive(why)
    empty = _rate(found, lambda _, output: not output.content, limits)
    # Where some expected answers are known, the others say nothing about a right length.
    lengths = [pair for pair in found if pair.item.expected is not None] or found
    typical = _typical_length(rows)
    endless = _rate(lengths, partial(_is_endless, limits, typical), limits)
    next_turn = _rate(found, lambda _, output: TURN.search(output.text) is not None, limits)
    repeated = _rate(
        found, lambda _, output: _longest_run_of_ends(output) >= limits.repeated_ends, limits
    )
    padded = _rate(found, lambda _, output: _is_padded(limits, output), limits)
    if is_raised(empty, limits):
        yield _finding(_EMPTY, empty)
    if is_raised(next_turn, limits):
        yield _finding(_NEXT_TURN, next_turn)
    if is_raised(endless, limits):
        knows_length = typical is not None or lengths[0].item.expected is not None
        may_be_error = endless.base is not None and knows_length
        yield _finding(_ENDLESS, endless, may_be_error=may_be_error)
    if is_raised(repeated, limits):
        yield _finding(_REPEATED, repeated)
    if is_raised(padded, limits):
        runs = [pair.tuned.content[-1] for pair in found if _is_padded(limits, pair.tuned)]
        token, share = top_share(runs)
        text = tokenizer.decode([token]) if tokenizer and isinstance(token, int) else str(token)
        yield _finding(
            _PADDED, padded, {"token_text": quoted(text), "share_of_runs": round(share, 3)}
        )
    if (few := too_few(len(found), limits)) is not None:
        raise Inconclusive(few)


def _rate(
    found: Sequence[OutputPair], hit: Callable[[OutputPair, Output], bool], limits: Limits
) -> Rate:
    base = [hit(pair, pair.base) for pair in found if pair.base is not None]
    known = base if len(base) == len(found) else None
    return rate([hit(pair, pair.tuned) for pair in found], known, limits)


def _is_padded(limits: Limits, output: Output) -> bool:
    content = output.content
    run = tail_run(content)
    answer = content[: len(content) - run]
    if run < limits.padding_run or not answer:
        return False
    return max(top_share(answer)[1], run_share(answer)) < limits.padded_share


def _is_endless(limits: Limits, typical: float | None, pair: OutputPair, output: Output) -> bool:
    if output.has_ended or not output.from_tokens or not output.max_tokens:
        return False
    if len(output.units) < output.max_tokens:
        return False
    if pair.item.expected is None:
        return typical is None or len(output.units) > limits.longer_than_expected * typical
    expected = max(1, len(words(pair.item.expected)))
    # A loop of signs has no words: it is as long as its tokens.
    length = max(len(output.words), len(output.units) // 2)
    return length > limits.longer_than_expected * expected


def _typical_length(rows: SupervisedRows | None) -> float | None:
    """Tokens of the median answer trained on; a row of plain text is continued from its half."""
    if rows is None or not rows.rows:
        return None
    counts = [int((row.roles == Role.ANSWER).sum()) for row in rows.rows]
    return median(counts) / (1 if any(row.prompt_length for row in rows.rows) else 2)


def _longest_run_of_ends(output: Output) -> int:
    longest = run = 0
    for unit in output.units:
        run = run + 1 if unit in output.ends else 0
        longest = max(longest, run)
    return longest


def _finding(
    symptom: _Symptom,
    found: Rate,
    extra: Mapping[str, Measurement] = MappingProxyType({}),
    *,
    may_be_error: bool = True,
) -> Finding:
    return Finding(
        code=symptom.code,
        severity=Severity.ERROR if found.is_broken and may_be_error else Severity.WARNING,
        message=(
            f"The tuned model {symptom.what} on {found.tuned} of {found.prompts} prompts; "
            f"{found.against_base}."
        ),
        measured={**found.measured, **extra},
        expected=symptom.expected,
        fix=symptom.fix,
    )
