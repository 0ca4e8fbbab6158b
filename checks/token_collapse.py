"""The tuned model answers with one token, or in a loop.

What it finds. Outputs that consist of a single token, of token 0 only, of special tokens
only, or of a passage that repeats to the end, on prompts where the base model does better.

Why it matters. A collapsed model is useless however plausible its loss looks: a model that
printed only commas had reported a perplexity of 7.66.

How it is measured. The unit is the prompt. An answer counts as one token when runs of
a single token make up nearly all of it, as a loop when its end repeats with a fixed period
or most 4-grams repeat (seq-rep-4, Welleck et al. 2020), as a handful of tokens when at most a
quarter of them are distinct. The share of prompts is given with its Wilson interval and compared
with the base model on the same prompts: exact McNemar, or, with few prompts, a sequential test
(5% against 50%, false alarms 0.1%). With fewer than 8 prompts the same test can't tell a sound
model from a broken one: then what is found is reported, and finding nothing is inconclusive.

When it is wrong. Data whose right answers are repetitive (tables, padding, sequences of
digits) makes a sound model look collapsed; answers under 8 tokens are not judged. Without
the base model's answers, a base that is broken itself is not told apart.

What to do. Look up which token it is: a frequent one points to training that destroyed the
model, token 0 to logits that are not finite, the pad token to padding in the loss. Then see
which of the loss, the learning rate and the labels the other checks complain about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from mlxdoctor.check import Inconclusive, check, limit
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.finding import Finding, Measurement, Severity
from mlxdoctor.measure.generations import Generations
from mlxdoctor.measure.text.outputs import Output, OutputPair, is_special, pairs
from mlxdoctor.measure.text.prompt_rates import Rate, RateLimits, is_raised, rate, too_few
from mlxdoctor.measure.text.statistics import (
    distinct_n,
    run_share,
    seq_rep_n,
    tail_loop,
    top_share,
    zlib_ratio,
)
from mlxdoctor.safety.quoting import quoted

#: Diversity is measured on this many units: in longer text, words recur.
MEASURED = 64
_WHAT = {
    "single-token": "one token over and over",
    "dominant-token": "one token for more than half of the text",
    "few-tokens": "a handful of tokens",
}


@dataclass(frozen=True)
class Limits(RateLimits):
    """When an output is one token, and when it is a loop."""

    shortest: int = limit(
        8, unit="tokens", source="shorter answers can be one repeated token by chance"
    )
    run_share: float = limit(
        0.9,
        unit="share of an answer's tokens that are one token, or in runs of four or more",
        source="a few tokens may precede the collapse",
    )
    dominant_share: float = limit(
        0.5, unit="share of an answer's tokens", source="a comma has 0.12 of the fixtures' tokens"
    )
    distinct: float = limit(
        0.25,
        unit="distinct tokens over tokens, in the first 64",
        source="fixtures: 0.35 at least in sound runs, 0.02 to 0.19 in collapsed ones",
        false_alarms="0 of 6 sound or late runs of 16 prompts",
    )
    seq_rep_4: float = limit(
        0.5, unit="share of 4-grams", source="Welleck et al. 2020: 0.44 in greedy text of GPT-2"
    )
    loop_share: float = limit(
        0.5, unit="share of an answer's tokens in a loop at its end", source="half of the answer"
    )
    loop_periods: float = limit(
        3.0, unit="repetitions", source="twice is emphasis, three times a loop"
    )


@check(
    codes={
        "single-token": "one token makes up nearly all of the output",
        "dominant-token": "one token makes up more than half of the output",
        "few-tokens": "a handful of tokens makes up the output",
        "token-zero": "the output is token 0 only, as with logits that are NaN or all equal",
        "special-tokens": "the output is special tokens only",
        "repetition": "the output ends in a loop",
    },
    limits=Limits(),
    decisive=True,
    rerun_symptom=True,
)
def token_collapse(
    generations: Generations,
    tokenizer: Tokenizer | None,
    base: BaseModel | None,
    rows: SupervisedRows | None,
    limits: Limits,
) -> Iterator[Finding]:
    """Report collapsed outputs, as shares of prompts."""
    found = pairs(generations, tokenizer, base)
    if not found:
        refused = generations.load_failure is not None
        why = "the adapter could not be loaded" if refused else "there is no answer to look at"
        raise Inconclusive(why)

    def is_zero(output: Output) -> bool:
        return output.from_tokens and len(output.units) >= 4 and set(output.units) == {0}

    def is_special_only(output: Output) -> bool:
        texts = [_text(unit, tokenizer) for unit in output.content]
        return len(texts) >= 2 and all(is_special(text) for text in texts)

    def is_single(output: Output) -> bool:
        content = output.content
        share = max(top_share(content)[1], run_share(content))
        return len(content) >= limits.shortest and share >= limits.run_share

    def is_dominated(output: Output) -> bool:
        content = output.content
        is_long = len(content) >= 2 * limits.shortest
        return is_single(output) or (is_long and top_share(content)[1] >= limits.dominant_share)

    def is_poor(output: Output) -> bool:
        content = output.content[:MEASURED]
        is_long = len(content) >= 2 * limits.shortest
        return is_single(output) or (is_long and distinct_n(content, 1) <= limits.distinct)

    def is_loop(output: Output) -> bool:
        return not is_single(output) and _is_loop(output, limits)

    zero = _rate(found, is_zero, limits)
    single = _rate(found, is_single, limits)
    special = _rate(found, is_special_only, limits)
    dominated = _rate(found, is_dominated, limits)
    poor = _rate(found, is_poor, limits)
    loop = _rate(found, is_loop, limits)
    if is_raised(zero, limits):
        yield _token_zero(zero)
    elif is_raised(single, limits):
        outputs = [pair for pair in found if is_single(pair.tuned)]
        yield _one_token("single-token", single, outputs, tokenizer, rows)
    elif is_raised(dominated, limits):
        outputs = [pair for pair in found if is_dominated(pair.tuned)]
        yield _one_token("dominant-token", dominated, outputs, tokenizer, rows)
    elif is_raised(poor, limits):
        outputs = [pair for pair in found if is_poor(pair.tuned)]
        yield _one_token("few-tokens", poor, outputs, tokenizer, rows)
    elif is_raised(special, limits):
        yield _special_tokens(special)
    if is_raised(loop, limits):
        yield _repetition(loop, found, is_loop)
    if (few := too_few(len(found), limits)) is not None:
        raise Inconclusive(few)


def _rate(found: Sequence[OutputPair], hit: Callable[[Output], bool], limits: Limits) -> Rate:
    known = [pair.base for pair in found if pair.base is not None]
    base = [hit(output) for output in known] if len(known) == len(found) else None
    return rate([hit(pair.tuned) for pair in found], base, limits)


def _is_loop(output: Output, limits: Limits) -> bool:
    content = output.content
    if len(content) < limits.shortest:
        return False
    period, covered = tail_loop(content)
    is_long = covered >= max(limits.shortest, limits.loop_share * len(content))
    if period and is_long and covered >= limits.loop_periods * period:
        return True
    return len(content) >= 2 * limits.shortest and seq_rep_n(content) >= limits.seq_rep_4


def _severity(found: Rate) -> Severity:
    return Severity.ERROR if found.is_broken else Severity.WARNING


def _token_zero(found: Rate) -> Finding:
    return Finding(
        code="token-collapse.token-zero",
        severity=_severity(found),
        message=(
            f"The tuned model prints only token 0 on {found.tuned} of {found.prompts} prompts, "
            f"which is what a model does whose logits are NaN or all equal; {found.against_base}."
        ),
        measured=found.measured,
        expected="logits that are finite and differ",
        fix="Look for NaN in the adapter's tensors, and for where the loss became non-finite.",
    )


def _one_token(
    symptom: str,
    found: Rate,
    outputs: Sequence[OutputPair],
    tokenizer: Tokenizer | None,
    rows: SupervisedRows | None,
) -> Finding:
    # What an answer ends in is what it collapsed into, where one run follows another.
    content = [pair.tuned.content for pair in outputs]
    tokens = Counter(
        one[-1] if run_share(one) > top_share(one)[1] else top_share(one)[0] for one in content
    )
    token, count = tokens.most_common(1)[0]
    text = _text(token, tokenizer)
    measured: dict[str, Measurement] = {
        **found.measured,
        "token_text": quoted(text),
        "with_it": count,
    }
    if isinstance(token, int):
        measured["token"] = token
        measured |= _training_rank(token, rows)
    frequency = ""
    if "training_rank" in measured:
        frequency = f", number {measured['training_rank']} among the tokens it was trained on"
    return Finding(
        code=f"token-collapse.{symptom}",
        severity=_severity(found),
        message=(
            f"The tuned model answers {found.tuned} of {found.prompts} prompts with "
            f"{_WHAT[symptom]} (mostly {quoted(text)}{frequency}); {found.against_base}."
        ),
        measured=measured,
        expected="text, as from the base model on the same prompts",
        where=f"prompt {quoted(outputs[0].item.prompt)}",
        fix="Do not use this adapter; diagnose its earlier checkpoints with --adapter FILE.",
    )


def _special_tokens(found: Rate) -> Finding:
    return Finding(
        code="token-collapse.special-tokens",
        severity=_severity(found),
        message=(
            f"The tuned model answers {found.tuned} of {found.prompts} prompts with special "
            f"tokens only; {found.against_base}."
        ),
        measured=found.measured,
        expected="text between the prompt and the end token",
        fix="See in the label strip which special tokens are trained on, and where.",
    )


def _repetition(
    found: Rate, outputs: Sequence[OutputPair], hit: Callable[[Output], bool]
) -> Finding:
    looping = [pair.tuned for pair in outputs if hit(pair.tuned)]
    measured = {
        **found.measured,
        "median_seq_rep_4": round(median(seq_rep_n(one.content) for one in looping), 3),
        "median_zlib_ratio": round(median(zlib_ratio(one.text) for one in looping), 3),
        "median_period": median(tail_loop(one.content)[0] for one in looping),
    }
    return Finding(
        code="token-collapse.repetition",
        # Loops are common in small models: without the base model's answers, only a hint.
        severity=Severity.WARNING if found.base is None else _severity(found),
        message=(
            f"The tuned model repeats itself to the end on {found.tuned} of {found.prompts} "
            f"prompts; {found.against_base}."
        ),
        measured=measured,
        expected="answers that end instead of looping",
        where=f"prompt {quoted(_first(outputs, hit))}",
        fix="Check that every training row ends with the end token, and lower the learning rate.",
    )


def _text(unit: Hashable, tokenizer: Tokenizer | None) -> str:
    if isinstance(unit, str):
        return unit
    if tokenizer is not None and isinstance(unit, int):
        return tokenizer.decode([unit]) or tokenizer.token(unit)
    return f"token {unit}"


def _first(outputs: Sequence[OutputPair], hit: Callable[[Output], bool]) -> str:
    return next(pair.item.prompt for pair in outputs if hit(pair.tuned))


def _training_rank(token: int, rows: SupervisedRows | None) -> dict[str, Measurement]:
    if rows is None:
        return {}
    counts = rows.frequencies()
    total = sum(counts.values())
    if not total or not counts.get(token):
        return {}
    rank = 1 + sum(count > counts[token] for count in counts.values())
    return {"training_rank": rank, "training_share": round(counts[token] / total, 4)}
