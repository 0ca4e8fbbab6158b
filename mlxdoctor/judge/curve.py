"""What a loss is held against: where its run began, what came before.

`loss_figures` are the figures that the tables of the loss checks (`checks/loss_*.toml`) have
bounds for; `diagnose` and the watch share them.
"""

import math
import re

import numpy as np

from mlxdoctor.engines.series import SeriesFacts, describe, smoothed
from mlxdoctor.evidence.logs.metric_names import HELD_OUT, HELD_OUT_SCORE
from mlxdoctor.evidence.training_log import Segment, Series
from mlxdoctor.finding import Measurement
from mlxdoctor.template import duration

#: Reports from which on a curve has levels: with fewer only what is far off is judged.
ENOUGH = 10
#: Finite losses before the first that is not, of which the highest is held against the lowest; and
#: reports whose median is a leap.
LAST = 3
#: Noises of one report that the last quarter of a curve has to stand above where the run began.
NOISES = 4.0
#: Least fall that shows learning, as a share of the first loss: under 0.02 with a rate of 0 or
#: 1e-7, 0.42 in the slowest healthy run.
FALL = 0.05
#: Share of its lowest within which a validation loss ends at it: twice its noise.
NEAR = 0.05
#: Share of a run in which a loss scaler looks for its scale, and of all reports in which it may
#: overflow later: 1 of 25 behind the first two.
BEGUN, SCALED = 0.1, 0.05
#: The validation loss over the training loss at which both end together: 1.25 where each row stood
#: three times and did no harm, 2.4 and more where copies were learned by heart.
TOGETHER = 1.5
#: Noises of a level within which a fall shows nothing: two levels differ by as much by chance.
CHANCE = 2.0
#: Parts of a long column, by whose means its levels are told.
PARTS = 50
#: Nats above the start from which on a loss that ends far above it has departed.
DEPARTED = 0.5
#: Seconds of a validation that looked at rows.
LOOKED = 0.05
_BESIDE = re.compile(rf"{HELD_OUT}.*(?:accurac(?:y|ies)|acc|f1|entropy)")
#: Words of a metric that tells more of training on preferences than its loss.
REWARDS = frozenset({"reward", "rewards", "margin", "margins", "r"})


def held_out_scores(segment: Segment) -> dict[str, Series]:
    """What else was measured on held-out rows, by its name: accuracies and such, or percents."""
    # Of one score on two splits that which was taken more often.
    found = {
        match["name"].replace("_", " "): segment.finite(name)
        for name in sorted(segment.series, key=lambda name: len(segment.finite(name)))
        # How often the better answer of a pair is the likelier is told of its margins.
        if not (segment.is_preference and "reward" in name)
        and (match := HELD_OUT_SCORE.fullmatch(name))
    }
    return {
        name: series
        for name, series in sorted(found.items(), key=lambda pair: (pair[0] != "f1", -len(pair[1])))
        # Of one row a score is 0 or 1.
        if len(series) > 1
        and 0.0 <= series.facts.lowest <= series.facts.highest <= 100.0
        and not np.isin(series.values, (0.0, 1.0)).all()
    }


def start_of(segment: Segment) -> tuple[float, bool]:
    """The untouched model's loss where the log has it, else the first that was reported.

    A first report of the first iteration is the untouched model's on the rows trained on, which
    may be harder than those it was validated on.

    Returns:
        The loss in nats, and whether it is the untouched model's.
    """
    base, losses = segment.base_val_loss, segment.series["train_loss"]
    if base is not None and math.isfinite(base) and base > 0:
        is_untouched = segment.is_counted and losses.iterations[0] <= 1
        return (max(base, losses.facts.first) if is_untouched else base), True
    return losses.facts.first, False


def loss_figures(segment: Segment, name: str) -> dict[str, Measurement]:
    """Figures of the column `name`, a loss or a speed, that are not of its values alone."""
    if name.endswith("_per_second") and len(memory := segment.finite("peak_memory_gb")):
        return {"memory": memory.facts.highest}
    if name == "grad_norm":
        # Norms that are all 0 beside a loss that falls are logged wrongly.
        course = segment.finite("train_loss").facts
        is_none = not np.any(segment.finite(name).values)
        is_high = course.first > 0.0 and begins_high(course)
        fall = 1.0 - course.end / course.first if is_high else course.fall
        # Answers that are all rewarded alike have none, and others have.
        is_rewarded = segment.is_preference and not is_none
        # A loss scaler leaves steps out, and what is learned without them shows on other rows.
        excused = fall if is_none and math.isfinite(fall) else float(is_rewarded)
        return {"excused": excused, "hurts": not (ends_low(segment) or _recovers(segment))}
    if name == "seconds_per_iteration":
        took, planned = segment.finite("val_seconds"), segment.announced_iterations
        speed = segment.finite("iterations_per_second").facts.median
        return {
            "val_seconds": took.facts.highest if len(took) else None,
            "planned": planned,
            "lasting": duration(planned / speed) if planned and speed > 0.0 else None,
        }
    if name == "val_loss":
        named, losses = _validated(segment), segment.get("train_loss")
        if losses is not None and (rise := losses.facts.end - losses.facts.minimum) > 0.0:
            # How far below the end of a training loss that rose, as a share of the rise.
            named["below_rise"] = (losses.facts.end - segment.series[name].facts.last) / rise
        return named | _broken(segment)
    if name != "train_loss":
        return {}
    losses, facts = segment.series[name], segment.series[name].facts
    named = {
        "is_mean": not segment.is_preference,
        # No reward or margin is other than 0.
        "is_unrewarded": not any(
            REWARDS & set(other.split("_")) and bool(np.any(series.values != 0.0))
            for other, series in segment.series.items()
        ),
        "level_of": level_of(facts),
        **_before(segment, losses, facts),
    }
    if facts.points and segment.shows_start:
        named |= _since_start(segment, losses.finite, facts)
    return named


def _broken(segment: Segment) -> dict[str, Measurement]:
    """Whether a validation that is no number looked at rows, and no sound report follows it."""
    validation, losses = segment.series["val_loss"], segment.finite("train_loss")
    took = segment.finite("val_seconds").facts.highest
    first = validation.facts.non_finite.first
    follows = first is not None and bool((losses.iterations > first).any())
    names = (name for name in segment.series if _BESIDE.fullmatch(name))
    beside = next((name for name in names if len(segment.finite(name))), None)
    scores = segment.finite(beside or "").facts
    looked = took >= LOOKED and not follows
    return {
        "took": took if took >= LOOKED else None,
        "beside": beside and beside.replace("_", " "),
        "beside_lowest": scores.lowest,
        "beside_highest": scores.highest,
        "is_broken": first is not None and (looked or beside is not None),
    }


def _validated(segment: Segment) -> dict[str, Measurement]:
    """Validations of the trained model, against that of the untouched one."""
    base, later = segment.base_val_loss, segment.finite("val_loss").values
    if base is not None and math.isfinite(base):
        later = later[1:]
    named: dict[str, Measurement] = {"is_mean": not segment.is_preference, "is_unvalidated": True}
    named["validated"] = len(later)
    if base is not None and 0.0 < base < math.inf and len(later):
        named["is_unvalidated"] = False
        named["validated_least"] = float(later.min()) / base
        named["validated_most"] = float(later.max()) / base
    return named


def _before(segment: Segment, losses: Series, facts: SeriesFacts) -> dict[str, Measurement]:
    """What came before the first loss that is not finite, and before the first that is 0."""
    base, values = segment.base_val_loss, losses.values
    is_known = base is not None and math.isfinite(base)
    good = values[: int(np.argmin(np.append(np.isfinite(values), False)))]
    named: dict[str, Measurement] = {
        "base_is_broken": base is not None and not is_known,
        "finite_after": facts.points > len(good),
        "known_before": len(good) + is_known if len(good) else 0,
        "base_validation_loss": base if is_known else None,
    }
    if len(good):
        # Where it began, or the lowest it reached: a loss may fall before it rises.
        lowest = min([float(good.min()), *([base] if base is not None and is_known else [])])
        last = float(good[int(np.argmin(good)) :][-LAST:].max())
        named |= {"before": float(good[-1]), "lowest_before": lowest}
        named |= {"risen_before": last - lowest}
        named["times_before"] = last / lowest if lowest > 0.0 else math.inf
    zero = values == 0.0
    if zero.any():
        before = values[: int(np.argmax(zero))]
        before = before[np.isfinite(before)]
        named["before_zeros"] = float(before[-1]) if len(before) else math.inf
        norms = segment.get("grad_norm")
        named["zeros_hide"] = norms is not None and bool(
            np.isin(losses.iterations[zero], norms.iterations[~np.isfinite(norms.values)]).any()
        )
    return named


def _since_start(segment: Segment, losses: Series, facts: SeriesFacts) -> dict[str, Measurement]:
    """A loss against where its run began."""
    (start, is_base), values = start_of(segment), losses.values
    risen = facts.end - start
    onset = facts.onset
    if onset is None:
        departed = values > start + max(0.0, min(DEPARTED, risen / 2))
        onset = int(losses.iterations[int(np.argmax(departed))])
    later = values[losses.iterations >= onset]
    above = int(np.argmax(np.append(values[::-1] <= start, True)))
    named: dict[str, Measurement] = {
        **_validated(segment),
        "origin": start,
        "began": "before the first update" if is_base else "in the first report",
        "is_base": is_base,
        "is_long": facts.points >= ENOUGH,
        "is_short": facts.points < ENOUGH,
        "above_origin": risen,
        "tail_above": facts.tail_minimum - start,
        "tail_clear": facts.tail_minimum - start - min(NOISES * facts.noise, risen),
        "above_at_end": above,
        "rises_at_end": int(np.argmax(np.append(np.diff(values)[::-1] <= 0.0, True))),
        "above_since": int(losses.iterations[-above]) if above else None,
        "departure": onset,
        "reports_above": int((later > start).sum()),
        "later_reports": len(later),
        "has_come_back": "" if risen <= 0.0 else None,
        "least_above_origin": facts.lowest - start,
    }
    if start > 0.0:
        named["over_origin"] = facts.end / start
        named["least_over_origin"] = facts.lowest / start
        if len(values) >= LAST:
            named["peak_over_origin"] = float(smoothed(values, LAST).max()) / start
    return named


def ends_low(segment: Segment) -> bool:
    """Whether validations fell, and end near the lowest: what was learned holds for other rows."""
    held_out = segment.finite("val_loss").facts
    has_fallen = held_out.points >= LAST and held_out.fall >= FALL
    return has_fallen and held_out.last <= (1.0 + NEAR) * held_out.lowest


def _recovers(segment: Segment) -> bool:
    """Whether, without a validation, all losses are finite and fell: bad gradients were early."""
    losses, norms = segment.series.get("train_loss"), segment.series.get("grad_norm")
    if losses is None or norms is None or len(segment.finite("val_loss")):
        return False
    is_finite = bool(np.isfinite(losses.values).all())
    later = norms.values[math.ceil(BEGUN * len(norms)) :]
    is_early = np.count_nonzero(~np.isfinite(later)) <= SCALED * len(norms)
    return is_finite and bool(is_early) and losses.facts.fall >= FALL


def ends_together(segment: Segment) -> bool:
    """Whether other rows are known about as well at the end as those trained on."""
    held_out, trained = (segment.finite(name).facts for name in ("val_loss", "train_loss"))
    return not trained.points or held_out.last <= TOGETHER * trained.end


def fall_in_noises(facts: SeriesFacts) -> float:
    """From the level of the start to that of the end, in noises of one (a median of several)."""
    noise = facts.noise / math.sqrt(facts.edge)
    fall = facts.start - facts.end
    return fall / noise if noise else math.copysign(math.inf, fall) if fall else 0.0


def begins_high(facts: SeriesFacts) -> bool:
    """Whether the first report stands far above the last: it fell before the first level ends."""
    return facts.first - facts.end > NOISES * facts.noise + FALL * facts.first


def levels(series: Series) -> tuple[SeriesFacts, int | None]:
    """A column by the means of its parts where it is long, and of how many reports its levels are.

    What scatters as rewards do has no level in ten reports of a thousand.
    """
    width = len(series) // PARTS
    if width < 2:
        return series.facts, level_of(series.facts)
    whole = len(series) - len(series) % width
    means = series.values[:whole].reshape(-1, width).mean(axis=1)
    facts = describe(series.iterations[:whole:width], means)
    return facts, facts.edge * width


def level_of(facts: SeriesFacts) -> int | None:
    """Of how many reports a level is the median, where it is one."""
    return facts.edge if facts.edge > 1 else None


def is_warm_up(rates: Series) -> bool:
    """Whether a learning rate rises to its end: one that is held has warmed up.

    Printed with few digits it may be the same in several reports.
    """
    facts = rates.facts
    is_rising = facts.points > 1 and rates.values[3 * len(rates) // 4 - 1] < facts.last
    return bool(is_rising) and facts.last == facts.highest > 2.0 * facts.first
