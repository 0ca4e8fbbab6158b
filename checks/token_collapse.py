"""The tuned model answers with one token, in a loop, in skips, not at all, or without an end.

What it finds. Outputs of a single token, of special tokens only, or of a passage that repeats to
the end, on prompts where the base model does better; and answers that are empty, or run into the
length limit although the base model and the expected answer are shorter.

Why it matters. A collapsed model is useless however plausible its loss looks: a model that
printed only commas had reported a perplexity of 7.66. One that ends at once says nothing, one that
never ends wastes every token after the answer, and one that was taught the token after the next
answers in skips: the loss of each looks like that of any other run.

How it is measured. The unit is the prompt. An answer counts as one token when runs of a single
token make up nearly all of it, as a loop when its end repeats with a fixed period or most 4-grams
repeat (seq-rep-4, Welleck et al. 2020), as a handful of tokens when at most a quarter of them are
distinct or one is half of it. It never ends when it reached the length limit without the end token
and is longer than the expected one. Where the base model does so too, the limit may be too short,
and nothing is said. The share of prompts, with its Wilson interval, is compared with the base model
on the same prompts: exact McNemar, or, with few prompts, a sequential test (5% against 50%, false
alarms 0.1%), which with fewer than 8 can show a fault but not that there is none. An answer that is
one token 24 times over needs no statistic: it is an error if at least half of the few prompts get
one, and neither the base model nor the data have such an answer. Every different pair of
neighbouring tokens is looked up among those 1, 2, 3 or 4 places apart in the rows.

When it is wrong. Data whose right answers are repetitive (tables, padding, sequences of
digits) makes a sound model look collapsed where its answers are none of the rows' own, which are
left out; answers under 8 tokens are not judged. Without
the base model's answers, a base that is broken itself is not told apart. Training on long answers
makes a sound model longer than its base: where no expected answer is known, never ending is only a
warning. Where the end token is unknown, nothing has ended.

What to do. Look up which token it is: a frequent one points to training that destroyed the model,
token 0 to logits that are not finite, the pad token to padding in the loss. Otherwise see in the
report's label strip how inputs and targets are cut, and whether the last supervised token of a row
is the end token, once.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from statistics import median

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.engines.text import LONGEST, run_share, top_share
from mlxdoctor.evidence.supervision import Role, SupervisedRows
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.exhibits import SampleAnswer
from mlxdoctor.finding import Exhibit, Measurement, Seen, Severity, Sign, Symptom, Unsought
from mlxdoctor.judge.collapse import ALONE, is_few_tokens, is_loop, is_single
from mlxdoctor.judge.learned import LIKELY, change, is_likely
from mlxdoctor.measure.text.outputs import (
    SPECIAL_TEXT,
    Output,
    OutputPair,
    answer_words,
    is_special,
    pairs,
    rate_of,
)
from mlxdoctor.measure.text.statistics import AGAINST_BASE, BROKEN_SHARE, Rate, is_raised, too_few
from mlxdoctor.models.generations import Generations
from mlxdoctor.models.losses import TokenLosses
from mlxdoctor.safety.quoting import quoted

#: Fewest different pairs of tokens that are judged (a loop of three has three), and the largest
#: distance of two tokens in the rows: labels are shifted twice, seldom more often.
_PAIRS, _DISTANCE = 20, 4
#: Least share of the answers' pairs at one such distance, and its lead over that of neighbours:
#: 0.32 and 0.26 at least in 7 runs with shifted labels (0 of 98 sound runs, 0 of 185 other faults).
_SKIPPED, _LEAD = 0.2, 0.15
#: Least length of an endless answer, in expected lengths: another wording may be longer.
_LONGER = 1.2
#: Share of the base model's answers that the length limit cuts, above which the limit is too short
#: to judge by: at most 0.42 in 64 runs with the finding; 0.6 in two sound DPO runs with longer
#: answers.
_CUT_SHORT = 0.5
#: From the worst form to the mildest: only the worst is reported.
_COLLAPSED = ("token-zero", "single-token", "few-tokens", "special-tokens")


def _symptom(meaning: str, what: str, expected: str, fix: str) -> Symptom:
    says = f"The tuned model {what}; {AGAINST_BASE}."
    return Symptom.warning(meaning, says=says, expected=expected, fix=fix)


def _of_tokens(meaning: str, what: str) -> Symptom:
    return _symptom(
        meaning,
        f"answers {{tuned_hits}} of {{prompts:* prompt}} with {what} (mostly "
        "{token_text}[, number {training_rank} among the tokens it was trained on])",
        "text, as from the base model on the same prompts",
        "Do not use this adapter; `mlxdoctor bisect` names the last good save, if there is one.",
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
        "token-zero": _symptom(
            "the output is token 0 only, as with logits that are NaN or all equal",
            "prints only token 0 on {tuned_hits} of {prompts:* prompt}, which is what a model does "
            "whose logits are NaN or all equal",
            "logits that are finite and differ",
            "Look for NaN in the adapter's tensors, and for where the loss became non-finite.",
        ),
        "special-tokens": _symptom(
            "the output is special tokens only",
            "answers {tuned_hits} of {prompts:* prompt} with special tokens only",
            "text between the prompt and the end token",
            "Check which special tokens are trained on, and where (`mlxdoctor labels`).",
        ),
        "repetition": _symptom(
            "the output ends in a loop",
            "repeats itself to the end on {tuned_hits} of {prompts:* prompt}",
            "answers that end instead of looping",
            "Check that every training row ends with the end token, and lower the learning rate.",
        ),
        "empty-answers": _symptom(
            "the answer is empty: the end token comes first",
            "ends at once, without an answer, on {tuned_hits} of {prompts:* prompt}",
            "an answer before the end token",
            "Check that only the last token of each answer is the end token, and that prompts "
            "have the format used in training.",
        ),
        "never-ends": _symptom(
            "the answer runs into the length limit without the end token",
            "runs into the length limit without the end token on {tuned_hits} of "
            "{prompts:* prompt}",
            "the end token after the answer",
            "Check that every training row ends with the token that ends generation.",
        ),
        "skips-tokens": Symptom.error(
            "the answers join tokens that are two or more apart in the training rows",
            says="Of {pairs} different pairs of neighbouring tokens in the answers, {share:.0%} "
            "stand {distance} places apart in the training rows. Only {adjacent_share:.0%} are "
            "neighbours there. The model was taught to leave tokens out.",
            expected="pairs that are neighbours in the training rows too",
            fix="Shift the targets by one token once, in the trainer or in the loss, not in both.",
        ),
    },
    rerun_symptom=True,
)
def token_collapse(
    generations: Generations,
    tokenizer: Tokenizer | None,
    rows: SupervisedRows | None,
    losses: TokenLosses | None,
) -> Iterator[Sign | Exhibit | Seen | Unsought]:
    prompts = pairs(generations)
    if not prompts:
        refused = generations.load_failure is not None
        why = "the adapter could not be loaded" if refused else "there is no answer to look at"
        raise Inconclusive(why)
    # The first answer that differs from the base model's, or else the first.
    shown = next((item for item in generations.items if item.base != item.tuned), prompts[0].item)
    yield SampleAnswer(shown.prompt, shown.base, shown.tuned)
    trained = [row.tokens[row.roles == Role.ANSWER].tolist() for row in rows.rows] if rows else []

    @cache
    def taught() -> frozenset[str]:
        decode = tokenizer.decode if tokenizer is not None else lambda _: ""
        return frozenset(decode(answer).strip() for answer in trained)

    def is_meant(answer: Output) -> bool:
        """Whether it is one of the answers trained on, which may look like a collapse: a jingle."""
        text = SPECIAL_TEXT.sub("", answer.text).strip()
        return bool(text) and any(each.startswith(text) for each in taught())

    forms: dict[str, Callable[[OutputPair, Output], bool]] = {
        "token-zero": lambda _, answer: (
            answer.from_tokens and len(answer.units) >= 4 and {*answer.units} == {0}
        ),
        "single-token": lambda _, answer: is_single(answer.content) and not is_meant(answer),
        "few-tokens": lambda _, answer: is_few_tokens(answer.content) and not is_meant(answer),
        "special-tokens": lambda _, answer: (
            len(answer.content) >= 2
            and all(is_special(_text(unit, tokenizer)) for unit in answer.content)
        ),
        "repetition": lambda _, answer: is_loop(answer.content) and not is_meant(answer),
        "empty-answers": lambda _, answer: not answer.content,
    }
    shares = {symptom: rate_of(prompts, is_hit) for symptom, is_hit in forms.items()}
    raised = [symptom for symptom, share in shares.items() if is_raised(share)]
    collapsed = [symptom for symptom in raised if symptom in _COLLAPSED]
    for symptom in raised:
        if symptom not in collapsed[1:]:
            hits = [pair for pair in prompts if forms[symptom](pair, pair.tuned)]
            yield _sign(symptom, shares[symptom], hits, tokenizer, rows)
    if not collapsed and too_few(len(prompts)) is not None:
        yield from _single_token(prompts, tokenizer, rows)
    yield from _endless(prompts, rows, losses, tokenizer)
    yield from _skips([pair.tuned for pair in prompts], rows)
    count = {"prompts": len(prompts)}
    if not any(share.tuned for share in shares.values()):
        yield Seen("None of the model's {prompts:* answer} is degenerate.", count)
    if all(pair.tuned.has_ended for pair in prompts):
        yield Seen("All {prompts:* answer} end by themselves.", count)
    if (few := too_few(len(prompts))) is not None:
        raise Inconclusive(few)


def _single_token(
    prompts: Sequence[OutputPair], tokenizer: Tokenizer | None, rows: SupervisedRows | None
) -> Iterator[Sign]:
    """With too few answers for a test, half of them have to be a single token many times over."""
    collapsed = [
        pair
        for pair in prompts
        if len(pair.tuned.content) >= ALONE
        and is_single(pair.tuned.content)
        and not (pair.base is not None and is_single(pair.base.content))
        and not is_single(tuple(pair.item.expected or ""))
    ]
    if collapsed and 2 * len(collapsed) >= len(prompts):
        counts = {"prompts": len(prompts), "tuned_hits": len(collapsed)}
        base = {"base_hits": None if collapsed[0].base is None else 0}
        measured = {**counts, **base, **_token(collapsed, tokenizer, rows)}
        where = f"prompt {quoted(collapsed[0].item.prompt)}"
        yield Sign("single-token", measured, where=where, severity=Severity.ERROR)


def _sign(
    symptom: str,
    share: Rate,
    hits: Sequence[OutputPair],
    tokenizer: Tokenizer | None,
    rows: SupervisedRows | None,
) -> Sign:
    measured: dict[str, Measurement] = dict(share.measured)
    if symptom in ("single-token", "few-tokens"):
        measured |= _token(hits, tokenizer, rows)
    # Small models often loop: without the base model's answers a loop is only a warning.
    is_error = share.is_broken and (symptom != "repetition" or share.base is not None)
    where, severity = f"prompt {quoted(hits[0].item.prompt)}", Severity.ERROR if is_error else None
    return Sign(symptom, measured, where=where, severity=severity)


def _token(
    prompts: Sequence[OutputPair], tokenizer: Tokenizer | None, rows: SupervisedRows | None
) -> dict[str, Measurement]:
    """The token that most of the answers consist of."""
    answers = [pair.tuned.content for pair in prompts]
    # An answer of several runs counts by the token of its last run.
    tokens = Counter(
        answer[-1] if run_share(answer) > top_share(answer)[1] else top_share(answer)[0]
        for answer in answers
    )
    ((token, _),) = tokens.most_common(1)
    measured: dict[str, Measurement] = {"token_text": quoted(_text(token, tokenizer))}
    if isinstance(token, int):
        measured["token"] = token
        counts = rows.frequencies() if rows is not None else Counter()
        if counts.get(token):
            measured["training_rank"] = 1 + sum(n > counts[token] for n in counts.values())
    return measured


def _text(unit: Hashable, tokenizer: Tokenizer | None) -> str:
    if isinstance(unit, str):
        return unit
    if tokenizer is not None and isinstance(unit, int):
        return tokenizer.decode([unit]) or tokenizer.token(unit)
    return f"token {unit}"


def _endless(
    prompts: Sequence[OutputPair],
    rows: SupervisedRows | None,
    losses: TokenLosses | None,
    tokenizer: Tokenizer | None,
) -> Iterator[Sign | Unsought]:
    """Answers that run into the length limit and are longer than they should be."""
    typical = None
    if rows is not None and rows.rows:
        # Tokens of the median answer trained on; half of a row if rows have no prompts.
        typical = median(int((row.roles == Role.ANSWER).sum()) for row in rows.rows)
        typical /= 1 if any(row.prompt_length for row in rows.rows) else 2

    def is_endless(pair: OutputPair, output: Output) -> bool:
        length = len(output.units)
        is_cut = output.from_tokens and output.max_tokens and length >= output.max_tokens
        if not is_cut or output.has_ended:
            return False
        if pair.item.expected is None:
            return typical is None or length > _LONGER * typical
        expected = max(1, len(answer_words(pair.item.expected)))
        # A loop of punctuation has no words: two tokens count as a word.
        is_longer = max(len(answer_words(output.text)), length // 2) > _LONGER * expected
        if not is_longer or tokenizer is None:
            return is_longer
        # A word of JSON has several tokens; and there is the end token.
        wanted = tokenizer.encode(pair.item.expected[:LONGEST], add_special_tokens=False)
        return length > _LONGER * (len(wanted) + 1)

    # If some prompts have an expected answer, only they are judged.
    judged = [pair for pair in prompts if pair.item.expected is not None] or prompts
    share = rate_of(judged, is_endless)
    compared = losses.compared if losses is not None else ()
    after = change(compared, lambda row: row.end_after_answer)
    expects_none = after.is_enough and not is_likely(after.tuned, LIKELY)
    # The limit is too short if it cuts the answers of both models.
    if min(share.base or 0, share.tuned) > _CUT_SHORT * share.prompts:
        why = f"the length limit cuts {share.base} of {share.prompts} of the base's, too"
        yield Unsought(("never-ends",), why)
    elif is_raised(share):
        knows_length = typical is not None or judged[0].item.expected is not None
        is_most = share.base is not None and share.interval.share >= BROKEN_SHARE
        # Whether it does not expect an end after the rows' answers, nor learned to.
        is_sure = share.is_broken or (expects_none and after.gain <= 0)
        severity = Severity.ERROR if knows_length and is_most and is_sure else None
        yield Sign("never-ends", share.measured, severity=severity)


def _skips(outputs: Sequence[Output], rows: SupervisedRows | None) -> Iterator[Sign | Unsought]:
    """Look up the answers' pairs of tokens in the training rows."""
    pairs = {pair for output in outputs for pair in pairwise(output.content) if pair[0] != pair[1]}
    why = ""
    if rows is None:
        why = "the training rows are not at hand"
    elif not all(output.from_tokens for output in outputs):
        why = "the answers' token ids were not recorded"
    elif len(pairs) < _PAIRS:
        why = f"{len(pairs)} different pairs of tokens; {_PAIRS} are needed"
    if rows is None or why:
        yield Unsought(("skips-tokens",), why)
        return
    # The answer's first token is predicted from the last prompt token.
    answers = [row.tokens[max(row.prompt_length - 1, 0) : row.length].tolist() for row in rows.rows]
    shares: dict[int, float] = {}
    for distance in range(1, _DISTANCE + 1):
        taught = {pair for row in answers for pair in zip(row, row[distance:], strict=False)}
        shares[distance] = len(pairs & taught) / len(pairs)
    adjacent = shares.pop(1)
    distance = max(shares, key=lambda distance: shares[distance])
    if (share := shares[distance]) >= _SKIPPED and share - adjacent >= _LEAD:
        measured = {"distance": distance, "share": share, "adjacent_share": adjacent}
        where = f"answer {quoted(outputs[0].text)}"
        yield Sign("skips-tokens", {"pairs": len(pairs), **measured}, where=where)
