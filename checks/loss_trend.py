"""The loss does not go where the loss of a run that learns goes.

What it finds. A loss that ends far above where it began, that never moves, or that repeats to the
last digit; and a validation loss that rises from its minimum, or stands far above the training
loss. (A loss that fell and rose again is a row of the check `series-facts`.)

Why it matters. The last value alone misleads: 9.98 looks like a number among others until one
knows that the run began at 1.86. Seen early, it saves hours.

How it is measured. `loss_trend.toml` has the bounds. A multiple of the base model's own loss (the
validation loss before the first update) is a fact. Levels are medians of the first and last
reports. Whether a level loss still falls is decided by the Theil-Sen slope and its 95% interval,
widened for autocorrelation. With fewer than ten reports only facts are judged. Rows are known by
heart if the validation loss is far above the training loss; that is an error if the validation
loss rose, or fell no more for the last part of many passes over the same rows.

When it is wrong. The training loss averages batches and the validation loss tokens, so small
differences between the two are ignored. A run resumed from a trained adapter begins at a level
it has already learned, and a log that begins in the middle does not show where it began: such
runs are not called unlearned, nor are those whose first report averages many updates without
a validation before. Of the loss of pairs (DPO, ORPO, CPO) only one that ends far above where it
began is judged, and of training on rewards (GRPO, PPO) none.

What to do. Take the last checkpoint before the onset. For a loss that leaps, lower the
learning rate or the scale; for one that never moves, see whether the adapter's weights changed.
"""

import math
from collections.abc import Iterator
from functools import partial
from pathlib import PurePath

import numpy as np

from mlxdoctor.check import Inconclusive, NotApplicable, check
from mlxdoctor.engines.series import SeriesFacts, median, noise, trend
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import Segment, Series, TrainingLog
from mlxdoctor.exhibits import LossCurve
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Unsought
from mlxdoctor.judge.course import VALIDATIONS, courses, fell
from mlxdoctor.judge.curve import (
    ENOUGH,
    FALL,
    begins_high,
    fall_in_noises,
    held_out_scores,
    is_warm_up,
    level_of,
    loss_figures,
    start_of,
)
from mlxdoctor.judge.extent import passes_told
from mlxdoctor.judge.series_table import Columns, SeriesTable
from mlxdoctor.measure.logged_levels import losses_shown, rows_gone_over
from mlxdoctor.measure.policy_curves import policy_curves
from mlxdoctor.safety.quoting import quoted

_TABLE = SeriesTable.read("loss_trend.toml")
#: Least fall by the upper end of the slope's interval that leaves it open whether a run learned. 14
#: of 3,000 simulated sound curves get the warning, none an error.
_POSSIBLE_FALL = 0.15
#: Iterations in which a loss need not fall, and those after which one that did not is an error:
#: warm-up and low rates need some.
_FEW_ITERATIONS, _ITERATIONS = 20, 100
#: The rest of a fall that is past its steep start.
_REST = 0.1
#: Share of the announced iterations in which a rate may still warm up.
_BEGUN = 0.1
#: A learning rate that is none too low: half of 203 sound public logs that print one reach it.
_USUAL = 5e-5
#: Noises of a level by which the end lies below the start, be the slope what it may.
_CERTAIN = 4.0
#: Nats below which little is left to learn.
_ALREADY_LOW = 0.3
#: Iterations before a late first report: the steepest part of a sound curve lies in the first 20.
_LATE = 15
#: Share of a loss within which all of its reports lie where nothing moves it.
_STILL = 0.01
#: Share of its fall that a settled validation loss has still to fall (the noise of 24 rows), and of
#: the run by which a stale one has settled: at most 0.42 with 24 rows and fewer, 0.9 with 200.
_SETTLED_SHARE, _SETTLED_BY = 0.01, 0.6
#: The highest loss over the median, from which on it is no matter of learning too little.
_EXPLODED = 50.0


@check(codes=_TABLE.symptoms, marks_onset=True, rerun_symptom=True)
def loss_trend(
    log: TrainingLog,
    config: TrainingConfig | None,
    rows: SupervisedRows | None,
    base: BaseModel | None,
) -> Iterator[Sign | LossCurve | Seen | Unsought]:
    segment = log.main
    yield from losses_shown(segment, base, rows)
    losses = segment.get("train_loss")
    if losses is None or not losses.facts.points:
        yield from courses(log)
        if len(validation := segment.finite("val_loss")):
            columns = Columns({"val_loss": validation}, partial(_figures, log, None))
            yield from _signs(columns, segment.unit)
        raise Inconclusive("the log holds no finite training loss")
    curve = losses.facts
    policy = policy_curves(log, config)
    if log.is_preference and policy.samples:
        yield from courses(log, is_told=True, is_rewarded="reward" in policy.series)
        if policy.rewards_unseen:
            yield Seen(
                "The log has no reward: a loss of training on rewards lies about 0, be it learned "
                "or not."
            )
        raise NotApplicable("the loss of training on rewards has no level or trend to judge")
    yield from _unsought(log)
    figures = partial(_figures, log, _passes(rows, config, log))
    signs = _signs(Columns(segment.series, figures), segment.unit)
    by_code = {sign.symptom: sign for sign in signs if isinstance(sign, Sign)}
    if "overfitting" in by_code:
        by_code.pop("by-heart", None)
    yield from (sign for sign in signs if isinstance(sign, Unsought))
    if "diverged" in by_code:
        yield by_code["diverged"]
    # The loss of pairs may stay, rise again and fall to zero in a sound run.
    elif not log.is_preference:
        yield from by_code.values()
        is_resumed = log.resumed or (config is not None and config.resume_adapter_file)
        if not is_resumed and "repeats" not in by_code:
            # Whether it is known that training began from the base model.
            is_fresh = config is not None or log.resumed is False
            yield from _never_learned(segment, curve, is_fresh=is_fresh)
    is_told = not {"overfitting", "by-heart", "none-held-out"}.isdisjoint(by_code)
    yield from courses(log, is_told=is_told)
    if curve.points < ENOUGH:
        more = ", from a lower steps_per_report or a longer run"
        raise Inconclusive(
            f"{curve.points} finite training losses are too few to judge a trend; "
            f"{ENOUGH} are needed{more if curve.points == curve.count else ''}"
        )


def _unsought(log: TrainingLog) -> Iterator[Unsought]:
    """What the log can't show."""
    segment = log.main
    if not segment.shows_start:
        why = "the log does not show where the loss began; the whole log would"
        yield Unsought(("diverged", "never-learned"), why)
    if log.is_preference:
        why = "the loss of preference training has no trend of its own to judge"
        yield Unsought(("repeats", "never-learned", "overfitting"), why)
        return
    if segment.shows_start and _opens_late(segment):
        why = "what was learned before the first report is not in the log"
        yield Unsought(("never-learned",), f"{why}; a validation before training would show it")
    if len(segment.finite("val_loss")) < 2:
        why = "the log has no two validation losses to compare; validate while training"
        yield Unsought(("overfitting",), why)


def _opens_late(segment: Segment) -> bool:
    """Whether the steepest part of a sound curve could lie before the first report.

    What is learned by the second interval of that length goes on, if by little.
    """
    losses, facts = segment.series["train_loss"], segment.series["train_loss"].facts
    moved = max(abs(facts.start - facts.end), facts.noise) / facts.start if facts.start > 0 else 1.0
    late = _LATE if moved >= _STILL else 2 * _LATE
    is_late = segment.is_counted and bool(losses.iterations[0] > late)
    return segment.base_val_loss is None and is_late


def _signs(columns: Columns, unit: str) -> list[Sign | Unsought]:
    """What the table finds. A validation loss that left for good is no overfitting."""
    signs = list(_TABLE.signs(columns, unit))
    codes = {sign.symptom for sign in signs if isinstance(sign, Sign)}
    hidden = {"overfitting"} if "validation-diverged" in codes else set()
    hidden |= {"leapt"} if "exploded" in codes else set()
    return [sign for sign in signs if isinstance(sign, Unsought) or sign.symptom not in hidden]


def _never_learned(segment: Segment, curve: SeriesFacts, *, is_fresh: bool) -> Iterator[Sign]:
    """A sign if nothing was learned; none if something was, or may have been."""
    is_short = curve.points < ENOUGH or curve.non_finite.count
    has_exploded = curve.highest > _EXPLODED * curve.median
    if not segment.shows_start or is_short or has_exploded or curve.start < _ALREADY_LOW:
        return
    losses, (start, is_base) = segment.series["train_loss"], start_of(segment)
    validation = segment.finite("val_loss").facts
    constant = validation.first if validation.is_constant and validation.points > 2 else None
    # The slope of a curve that falls only at its start is zero: the levels show that it fell.
    is_lower = fall_in_noises(curve) > _CERTAIN
    # A first report far above the others: what fell, fell before the second level begins.
    is_lower |= begins_high(curve)
    rates = segment.finite("learning_rate")
    is_begun = segment.announced_iterations is None or (
        losses.iterations[-1] >= _BEGUN * segment.announced_iterations
    )
    # What still warms up has hardly begun.
    is_begun &= not is_warm_up(rates)
    learned = 1.0 - curve.end / start if is_base else 0.0
    learned = max(
        learned, 1.0 - curve.end / max(start, curve.first, curve.start) if is_lower else 0.0
    )
    line = trend(losses.iterations, losses.values)
    span = float(losses.iterations[-1] - losses.iterations[0])
    fall, at_most = -line.slope * span / curve.start, -line.low * span / curve.start
    is_level = constant is not None and line.low <= 0.0 <= line.high and not is_lower
    if max(learned, fall) >= FALL and not is_level:
        return
    # What rises for certain is no small step.
    if constant is None and at_most < 0.0:
        return
    # Levels of noisy reports may differ by as much; a line through all of them decides for a fall.
    is_open = _opens_late(segment) or max(at_most - _POSSIBLE_FALL, curve.fall - FALL) >= 0.0
    is_short = segment.is_counted and losses.iterations[-1] < _FEW_ITERATIONS
    if constant is None and (is_open or is_short or not is_begun):
        return
    is_long = bool(losses.iterations[-1] >= _ITERATIONS)
    is_maybe = constant is None and at_most >= FALL and rates.facts.highest >= _USUAL
    is_certain = constant is not None or (is_long and at_most < FALL and is_fresh)
    yield Sign(
        "never-learned",
        {
            "start": curve.start,
            "end": curve.end,
            "level_of": level_of(curve),
            "iterations": int(losses.iterations[-1]),
            "unit": segment.unit,
            "same_validation_loss": constant,
            "learned_by_the_line": max(fall, 0.0),
            "learned_at_most": at_most if math.isfinite(at_most) else None,
        },
        # At a usual rate a fall that can't be told from none, and may be one, is a fact.
        severity=Severity.ERROR if is_certain else Severity.INFO if is_maybe else None,
    )


def _figures(log: TrainingLog, passes: float | None, name: str) -> dict[str, Measurement]:
    """Figures of a column that depend on other columns, too."""
    figures, facts = loss_figures(log.main, name), log.main.series[name].facts
    training, validation = log.main.finite("train_loss"), log.main.finite("val_loss")
    curve = training.facts if len(training) else None
    figures["is_alone"] = not (len(validation) if curve is not None else 0)
    if name == "train_loss" and held_out_scores(log.main):
        # What was measured on rows held out is no loss, and tells of them all the same.
        figures["is_alone"] = False
    if name == "train_loss" and (passes_made := passes_told(log)) > 0.0:
        figures["epochs"] = passes_made
    if name != "val_loss" or facts.lowest <= 0.0:
        return figures
    figures["kept_best"] = "" if log.notes.kept_best else None
    if facts.points < 2:
        # One that was made when the training was over.
        is_both = len(training) and len(validation)
        is_late = is_both and validation.iterations[0] >= training.iterations[-1]
        return figures | (_beside(facts.last, curve) if curve is not None and is_late else {})
    values = validation.values
    later = values[int(np.argmin(values)) + 1 :]
    is_few = len(values) < VALIDATIONS
    last = facts.last if is_few or not len(later) else median(later[-2:])
    # Neighbouring validation losses differ by the noise; the steep start is none.
    fallen = int(np.argmax(values <= facts.lowest + _REST * (facts.first - facts.lowest)))
    band = 3.0 * min(facts.noise, noise(values[fallen:]) or facts.noise)
    band = band if len(values) >= 6 else 0.0
    return figures | {
        "is_few": is_few,
        "by_heart": "",
        "is_many": not is_few,
        "after_lowest": len(later),
        # So many of the last validations were each above the one before.
        "climbs": int(np.argmax(np.append(np.diff(values)[::-1] <= 0.0, True))),
        "times_lowest": last / facts.lowest,
        "above_lowest": last - facts.lowest,
        "beyond_noise": last - facts.lowest - band,
        **({} if curve is None else _beside(last, curve)),
        **_below(training, validation),
        "kept": facts.last / facts.first if facts.first > 0.0 else None,
        "best": facts.lowest if facts.lowest < facts.first else None,
        "gained_nothing": curve is not None and curve.points > 1 and curve.end >= curve.start,
        **({} if is_few else _settling(validation)),
        "passes": passes,
        **_where_to_stop(log, facts.lowest_at),
        **_risen_score(log.main, facts.lowest_at),
    }


def _risen_score(segment: Segment, since: int) -> dict[str, Measurement]:
    """A score on held-out rows that is higher at the end than where their loss was lowest."""
    for name, scores in held_out_scores(segment).items():
        before = scores.values[scores.iterations <= since]
        if len(before) and scores.facts.last > before[-1]:
            return {"score": name, "score_last": scores.facts.last}
    return {}


def _beside(last: float, curve: SeriesFacts) -> dict[str, Measurement]:
    """A last validation loss beside the training loss."""
    return {
        "gap": last / max(curve.end, 1e-9),
        "apart": last - curve.end,
        "fell_to": curve.end if fell(curve.start, curve.end) else None,
    }


def _below(training: Series, validation: Series) -> dict[str, Measurement]:
    """How validation losses compare with the training loss that was reported before each."""
    shares, known = [], 0
    for at, held_out in zip(validation.iterations, validation.values, strict=True):
        reported = int(np.count_nonzero(training.iterations <= at))
        before = training.values[:reported]
        # A report from before the validation before it is of another time.
        if reported > max(known, 2) and before[-1] > 0.0:
            shares.append(held_out / float(before[-1]))
        known = reported
    if not shares:
        return {}
    return {"below_in": len(shares), "share_of_training": median(np.array(shares))}


def _settling(validation: Series) -> dict[str, Measurement]:
    """Whether the validation loss fell no more for a good part of the run, or climbed.

    It climbed if the later losses are four noises above a minimum in the first half: chance makes
    the minimum of noisy values about two noises too low.
    """
    values, iterations = validation.values, validation.iterations
    lowest = int(np.argmin(values))
    later = values[lowest + 1 :]
    near = values[lowest] + _SETTLED_SHARE * (values[0] - values[lowest])
    settled, span = iterations[int(np.argmax(values <= near))] - iterations[0], np.ptp(iterations)
    has_climbed = len(later) >= 5 and iterations[lowest] <= (iterations[0] + iterations[-1]) / 2
    if has_climbed:
        rise = float(later[len(later) // 2 :].min() - values[lowest])
        has_climbed = rise > 4.0 * noise(values[lowest:])
    return {"is_stale": bool(settled <= _SETTLED_BY * span), "has_climbed": bool(has_climbed)}


def _passes(
    rows: SupervisedRows | None, config: TrainingConfig | None, log: TrainingLog
) -> float | None:
    """How often training went over each different row; None if that is unknown."""
    gone_over = rows_gone_over(config, log)
    if rows is None or not rows.rows or not gone_over:
        return None
    # The share of different rows among those that were read.
    different = len({row.tokens.tobytes() for row in rows.rows}) / len(rows.rows)
    return gone_over / round(different * rows.total_rows)


def _where_to_stop(log: TrainingLog, iteration: int) -> dict[str, Measurement]:
    """The iteration at which to stop a run that overfitted, and the save nearest to it."""
    segment = log.main
    columns = [segment.finite(name).iterations for name in ("train_loss", "val_loss")]
    end = max(int(places[-1]) for places in columns if len(places))
    first = segment.first or 0
    # A minimum at the first report is from before training.
    if iteration <= first and segment.base_val_loss is not None:
        return {"never_below": ""}
    if not segment.is_counted or iteration <= first or iteration >= end:
        return {}
    stop: dict[str, Measurement] = {"advised_iters": iteration, "nearest_save": None}
    # Of few the lowest may already lie beyond the best.
    is_few = len(segment.finite("val_loss")) < VALIDATIONS
    stop["stop_at"] = f"{segment.unit} {iteration}{', or earlier' if is_few else ''}"
    saves = {save.iteration: save.files for save in log.notes.saves if save.iteration is not None}
    nearest = min(saves, key=lambda saved_at: abs(saved_at - iteration), default=end)
    if nearest < end:
        names = [PurePath(file).name for file in saves[nearest]]
        numbered = next((file for file in names if str(nearest) in file), None)
        stop["nearest_save"] = quoted(numbered) if numbered else f"the save of iteration {nearest}"
    return stop
