"""Whether the chosen answers stay likelier than a blind guess.

What it finds. Chosen answers whose log-likelihood fell by more than it would cost to guess each of
their tokens blindly: the model no longer knows the language that they are written in.

Why it matters. A preference loss asks for a margin only, and a margin can be had by making both
answers impossible, one more than the other. The loss is zero then, the accuracy 100%, and the
margin large; all of a run's figures look well but this one.

How it is measured. The reward of the chosen answers is beta times their log-likelihood, or times
what it gained over the reference's. Divided by beta it is in nats, as a blind guess is: ln of the
vocabulary's size for each token. Levels are medians of three reports. ORPO's and SimPO's rewards
are of one token; for the others the tokens of the rows are counted.

When it is wrong. A trainer that counts the prompt's tokens too has more of them to lose: a loss
that is small beside what prompt and answer cost together does not count. Where no tokenizer is at
hand, bytes are counted, of which every token has at least one, and less is found.

What to do. Divide the learning rate by ten and start again from the base.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import DoesNotArise, Inconclusive, check, limit
from mlxdoctor.engines.series import Floats
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.training_log import Series, TrainingLog
from mlxdoctor.finding import Severity, Sign, Symptom
from mlxdoctor.judge.model_facts import GuessLimits, model_facts
from mlxdoctor.measure.pairs import ChosenLength, chosen_length
from mlxdoctor.measure.policy_curves import PolicyCurves, beta_of, of_pairs, policy_curves


@dataclass(frozen=True)
class Limits(GuessLimits):
    """When a loss of likelihood is that of a language."""

    reports: int = limit(4, unit="reports", source="fewer show no course")
    chance: float = limit(
        1.0,
        unit="of what a blind guess at each token of the chosen answer costs",
        source="sound runs: 0.40 at most; two at fifty times a sound rate: 1.27 and 6.90",
        false_alarms="0 of 26 sound runs of mlx-lm-lora on two base models",
    )
    whole: float = limit(
        0.25,
        unit="of what a blind guess at each token of prompt and answer costs",
        source="sound runs: 0.09 at most; two at fifty times a sound rate: 1.27 and 1.61",
        false_alarms="as `chance`",
    )


@check(
    codes={
        "below-chance": Symptom.error(
            "the chosen answers lost more likelihood than a blind guess costs",
            expected="chosen answers that stay about as likely as they were",
            fix="Divide the learning rate by ten, and start again from the base.",
        ),
    },
    limits=Limits(),
    rerun_symptom=True,
)
def chosen_likelihood(
    log: TrainingLog,
    config: TrainingConfig | None,
    dataset: Dataset | None,
    tokenizer: Tokenizer | None,
    limits: Limits,
) -> Iterator[Sign]:
    """Hold what the chosen answers lost against what guessing them costs."""
    if not log.is_preference:
        raise DoesNotArise("the run was not trained on preferences")
    curves = policy_curves(log, config)
    if curves.samples:
        raise DoesNotArise("the run was trained on rewards of its answers, and not on pairs")
    rewards = curves.of("chosen")
    if rewards is None or not of_pairs(curves.method):
        raise Inconclusive("the log holds no rewards of chosen answers whose meaning is known")
    if len(rewards) < limits.reports:
        raise Inconclusive(f"the log holds only {len(rewards)} reports of rewards")
    beta = beta_of(config)
    if beta is None:
        raise Inconclusive("no usable beta is known; the run's configuration would state it")
    length = _length(curves, dataset, tokenizer)
    if length is None:
        raise Inconclusive("how long the chosen answers are is not known; the rows would tell")
    known = model_facts(config, log, None).vocabulary
    nats = limits.blind_guess(tokenizer.vocab_size if tokenizer is not None else known)
    started = 0.0 if curves.has_reference else _started(curves, rewards)
    lost = (started - _levels(rewards.values)) / beta
    least = max(limits.chance * nats * length.answer, limits.whole * nats * length.whole)
    below = np.flatnonzero(lost >= least)
    if len(below):
        yield _below_chance(curves, rewards, lost, length, costs=nats * length.answer, least=least)


def _length(
    curves: PolicyCurves, dataset: Dataset | None, tokenizer: Tokenizer | None
) -> ChosenLength | None:
    if curves.by_token:
        return ChosenLength(1.0, 1.0, False)
    split = dataset.splits.get("train") if dataset is not None else None
    return chosen_length(split, tokenizer) if split is not None else None


def _started(curves: PolicyCurves, rewards: Series) -> float:
    """The reward of the untouched model: the higher of the first validation and report."""
    held_out = curves.of("chosen", held_out=True)
    first = float(rewards.values[0])
    return first if held_out is None else max(first, float(held_out.values[0]))


def _levels(values: Floats) -> Floats:
    """The median of each report and the two after it; of the last two, of the last three."""
    levels = np.median(np.lib.stride_tricks.sliding_window_view(values, 3), axis=1)
    return np.concatenate([levels, np.repeat(levels[-1:], 2)])


def _below_chance(
    curves: PolicyCurves,
    rewards: Series,
    lost: Floats,
    length: ChosenLength,
    *,
    costs: float,
    least: float,
) -> Sign:
    worst, last = float(lost.max()), float(lost[-1])
    if curves.by_token:
        told = f"lost {worst:.1f} nats a token, where a blind guess costs {costs:.1f}"
        end = f"{last:.1f}" if last >= 0.0 else "nothing"
    else:
        bound = "at most " if length.is_bound else ""
        told = (
            f"lost {worst:.0f} nats of log-likelihood, where a blind guess at each of their "
            f"{bound}{length.answer:.0f} tokens costs {costs:.0f}"
        )
        end = f"{last:.0f}" if last >= 0.0 else "nothing"
    is_back = last < least
    return Sign(
        "below-chance",
        f"The chosen answers {told}{f'; by the end they have lost {end}' if is_back else ''}.",
        {
            "most_lost": worst,
            "last_lost": last,
            "answer_tokens": None if curves.by_token else length.answer,
            "blind_guess": costs,
        },
        onset=int(rewards.iterations[np.flatnonzero(lost >= least)[0]]),
        severity=Severity.WARNING if is_back else None,
    )
