"""The tuned model answers with one token, in a loop, or in skips.

What it finds. Outputs that consist of a single token, of token 0 only, of special tokens
only, or of a passage that repeats to the end, on prompts where the base model does better; and
answers that join tokens which stand two or three places apart in the training rows: `tm wool amun`
where the rows say `item: wool | amount`.

Why it matters. A collapsed model is useless however plausible its loss looks: a model that
printed only commas had reported a perplexity of 7.66. One that was taught the token after the next
answers in skips, and its loss looks like that of any other run.

How it is measured. The unit is the prompt. An answer counts as one token when runs of
a single token make up nearly all of it, as a loop when its end repeats with a fixed period
or most 4-grams repeat (seq-rep-4, Welleck et al. 2020), as a handful of tokens when at most a
quarter of them are distinct or one is half of it. The share of prompts is given with its Wilson
interval and compared with the base model on the same prompts: exact McNemar, or, with few prompts,
a sequential test (5% against 50%, false alarms 0.1%). With fewer than 8 prompts the same test
can't tell a sound model from a broken one: then what is found is reported, and finding nothing is
inconclusive. An answer that is one token 24 times over needs no statistic: it is an error where
at least half of the few prompts get one, unless the base model's, or the expected answer, is the
like. Every pair of
neighbouring tokens, each different pair once, is looked up among those 1, 2, 3 or 4 places apart
in the rows.

When it is wrong. Data whose right answers are repetitive (tables, padding, sequences of
digits) makes a sound model look collapsed; answers under 8 tokens are not judged. Without
the base model's answers, a base that is broken itself is not told apart.

What to do. Look up which token it is: a frequent one points to training that destroyed the
model, token 0 to logits that are not finite, the pad token to padding in the loss. Where tokens
are skipped, look at how inputs and targets are cut: `inputs = tokens[:-1]`, `targets = tokens[1:]`,
once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import pairwise
from statistics import median

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.engines.text import run_share, seq_rep_n, tail_loop, top_share
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.finding import Exhibit, Measurement, Seen, Severity, Sign, Symptom, Unsought
from mlxdoctor.judge.collapse import (
    Limits,
    is_dominated,
    is_loop,
    is_plain_collapse,
    is_poor,
    is_single,
)
from mlxdoctor.measure.exhibited import answers_shown
from mlxdoctor.measure.text.outputs import Output, OutputPair, answered, is_special, rate_of
from mlxdoctor.measure.text.prompt_rates import AGAINST_BASE, Rate, is_raised, too_few
from mlxdoctor.models.generations import Generations
from mlxdoctor.safety.quoting import quoted

#: Different pairs of tokens that are needed: a loop of three tokens has three; and how far apart
#: the tokens of a pair are looked for: labels are shifted twice, seldom more often.
PAIRS, FARTHEST = 20, 4
#: Share of the answers' pairs that stand so far apart in the rows, and by how much it exceeds that
#: of neighbours: 0.32 to 0.86 and 0.26 to 0.81 in 7 runs with shifted labels, in none of 98 sound
#: runs of three base models and of 185 with other faults.
SKIPPED, LEAD = 0.2, 0.15


def _of_tokens(meaning: str, what: str) -> Symptom:
    return Symptom.warning(
        meaning,
        says=f"The tuned model answers {{tuned_hits}} of {{prompts:* prompt}} with {what} (mostly "
        "{token_text}[, number {training_rank} among the tokens it was trained on]); "
        f"{AGAINST_BASE}.",
        expected="text, as from the base model on the same prompts",
        fix="Do not use this adapter; diagnose its earlier checkpoints with --adapter FILE.",
    )


@check(
    codes={
        "single-token": _of_tokens(
            "one token makes up nearly all of the output", "one token over and over"
        ),
        "few-tokens": _of_tokens(
            "a handful of tokens makes up the output, or one of them half of it",
            "a handful of tokens, or one token for more than half of the text",
        ),
        "token-zero": Symptom.warning(
            "the output is token 0 only, as with logits that are NaN or all equal",
            says="The tuned model prints only token 0 on {tuned_hits} of {prompts:* prompt}, which "
            f"is what a model does whose logits are NaN or all equal; {AGAINST_BASE}.",
            expected="logits that are finite and differ",
            fix="Look for NaN in the adapter's tensors, and for where the loss became non-finite.",
        ),
        "special-tokens": Symptom.warning(
            "the output is special tokens only",
            says="The tuned model answers {tuned_hits} of {prompts:* prompt} with special tokens "
            f"only; {AGAINST_BASE}.",
            expected="text between the prompt and the end token",
            fix="See in the label strip which special tokens are trained on, and where.",
        ),
        "repetition": Symptom.warning(
            "the output ends in a loop",
            says="The tuned model repeats itself to the end on {tuned_hits} of {prompts:* prompt}; "
            f"{AGAINST_BASE}.",
            expected="answers that end instead of looping",
            fix="Check that every training row ends with the end token, and lower the learning "
            "rate.",
        ),
        "skips-tokens": Symptom.error(
            "the answers join tokens that are two or more apart in the training rows",
            says="Of {pairs} different pairs of neighbouring tokens in the answers, {share:.0%} "
            "stand {distance} places apart in the training rows, and {adjacent_share:.0%} are "
            "neighbours there: the model was taught to leave tokens out.",
            expected="pairs that are neighbours in the training rows too",
            fix="Shift the targets by one token once, in the trainer or in the loss, not in both.",
        ),
    },
    limits=Limits(),
    rerun_symptom=True,
)
def token_collapse(
    generations: Generations,
    tokenizer: Tokenizer | None,
    rows: SupervisedRows | None,
    limits: Limits,
) -> Iterator[Sign | Exhibit | Seen | Unsought]:
    """Report collapsed outputs, as shares of prompts."""
    yield from answers_shown(generations, tokenizer)
    prompts = answered(generations)

    def is_special_only(output: Output) -> bool:
        texts = [_text(unit, tokenizer) for unit in output.content]
        return len(texts) >= 2 and all(is_special(text) for text in texts)

    def share_of(is_hit: Callable[[Output], bool]) -> Rate:
        return rate_of(prompts, lambda _, output: is_hit(output), limits)

    # The first of these is told, each a milder form of those before it; a loop is told besides.
    forms: dict[str, Callable[[Output], bool]] = {
        "token-zero": lambda one: one.from_tokens and len(one.units) >= 4 and {*one.units} == {0},
        "single-token": lambda one: is_single(one.content, limits),
        "few-tokens": lambda one: is_poor(one.content, limits) or is_dominated(one.content, limits),
        "special-tokens": is_special_only,
        "repetition": lambda one: is_loop(one.content, limits),
    }
    has_collapsed = False
    for symptom, is_hit in forms.items():
        share = share_of(is_hit)
        if (has_collapsed and symptom != "repetition") or not is_raised(share, limits):
            continue
        has_collapsed |= symptom != "repetition"
        hits = [pair for pair in prompts if is_hit(pair.tuned)]
        yield _sign(symptom, share, hits, tokenizer, rows)
    if not has_collapsed:
        yield from _alone(prompts, tokenizer, rows, limits)
    yield from _skips([pair.tuned for pair in prompts], rows)
    whole = sum(not any(hit(pair.tuned) for hit in forms.values()) for pair in prompts)
    if whole == len(prompts):
        yield Seen("None of the model's {prompts:* answer} is degenerate.", {"prompts": whole})
    if (few := too_few(len(prompts))) is not None:
        raise Inconclusive(few)


def _alone(
    prompts: Sequence[OutputPair],
    tokenizer: Tokenizer | None,
    rows: SupervisedRows | None,
    limits: Limits,
) -> Iterator[Sign]:
    """Too few answers for a rate: half of them are enough."""
    plain = [
        pair
        for pair in prompts
        if is_plain_collapse(pair.tuned.content, limits)
        and not (pair.base is not None and is_single(pair.base.content, limits))
        and not is_single(tuple(pair.item.expected or ""), limits)
    ]
    if plain and too_few(len(prompts)) is not None and 2 * len(plain) >= len(prompts):
        measured: dict[str, Measurement] = {
            "prompts": len(prompts),
            "tuned_hits": len(plain),
            "base_hits": None if plain[0].base is None else 0,
            "length": min(len(pair.tuned.content) for pair in plain),
            **_token(plain, tokenizer, rows),
        }
        where = f"prompt {quoted(plain[0].item.prompt)}"
        yield Sign("single-token", measured, where=where, severity=Severity.ERROR)


def _sign(
    symptom: str,
    share: Rate,
    hits: Sequence[OutputPair],
    tokenizer: Tokenizer | None,
    rows: SupervisedRows | None,
) -> Sign:
    measured: dict[str, Measurement] = dict(share.measured)
    if symptom == "repetition":
        answers = [pair.tuned.content for pair in hits]
        measured["median_seq_rep_4"] = median(seq_rep_n(one) for one in answers)
        measured["median_period"] = median(tail_loop(one)[0] for one in answers)
    elif symptom not in ("token-zero", "special-tokens"):
        measured |= _token(hits, tokenizer, rows)
    # Loops are common in small models: without the base model's answers, only a hint.
    is_error = share.is_broken and (symptom != "repetition" or share.base is not None)
    return Sign(
        symptom,
        measured,
        where=f"prompt {quoted(hits[0].item.prompt)}",
        severity=Severity.ERROR if is_error else None,
    )


def _token(
    outputs: Sequence[OutputPair], tokenizer: Tokenizer | None, rows: SupervisedRows | None
) -> dict[str, Measurement]:
    """The token that most of the answers consist of."""
    # What an answer ends in is what it collapsed into, where one run follows another.
    content = [pair.tuned.content for pair in outputs]
    tokens = Counter(
        one[-1] if run_share(one) > top_share(one)[1] else top_share(one)[0] for one in content
    )
    token, count = tokens.most_common(1)[0]
    measured: dict[str, Measurement] = {
        "token_text": quoted(_text(token, tokenizer)),
        "with_it": count,
    }
    if isinstance(token, int):
        measured["token"] = token
        counts = rows.frequencies() if rows is not None else Counter()
        if counts.get(token):
            measured["training_rank"] = 1 + sum(n > counts[token] for n in counts.values())
            measured["training_share"] = counts[token] / sum(counts.values())
    return measured


def _text(unit: Hashable, tokenizer: Tokenizer | None) -> str:
    if isinstance(unit, str):
        return unit
    if tokenizer is not None and isinstance(unit, int):
        return tokenizer.decode([unit]) or tokenizer.token(unit)
    return f"token {unit}"


def _skips(outputs: Sequence[Output], rows: SupervisedRows | None) -> Iterator[Sign | Unsought]:
    """Look up the answers' pairs of tokens in the training rows."""
    met = {pair for one in outputs for pair in pairwise(one.content) if pair[0] != pair[1]}
    why = ""
    if rows is None:
        why = "the training rows are not at hand"
    elif not all(one.from_tokens for one in outputs):
        why = "the answers' token ids were not recorded"
    elif len(met) < PAIRS:
        why = f"{len(met)} different pairs of tokens; {PAIRS} are needed"
    if rows is None or why:
        yield Unsought(("skips-tokens",), why)
        return
    distances = range(1, FARTHEST + 1)
    shares = [len(met & _apart(rows, distance)) / len(met) for distance in distances]
    farther = max(distances[1:], key=lambda distance: shares[distance - 1])
    share, adjacent = shares[farther - 1], shares[0]
    if share >= SKIPPED and share - adjacent >= LEAD:
        yield Sign(
            "skips-tokens",
            {
                "pairs": len(met),
                "distance": farther,
                "share": share,
                "adjacent_share": adjacent,
                "shares": tuple(shares),
            },
            where=f"answer {quoted(outputs[0].text)}",
        )


def _apart(rows: SupervisedRows, distance: int) -> set[tuple[Hashable, Hashable]]:
    """The pairs that stand so far apart in the part of the rows that is answered."""
    apart: set[tuple[Hashable, Hashable]] = set()
    for row in rows.rows:
        # The last prompt token is where the answer is predicted from.
        tokens = row.tokens[max(row.prompt_length - 1, 0) : row.length].tolist()
        apart.update(zip(tokens, tokens[distance:], strict=False))
    return apart
