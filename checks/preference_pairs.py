"""Whether pairs of answers taught the model which of the two to prefer, and at what cost.

What it finds. Chosen and rejected answers that stay exactly, or nearly, as likely; a reference that
moves with the model; a margin that falls while the loss falls, or while it rises, or on held-out
rows; chosen answers that lose more likelihood than guessing costs; and a beta that gives pairs no
usable weight.

Why it matters. The loss of such a run has no level to compare with, and asks for a margin only: it
can be zero, with an accuracy of 100%, of a model that no longer writes the chosen answers at all.

How it is measured. Margins and rewards of the chosen answers, from the first reports to the last;
divided by beta and the answers' tokens they are nats a token, and a blind guess costs ln of the
vocabulary's size. The margin against the loss: it should rise as that falls. Rewards that are
exactly zero in every report against the adapter's B, or the log-likelihoods, that moved.

When it is wrong. In DPO the chosen answer often loses a little likelihood; only what is more than a
blind guess at each of its tokens counts, which takes rows and beta. In GRPO and PPO beta weighs the
distance from the reference, and zero is a choice.

What to do. Equal: print one pair as tokens, the reference's log-likelihoods and beta. Reversed:
look for a lost minus sign. Unlikely: divide the rate by ten.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import DoesNotArise, Inconclusive, check, limit
from mlxdoctor.engines.series import SeriesFacts, describe, smoothed
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.training_log import Series, TrainingLog
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom, Unsought
from mlxdoctor.judge.model_facts import GuessLimits, model_facts
from mlxdoctor.measure.pairs import ChosenLength, chosen_length
from mlxdoctor.measure.policy_curves import PolicyCurves, correlation, policy_curves
from mlxdoctor.measure.weights.adapter_facts import factor_facts

_RISES = "a chosen reward that rises above the rejected one"
_SLOWER = "Divide the learning rate by ten, and start again from the base."


@dataclass(frozen=True)
class Limits(GuessLimits):
    """When pairs taught nothing, the opposite, or too much."""

    reports: int = limit(4, unit="reports", source="fewer show no course")
    certain: int = limit(10, unit="reports", source="a sound run has told some apart by then")
    apart: float = limit(
        0.01, unit="reward, chosen less rejected", source="rewards are printed with three decimals"
    )
    apart_nats: float = limit(
        0.1, unit="nats, chosen less rejected", source="as `apart` at a beta of 0.1"
    )
    gained: float = limit(
        0.05, unit="reward, chosen less rejected", source="fifty times the last printed digit"
    )
    noises: float = limit(3.0, unit="noise of one report", source="a change beyond its batches'")
    wrong_side: float = limit(0.4, unit="share of pairs", source="chance is a half")
    together: float = limit(
        0.3, unit="rank correlation of loss and margin", source="below 0 in sound runs"
    )
    mirrored: float = limit(
        0.25,
        unit="of what the margin gained on the rows trained on",
        source="an overfitted run loses what it had gained, and no more",
    )
    whole: float = limit(
        0.25,
        unit="of what a blind guess at each token of prompt and answer costs",
        source="sound runs: 0.09 at most; two at fifty times a sound rate: 1.27 and 1.61",
        false_alarms="0 of 26 sound runs of mlx-lm-lora on two base models",
    )
    moved: float = limit(
        1e-4,
        unit="root mean square of B",
        source="ten steps of Adam at 1e-5; rewards of sound runs moved by then",
    )
    likelier: float = limit(
        0.5, unit="nats", source="a sound rate moves a short answer by several in ten updates"
    )
    large: float = limit(20.0, unit="beta", source="twice the largest that SimPO's authors use")
    absurd: float = limit(
        100.0, unit="beta", source="a hundredth of a nat counts as a pair that was learned"
    )


@check(
    codes={
        "exactly-equal": Symptom.error(
            "chosen and rejected answers stay exactly as likely as before",
            _RISES,
            "Print one pair as tokens, the reference's log-likelihoods and beta: the two answers "
            "must differ, the reference must stay as it was, and beta be above 0.",
            says="The chosen reward less the rejected one is exactly 0 in all {reports:* report}.",
        ),
        "not-told-apart": Symptom.warning(
            "chosen and rejected answers stay equally likely",
            _RISES,
            "See whether the adapter's weights changed; raise the learning rate, and make sure "
            "that chosen and rejected answers differ.",
            says="The chosen reward is never more than {largest_margin:.3g} away from the rejected "
            "one in {reports:* report}.",
        ),
        "reference-moves": Symptom.error(
            "the reference is the model that is trained",
            "rewards that leave 0 as the model moves away from its reference",
            "Load the reference model on its own and freeze it; for LoRA, compute its "
            "log-likelihoods with the adapter switched off.",
            says="The rewards of chosen and rejected answers are exactly 0 in all "
            "{reports:* report}, and [the log-likelihood of the chosen answers went from "
            "{first_logps:.3f} to {last_logps:.3f}|the adapter's B, which began at zero, now has a "
            "root mean square of {rms_b:.2g}]: the reference moves with the model.",
        ),
        "rejected-wins": Symptom.error(
            "the loss falls while the rejected answers become the likelier ones",
            "a margin that rises while the loss falls",
            "Look for a lost minus sign, or for chosen and rejected in the wrong order, in the "
            "loss function.",
            says="The chosen reward less the rejected one went from {first_margin:.3f} to "
            "{last_margin:.3f} on the rows trained on[, and the chosen answer wins in "
            "{last_accuracy:.0%} of the pairs], while the loss fell from {first_loss:.3f} to "
            "{last_loss:.3f}: it asks for the wrong side.",
        ),
        "margin-lost": Symptom.error(
            "the rejected answers become the likelier ones, and the loss rises",
            "a margin that rises",
            _SLOWER,
            says="The chosen reward less the rejected one went from {first_margin:.3f} to "
            "{last_margin:.3f} on the rows trained on[, and the chosen answer wins in "
            "{last_accuracy:.0%} of the pairs].",
        ),
        "both-unlikely": Symptom.warning(
            "chosen and rejected answers become unlikely together",
            "a chosen reward that stays near where it was",
            "Divide the learning rate by ten, or add a loss on the chosen answer.",
            says="The chosen answers lost up to {most_lost:.0f} nats of log-likelihood, where a "
            "blind guess at each of their {answer_tokens:.0f} tokens costs {blind_guess:.0f}, and "
            "the margin went from {first_margin:.3f} to {last_margin:.3f}.",
        ),
        "held-out-reversed": Symptom.error(
            "the margin rises on the rows trained on and falls on held-out ones",
            "a margin that rises on both",
            "Read ten pairs of the training file and ten of the validation file: in one of them "
            "chosen and rejected are swapped.",
            says="The margin went from {first_margin:.3f} to {last_margin:.3f} on the rows trained "
            "on, and from {first_held_out:.3f} to {last_held_out:.3f} on held-out rows: what one "
            "file calls chosen the other calls rejected.",
        ),
        "beta-unusable": Symptom.error(
            "beta gives pairs no usable weight",
            "a beta of 0.01 to 1",
            "set beta to 0.1",
            says="beta is {beta}: it multiplies all that a pair can teach, and 0.01 to 1 is usual.",
        ),
    },
    limits=Limits(),
    rerun_symptom=True,
)
def preference_pairs(
    log: TrainingLog | None,
    config: TrainingConfig | None,
    *,
    dataset: Dataset | None,
    tokenizer: Tokenizer | None,
    adapter: Adapter | None,
    limits: Limits,
) -> Iterator[Sign | Seen | Unsought]:
    """Judge beta, margins, rewards and accuracies of a run on pairs."""
    curves = policy_curves(log, config)
    if not curves.of_pairs and (log is None or not log.is_preference or curves.samples):
        raise DoesNotArise("the run was not trained on pairs of answers")
    yield from _beta(config, curves, limits)
    margin = curves.of("margin")
    if log is None or margin is None or len(margin) < limits.reports:
        raise Inconclusive(f"the log holds fewer than {limits.reports} reports of a margin")
    trained, held_out = (
        describe(margin.iterations, margin.values),
        curves.of("margin", held_out=True),
    )
    if held_out is None:
        why = "the log has no margin on held-out rows; validate while training"
        yield Unsought(("held-out-reversed",), why)
    vocabulary = model_facts(config, log, None).vocabulary
    guess = limits.blind_guess(tokenizer.vocab_size if tokenizer is not None else vocabulary)
    length = _length(curves, dataset, tokenizer)
    if curves.beta is None or length is None or not length.answer:
        why = "beta or the length of the chosen answers is not known"
        yield Unsought(("both-unlikely",), why)
        length = None
    signs = [
        *_equal(curves, trained, adapter, limits),
        *_fallen(curves, trained, limits),
        *(_unlikely(curves, trained, length, guess, limits) if length is not None else ()),
        *(_held_out(curves, trained, held_out, limits) if held_out is not None else ()),
    ]
    yield from signs
    if not signs:
        yield from _learned(curves, trained, held_out, limits)


def _change(curve: SeriesFacts, limits: Limits) -> float:
    """The change of a margin, signed; 0 where it is within its noise."""
    change = curve.end - curve.start
    return change if abs(change) >= max(limits.gained, limits.noises * curve.noise) else 0.0


def _beta(
    config: TrainingConfig | None, curves: PolicyCurves, limits: Limits
) -> Iterator[Sign | Unsought]:
    beta = curves.stated_beta
    if config is None or beta is None or not curves.of_pairs:
        yield Unsought(("beta-unusable",), "the configuration states no beta of a method on pairs")
    elif not 0.0 < beta < limits.large:
        severity = Severity.WARNING if 0.0 < beta < limits.absurd else None
        shown = beta if math.isfinite(beta) else str(beta)
        yield Sign("beta-unusable", {"beta": shown}, severity=severity)


def _equal(
    curves: PolicyCurves, margin: SeriesFacts, adapter: Adapter | None, limits: Limits
) -> Iterator[Sign]:
    largest = max(abs(margin.lowest), abs(margin.highest))
    apart = limits.apart
    if curves.beta is not None:
        apart = min(apart, limits.apart_nats * curves.beta)
    if largest > apart or margin.points < limits.certain:
        return
    measured: dict[str, Measurement] = {"reports": margin.points, "largest_margin": largest}
    if largest > 0.0:
        yield Sign("not-told-apart", measured)
        return
    yield Sign("exactly-equal", measured)
    rewards = [curves.of("chosen"), curves.of("rejected")]
    if curves.has_reference is False or any(
        series is None or series.values.any() for series in rewards
    ):
        return
    logps = curves.of("chosen_logps")
    likely = describe(logps.iterations, logps.values) if logps is not None else None
    size = _size_of_b(adapter) if adapter is not None else 0.0
    if likely is not None:
        change = abs(likely.end - likely.start)
        if change >= max(limits.likelier, 4.0 * likely.noise):
            figures = {"first_logps": likely.start, "last_logps": likely.end}
            yield Sign("reference-moves", measured | figures)
            return
    if size >= limits.moved:
        yield Sign("reference-moves", measured | {"rms_b": size})


def _size_of_b(adapter: Adapter) -> float:
    """The root mean square of all elements of B; 0 where there are none."""
    factors = [module.b for module in factor_facts(adapter) if module.b.is_finite]
    count = sum(factor.size for factor in factors)
    return math.sqrt(sum(factor.norm**2 for factor in factors) / count) if count else 0.0


def _fallen(curves: PolicyCurves, margin: SeriesFacts, limits: Limits) -> Iterator[Sign]:
    """A margin that falls: as the loss asks, or against it."""
    accuracy, loss = curves.of("accuracy"), curves.of("loss")
    wins = describe(accuracy.iterations, accuracy.values).end if accuracy is not None else None
    if _change(margin, limits) >= 0.0 or (wins is not None and wins > limits.wrong_side):
        return
    measured: dict[str, Measurement] = {
        "first_margin": margin.start,
        "last_margin": margin.end,
        "last_accuracy": wins,
    }
    series = curves.of("margin")
    losses = describe(loss.iterations, loss.values) if loss is not None else None
    together = correlation(loss, series) if loss is not None and series is not None else None
    is_asked = together is not None and together >= limits.together
    if losses is None or losses.end >= losses.start or not is_asked:
        yield Sign("margin-lost", measured)
    elif wins is not None or margin.end <= -limits.gained:
        figures = {"first_loss": losses.start, "last_loss": losses.end}
        yield Sign("rejected-wins", measured | figures)


def _length(
    curves: PolicyCurves, dataset: Dataset | None, tokenizer: Tokenizer | None
) -> ChosenLength | None:
    if curves.by_token:
        return ChosenLength(1.0, 1.0)
    split = dataset.splits.get("train") if dataset is not None else None
    return chosen_length(split, tokenizer) if split is not None else None


def _unlikely(
    curves: PolicyCurves,
    margin: SeriesFacts,
    length: ChosenLength,
    guess: float,
    limits: Limits,
) -> Iterator[Sign]:
    """Chosen answers that lost more likelihood than a guess at each of their tokens costs."""
    rewards, beta = curves.of("chosen"), curves.beta
    if rewards is None or beta is None or len(rewards) < limits.reports:
        return
    tested = curves.of("chosen", held_out=True)
    # The untouched model's: the higher of the first validation and report.
    before = float(tested.values[0]) if tested is not None else -math.inf
    start = 0.0 if curves.has_reference else max(float(rewards.values[0]), before)
    # The median of three: one batch among others may be unlike them.
    lost = (start - smoothed(rewards.values, 3)) / beta
    costs = guess * max(length.answer, limits.whole * length.whole)
    if (lost >= costs).any():
        measured: dict[str, Measurement] = {
            "most_lost": float(lost.max()),
            "blind_guess": guess * length.answer,
            "answer_tokens": length.answer,
            "first_margin": margin.first,
            "last_margin": margin.end,
        }
        place = int(rewards.iterations[int(np.argmax(lost >= costs))])
        severity = Severity.WARNING if lost[-1] < costs else Severity.ERROR
        yield Sign("both-unlikely", measured, onset=place, severity=severity)


def _held_out(
    curves: PolicyCurves, trained: SeriesFacts, held_out: Series, limits: Limits
) -> Iterator[Sign]:
    if len(held_out) < 2:
        return
    first, last = float(held_out.values[0]), float(np.median(held_out.values[-2:]))
    change = trained.end - trained.start
    accuracy = curves.of("accuracy", held_out=True)
    wins = float(np.median(accuracy.values[-2:])) if accuracy is not None else 0.0
    is_reversed = first - last >= max(limits.gained, limits.mirrored * change)
    if change >= limits.gained and is_reversed and wins <= limits.wrong_side:
        measured: dict[str, Measurement] = {
            "first_margin": trained.start,
            "last_margin": trained.end,
            "first_held_out": first,
            "last_held_out": last,
        }
        yield Sign("held-out-reversed", measured)


def _learned(
    curves: PolicyCurves, trained: SeriesFacts, held_out: Series | None, limits: Limits
) -> Iterator[Seen]:
    if held_out is not None and len(held_out) >= 2:
        first, last = float(held_out.values[0]), float(held_out.values[-1])
        rows = "validation rows"
    else:
        first, last = trained.start, trained.start + _change(trained, limits)
        rows = "the rows trained on"
    if last - first < limits.gained and _change(trained, limits) > 0.0:
        first, last, rows = trained.start, trained.end, "the rows trained on"
    if last - first >= limits.gained:
        yield Seen(
            "The chosen reward less the rejected one went from {first_margin:.3f} to "
            "{last_margin:.3f} on {rows}.",
            {"first_margin": first, "last_margin": last, "rows": rows},
            learned=True,
        )
    chosen = curves.of("chosen")
    # ORPO and CPO with its second term teach the chosen answers too.
    if chosen is None or curves.has_reference is not False:
        return
    likely = describe(chosen.iterations, chosen.values)
    if likely.end - likely.start >= max(0.1 * abs(likely.start), limits.noises * likely.noise):
        yield Seen(
            "The reward of the chosen answers, which is their log-likelihood, went from "
            "{first_chosen:.3f} to {last_chosen:.3f}.",
            {"first_chosen": likely.start, "last_chosen": likely.end},
            learned=True,
        )
