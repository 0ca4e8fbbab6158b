"""What the adapter was really trained to predict.

What it finds. An adapter that learned another token than the next, padding, or the masked prompt,
forgot the end token, predicts the run's own answers worse than the base model, or learned nothing.

Why it matters. Labels that are shifted, padded or masked wrongly give a loss that falls as
nicely as a right one. The model itself is the only witness of what it was trained on.

How it is measured. Base and tuned model read rows of the run's own data. For each region of a
row (prompt, answer, end token, padding after it) and each shift (0 to 2 tokens ahead), the tuned
model's mean loss is subtracted from the base model's. The unit is the row: a change counts when
the sign test over rows is significant and the mean change is large enough in nats.

When it is wrong. Answers that repeat one token are predicted equally well at every shift. A
padding token right after the row is learned in every sound run of mlx-lm, whose loss covers it:
that is not reported. Of a model that predicts the answers worse than a blind guess, padding
is not judged. Rows where the base model is already certain have nothing to learn.

What to do. Compare with `mlxdoctor labels`, which shows the targets that mlx-lm
would make of the same rows. In a trainer of your own, print one row's inputs and targets side by
side: each target is the token after its input.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.evidence.row_encoder import SupervisedRow
from mlxdoctor.evidence.supervision import Role, SupervisedRows
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.finding import Seen, Severity, Sign, Symptom, Unsought
from mlxdoctor.judge.learned import (
    LIKELY,
    LossChange,
    change,
    is_likely,
    mean_of,
    region,
)
from mlxdoctor.measure.text.statistics import SIGNIFICANCE, rate, sign_test
from mlxdoctor.models.losses import ENOUGH_ROWS, RowLosses, TokenLosses
from mlxdoctor.safety.quoting import quoted

#: Nats a token by which losses differ at most where nothing was learned: rounding in half
#: precision is below.
UNCHANGED = 0.01
#: Different answers that are few, and rows to each from which on they recur.
FEW, RECURRING = 20, 8
#: Share of a guess's loss from which on answers are hardly better: 0.98 and 2.2 where they were,
#: 0.73 in a sound run that is sure of itself where it is wrong.
NEAR_A_GUESS = 0.9
#: Probability that no token has that is ever the greedy choice.
UNLIKELY = 0.1
#: Nats by which the loss of padding after padding fell: 2.4 to 2.7 where it was trained on; it
#: rises in sound runs.
PADDING_FELL = 1.5
#: Probability of padding after padding: 0.012 to 0.43 where it was trained on, at most 0.002 in
#: 156 sound runs of five bases. Of the token that mlx-lm pads with, which it trains once after each
#: row, a sound model may expect more: 0.006 in one of these, and 0.9 to 1 in seven of two others.
PADDING, OWN_PADDING = 0.006, 0.2
#: Probability of the end token after an answer: 0.55 where it was left out of the loss, 0.95 and
#: more in sound runs; and after an end token: 0.97 where rows were padded with it, else 0.86.
SURE_END, REPEATED_END = 0.8, 0.92
#: Nats a token below which the base model already knows the answers.
TO_LEARN = 0.3
#: Nats a token between two shifts: a constant guess is equally good at every shift.
SHIFT_MARGIN = 0.5
#: Nats a token by which a loss changed: a perplexity up or down by a tenth.
CHANGED = 0.1
#: Nats a token between held-out rows and those trained on: 0.1 in the sound fixture runs, 1.3 in
#: the overfitted one.
MEMORISED = 0.5
#: Share of its loss that the prompt lost, over the same share of the answer: 0.8 in the fixtures
#: with the prompt in the loss, below 0 with it masked.
PROMPT_SHARE = 0.5
_END = (
    "After a complete answer, the tuned model expects the end token with probability "
    "{tuned_probability:.3f}, the base model with {base_probability:.3f} ({rows:* row})."
)


@check(
    codes={
        "unlike-the-base": Symptom.info(
            "the base model finds the answers less likely than a guess",
            says="With the next token as the target, the base model's own loss on the answers is "
            "{base_loss:.2f}. Guessing among all tokens gives {uniform_loss:.2f}. A loss that "
            "starts there does not show wrong labels.",
            expected="what you intend",
            fix="nothing to do, if such answers are new to the base model",
        ),
        "not-finite": Symptom.error(
            "the tuned model's losses are not finite",
            says="The tuned model's losses are not finite on {not_finite} of {rows} rows: its "
            "weights or activations are NaN or infinite.",
            expected="finite losses",
            fix="Do not use this adapter; `mlxdoctor bisect` names the last good save, if there is "
            "one.",
        ),
        "wrong-shift-learned": Symptom.error(
            "the adapter learned to predict another token than the next",
            says="The adapter was trained to predict {what}: its loss for that is {tuned_loss} "
            "(base {base_loss}), for the next token {next_tuned_loss} (base {next_base_loss}).",
            expected="the largest improvement for the next token",
            fix="Make targets[i] the token after inputs[i], shifted exactly once.",
        ),
        "padding-learned": Symptom.error(
            "the adapter learned to go on with padding",
            says="[Where the answer should {where}, the adapter's likeliest token is padding "
            "({pad_text}) on {rows_with_padding} of {asked_rows} rows|After a row and one padding "
            "token ({pad_text}) the adapter expects more of it, with probability "
            "{tuned_probability:.3f} (base {base_probability:.3f})]: padding was trained on[, or "
            "the model goes on with the one token that mlx-lm trains after a row{own}].",
            expected="padding left out of the loss, and the end token after the answer",
            fix="Mask padding out of the loss, and put it after the end token.",
        ),
        "padding-unlearned": Symptom.info(
            "padding was not learned",
            says="After a row and one padding token the tuned model does not go on with padding. A "
            "model that was trained on padding would ({rows:* row}).",
            expected="padding left out of the loss",
            fix="nothing",
        ),
        "end-token-repeated": Symptom.error(
            "the adapter learned to go on with end tokens",
            says="After a row the adapter expects end token after end token ({pad_text}), with "
            "probability {tuned_probability:.2f} (base {base_probability:.3f}): rows were padded "
            "with the end token, and the padding was trained on[, or the model goes on with the "
            "one token that mlx-lm trains after a row{own}].",
            expected="padding left out of the loss",
            fix="Mask the loss by each row's length, not by token.",
        ),
        "end-token-unlearned": Symptom.error(
            "the end token is not expected after the answer",
            says=_END,
            expected="the end token after the answer",
            fix="Put the end token at the end of every row, and do not mask it.",
        ),
        "end-token-learned": Symptom.info(
            "the end token is expected after the answer",
            says=_END,
            expected="the end token after the answer",
        ),
        "prompt-learned": Symptom.error(
            "the adapter learned the prompt, which was to be masked",
            says="The prompt was to be masked, but its loss fell from {base_loss} to {tuned_loss}, "
            "beside the answer's from {answer_base_loss} to {answer_tuned_loss}: the adapter was "
            "trained on it.",
            expected="no improvement on tokens that carry no loss",
            fix="Set the targets of the prompt to the ignored index.",
        ),
        "answers-worse": Symptom.error(
            "the answers trained on are predicted worse than by the base model",
            says="The tuned model's loss on the answers is {tuned_loss}, above the base model's "
            "{base_loss} on the same rows: training did harm.",
            expected="a lower loss on the rows that were trained on",
            fix="Do not use this adapter; see what else is wrong with rate, scale and labels.",
        ),
        "only-guessed": Symptom.error(
            "the tuned model only guesses which answer is to be given",
            says="The rows have {answers} answers that recur. On {rows} held-out rows the tuned "
            "model's loss is {tuned_loss:.2f} on the tokens that tell these answers apart. "
            "Guessing each answer as often as it occurs in the rows, whatever is asked, gives "
            "{guess:.2f}. The model does not know which answer belongs to which prompt.",
            expected="a loss well below that of a guess",
            fix="Read ten rows: each answer must be that of its prompt, and be joined to it by a "
            "key, not by their place in two lists. Where all ten are right, look at what the "
            "trainer does to the inputs.",
        ),
        "memorised": Symptom.warning(
            "answers trained on are predicted far better than held-out ones",
            says="The loss is {trained_tuned_loss} on answers trained on and {tuned_loss} on "
            "held-out ones; for the base model they are {trained_base_loss} and {base_loss}.",
            expected="about the same loss on rows that were not trained on",
            fix="Train on more data or for fewer iterations.",
        ),
        "nothing-learned": Symptom.error(
            "the adapter changes nothing on the rows it was trained on",
            says="With the adapter, losses on {rows:* row} of the run's own data differ from the "
            "base model's by {mean_difference:.2g} nats per token: nothing was learned.",
            expected="a loss below the base model's on the rows that were trained on",
            fix="Check that the adapter is attached, trainable, and that the rate is not too low.",
        ),
    },
    rerun_symptom=True,
)
def learned_targets(
    losses: TokenLosses, tokenizer: Tokenizer | None, supervised: SupervisedRows | None
) -> Iterator[Sign | Seen | Unsought]:
    if losses.load_failure is not None:
        raise Inconclusive("the adapter could not be loaded on this base model")
    rows = losses.compared
    if len(rows) < ENOUGH_ROWS:
        raise Inconclusive(f"{len(rows)} rows are too few to decide; {ENOUGH_ROWS} are needed")
    if broken := sum(not np.isfinite(row.of("tuned").next).all() for row in rows):
        yield Sign("not-finite", {"rows": len(rows), "not_finite": broken})
        return
    shifted, answers = _shift(rows), region(rows, Role.ANSWER)
    # Wrong labels that were learned are wrong, whatever the base makes of the right ones.
    yield from _of_the_base(losses) if shifted is None else [shifted]
    if len(answers.tuned) and float(answers.tuned.mean()) > math.log(losses.vocab_size):
        why = "the tuned model predicts the answers worse than a blind guess would"
        yield Unsought(("padding-learned", "end-token-repeated"), why)
    # A model that repeats what it is given expects padding after padding, trained or not.
    elif shifted is None:
        signs = [sign for pad in losses.pad_ids for sign in _padding(pad, losses, tokenizer)]
        if losses.pad_ids and not signs and answers.fell(TO_LEARN):
            signs.append(Sign("padding-unlearned", {"rows": len(rows)}))
        yield from signs
    yield from _end_after_answer(rows)
    if losses.mask_prompt:
        yield from _prompt(rows)
    yield from _answers(rows)
    if supervised is not None:
        yield from _guessed(rows, supervised)


def _of_the_base(losses: TokenLosses) -> Iterator[Sign]:
    uniform = math.log(losses.vocab_size)
    means = np.array([row.mean("base", Role.ANSWER) for row in losses.rows])
    means = means[np.isfinite(means)]
    if mean_of(means) > uniform and sign_test(means - uniform) < SIGNIFICANCE:
        figures = {"base_loss": mean_of(means), "uniform_loss": round(uniform, 3)}
        yield Sign("unlike-the-base", figures)


#: Wrong targets: how far ahead of its input -> what they are.
_WRONG_SHIFTS = {0: "the token it was just given", 2: "the token after the next"}


def _shift(rows: Sequence[RowLosses]) -> Sign | None:
    """The wrong shift at which the tuned model came to predict answers better than the next token.

    Both must hold over the rows, significantly and by a margin: the loss at the shift improved
    more than at the next token, and it is now the lower of the two. Of several, the one that it
    predicts best is what it was trained on.
    """
    following = region(rows, Role.ANSWER)
    changes = {shift: region(rows, Role.ANSWER, shift) for shift in _WRONG_SHIFTS}
    preferred = [
        shift
        for shift, other in changes.items()
        if other.fell()
        and LossChange(other.gains, following.gains).fell(SHIFT_MARGIN)
        and LossChange(following.tuned, other.tuned).fell(SHIFT_MARGIN)
    ]
    if not preferred or not following.is_enough:
        return None
    shift = min(preferred, key=lambda shift: float(changes[shift].tuned.mean()))
    figures = {**changes[shift].measured, **following.losses("next_"), "shift": shift}
    return Sign("wrong-shift-learned", {**figures, "what": _WRONG_SHIFTS[shift]})


#: Where padding may be chosen: in place of the answer, or of its end.
_CHOICES = {"begin": "greedy_at_start", "end": "greedy_after_answer"}


def _padding(pad_id: int, losses: TokenLosses, tokenizer: Tokenizer | None) -> Iterator[Sign]:
    """Whether it was learned to go on with a token that rows are padded with.

    mlx-lm trains its first padding token in every row: alone it shows no fault.
    """
    rows = losses.compared
    tried = [row for row in rows if pad_id in row.base.padding]
    rest = change(tried, lambda row: float(row.padding[pad_id][1:].mean()))
    name = tokenizer.decode([pad_id]) if tokenizer is not None else f"token {pad_id}"
    measured = {**rest.measured, "pad_id": pad_id, "pad_text": quoted(name)}
    is_own = pad_id == losses.pad_ids[0]
    # What the twin computes, or answers that are padding, decide.
    severity = Severity.WARNING if is_own else None
    alone = {**measured, "own": "" if is_own else None}
    if pad_id in losses.end_token_ids:
        if rest.fell(1.0) and is_likely(rest.tuned, REPEATED_END):
            yield Sign("end-token-repeated", alone, severity=severity)
        return
    limit = OWN_PADDING if is_own else PADDING
    has_grown = rest.fell(PADDING_FELL) and is_likely(rest.tuned, limit)
    # A token that was never trained before stays unlikely even while it becomes the likeliest:
    # the choice shows what the probability does not.
    for place, choice in _CHOICES.items():
        tuned = [getattr(row.tuned, choice) == pad_id for row in rows]
        chosen = rate(tuned, [getattr(row.base, choice) == pad_id for row in rows])
        if chosen.is_broken and (has_grown or not is_own):
            instead = {"rows_with_padding": chosen.tuned, "asked_rows": chosen.prompts}
            yield Sign("padding-learned", {**measured, "where": place, **instead})
            return
    if has_grown:
        yield Sign("padding-learned", alone, severity=severity)


def _end_after_answer(rows: Sequence[RowLosses]) -> Iterator[Sign | Seen]:
    trained = [row for row in rows if row.split == "train"]
    # Of rows held out it need not know where an answer ends.
    kept = trained if len(trained) >= ENOUGH_ROWS else rows
    after = change(kept, lambda losses: losses.end_after_answer)
    if not after.is_enough:
        return
    answers = region(kept, Role.ANSWER)
    has_end = sum(Role.END in row.roles for row in kept) >= ENOUGH_ROWS
    learned = has_end and answers.fell(TO_LEARN)
    is_unlikely = not is_likely(after.tuned, UNLIKELY)
    forgot = is_likely(after.base, LIKELY) and is_unlikely and after.rose()
    # Training on rows with an end token makes it likelier, if anything.
    is_unsure = not is_likely(after.tuned, SURE_END)
    is_certain = forgot or (learned and is_unsure and after.rose(TO_LEARN))
    if not is_certain and not (learned and is_unlikely and after.gain <= 0):
        yield Seen(_END, after.measured)
        if learned and not is_unsure:
            yield Sign("end-token-learned", after.measured)
        return
    severity = None if is_certain else Severity.WARNING
    yield Sign("end-token-unlearned", after.measured, severity=severity)


def _prompt(rows: Sequence[RowLosses]) -> Iterator[Sign]:
    having = [row for row in rows if {Role.PROMPT, Role.ANSWER} <= set(row.roles[2:].tolist())]
    if len(having) < ENOUGH_ROWS:
        return
    prompt, answer = (region(having, role) for role in (Role.PROMPT, Role.ANSWER))
    excess = prompt.gains / prompt.base - PROMPT_SHARE * answer.gains / answer.base
    is_too_much = excess.mean() > 0 and sign_test(excess) < SIGNIFICANCE
    if prompt.fell(CHANGED) and answer.fell() and is_too_much:
        yield Sign("prompt-learned", {**prompt.measured, **answer.losses("answer_")})


def _answers(rows: Sequence[RowLosses]) -> Iterator[Sign | Seen]:
    held_out = [row for row in rows if row.split != "train"]
    train = [row for row in rows if row.split == "train"] or held_out
    trained, kept = (region(some, Role.ANSWER) for some in (train, held_out))
    if not trained.is_enough:
        raise Inconclusive(f"{len(trained.gains)} rows with an answer are too few to decide")
    is_harmed = trained.rose(CHANGED)
    if is_harmed:
        yield Sign("answers-worse", trained.measured)
    elif train is not held_out and kept.is_enough and _is_memorised(trained, kept):
        yield Sign("memorised", {**kept.measured, **trained.losses("trained_")})
    for split, change_of_split in (("held out", kept), ("trained on", trained)):
        if not is_harmed and change_of_split.is_enough and change_of_split.fell(CHANGED):
            said = f"The loss on answers {split} is {{tuned_loss}}, the base model's {{base_loss}} "
            # Rows trained on get better by heart, too.
            learned = split == "held out" or not held_out
            yield Seen(f"{said}({{rows:* row}}).", change_of_split.measured, learned)
    moved = float(np.mean([np.abs(row.of("tuned").next - row.base.next).mean() for row in train]))
    if moved < UNCHANGED and mean_of(trained.base) >= TO_LEARN:
        measured = {**trained.measured, "rows": len(train), "mean_difference": moved}
        yield Sign("nothing-learned", measured)


def _guessed(rows: Sequence[RowLosses], supervised: SupervisedRows) -> Iterator[Sign]:
    """Whether answers that recur are no likelier than by how often each is given."""

    def answer(row: RowLosses | SupervisedRow) -> tuple[int, ...]:
        return tuple(row.tokens[row.roles[: len(row.tokens)] == Role.ANSWER].tolist())

    given = Counter(map(answer, supervised.rows))
    held_out = [row for row in rows if row.split != "train" and answer(row) in given]
    recur = 1 < len(given) <= FEW and given.total() >= RECURRING * len(given)
    if not recur or len(held_out) < ENOUGH_ROWS:
        return
    shares = np.array([given[answer(row)] for row in held_out]) / given.total()
    followed: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for text in given:
        for place, token in enumerate(text):
            followed[text[:place]].add(token)
    losses = np.zeros(len(held_out))
    for number, row in enumerate(held_out):
        following, text = row.of("tuned").next, answer(row)
        is_answer = row.roles[1 : len(following) + 1] == Role.ANSWER
        of_answer = following[: len(is_answer)][is_answer]
        # What is the same in all answers that begin so tells nothing of which one it is.
        parts = [len(followed[text[:place]]) > 1 for place in range(len(of_answer))]
        losses[number] = of_answer[parts].sum()
    guesses = -np.log(shares)
    is_near = float(losses.mean()) >= NEAR_A_GUESS * float(guesses.mean())
    if is_near and not LossChange(guesses, losses).fell():
        figures = {"answers": len(given), "rows": len(held_out), "guess": mean_of(guesses)}
        is_worse = float(losses.mean()) >= float(guesses.mean())
        severity = None if is_worse else Severity.WARNING
        yield Sign("only-guessed", {**figures, "tuned_loss": mean_of(losses)}, severity=severity)


def _is_memorised(trained: LossChange, held_out: LossChange) -> bool:
    """Whether held-out losses lie far above the usual training loss, unlike the base model's."""
    gap = float(held_out.tuned.mean() - trained.tuned.mean())
    base_gap = float(held_out.base.mean() - trained.base.mean())
    is_large = gap - max(base_gap, 0.0) > MEMORISED and gap > 2 * float(trained.tuned.mean())
    above = held_out.tuned - np.median(trained.tuned)
    return is_large and sign_test(above) < SIGNIFICANCE
