"""The tuned model ends at once, or never.

What it finds. Answers that are empty or begin with the end token, answers that run into the
length limit although the base model and the expected answer are shorter, end tokens repeated
without end, and answers followed by a run of one token such as padding.

Why it matters. A model that ends at once says nothing; one that never ends wastes every token
after the answer. Both come from training and are invisible in the loss.

How it is measured. The unit is the prompt; shares have Wilson intervals and are compared with
the base model on the same prompts (exact McNemar, or a sequential test on few prompts). An
answer counts as never ending when it reached the length limit without the end token and is
longer than the expected one.

When it is wrong. Training on long answers makes a sound model longer than its base: where no
expected answer is known, never ending is only a warning. The end token is taken from the
tokenizer or the recording; where it is unknown, it is what the base model's answers end with.

What to do. See with `mlxdoctor labels` whether each row's last supervised token is the end
token, once, and whether padding is trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mlxdoctor.check import Inconclusive, check, limit
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.generations import Generations
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.finding import Finding, Measurement, Severity
from mlxdoctor.outputs import Output, OutputPair, pairs, words
from mlxdoctor.prompt_rates import Rate, RateLimits, is_raised, rate
from mlxdoctor.text_statistics import run_share, tail_run, top_share


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
        1.5, unit="times the expected answer's words", source="room for another way to say it"
    )
    padded_share: float = limit(
        0.9, unit="share of an answer", source="above, the answer is one token altogether"
    )


@check(
    codes={
        "empty-answers": "the answer is empty: the end token comes first",
        "never-ends": "the answer runs into the length limit without the end token",
        "repeated-end": "the end token is repeated",
        "padded-answers": "the answer is followed by a run of one token",
    },
    limits=Limits(),
)
def end_token(
    generations: Generations,
    tokenizer: Tokenizer | None,
    base: BaseModel | None,
    limits: Limits,
) -> Iterator[Finding]:
    """Report how answers end, as shares of prompts."""
    found = pairs(generations, tokenizer, base)
    if not found:
        raise Inconclusive(generations.load_failure or "there is no answer to look at")

    def is_padded(pair: OutputPair, output: Output) -> bool:
        content = output.content
        run = tail_run(content)
        return run >= limits.padding_run and run_share(content) < limits.padded_share

    def is_repeated(pair: OutputPair, output: Output) -> bool:
        return _longest_run_of_ends(output) >= limits.repeated_ends

    def is_endless(pair: OutputPair, output: Output) -> bool:
        return _is_endless(pair, output, limits)

    empty = _rate(found, lambda _, output: not output.content, limits)
    endless = _rate(found, is_endless, limits)
    repeated = _rate(found, is_repeated, limits)
    padded = _rate(found, is_padded, limits)
    if is_raised(empty, limits):
        yield _finding(
            "empty-answers",
            "ends at once, without an answer,",
            empty,
            "an answer before the end token",
            "Check that only the last token of each answer is the end token, and that the "
            "prompt format is the one used in training.",
        )
    if is_raised(endless, limits):
        knows_length = all(pair.item.expected is not None for pair in found)
        yield _finding(
            "never-ends",
            "runs into the length limit without the end token",
            endless,
            "the end token after the answer",
            "Check that every training row ends with the token that ends generation.",
            may_be_error=endless.base is not None and knows_length,
        )
    if is_raised(repeated, limits):
        yield _finding(
            "repeated-end",
            "repeats the end token",
            repeated,
            "one end token",
            "Check for padding with the end token that is trained on.",
        )
    if is_raised(padded, limits):
        runs = [pair.tuned.content[-1] for pair in found if is_padded(pair, pair.tuned)]
        token, share = top_share(runs)
        text = tokenizer.token(token) if tokenizer and isinstance(token, int) else str(token)
        yield _finding(
            "padded-answers",
            f"follows its answer with a run of one token (mostly {text!r})",
            padded,
            "the end token right after the answer",
            "Mask padding out of the loss, and put the end token before it.",
            {"token_text": text, "token_share_of_runs": round(share, 3)},
        )


def _rate(
    found: Sequence[OutputPair], hit: Callable[[OutputPair, Output], bool], limits: Limits
) -> Rate:
    base = [hit(pair, pair.base) for pair in found if pair.base is not None]
    known = base if len(base) == len(found) else None
    return rate([hit(pair, pair.tuned) for pair in found], known, limits)


def _is_endless(pair: OutputPair, output: Output, limits: Limits) -> bool:
    if output.has_ended or not output.from_tokens or not output.max_tokens:
        return False
    if len(output.units) < output.max_tokens:
        return False
    if pair.item.expected is None:
        return True
    expected = max(1, len(words(pair.item.expected)))
    # A loop of signs has no words: it is as long as its tokens.
    length = max(len(output.words), len(output.units) // 2)
    return length > limits.longer_than_expected * expected


def _longest_run_of_ends(output: Output) -> int:
    longest = run = 0
    for unit in output.units:
        run = run + 1 if unit in output.ends else 0
        longest = max(longest, run)
    return longest


def _finding(
    symptom: str,
    what: str,
    found: Rate,
    expected: str,
    fix: str,
    extra: dict[str, Measurement] | None = None,
    *,
    may_be_error: bool = True,
) -> Finding:
    is_error = found.is_broken and may_be_error
    return Finding(
        code=f"end-token.{symptom}",
        severity=Severity.ERROR if is_error else Severity.WARNING,
        message=(
            f"The tuned model {what} on {found.tuned} of {found.prompts} prompts; "
            f"{found.against_base}."
        ),
        measured={**found.measured, **(extra or {})},
        expected=expected,
        fix=fix,
    )
