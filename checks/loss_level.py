"""The loss is on the wrong side of a level that can be known beforehand.

What it finds. A first loss above that of a blind guess, or far above what language models
have; one that is so only because the losses of accumulated batches were added up; a loss that
stays where a blind guess is; a last loss no better than a constant guess; and a loss next to
nothing after a handful of updates.

Why it matters. A loss has landmarks. Above ln(vocabulary) nothing the model knows reaches the
targets. At the entropy of the tokens' frequencies the model ignores its input: a last loss
of 9.98 is not "high", it is destroyed. Near zero at once, the answer was in the question. A
sum over accumulation steps is no loss of any batch, and its gradient is as many times too large.

How it is measured. The first loss is the validation loss before the first update where the log has
it, else the first training loss. The uniform guess is ln V of the base model, from its files or
from what its name says, or of 300,000 tokens where the model is unknown. The constant guess is the
entropy of the supervised tokens (Miller-Madow), where data and tokenizer are at hand. Where the
model is unknown, a blind guess has between 9 and 13.3: known vocabularies have 8,000 to 600,000
tokens, and a destroyed model that knows the frequent tokens lies a little below. A log that begins
in the middle shows that as well. A sum is told where the first training loss, divided by the
accumulation steps, is a usual one, and the loss as it stands is far above a blind guess or that
multiple of the validation loss.

When it is wrong. A new kind of text or a new token set starts high in a sound run, so a high
start is only noted, a high end that is a little lower is a warning, and one that is much lower
is not reported. Where losses may have been added up over accumulation steps, a high level is a
warning too. A few hundred repeated rows are learned fast. Losses of preference training have no
such landmarks and are not judged.

What to do. High at the start: see whether labels, tokenizer and base model belong together.
High at the end: see when it rose. Low at once: see how the targets are shifted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import Inconclusive, NotApplicable, check, limit
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import Segment, Series, TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, Unsought
from mlxdoctor.judge.model_facts import GuessLimits, model_facts
from mlxdoctor.judge.summed_loss import Limits as SumLimits
from mlxdoctor.judge.summed_loss import summed_loss
from mlxdoctor.measure.losses.trend import LossFit, ending, fit, opening

_OF_THE_START = ("starts-above-uniform", "starts-high", "sum-over-accumulation")


@dataclass(frozen=True)
class Limits(GuessLimits):
    """Where the landmarks are."""

    readable: float = limit(
        0.5,
        unit="of a blind guess's loss, at the end",
        source="the ward's 6 sound runs that begin above it, all of one mixture of experts, end at "
        "0.21 of it; 5 of that base that lost the text, or never learned it, at 0.74 to 1.21",
        false_alarms="0 of those 6; broken bases end at 0.06 to 0.26, and their answers tell",
    )
    uniform_excess: float = limit(
        0.2, unit="nats", source="an untrained model lies a little above a uniform guess"
    )
    certain_excess: float = limit(
        1.5,
        unit="nats",
        source="a small sound base model lies 1.03 above it on text it does not know, sure of "
        "other tokens; labels shifted by one or two lie 1.2 to 2.3 above",
        false_alarms="0 of 94 healthy runs of three base models; 7 of 94 at 0.2",
    )
    summed: float = limit(
        1.5,
        unit="times the uniform guess",
        source="labels shifted by one or two reach 1.35 times it, a base full of noise 1.45; the "
        "sums of 4, 8 and 16 steps of a sound base had 2.6, 5.2 and 10 times it",
        false_alarms="0 of 131 sound runs of four base models, 4 of which accumulate; 0 of those "
        "and of 424 faulty ones if they had stated 2, 4, 8 or 16 steps",
    )
    summed_factor: float = limit(
        1.5,
        unit="either way, a mean of the sum over the validation loss",
        source="the first report of 131 sound runs has 0.47 to 1.03 times the validation loss "
        "before it, less the later it comes; wider would take in runs that rose at once",
    )
    chance_low: float = limit(
        9.0,
        unit="nats",
        source="seed 000's destroyed model ends between 9.6 and 10.4; a guess among 8,100 tokens",
        false_alarms="0 of 12 logs: 4 sound fixture runs, one of the ward, 7 public ones",
    )
    chance_high: float = limit(
        13.3, unit="nats", source="a guess among 600,000 tokens: above, it may be another loss"
    )
    chance_below: float = limit(
        0.3, unit="nats below ln V", source="a loss this near to it has learned nothing of the text"
    )
    still_falls: float = limit(
        0.1,
        unit="share of the first level that was lost by the end",
        source="a new language or token set starts as high and falls by more in tens of updates",
    )
    has_fallen: float = limit(
        0.3, unit="share of the first level that was lost by the end", source="it is learning"
    )
    level_reports: int = limit(3, unit="reports", source="one batch, or two, are no level")
    falling_reports: int = limit(
        10, unit="reports", source="a loss that falls from a high start needs some"
    )
    high: float = limit(8.0, unit="nats", source="a guess among 3,000 tokens: no language model")
    low: float = limit(0.05, unit="nats", source="perplexity 1.05: the answer is known beforehand")
    low_share: float = limit(0.1, unit="of the loss at the start", source="a tenth in a few steps")
    quickly: int = limit(30, unit="iterations", source="fewer rows than any style needs")
    modest: float = limit(0.3, unit="nats", source="little is left to learn below")


@check(
    codes={
        "starts-above-uniform": Symptom.warning(
            "the first loss is worse than a guess among all tokens",
            fix="See whether labels, tokenizer and base model belong together.",
        ),
        "sum-over-accumulation": Symptom.error(
            "the loss is a sum over the accumulation steps, not a mean",
            fix="Divide loss and gradients by the accumulation steps, or train with "
            "grad_accumulation_steps: 1 and a larger batch_size.",
        ),
        "stays-at-chance": Symptom.error(
            "the loss stays where a blind guess among all tokens is",
            fix="Treat the model as destroyed, or as one that was never trained: start again from "
            "the base, with a lower learning rate.",
        ),
        "starts-high": Symptom.info("the first loss is far above what a language model has"),
        "ends-above-unigram": Symptom.warning(
            "the last loss is no better than a constant guess",
            fix="Treat the model as destroyed, not as half trained.",
        ),
        "suspiciously-low": Symptom.info(
            "the loss is next to nothing after a few updates",
            fix="See whether targets are shifted by one and are not already in the input.",
        ),
    },
    limits=Limits(),
    rerun_symptom=True,
)
def loss_level(
    log: TrainingLog,
    limits: Limits,
    base: BaseModel | None,
    rows: SupervisedRows | None,
    config: TrainingConfig | None,
) -> Iterator[Sign | Unsought]:
    """Compare the first and last losses of the log's main segment with the landmarks."""
    segment = log.main
    losses = segment.get("train_loss")
    curve = fit(losses.iterations, losses.values) if losses is not None else None
    if losses is None or curve is None:
        raise Inconclusive("the log holds no finite training loss")
    if log.is_preference:
        raise NotApplicable("the loss of preference training has no known level")
    vocabulary = model_facts(config, log, base).vocabulary
    steps = (config.grad_accumulation_steps if config is not None else None) or 1
    if summed_loss(segment, config, rows, vocabulary, SumLimits()) is not None:
        yield Unsought(
            ("starts-above-uniform", "starts-high", "stays-at-chance", "ends-above-unigram"),
            "the loss is a sum and not a mean, and has no known level",
        )
        return
    summed = None
    if segment.shows_start and segment.axis != "epoch":
        uniform = limits.blind_guess(vocabulary)
        before, begins = segment.base_val_loss, bool(np.isfinite(losses.values[0]))
        if begins:
            summed = _summed(segment, curve, steps, uniform, limits)
        if summed is not None:
            yield summed
        elif begins or (before is not None and math.isfinite(before)):
            yield from _high(segment, curve, vocabulary, uniform, limits)
        else:
            # Where the first losses are no numbers, a later one does not show how it began.
            yield Unsought(_OF_THE_START, "the first training loss is not finite")
        yield from _too_low(segment, losses, limits)
    elif not segment.shows_start:
        yield Unsought(
            (*_OF_THE_START, "suspiciously-low"),
            "the log begins in the middle of a run; the whole log would show its start",
        )
    if summed is None:
        maybe_summed = steps > 1 and not _is_mean(segment, curve, steps)
        yield from _at_chance(segment, curve, vocabulary, maybe_summed, limits)
    if rows is not None and not math.isnan(floor := rows.unigram_entropy()):
        yield from _above_unigram(segment, curve, floor, steps if summed else 1)
    else:
        yield Unsought(
            ("ends-above-unigram",),
            "the rows' tokens are not known; the data folder and the base model would tell",
        )


def _summed(
    segment: Segment, curve: LossFit, steps: int, uniform: float, limits: Limits
) -> Sign | None:
    mean, before = curve.first / steps, segment.base_val_loss
    is_usual = limits.modest <= mean < min(uniform, limits.high)
    if steps < 2 or not is_usual or curve.first <= uniform + limits.uniform_excess:
        return None
    if before is not None and math.isfinite(before) and before < uniform:
        ratio = mean / before if before > 0 else math.inf
        if not 1 / limits.summed_factor < ratio < limits.summed_factor:
            return None
    elif curve.first <= limits.summed * uniform:
        return None
    return Sign(
        "sum-over-accumulation",
        f"The first training loss is {curve.first:.3f}, above the {uniform:.3f} of a blind guess, "
        f"and a usual {mean:.3f} when divided by the {steps} accumulation steps: losses are added "
        "up, not averaged.",
        {
            "first_loss": curve.first,
            "grad_accumulation_steps": steps,
            "per_step": mean,
            "uniform_guess": uniform,
            "base_validation_loss": before,
        },
        expected=f"the mean over the steps, about {mean:.2f}",
        onset=int(segment.series["train_loss"].iterations[0]),
    )


def _is_mean(segment: Segment, curve: LossFit, steps: int) -> bool:
    """Whether the training loss is one of a batch: a validation agrees with it as it stands."""
    validation = segment.get("val_loss")
    if validation is not None and np.isfinite(validation.values[-1]):
        last = float(validation.values[-1])
        return abs(last - curve.end) < abs(last - curve.end / steps)
    # mlx-lm's own report: its trainer averages.
    return segment.get("trained_tokens") is not None and segment.get("peak_memory_gb") is not None


def _at_chance(
    segment: Segment, curve: LossFit, vocabulary: int | None, maybe_summed: bool, limits: Limits
) -> Iterator[Sign]:
    if curve.points < limits.level_reports:
        return
    uniform = math.log(vocabulary) if vocabulary else None
    low = limits.chance_low
    if uniform is not None:
        low = min(low, uniform - limits.chance_below)
    if min(curve.end, curve.tail_minimum) < low:
        return
    fallen = 1.0 - curve.end / max(curve.start, curve.end)
    falls = fallen >= limits.still_falls
    if fallen >= limits.has_fallen or (falls and curve.points < limits.falling_reports):
        return
    unknown = uniform is None and curve.end > limits.chance_high
    guess = (
        f"a blind guess among this model's {vocabulary:,} tokens has {uniform:.3f}"
        if uniform is not None
        else "a blind guess among the 8,000 to 600,000 tokens that models have has "
        f"{limits.chance_low:g} to {limits.chance_high:g}"
    )
    fell = f", down from {opening(curve)}" if falls else ""
    yield Sign(
        "stays-at-chance",
        f"The loss ends at {ending(curve)}{fell}; {guess}: the model knows nothing of this text.",
        {
            "start": curve.start,
            "end": curve.end,
            "lowest_of_last_quarter": curve.tail_minimum,
            "uniform_guess": uniform,
            "vocabulary": vocabulary,
            "may_be_a_sum": maybe_summed,
        },
        expected=f"well below {low:.2f}",
        onset=int(segment.series["train_loss"].iterations[0]) if not falls else None,
        severity=Severity.WARNING if falls or unknown or maybe_summed else None,
    )


def _high(
    segment: Segment, curve: LossFit, vocabulary: int | None, uniform: float, limits: Limits
) -> Iterator[Sign]:
    base = segment.base_val_loss
    first = base if base is not None and math.isfinite(base) else curve.first
    name = "validation loss before the first update" if first is base else "first training loss"
    measured: dict[str, Measurement] = {
        "first_loss": first,
        "uniform_guess": uniform,
        "vocabulary": vocabulary,
    }
    if first > uniform + limits.uniform_excess:
        said = f"{vocabulary or limits.vocabulary:,} tokens"
        said += "" if vocabulary else ", more than any model has,"
        is_certain = vocabulary is None or first > uniform + limits.certain_excess
        yield Sign(
            "starts-above-uniform",
            f"The {name} is {first:.3f}; a blind guess among {said} has {uniform:.3f}.",
            measured,
            onset=_start_of(segment),
            severity=Severity.ERROR
            if is_certain
            else Severity.INFO
            if curve.end < limits.readable * uniform
            else None,
            expected=f"well below {uniform:.2f}",
        )
    elif first > limits.high:
        yield Sign(
            "starts-high",
            f"The {name} is {first:.3f}, a guess among some {math.exp(first):,.0f} tokens: the "
            "model does not know this kind of text, or the labels are not what it predicts.",
            measured,
            expected=f"below {limits.high:g} for a language model on text",
            onset=_start_of(segment),
        )


def _too_low(segment: Segment, losses: Series, limits: Limits) -> Iterator[Sign]:
    base = segment.base_val_loss
    start = base if base is not None and math.isfinite(base) else float(losses.values[0])
    if not math.isfinite(start) or start < limits.modest:
        return
    with np.errstate(invalid="ignore"):
        low = (losses.values > 0) & (losses.values < limits.low)
        fast = (losses.values > 0) & (losses.values <= limits.low_share * start)
    soon = losses.iterations <= limits.quickly
    hits = np.flatnonzero((fast & soon) | (low & (losses.iterations <= 10 * limits.quickly)))
    if not len(hits):
        return
    at, value = int(losses.iterations[hits[0]]), float(losses.values[hits[0]])
    yield Sign(
        "suspiciously-low",
        f"After {at} {segment.unit}s the loss is {value:.4g}, down from {start:.3f}: text is not "
        "learned that fast unless the answer is in the question.",
        {"start": start, "loss": value, "iteration": at},
        onset=at,
        severity=Severity.WARNING if value < limits.low else None,
        expected=f"above {limits.low_share:.0%} of the start for the first {limits.quickly}",
    )


def _above_unigram(segment: Segment, curve: LossFit, floor: float, added: int) -> Iterator[Sign]:
    base, end = segment.base_val_loss, curve.end / added
    if end <= floor or curve.points < 2:
        return
    per_step = f", {end:.3f} when divided by the {added} accumulation steps" if added > 1 else ""
    worse = base is None or not math.isfinite(base) or base < floor
    yield Sign(
        "ends-above-unigram",
        f"The loss ends at {ending(curve)}{per_step}; always guessing the tokens' overall "
        f"frequencies would give {floor:.3f}.",
        {"end": end, "unigram_entropy": floor, "base_validation_loss": base},
        severity=Severity.ERROR if worse else None,
        expected=f"below {floor:.2f}",
    )


def _start_of(segment: Segment) -> int:
    validation = segment.get("val_loss")
    if segment.base_val_loss is not None and validation is not None:
        return int(validation.iterations[0])
    return int(segment.series["train_loss"].iterations[0])
