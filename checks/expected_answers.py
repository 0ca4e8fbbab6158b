"""The answers against the expected ones, before and after training.

What it finds. Answers that came no nearer to the expected ones than the base model's were, and
how much nearer they came where they did.

Why it matters. Nearer is what a fine-tune is for. A log that ends at a few tenths of a nat says
that the model has the answers nearly by heart; if its own answers don't show it, then what
answers is not what was trained, or it is asked in another way.

How it is measured. The mean of two overlaps (F1): of words, and of pairs of neighbouring words;
scripts without spaces count by character. An answer that was cut off is compared with as much
of the expected one. The gain over the base model's answer is a figure of each prompt; its
bootstrap interval and a paired permutation test say whether there is any. The loss of the
answers is at most the last logged one over the answers' share of the targets.

When it is wrong. Where many answers are right, as in stories or conversation, a sound model need
not come nearer to the one in the data: above some loss the finding is a note, and it is an error
only where the log says by heart. Prompts of your own, not from the data, are never an error.

What to do. Ask a few of the training prompts exactly as the trainer wrote them. If the answers
are right then, the prompt format differs; if not, the adapter is not applied or not the one
that was trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.engines.text import word_f1
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom
from mlxdoctor.measure.logged_levels import LoggedLoss, logged_loss
from mlxdoctor.measure.text.outputs import Output, answer_words, pairs
from mlxdoctor.measure.text.statistics import Paired, mean_interval
from mlxdoctor.models.generations import Generation, Generations

#: Prompts that decide: 7 pairs cannot reach p < 0.01 by flipping signs.
PROMPTS = 8
#: Overlap that is hardly to be seen, a tenth of the words and pairs; and that of answers known by
#: heart, which share most words.
GAIN, NEAR = 0.1, 0.5
#: Nats that a loss fell by where it promises something: each token 1.6 times as likely as before.
FELL = 0.5
#: Nats a token of the answers at which 6 of 10 tokens of any answer are foreseen: they are known by
#: heart (0 of 96 healthy runs; 14 of 208 faulty ones are found).
BY_HEART = 0.5
#: The same below which one answer is the likeliest by far (0 of 96 healthy runs; 23 of a kind that
#: hardly learned lie above).
OPEN = 0.8


_GAINED = (
    "The tuned model's answers to {prompts:* prompt} overlap with the expected ones by "
    "{tuned_overlap:.0%}, the base model's by {base_overlap:.0%}."
)


@check(
    codes={
        "no-gain": Symptom.warning(
            "answers are no nearer to the expected ones than the base model's",
            says="The tuned model's answers are no nearer to the expected ones than the base "
            "model's ({prompts:* prompt}; they overlap by {tuned_overlap:.0%}, before by "
            "{base_overlap:.0%})[, although the log puts their loss at {promised_loss:.2f} nats a "
            "token].",
            expected="answers nearer to the expected ones than before training",
            fix="Ask a training prompt exactly as it was trained on, with the adapter loaded.",
        ),
        "gained": Symptom.info(
            "answers are nearer to the expected ones than the base model's",
            says=_GAINED,
            expected="answers nearer to the expected ones",
        ),
    },
)
def expected_answers(
    generations: Generations,
    *,
    log: TrainingLog | None,
    config: TrainingConfig | None,
    rows: SupervisedRows | None,
    dataset: Dataset | None,
) -> Iterator[Sign | Seen]:
    """Compare both models' answers with the expected ones, prompt by prompt."""
    compared = [
        (pair.item, pair.base, pair.tuned, expected)
        for pair in pairs(generations)
        if pair.base is not None and (expected := answer_words(pair.item.expected or ""))
    ]
    count = len(compared)
    if count < PROMPTS:
        why = f"{count} prompts with both models' answers and an expected one; {PROMPTS} are needed"
        raise Inconclusive(why)
    after = [_overlap(tuned, expected) for _, _, tuned, expected in compared]
    overlap = Paired.of([_overlap(base, expected) for _, base, _, expected in compared], after)
    measured: dict[str, Measurement] = {"prompts": count, **overlap.measured("overlap")}
    if overlap.differs(1):
        yield Sign("gained", measured)
        yield Seen(_GAINED, measured, learned=True)
        return
    if overlap.difference.high >= GAIN:
        raise Inconclusive(f"{count} prompts are too few to see whether anything was gained")
    planned = config.iters if config is not None else None
    has_losses = log is not None and not log.is_preference
    logged = logged_loss(log, planned=planned) if log is not None and has_losses else None
    loss = _answer_loss(logged, config, rows)
    measured["answer_loss_at_most"] = loss
    severity = _severity(logged, loss)
    # By heart, answers must be near; what the data does not ask, nobody need know.
    is_near = mean_interval(after).high >= NEAR
    items = [item for item, *_ in compared]
    if severity is Severity.ERROR and (is_near or not _are_own(items, dataset)):
        severity = Severity.WARNING
    measured["promised_loss"] = loss if severity is Severity.ERROR else None
    yield Sign("no-gain", measured, severity=severity)


def _severity(logged: LoggedLoss | None, loss: float | None) -> Severity:
    """What a lack of gain means beside the log: an error where it says by heart."""
    if logged is None or loss is None:
        return Severity.WARNING
    # A loss that was low from the start is no promise: the base model's was, too.
    fell = logged.before is not None and logged.before - logged.after >= FELL
    if not fell or loss >= OPEN:
        return Severity.INFO
    return Severity.ERROR if loss < BY_HEART else Severity.WARNING


def _overlap(output: Output, wanted: Sequence[str]) -> float:
    words = output.words
    if not output.has_ended and len(words) < len(wanted):
        wanted = wanted[: len(words)]
    if len(wanted) < 2:
        return word_f1(words, wanted)
    return (word_f1(words, wanted) + word_f1([*pairwise(words)], [*pairwise(wanted)])) / 2


def _answer_loss(
    logged: LoggedLoss | None, config: TrainingConfig | None, rows: SupervisedRows | None
) -> float | None:
    """The most that the answers' loss can be by the log, nats a token; None where unknown."""
    if logged is None or rows is None:
        return None
    masked = config is not None and bool(config.mask_prompt)
    answers = sum(row.count(row.prompt_length) for row in rows.rows)
    targets = sum(row.count(row.prompt_length if masked else 0) for row in rows.rows)
    # Were the prompts' loss zero, the answers' would be this.
    return logged.after * targets / answers if answers else None


def _are_own(items: Sequence[Generation], dataset: Dataset | None) -> bool:
    """Whether the prompts are the run's own: rows of its data."""
    if all(item.origin in ("train", "valid", "test") for item in items):
        return True
    if dataset is None:
        return False
    asked = {
        pair[0]
        for split in dataset.splits.values()
        for row in split.rows
        if (pair := split.turn(row))
    }
    return all(item.prompt in asked for item in items)
