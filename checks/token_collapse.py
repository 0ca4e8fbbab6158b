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
model from a broken one: then what is found is reported, and finding nothing is inconclusive. An
answer that is one token 24 times over needs no statistic: one such answer among a few is an
error, unless the base model's, or the expected answer, is the like.

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
from statistics import median

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.engines.text import run_share, seq_rep_n, tail_loop, top_share
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.finding import Exhibit, Measurement, Seen, Severity, Sign, Symptom
from mlxdoctor.judge.collapse import (
    Limits,
    is_dominated,
    is_loop,
    is_plain_collapse,
    is_poor,
    is_single,
)
from mlxdoctor.measure.exhibited import answers_shown
from mlxdoctor.measure.text.outputs import Output, OutputPair, is_special, pairs
from mlxdoctor.measure.text.prompt_rates import Rate, is_raised, rate, too_few
from mlxdoctor.models.generations import Generations
from mlxdoctor.safety.quoting import quoted


def _of_tokens(meaning: str) -> Symptom:
    return Symptom.warning(
        meaning,
        "text, as from the base model on the same prompts",
        "Do not use this adapter; diagnose its earlier checkpoints with --adapter FILE.",
    )


@check(
    codes={
        "single-token": _of_tokens("one token makes up nearly all of the output"),
        "dominant-token": _of_tokens("one token makes up more than half of the output"),
        "few-tokens": _of_tokens("a handful of tokens makes up the output"),
        "token-zero": Symptom.warning(
            "the output is token 0 only, as with logits that are NaN or all equal",
            "logits that are finite and differ",
            "Look for NaN in the adapter's tensors, and for where the loss became non-finite.",
        ),
        "special-tokens": Symptom.warning(
            "the output is special tokens only",
            "text between the prompt and the end token",
            "See in the label strip which special tokens are trained on, and where.",
        ),
        "repetition": Symptom.warning(
            "the output ends in a loop",
            "answers that end instead of looping",
            "Check that every training row ends with the end token, and lower the learning rate.",
        ),
    },
    limits=Limits(),
    rerun_symptom=True,
)
def token_collapse(
    generations: Generations,
    tokenizer: Tokenizer | None,
    base: BaseModel | None,
    rows: SupervisedRows | None,
    limits: Limits,
) -> Iterator[Sign | Exhibit | Seen]:
    """Report collapsed outputs, as shares of prompts."""
    yield from answers_shown(generations, tokenizer)
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

    #: The first that is found is told: each is a milder form of those before it.
    forms: dict[str, tuple[Callable[[Output], bool], str]] = {
        "token-zero": (is_zero, "prints only token 0"),
        "single-token": (lambda one: is_single(one.content, limits), "one token over and over"),
        "dominant-token": (
            lambda one: is_dominated(one.content, limits),
            "one token for more than half of the text",
        ),
        "few-tokens": (lambda one: is_poor(one.content, limits), "a handful of tokens"),
        "special-tokens": (is_special_only, "special tokens only"),
    }
    for symptom, (hit, what) in forms.items():
        if not is_raised(share := _rate(found, hit, limits), limits):
            continue
        of_prompts = f"{share.tuned} of {share.prompts} prompts"
        if symptom == "token-zero":
            said = f"{what} on {of_prompts}, which is what a model does whose logits are NaN or all"
            yield _sign(symptom, share, f"{said} equal")
        elif symptom == "special-tokens":
            yield _sign(symptom, share, f"answers {of_prompts} with {what}")
        else:
            outputs = [pair for pair in found if hit(pair.tuned)]
            mostly, measured = _token(outputs, tokenizer, rows)
            said = f"answers {of_prompts} with {what} (mostly {mostly})"
            yield _sign(symptom, share, said, measured, outputs)
        break
    else:
        yield from _alone(found, tokenizer, rows, limits)
    outputs = [pair for pair in found if is_loop(pair.tuned.content, limits)]
    loop = _rate(found, lambda one: is_loop(one.content, limits), limits)
    if is_raised(loop, limits):
        said = f"repeats itself to the end on {loop.tuned} of {loop.prompts} prompts"
        yield _sign("repetition", loop, said, _loops(outputs), outputs)
    whole = sum(
        not any(hit(pair.tuned) for hit, _ in forms.values())
        and not is_loop(pair.tuned.content, limits)
        for pair in found
    )
    if whole == len(found):
        yield Seen(f"None of the model's {whole} answers is degenerate.", {"prompts": whole})
    if (few := too_few(len(found), limits)) is not None:
        raise Inconclusive(few)


def _alone(
    found: Sequence[OutputPair],
    tokenizer: Tokenizer | None,
    rows: SupervisedRows | None,
    limits: Limits,
) -> Iterator[Sign]:
    """Too few answers for a rate, of which one is enough."""
    plain = [
        pair
        for pair in found
        if is_plain_collapse(pair.tuned.content, limits)
        and not (pair.base is not None and is_single(pair.base.content, limits))
        and not is_single(tuple(pair.item.expected or ""), limits)
    ]
    if too_few(len(found), limits) is None or 2 * len(plain) < len(found):
        return
    mostly, measured = _token(plain, tokenizer, rows)
    length = min(len(pair.tuned.content) for pair in plain)
    answers = "the one answer" if len(found) == 1 else f"{len(plain)} of the {len(found)} answers"
    beside = "" if plain[0].base is None else "; the base model answers otherwise"
    yield Sign(
        "single-token",
        f"{answers.capitalize()} at hand {'is' if len(plain) == 1 else 'are'} one token over and "
        f"over ({mostly}), at least {length} tokens long{beside}.",
        {"prompts": len(found), "tuned": len(plain), "length": length, **measured},
        where=f"prompt {quoted(plain[0].item.prompt)}",
        severity=Severity.ERROR,
    )


def _rate(found: Sequence[OutputPair], hit: Callable[[Output], bool], limits: Limits) -> Rate:
    known = [pair.base for pair in found if pair.base is not None]
    base = [hit(output) for output in known] if len(known) == len(found) else None
    return rate([hit(pair.tuned) for pair in found], base, limits)


def _sign(
    symptom: str,
    found: Rate,
    said: str,
    measured: dict[str, Measurement] | None = None,
    outputs: Sequence[OutputPair] = (),
) -> Sign:
    # Loops are common in small models: without the base model's answers, only a hint.
    is_error = found.is_broken and (symptom != "repetition" or found.base is not None)
    return Sign(
        symptom,
        f"The tuned model {said}; {found.against_base}.",
        {**found.measured, **(measured or {})},
        where=f"prompt {quoted(outputs[0].item.prompt)}" if outputs else None,
        severity=Severity.ERROR if is_error else None,
    )


def _token(
    outputs: Sequence[OutputPair], tokenizer: Tokenizer | None, rows: SupervisedRows | None
) -> tuple[str, dict[str, Measurement]]:
    """The token that most of the answers consist of: in words, and in figures."""
    # What an answer ends in is what it collapsed into, where one run follows another.
    content = [pair.tuned.content for pair in outputs]
    tokens = Counter(
        one[-1] if run_share(one) > top_share(one)[1] else top_share(one)[0] for one in content
    )
    token, count = tokens.most_common(1)[0]
    text = quoted(_text(token, tokenizer))
    measured: dict[str, Measurement] = {"token_text": text, "with_it": count}
    if isinstance(token, int):
        measured |= {"token": token} | _training_rank(token, rows)
    if "training_rank" in measured:
        text += f", number {measured['training_rank']} among the tokens it was trained on"
    return text, measured


def _loops(looping: Sequence[OutputPair]) -> dict[str, Measurement]:
    answers = [pair.tuned for pair in looping]
    return {
        "median_seq_rep_4": round(median(seq_rep_n(one.content) for one in answers), 3),
        "median_period": median(tail_loop(one.content)[0] for one in answers),
    }


def _text(unit: Hashable, tokenizer: Tokenizer | None) -> str:
    if isinstance(unit, str):
        return unit
    if tokenizer is not None and isinstance(unit, int):
        return tokenizer.decode([unit]) or tokenizer.token(unit)
    return f"token {unit}"


def _training_rank(token: int, rows: SupervisedRows | None) -> dict[str, Measurement]:
    if rows is None:
        return {}
    counts = rows.frequencies()
    total = sum(counts.values())
    if not total or not counts.get(token):
        return {}
    rank = 1 + sum(count > counts[token] for count in counts.values())
    return {"training_rank": rank, "training_share": round(counts[token] / total, 4)}
