"""What the adapter does to the answers.

What it finds. An adapter that mlx-lm refuses to load on this base model, answers that are
token by token the base model's, and answers that are right less often than the base model's.

Why it matters. An adapter that is not applied cannot be told from a useless one by its files,
and a fine-tune that answers worse than what it started from is a loss.

How it is measured. Same prompts, both models, greedily. Identical means every answer is. Where
the expected answer is known, an answer is right when its words are the expected ones (exact
McNemar over prompts); where hardly any is, the overlap of words (F1) is compared instead by a
paired permutation test. How unsure a model is, is its mean loss on its own greedy answer.

When it is wrong. A very small learning rate leaves greedy answers as they are without being a
loading fault. Overlap of words says little about answers of many sentences. Training on varied
text makes a sound model less sure of each word, which is why that is only a warning.

What to do. Where the adapter is refused or without effect, compare its tensor names with the
base model's using `mlxdoctor inspect`. Where answers got worse, see the other checks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import Cost, Inconclusive, check, limit
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.generations import Generations
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.finding import Finding, Measurement, Severity
from mlxdoctor.outputs import Output, OutputPair, pairs, words
from mlxdoctor.text_statistics import mcnemar_exact, paired_permutation, word_f1


@dataclass(frozen=True)
class Limits:
    """When answers are the same, and when they are worse."""

    prompts: int = limit(8, unit="prompts", source="fewer can agree by chance, and decide nothing")
    significance: float = limit(
        0.01, unit="p-value, exact McNemar or paired permutation", source="convention"
    )
    unsure: float = limit(
        0.5,
        unit="nats per token of its own greedy answer, above the base model",
        source="fixtures: 0.1 at most above in sound runs, 0.9 to 1.8 in garbled ones",
        false_alarms="0 of 5 sound runs",
    )
    overlap_drop: float = limit(
        0.1, unit="word F1", source="a tenth of the words: more than another way to say it"
    )
    overlap_left: float = limit(
        0.5, unit="share of the base model's word F1", source="half of what was there is lost"
    )


@check(
    codes={
        "adapter-refused": "mlx-lm cannot load this adapter on this base model",
        "identical-to-base": "every answer is the base model's",
        "unsure": "the tuned model is unsure of every token it chooses, unlike the base model",
        "worse-than-base": "answers are right less often than the base model's",
    },
    cost=Cost.WEIGHTS,
    limits=Limits(),
    decisive=True,
)
def generation_effect(
    generations: Generations,
    adapter: Adapter | None,
    tokenizer: Tokenizer | None,
    base: BaseModel | None,
    limits: Limits,
) -> Iterator[Finding]:
    """Compare the answers with the base model's and with the expected ones."""
    if generations.load_failure is not None:
        yield Finding(
            code="generation-effect.adapter-refused",
            severity=Severity.ERROR,
            message=(
                f"mlx-lm cannot load this adapter on this base model: {generations.load_failure}"
            ),
            measured={"failure": generations.load_failure},
            expected="an adapter whose tensors are the base model's LoRA parameters",
            fix="Compare names and shapes with `mlxdoctor inspect`; check which base it is for.",
        )
        return
    found = [pair for pair in pairs(generations, tokenizer, base) if pair.base is not None]
    if not found:
        raise Inconclusive("the base model's answers to the same prompts are not known")
    same = [pair for pair in found if pair.base and pair.base.units == pair.tuned.units]
    if len(same) == len(found):
        yield _identical(len(found), adapter, limits)
        return
    yield from _worse(found, limits)
    yield from _unsure(found, limits)


def _identical(prompts: int, adapter: Adapter | None, limits: Limits) -> Finding:
    has_update = adapter is not None and _has_update(adapter)
    is_error = has_update and prompts >= limits.prompts
    return Finding(
        code="generation-effect.identical-to-base",
        severity=Severity.ERROR if is_error else Severity.WARNING,
        message=(
            f"With the adapter, all {prompts} answers are token by token the base model's"
            + (", although its update is not zero." if has_update else ".")
        ),
        measured={"prompts": prompts, "identical": prompts, "nonzero_update": has_update},
        expected="at least one answer that differs",
        fix="Check that the adapter is loaded, and that its names match the base model's.",
    )


def _has_update(adapter: Adapter) -> bool:
    if any(np.any(module.b.load()) for module in adapter.modules):
        return True
    return bool(adapter.others) and not adapter.modules


def _worse(found: Sequence[OutputPair], limits: Limits) -> Iterator[Finding]:
    known = [(pair, pair.base) for pair in found if pair.item.expected and pair.base is not None]
    if len(known) < limits.prompts:
        return
    expected = [words(pair.item.expected or "") for pair, _ in known]
    base_right = [_is_right(base, want) for (_, base), want in zip(known, expected, strict=True)]
    tuned_right = [
        _is_right(pair.tuned, want) for (pair, _), want in zip(known, expected, strict=True)
    ]
    only_base = sum(b and not t for b, t in zip(base_right, tuned_right, strict=True))
    only_tuned = sum(t and not b for b, t in zip(base_right, tuned_right, strict=True))
    measured: dict[str, Measurement] = {
        "prompts": len(known),
        "base_right": sum(base_right),
        "tuned_right": sum(tuned_right),
    }
    p_value = mcnemar_exact(only_base, only_tuned)
    if only_base > only_tuned and p_value < limits.significance:
        yield _finding(
            f"The tuned model is right on {sum(tuned_right)} of {len(known)} prompts, the base "
            f"model on {sum(base_right)}.",
            {**measured, "p_value": p_value},
        )
        return
    before = np.array(
        [word_f1(base.words, w) for (_, base), w in zip(known, expected, strict=True)]
    )
    after = np.array(
        [word_f1(pair.tuned.words, w) for (pair, _), w in zip(known, expected, strict=True)]
    )
    p_value = paired_permutation(after - before)
    is_less = before.mean() - after.mean() > limits.overlap_drop
    is_little = after.mean() < limits.overlap_left * before.mean()
    if is_less and is_little and p_value < limits.significance:
        yield _finding(
            f"The tuned model's answers share {after.mean():.0%} of their words with the "
            f"expected ones, the base model's {before.mean():.0%} (F1, {len(known)} prompts).",
            {
                **measured,
                "base_overlap": round(float(before.mean()), 3),
                "tuned_overlap": round(float(after.mean()), 3),
                "p_value": p_value,
            },
        )


def _unsure(found: Sequence[OutputPair], limits: Limits) -> Iterator[Finding]:
    # A general prompt may be as strange to a sound model as to a broken one.
    own = [pair.item for pair in found if pair.item.origin != "general"]
    known = [
        (item.base_loss, item.tuned_loss)
        for item in own
        if item.base_loss is not None and item.tuned_loss is not None
    ]
    values = np.array(known, dtype=np.float64).reshape(-1, 2)
    values = values[np.isfinite(values).all(axis=1)]
    if len(values) < limits.prompts:
        return
    before, after = (float(mean) for mean in values.mean(axis=0))
    p_value = paired_permutation(values[:, 1] - values[:, 0])
    if after - before <= limits.unsure or p_value >= limits.significance:
        return
    yield Finding(
        code="generation-effect.unsure",
        severity=Severity.WARNING,
        message=(
            f"The tuned model gives the tokens it chooses a probability of {math.exp(-after):.2f} "
            f"on average, the base model {math.exp(-before):.2f} ({len(values)} prompts): its "
            "answers are close to guessed."
        ),
        measured={
            "prompts": len(values),
            "base_loss": round(before, 3),
            "tuned_loss": round(after, 3),
            "p_value": p_value,
        },
        expected="a model at least about as sure on its own data as before training",
        fix="Read some answers; where they are garbled, lower the learning rate or the scale.",
    )


def _finding(message: str, measured: dict[str, Measurement]) -> Finding:
    return Finding(
        code="generation-effect.worse-than-base",
        severity=Severity.ERROR,
        message=message,
        measured=measured,
        expected="answers that are right at least as often as the base model's",
        fix="Do not use this adapter; an earlier checkpoint may be better (--adapter FILE).",
    )


def _is_right(output: Output, expected: tuple[str, ...]) -> bool:
    return bool(expected) and output.words == expected
