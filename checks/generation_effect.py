"""What the adapter does to the answers.

What it finds. An adapter that mlx-lm refuses to load on this base model, answers that are
the base model's token by token, answers that are right less often than the base model's, and
answers that came no nearer to the expected ones.

Why it matters. An adapter that is not applied cannot be told from a useless one by its files,
and a fine-tune that answers worse than what it started from is a loss.

How it is measured. Both models answer the same prompts greedily. Identical means that all answers
are. Where the expected answer is known, an answer is right if its words are the expected ones
(exact McNemar over prompts); without a difference there, the overlap of words (F1) is compared by
a paired permutation test: it fell, it rose, or it certainly rose by less than a tenth.

When it is wrong. Where many answers are right, as in stories or conversation, a sound model need
not come nearer to the one in the data: where the log does not end below the loss at which one
answer is the likeliest by far, it is a note. A very small learning rate leaves greedy answers as
they are without being a loading fault. Overlap of words says little about answers of many
sentences; less of it is only a warning if the loss on the rows' answers fell by more than a nat.

What to do. Where the adapter is refused or without effect, compare its tensor names with the
base model's using `mlxdoctor inspect`. Where answers got worse, see the other checks.
"""

from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.engines.text import word_f1
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.supervision import Role
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom
from mlxdoctor.judge.learned import LEARNED, region
from mlxdoctor.measure.logged_levels import logged_loss
from mlxdoctor.measure.text.outputs import answer_words, pairs
from mlxdoctor.measure.text.statistics import SIGNIFICANCE, Paired, mcnemar_exact
from mlxdoctor.models.generations import Generations
from mlxdoctor.models.losses import TokenLosses

#: Fewest prompts for an error: on fewer, answers can agree by chance.
_PROMPTS = 8
#: Words of an answer that is given word for word.
_SHORT = 6
#: Least drop of the overlap of words (F1), and share of the base model's below which too much was
#: lost; that of a base whose answers are nearly unrelated to the expected ones, so that a drop is
#: only a warning (1 of 98 sound runs of three base models is an error; 13 without this).
_OVERLAP_DROP, _OVERLAP_KEPT, _BASE_OVERLAP = 0.1, 0.5, 0.25
#: Overlap of words that is hardly to be seen.
_GAIN = 0.1
#: Nats a token below which one answer is the likeliest by far (0 of 96 healthy runs without a gain
#: end there).
_OPEN = 0.8


@check(
    codes={
        "adapter-refused": Symptom.error(
            "mlx-lm cannot load this adapter on this base model",
            says="mlx-lm cannot load this adapter on this base model: {failure}",
            expected="an adapter whose tensors are the base model's LoRA parameters",
            fix="Compare names and shapes with `mlxdoctor inspect`; check which base it is for.",
        ),
        "identical-to-base": Symptom.warning(
            "every answer is the base model's",
            says="[With the adapter, all {produced} answers are token by token the base model's|"
            "All {recorded} answers recorded as the tuned model's are, word for word, those "
            "recorded as the base model's][, although the adapter's update is {update}].",
            expected="at least one answer that differs",
            fix="Check that the adapter is loaded, and that its names match the base model's.",
        ),
        "worse-than-base": Symptom.error(
            "answers are right less often than the base model's",
            says="[The tuned model's answers share {tuned_overlap:.0%} of their words with the "
            "expected ones, the base model's {base_overlap:.0%} (F1, {prompts:* prompt})|The tuned "
            "model is right on {tuned_right} of {prompts} prompts, the base model on "
            "{base_right}].",
            expected="answers that are right at least as often as the base model's",
            fix="Do not use this adapter; `mlxdoctor bisect` names the last good save, if there is "
            "one.",
        ),
        "no-gain": Symptom.warning(
            "answers are no nearer to the expected ones than the base model's",
            says="The tuned model's answers are no nearer to the expected answers than the base "
            "model's. They share {tuned_overlap:.0%} of their words with the expected answers; the "
            "base model's share {base_overlap:.0%} (F1, {prompts:* prompt}).",
            expected="answers nearer to the expected ones than before training",
            fix="Load the adapter, and ask a prompt of a training row exactly as it stands there.",
        ),
    },
    rerun_symptom=True,
)
def generation_effect(
    generations: Generations,
    adapter: Adapter | None,
    losses: TokenLosses | None,
    log: TrainingLog | None,
) -> Iterator[Sign | Seen]:
    if generations.load_failure is not None:
        yield Sign("adapter-refused", {"failure": generations.load_failure})
        return
    answered = [pair for pair in pairs(generations) if pair.base is not None]
    if not answered:
        raise Inconclusive("the base model's answers to the same prompts are not known")
    # A label may be a token of its own, which is no word.
    wanted = [
        (answer_words(pair.base.text), answer_words(pair.tuned.text), expected)
        for pair in answered
        if pair.base is not None and (expected := answer_words(pair.item.expected or ""))
    ]
    logged = logged_loss(log) if log is not None and not log.is_preference else None
    if all(pair.base and pair.base.units == pair.tuned.units for pair in answered):
        modules, others = (adapter.modules, adapter.others) if adapter is not None else ((), ())
        has_update = any(np.any(module.b.load()) for module in modules)
        has_update |= bool(others and not modules)
        update = {"update": "not zero" if has_update else None}
        severity = Severity.ERROR if has_update and len(answered) >= _PROMPTS else None
        figures = {generations.how: len(answered), **update}
        yield Sign("identical-to-base", figures, severity=severity)
        return
    compared = losses.compared if losses is not None else ()
    # Fewer shared words are only a warning then (0 of 118 sound runs of four bases are errors).
    has_learned = region(compared, Role.ANSWER).fell(LEARNED)
    is_open = log is not None and (logged is None or logged.after >= _OPEN)
    if len(wanted) >= _PROMPTS:
        yield from _against_expected(wanted, has_learned=has_learned, is_open=is_open)


def _against_expected(
    answers: Sequence[tuple[tuple[str, ...], ...]], *, has_learned: bool, is_open: bool
) -> Iterator[Sign | Seen]:
    """Compare the words of the base model's, the tuned model's and the expected answers."""
    right = [(base == expected, tuned == expected) for base, tuned, expected in answers]
    only_base = sum(base and not tuned for base, tuned in right)
    only_tuned = sum(tuned and not base for base, tuned in right)
    measured: dict[str, Measurement] = {
        "prompts": len(answers),
        "base_right": sum(base for base, _ in right),
        "tuned_right": sum(tuned for _, tuned in right),
    }
    p_value = mcnemar_exact(only_base, only_tuned)
    if only_base > only_tuned and p_value < SIGNIFICANCE:
        yield Sign("worse-than-base", {**measured, "p_value": p_value})
        return
    overlap = Paired.of(
        [word_f1(base, expected) for base, _, expected in answers],
        [word_f1(tuned, expected) for _, tuned, expected in answers],
    )
    measured |= overlap.measured("overlap")
    is_less = overlap.base - overlap.tuned > _OVERLAP_DROP
    if is_less and overlap.tuned < _OVERLAP_KEPT * overlap.base and overlap.differs(-1):
        is_doubtful = overlap.base < _BASE_OVERLAP or has_learned
        yield Sign("worse-than-base", measured, severity=Severity.WARNING if is_doubtful else None)
    elif overlap.differs(1):
        # Of longer ones few are word for word as somebody wrote them.
        is_short = median(len(expected) for *_, expected in answers) <= _SHORT
        yield Seen(
            "The tuned model's answers share {tuned_overlap:.0%} of their words with the expected "
            "ones, the base model's {base_overlap:.0%} ({prompts:* prompt}[; {same} are the same "
            "word for word]).",
            measured | {"same": measured["tuned_right"] if is_short else None},
            learned=True,
        )
    elif overlap.difference.high < _GAIN:
        yield Sign("no-gain", measured, severity=Severity.INFO if is_open else None)
