"""The loss is on the wrong side of a level that can be known beforehand.

What it finds. A first loss above that of a blind guess; one that is so only because losses were
added up and not averaged; a loss that stays where a blind guess is; a last loss no better than a
constant guess; and a loss next to nothing after a handful of updates.

Why it matters. A loss has landmarks. Above ln(vocabulary) nothing the model knows reaches the
targets. At the entropy of the tokens' frequencies the model ignores its input: a last loss
of 9.98 is not "high", it is destroyed. Near zero at once, the answer was in the question. The
gradient of a sum is as many times too large as there are terms.

How it is measured. The first loss is the validation loss before the first update where the log has
it, else the first training loss. The uniform guess is ln V of the base model, from its files or
from what its name says, or of 300,000 tokens where the model is unknown. The constant guess is the
entropy of the supervised tokens (Miller-Madow), where data and tokenizer are at hand. A sum is told
where the accumulation steps, as a divisor, leave a usual loss, or where no mean is so high.

When it is wrong. A new kind of text or a new token set starts high in a sound run, so where the
vocabulary is unknown and the loss falls to a usual level, a high start is only noted. A few hundred
repeated rows are learned fast. Losses of preference training have no such landmarks.

What to do. High at the start: see whether labels, tokenizer and base model belong together.
High at the end: see when it rose. Low at once: see how the targets are shifted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import Inconclusive, NotApplicable, check, limit
from mlxdoctor.engines.series import SeriesFacts, describe
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import Segment, Series, TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, Unsought
from mlxdoctor.judge.model_facts import GuessLimits, model_facts

_OF_THE_START = ("starts-above-uniform", "sum-over-accumulation", "summed")
_ENDS = "The loss ends at {end:.3f}[ (median of the last {edge} reports)]"


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
        unit="times the uniform guess, of a sum over accumulation steps",
        source="labels shifted by one or two reach 1.35 times it, a base full of noise 1.45; the "
        "sums of 4, 8 and 16 steps of a sound base had 2.6, 5.2 and 10 times it",
        false_alarms="0 of 131 sound runs of four base models, 4 of which accumulate",
    )
    no_mean: float = limit(
        4.0,
        unit="times the uniform guess, in the first quarter of the reports",
        source="what begins high as a mean has up to 1.6 times it; runs that a rate destroyed at "
        "once reach 2.9 times",
        false_alarms="0 of 22 logs of users, sound and faulty",
    )
    alike: float = limit(
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
    has_fallen: float = limit(
        0.1,
        unit="share of the first level that was lost by the end",
        source="a new language or token set starts as high and falls by more in tens of updates",
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
            "well below {uniform_guess:.2f}",
            "See whether labels, tokenizer and base model belong together.",
            says="The {first_is} is {first_loss:.3f}; a blind guess among {vocabulary:,} tokens"
            "[, more than any model has,{unknown}] has {uniform_guess:.3f}.",
        ),
        "sum-over-accumulation": Symptom.error(
            "the loss is a sum over the accumulation steps, not a mean",
            "the mean over the steps, about {mean:.2f}",
            "Divide loss and gradients by the accumulation steps, or train with "
            "grad_accumulation_steps: 1 and a larger batch_size.",
            says="The first training loss is {first_loss:.3f}, above the {uniform_guess:.3f} of a "
            "blind guess, and a usual {mean:.3f} when divided by the {grad_accumulation_steps} "
            "accumulation steps: losses are added up, not averaged.",
        ),
        "summed": Symptom.error(
            "the training loss is a sum over targets or rows",
            "a mean over targets: below the loss of a blind guess",
            "Divide the loss by the number of targets in the batch, before the gradient.",
            says="The first training loss is {first_loss:,.1f}; a blind guess among all tokens has "
            "{uniform_guess:.1f}, and no mean over targets is so far above: losses are added up.",
        ),
        "stays-at-chance": Symptom.error(
            "the loss stays where a blind guess among all tokens is",
            "well below {low:.2f}",
            "Treat the model as destroyed, or as one that was never trained: start again from "
            "the base, with a lower learning rate.",
            says=f"{_ENDS}; a blind guess [among this model's "
            "{vocabulary:,} tokens has {uniform_guess:.3f}|among the 8,000 to 600,000 tokens that "
            "models have has 9 to 13.3]: the model knows nothing of this text.",
        ),
        "ends-above-unigram": Symptom.warning(
            "the last loss is no better than a constant guess",
            "below {unigram_entropy:.2f}",
            "Treat the model as destroyed, not as half trained.",
            says=f"{_ENDS}[, {{per_step:.3f}} when divided by the accumulation steps]; always "
            "guessing the tokens' overall frequencies would give {unigram_entropy:.3f}.",
        ),
        "suspiciously-low": Symptom.info(
            "the loss is next to nothing after a few updates",
            "above a tenth of the start for the first 30 updates",
            "See whether targets are shifted by one and are not already in the input.",
            says="After {iteration} {unit}s the loss is {loss:.4g}, down from {start:.3f}: text is "
            "not learned that fast unless the answer is in the question.",
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
    curve = describe(losses.iterations, losses.values) if losses is not None else None
    if losses is None or curve is None or not curve.points:
        raise Inconclusive("the log holds no finite training loss")
    if log.is_preference:
        raise NotApplicable("the loss of preference training has no known level")
    vocabulary = model_facts(config, log, base).vocabulary
    uniform = limits.blind_guess(vocabulary)
    steps = (config.grad_accumulation_steps if config is not None else None) or 1
    # Where the first losses are no numbers, a later one does not show how it began.
    begins = bool(np.isfinite(losses.values[0]))
    before = segment.base_val_loss
    added = 1
    if not segment.shows_start or segment.axis == "epoch" or not (begins or _is_finite(before)):
        yield Unsought(
            (*_OF_THE_START, "suspiciously-low"),
            "the log does not show the loss at the run's start; the whole log would",
        )
    else:
        sign = _summed(segment, curve, steps, uniform, limits) if begins else None
        if sign is None:
            yield from _high(segment, curve, vocabulary, uniform, limits)
        else:
            yield sign
            if sign.symptom == "summed":
                why = "the loss is a sum and not a mean, and has no known level"
                yield Unsought(
                    ("starts-above-uniform", "stays-at-chance", "ends-above-unigram"), why
                )
                return
            added = steps
        yield from _too_low(segment, losses, limits)
    if added == 1:
        yield from _at_chance(segment, curve, vocabulary, steps, limits)
    floor = rows.unigram_entropy() if rows is not None else math.nan
    if math.isnan(floor):
        yield Unsought(
            ("ends-above-unigram",),
            "the rows' tokens are not known; the data folder and the base model would tell",
        )
    elif curve.end / added > floor and curve.points > 1:
        yield Sign(
            "ends-above-unigram",
            {
                **_end(curve),
                "per_step": curve.end / added if added > 1 else None,
                "unigram_entropy": floor,
                "base_validation_loss": before,
            },
            severity=Severity.ERROR if before is None or not before >= floor else None,
        )


def _is_finite(loss: float | None) -> bool:
    return loss is not None and math.isfinite(loss)


def _end(curve: SeriesFacts) -> dict[str, Measurement]:
    return {"end": curve.end, "edge": curve.edge if curve.edge > 1 else None}


def _summed(
    segment: Segment, curve: SeriesFacts, steps: int, uniform: float, limits: Limits
) -> Sign | None:
    """Whether the first training loss is no mean, but a sum."""
    losses = segment.finite("train_loss").values
    before = segment.base_val_loss
    level = before if before is not None and 0 < before < uniform else None
    # The first report of a sound run has about the validation loss before it.
    least, most = (
        (max(limits.modest, level / limits.alike), limits.alike * level)
        if level is not None
        else (limits.modest, limits.high)
    )
    measured: dict[str, Measurement] = {
        "first_loss": curve.first,
        "uniform_guess": uniform,
        "base_validation_loss": before,
    }
    onset = int(segment.series["train_loss"].iterations[0])
    far = uniform + limits.uniform_excess if level is not None else limits.summed * uniform
    if steps > 1 and curve.first > far and least <= curve.first / steps <= most:
        figures = {"grad_accumulation_steps": steps, "mean": curve.first / steps}
        return Sign("sum-over-accumulation", measured | figures, onset=onset)
    # One report may be that of a model that a step destroyed; all of them are not.
    if float(np.median(losses[: max(3, len(losses) // 4)])) <= limits.no_mean * uniform:
        return None
    return Sign("summed", measured, onset=onset)


def _at_chance(
    segment: Segment,
    curve: SeriesFacts,
    vocabulary: int | None,
    steps: int,
    limits: Limits,
) -> Iterator[Sign]:
    uniform = math.log(vocabulary) if vocabulary else None
    low = limits.chance_low
    if uniform is not None:
        low = min(low, uniform - limits.chance_below)
    # One batch, or two, are no level.
    if curve.points < 3 or min(curve.end, curve.tail_minimum) < low:
        return
    if curve.end <= (1.0 - limits.has_fallen) * curve.start:
        return
    is_unknown = uniform is None and curve.end > limits.chance_high
    validation = segment.finite("val_loss").values
    apart = np.abs(validation[-1:] - curve.end) < np.abs(validation[-1:] - curve.end / steps)
    # Where no validation agrees with it as it stands, it may be a sum over accumulation steps.
    is_maybe_sum = steps > 1 and not apart.any()
    yield Sign(
        "stays-at-chance",
        {
            **_end(curve),
            "start": curve.start,
            "lowest_of_last_quarter": curve.tail_minimum,
            "uniform_guess": uniform,
            "vocabulary": vocabulary,
            "low": low,
        },
        onset=int(segment.series["train_loss"].iterations[0]),
        severity=Severity.WARNING if is_unknown or is_maybe_sum else None,
    )


def _high(
    segment: Segment, curve: SeriesFacts, vocabulary: int | None, uniform: float, limits: Limits
) -> Iterator[Sign]:
    base = segment.base_val_loss
    is_base = _is_finite(base)
    first = base if base is not None and is_base else curve.first
    is_readable = curve.end < limits.readable * uniform
    measured: dict[str, Measurement] = {
        "first_loss": first,
        "first_is": "validation loss before the first update" if is_base else "first training loss",
        "uniform_guess": uniform,
        "vocabulary": vocabulary or limits.vocabulary,
        "unknown": None if vocabulary else "",
    }
    onset = int(segment.series["val_loss" if is_base else "train_loss"].iterations[0])
    is_above = first > uniform + limits.uniform_excess
    # What begins far away and is learned at once may be an unusual text; no model is known to tell.
    if is_above and (vocabulary is not None or not is_readable):
        is_certain = vocabulary is None or first > uniform + limits.certain_excess
        severity = Severity.ERROR if is_certain else Severity.INFO if is_readable else None
        yield Sign("starts-above-uniform", measured, onset=onset, severity=severity)


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
    if len(hits):
        iteration, value = int(losses.iterations[hits[0]]), float(losses.values[hits[0]])
        yield Sign(
            "suspiciously-low",
            {"start": start, "loss": value, "iteration": iteration, "unit": segment.unit},
            onset=iteration,
            severity=Severity.WARNING if value < limits.low else None,
        )
