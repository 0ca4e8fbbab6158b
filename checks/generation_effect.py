"""What the adapter does to the answers.

What it finds. An adapter that mlx-lm refuses to load on this base model, answers that are
token by token the base model's, and answers that are right less often than the base model's.

Why it matters. An adapter that is not applied cannot be told from a useless one by its files,
and a fine-tune that answers worse than what it started from is a loss.

How it is measured. Same prompts, both models, greedily. Identical means every answer is. Where
the expected answer is known, an answer is right when its words are the expected ones (exact
McNemar over prompts); where hardly any is, the overlap of words (F1) is compared instead by a
paired permutation test. How unsure a model is, is its mean loss on its own greedy answer; the
loss that the log ends at says how unsure the model that was trained was.

When it is wrong. A very small learning rate leaves greedy answers as they are without being a
loading fault. Overlap of words says little about answers of many sentences; it is only a warning
where the loss on the rows' answers fell by more than a nat all the same. A log's loss above one
nat may be that of prompts, and is not held against the answers.

What to do. Where the adapter is refused or without effect, compare its tensor names with the
base model's using `mlxdoctor inspect`. Where the model is less sure than it was trained to be,
it is not the model that was trained, or not asked as it was trained: see that every tensor was
saved and loaded, and that prompts have the format of the training rows. Where answers got worse,
see the other checks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import Cost, Inconclusive, check, limit
from mlxdoctor.engines.series import describe
from mlxdoctor.engines.text import word_f1
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.checkpoints import CHECKPOINT_NAME
from mlxdoctor.evidence.supervision import Role, SupervisedRows
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom
from mlxdoctor.judge.learned import SIGNIFICANCE, region
from mlxdoctor.measure.text.outputs import OutputPair, answer_words, pairs
from mlxdoctor.measure.text.statistics import mcnemar_exact, paired_permutation
from mlxdoctor.models.generations import Generations
from mlxdoctor.models.losses import TokenLosses

#: Prompts that decide: fewer can agree by chance. Of trained ones, all must be unsure.
PROMPTS, TRAINED_PROMPTS = 8, 6


@dataclass(frozen=True)
class Limits:
    """When answers are the same, and when they are worse."""

    unsure: float = limit(
        0.5,
        unit="nats per token of its own greedy answer, above the log",
        source="garbled answers are 0.5 to 3 above the base model",
        false_alarms="above the log: 0 of 98 sound runs of three base models",
    )
    unsurer: float = limit(
        0.3,
        unit="nats per token of its own greedy answers to trained prompts, above the highest loss "
        "that the log allows answers",
        source="half-saved adapters, fused weights that lost them, other prompt formats: 0.43 to "
        "1.6 above; sound runs at least 0.05 below",
        false_alarms="0 of 61 sound runs whose loss ended low enough to be judged",
    )
    cut: float = limit(
        0.1, unit="share of the answers cut off", source="above, the loss is of other tokens"
    )
    sure: float = limit(
        1.0,
        unit="nats",
        source="above, the log's loss leaves room for any unsure answer; a model whose loss on "
        "the answers fell as far, and that shares fewer words, answers in other words",
        false_alarms="0 of 118 sound runs of four base models",
    )
    overlap_drop: float = limit(
        0.1, unit="word F1", source="a tenth of the words: more than another way to say it"
    )
    overlap_left: float = limit(
        0.5, unit="share of the base model's word F1", source="half of what was there is lost"
    )
    overlap_before: float = limit(
        0.25,
        unit="word F1 of the base model's answers",
        source="below, they are nearly unrelated to the expected ones, and a few words decide",
        false_alarms="1 of 98 sound runs of three base models; 13 without it",
    )


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
        "unsurer-than-trained": Symptom.warning(
            "it is far less sure of its answers than its training loss says",
            says="The tuned model gives the tokens it chooses a probability of "
            "{own_probability:.2f} on average ({prompts:* prompt} it was trained on), but its "
            "training ended at a loss of {training_loss:.3f}, a probability of "
            "{trained_probability:.2f} for tokens it did not choose: it is not the model that was "
            "trained, or not asked as it was trained.",
            expected="a model at least as sure of its own choices as of the training rows",
            fix="See that every tensor was saved and loaded, and that prompts have the rows' "
            "format.",
        ),
        "worse-than-base": Symptom.error(
            "answers are right less often than the base model's",
            says="[The tuned model's answers share {tuned_overlap:.0%} of their words with the "
            "expected ones, the base model's {base_overlap:.0%} (F1, {prompts:* prompt})|The tuned "
            "model is right on {tuned_right} of {prompts} prompts, the base model on "
            "{base_right}].",
            expected="answers that are right at least as often as the base model's",
            fix="Do not use this adapter; an earlier checkpoint may be better (--adapter FILE).",
        ),
    },
    cost=Cost.WEIGHTS,
    limits=Limits(),
    rerun_symptom=True,
)
def generation_effect(
    generations: Generations,
    *,
    adapter: Adapter | None,
    tokenizer: Tokenizer | None,
    base: BaseModel | None,
    log: TrainingLog | None,
    rows: SupervisedRows | None,
    losses: TokenLosses | None,
    limits: Limits,
) -> Iterator[Sign]:
    """Compare the answers with the base model's and with the expected ones."""
    if generations.load_failure is not None:
        yield Sign("adapter-refused", {"failure": generations.load_failure})
        return
    answered = [pair for pair in pairs(generations, tokenizer, base) if pair.base is not None]
    if not answered:
        raise Inconclusive("the base model's answers to the same prompts are not known")
    if all(pair.base and pair.base.units == pair.tuned.units for pair in answered):
        has_update = adapter is not None and _has_update(adapter)
        count = len(answered)
        yield Sign(
            "identical-to-base",
            {
                generations.how: count,
                "prompts": count,
                "identical": count,
                "update": "not zero" if has_update else None,
            },
            severity=Severity.ERROR if has_update and count >= PROMPTS else None,
        )
        return
    compared = losses.compared if losses is not None else ()
    has_learned = region(compared, 1, Role.ANSWER).fell(limits.sure)
    yield from _worse(answered, limits, has_learned=has_learned)
    trained = _end_of_training(log, adapter)
    if trained is not None and trained <= limits.sure:
        yield from _unsurer_than_trained(answered, trained, rows, limits)


def _has_update(adapter: Adapter) -> bool:
    if any(np.any(module.b.load()) for module in adapter.modules):
        return True
    return bool(adapter.others) and not adapter.modules


def _worse(answered: Sequence[OutputPair], limits: Limits, *, has_learned: bool) -> Iterator[Sign]:
    known = [
        (pair.base.words, pair.tuned.words, answer_words(pair.item.expected))
        for pair in answered
        if pair.item.expected and pair.base is not None
    ]
    if len(known) < PROMPTS:
        return
    right = [
        (bool(want) and base == want, bool(want) and tuned == want) for base, tuned, want in known
    ]
    base_right, tuned_right = (sum(column) for column in zip(*right, strict=True))
    only_base = sum(base and not tuned for base, tuned in right)
    only_tuned = sum(tuned and not base for base, tuned in right)
    measured: dict[str, Measurement] = {
        "prompts": len(known),
        "base_right": base_right,
        "tuned_right": tuned_right,
    }
    p_value = mcnemar_exact(only_base, only_tuned)
    if only_base > only_tuned and p_value < SIGNIFICANCE:
        yield Sign("worse-than-base", {**measured, "p_value": p_value})
        return
    overlaps = np.array(
        [(word_f1(base, want), word_f1(tuned, want)) for base, tuned, want in known]
    )
    before, after = (float(mean) for mean in overlaps.mean(axis=0))
    p_value = paired_permutation(overlaps[:, 1] - overlaps[:, 0])
    is_less = before - after > limits.overlap_drop and after < limits.overlap_left * before
    if is_less and p_value < SIGNIFICANCE:
        measured |= {
            "base_overlap": round(before, 3),
            "tuned_overlap": round(after, 3),
            "p_value": p_value,
        }
        is_doubtful = before < limits.overlap_before or has_learned
        severity = Severity.WARNING if is_doubtful else None
        yield Sign("worse-than-base", measured, severity=severity)


def _unsurer_than_trained(
    answered: Sequence[OutputPair],
    trained: float,
    rows: SupervisedRows | None,
    limits: Limits,
) -> Iterator[Sign]:
    # Rows that it did not train on may be new to a model that knows its own by heart.
    losses = [
        pair.item.tuned_loss
        for pair in answered
        if pair.item.origin == "train"
        and pair.item.tuned_loss is not None
        and math.isfinite(pair.item.tuned_loss)
    ]
    examined = rows.rows if rows is not None else ()
    # Of answers that were cut off it never saw the rest, whose tokens it now has to choose.
    cut = sum(row.answer_is_cut for row in examined)
    if len(losses) < TRAINED_PROMPTS or cut > limits.cut * len(examined):
        return
    # Targets of the prompt may be nearly free: the answers then carry all of the loss.
    share = _answer_share(rows) if rows is not None else None
    bound = trained / share if share else None
    mean, lowest = float(np.mean(losses)), min(losses)
    is_certain = bound is not None and mean - bound > limits.unsurer and lowest > bound
    if not is_certain and mean - trained <= limits.unsure:
        return
    yield Sign(
        "unsurer-than-trained",
        {
            "prompts": len(losses),
            "own_loss": round(mean, 3),
            "own_probability": round(math.exp(-mean), 4),
            "lowest_own_loss": round(lowest, 3),
            "training_loss": trained,
            "trained_probability": round(math.exp(-trained), 4),
            "answers_share_of_targets": share,
            "highest_loss_of_answers": bound,
        },
        severity=Severity.ERROR if is_certain else None,
    )


def _answer_share(rows: SupervisedRows) -> float | None:
    """Share of the targets that is not the prompt's."""
    targets = sum(len(row.targets) for row in rows.rows)
    prompt = sum(max(row.prompt_length - max(row.offset, 1), 0) for row in rows.rows)
    return (targets - prompt) / targets if targets > prompt else None


def _end_of_training(log: TrainingLog | None, adapter: Adapter | None) -> float | None:
    """The training loss, in nats, when the adapter was saved."""
    losses = log.main.get("train_loss") if log is not None and not log.is_preference else None
    if losses is None:
        return None
    checkpoint = CHECKPOINT_NAME.match(adapter.path.name) if adapter is not None else None
    until = int(checkpoint[1]) if checkpoint else int(losses.iterations[-1])
    before = losses.iterations <= until
    curve = describe(losses.iterations[before], losses.values[before])
    return curve.end if curve.points else None
