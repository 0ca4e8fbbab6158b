"""The loss is on the wrong side of a level that can be known beforehand.

What it finds. A first loss above that of a blind guess, or a sum of losses that makes it so; a loss
that stays at the level of a blind guess; a last loss no better than a constant guess; and a loss
near zero after a handful of updates.

Why it matters. Some levels of the loss are known. Above ln(vocabulary) nothing the model knows
reaches the targets. At the entropy of the tokens' frequencies the model ignores its input: a last
loss of 9.98 is not "high", the model is destroyed. Near zero at once, the input has the answer. The
gradient of a sum is as many times too large as there are terms.

How it is measured. `loss_level.toml` has the bounds. The first loss is the validation loss before
the first update where the log has it, else the first training loss. The uniform guess is ln V of
the base model, from its files or from what its name says, or of 300,000 tokens where the model is
unknown. The constant guess is the entropy of the supervised tokens (Miller-Madow), where data and
tokenizer are at hand. A loss is a sum if the accumulation steps, as a divisor, leave a usual loss,
or if no mean is so high.

When it is wrong. A new kind of text or a new token set starts high in a sound run, so where the
vocabulary is unknown and the loss falls to a usual level, a high start is only noted. A few hundred
repeated rows are learned fast. Losses of preference training have no such levels.

What to do. High at the start: see whether labels, tokenizer and base model belong together.
High at the end: see when it rose. Low at once: see how the targets are shifted.
"""

import math
import re
from collections.abc import Iterator

import numpy as np

from mlxdoctor.check import Inconclusive, NotApplicable, check
from mlxdoctor.engines.series import SeriesFacts, median
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import Segment, Series, TrainingLog
from mlxdoctor.finding import Measurement, Sign, Unsought
from mlxdoctor.judge.curve import level_of
from mlxdoctor.judge.model_facts import MAX_VOCABULARY, model_facts
from mlxdoctor.judge.series_table import Columns, SeriesTable

_TABLE = SeriesTable.read("loss_level.toml")
_FIRST_IS = {True: "validation loss before the first update", False: "first training loss"}
_PERPLEXITY = re.compile(r"(?:train_)?(?:perplex(?:ity)?|ppl)")
_OF_THE_START = ("starts-above-uniform", "starts-far-above", "sum-over-accumulation", "summed")
#: Nats above a uniform guess that an untrained model may have.
_UNTRAINED = 0.2
#: Largest ratio, or its inverse, of a first loss per accumulation step to the validation loss
#: before: the first report of 131 sound runs has 0.47 to 1.03 times that, and a larger ratio
#: would accept runs that rose at once.
_SIMILAR = 1.5
#: Least sum over accumulation steps, in uniform guesses: labels shifted by one or two reach 1.35,
#: a base full of noise 1.45; the sums of 4, 8 and 16 steps had 2.6, 5.2 and 10.
_STEPS_SUM = 1.5
#: Least sum over targets, in uniform guesses, in the first quarter of the reports: means that
#: begin high reach 1.6, runs that a rate destroyed at once 2.9.
_TARGETS_SUM = 4.0
#: Nats of a guess among 8,100 tokens and among 600,000: the levels of chance for an unknown model.
_CHANCE_LOW, _CHANCE_HIGH = 9.0, 13.3
#: Share of the loss of a blind guess below which a validation is far from it: 0.4 in a public log
#: whose training losses are sums.
_FAR_FROM_CHANCE = 0.7
#: Nats below ln V from which on a known model is at chance.
_CHANCE_BELOW = 0.3
#: Nats of a guess among 3,000 tokens: no language model has a higher loss.
_HIGH = 8.0
#: Nats of a perplexity of 1.05, and share of the first loss that is near zero.
_LOW, _LOW_SHARE = 0.05, 0.1
#: Percent of the weights that are trained, up to which it is an adapter on a model that knows text.
_FEW = 10.0
#: Iterations within which text is not learned: rows that are alike take 70 to 100.
_QUICKLY = 30
#: Nats within which all losses lie where each token has the same probability: rows do not matter.
_UNIFORM = 0.01
#: Nats of a first loss on unknown text, and those below which little is left to learn.
_UNKNOWN, _MODEST = 1.0, 0.3


@check(codes=_TABLE.symptoms, rerun_symptom=True)
def loss_level(
    log: TrainingLog,
    base: BaseModel | None,
    rows: SupervisedRows | None,
    config: TrainingConfig | None,
) -> Iterator[Sign | Unsought]:
    segment = log.main
    losses = segment.get("train_loss")
    if losses is None or not losses.facts.points:
        raise Inconclusive("the log holds no finite training loss")
    curve = losses.facts
    if log.is_preference:
        raise NotApplicable("the loss of preference training has no known level")
    vocabulary = model_facts(config, log, base).vocabulary
    uniform = math.log(vocabulary or MAX_VOCABULARY)
    steps = (config.grad_accumulation_steps if config is not None else None) or 1
    before, summed_over = segment.base_val_loss, ""
    is_base = before is not None and math.isfinite(before)
    start = before if before is not None and is_base else float(losses.values[0])
    named: dict[str, Measurement] = {"level_of": level_of(curve), "uniform_guess": uniform}
    if not segment.shows_start or segment.axis == "epoch" or not math.isfinite(start):
        why = "the log does not show the loss at the run's start; the whole log would"
        yield Unsought((*_OF_THE_START, "suspiciously-low"), why)
    else:
        # If the first training loss is not finite, a later one does not show how the run began.
        if np.isfinite(losses.values[0]):
            summed_over = _summed_over(segment, curve, steps, uniform)
        first = "val_loss" if is_base else "train_loss"
        named |= {
            "is_known": vocabulary is not None,
            "is_unknown": vocabulary is None,
            "is_adapter": log.notes.trainable is not None
            and 0.0 < log.notes.trainable.percent < _FEW,
            "first_loss": start,
            "first_is": _FIRST_IS[is_base],
            "first_at": int(segment.series[first].iterations[0]),
            "excess": start - uniform,
            "of_guess": start / uniform,
            "end_of_guess": curve.end / uniform,
            "vocabulary": vocabulary or MAX_VOCABULARY,
            "unknown": None if vocabulary else "",
            # Reports that nothing counts may be of any number of updates.
            **(_too_low(losses) if segment.axis != "row" else {}),
        }
    if summed_over == "targets":
        why = "the loss is a sum and not a mean, and has no known level"
        yield Unsought(("starts-above-uniform", "stays-at-chance", "ends-above-unigram"), why)
    named |= {
        "is_mean": not summed_over,
        "below_zero": int((losses.values < 0.0).sum()),
        "is_sum_of_steps": summed_over == "steps",
        "is_sum_of_targets": summed_over == "targets",
        **_of_perplexity(segment, curve.first),
        "grad_accumulation_steps": steps,
        "mean": curve.first / steps,
        **_chance(segment, curve, vocabulary, steps, start),
    }
    floor = rows.unigram_entropy() if rows is not None else math.nan
    if math.isnan(floor):
        why = "the rows' tokens are not known; the data folder and the base model would tell"
        yield Unsought(("ends-above-unigram",), why)
    else:
        end = curve.end / steps if summed_over == "steps" else curve.end
        named |= {"unigram_entropy": floor, "above_unigram": end - floor}
        named["per_step"] = end if summed_over == "steps" else None
        named["began_below"] = before is None or not before >= floor
    yield from _TABLE.signs(Columns({"train_loss": losses}, lambda _: named), segment.unit)


def _summed_over(segment: Segment, curve: SeriesFacts, steps: int, uniform: float) -> str:
    """What the training losses are summed over: "steps" or "targets"; "" for a mean."""
    losses, before = segment.finite("train_loss").values, segment.base_val_loss
    mean = curve.first / steps
    if before is not None and 0 < before < uniform:
        is_far = curve.first > uniform + _UNTRAINED
        is_usual = max(_MODEST, before / _SIMILAR) <= mean <= _SIMILAR * before
    else:
        is_far, is_usual = curve.first > _STEPS_SUM * uniform, _MODEST <= mean <= _HIGH
    if steps > 1 and is_far and is_usual:
        return "steps"
    # A single high report may be of a model that one step destroyed.
    opening = median(losses[: max(3, len(losses) // 4)])
    is_above = min(opening / _TARGETS_SUM, curve.first) > uniform
    return "targets" if is_above else ""


def _of_perplexity(segment: Segment, first: float) -> dict[str, Measurement]:
    """The first perplexity that stands beside the loss, as a loss in nats a token."""
    names = (name for name in segment.series if _PERPLEXITY.fullmatch(name))
    perplexity = segment.finite(next(names, "")).facts.first
    real = math.log(perplexity) if perplexity > 1.0 else math.nan
    return {"real": real, "times": first / real} if real > 0.0 else {}


def _chance(
    segment: Segment, curve: SeriesFacts, vocabulary: int | None, steps: int, start: float
) -> dict[str, Measurement]:
    """The last losses, and that of the untouched model, beside the level of a blind guess."""
    low = min(_CHANCE_LOW, math.log(vocabulary) - _CHANCE_BELOW) if vocabulary else _CHANCE_LOW
    validation = segment.finite("val_loss").values[-1:]
    is_nearer = np.abs(validation - curve.end) < np.abs(validation - curve.end / steps)
    # Unless the last validation loss is nearer to the loss itself, it may be a sum over steps.
    is_maybe_sum = steps > 1 and not is_nearer.any()
    is_guess = not vocabulary or abs(curve.median - math.log(vocabulary)) <= _UNIFORM
    first = segment.series["train_loss"].iterations[0]
    is_untouched = segment.base_val_loss is not None or (segment.is_counted and first <= 1)
    return {
        "chance_from": low,
        # Where validation is far from chance, the training loss is on another scale.
        "above_chance": None
        if (validation < _FAR_FROM_CHANCE * low).any()
        else min(curve.end, curve.tail_minimum) - low,
        # One that began at chance lost nothing there.
        "was_below": not (is_untouched and start >= low),
        "kept_of_start": curve.end / curve.start if curve.start > 0.0 else None,
        "spread": (spread := curve.highest - curve.lowest),
        "is_uniform": spread <= _UNIFORM and is_guess,
        "guessed": math.exp(min(curve.median, _CHANCE_HIGH)),
        "is_certain": not is_maybe_sum and (bool(vocabulary) or curve.end <= _CHANCE_HIGH),
        "vocabulary_known": vocabulary,
    }


def _too_low(losses: Series) -> dict[str, Measurement]:
    """The first loss that is low sooner than text can be learned, beside the first of all."""
    start = float(losses.values[0])
    # What begins low is text that the model knows.
    if not start >= _UNKNOWN:
        return {}
    values, iterations = losses.values, losses.iterations
    with np.errstate(invalid="ignore"):
        is_low = (values > 0) & (values <= max(_LOW_SHARE * start, _LOW))
        hits = np.flatnonzero(is_low & (iterations <= _QUICKLY))
    if not len(hits):
        return {}
    iteration, loss = int(iterations[hits[0]]), float(values[hits[0]])
    low = {"low_at": iteration, "low_loss": loss, "low_from": start}
    return {**low, "next_to_nothing": loss < _LOW}
