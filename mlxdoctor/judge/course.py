"""Where the losses of a log went, in sentences: what a reader of the log sees in it."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from mlxdoctor.engines.series import (
    MAX_EDGE,
    SeriesFacts,
    blocks,
    lone_peaks,
    median,
    smoothed,
    stations,
    trend,
)
from mlxdoctor.evidence.logs.metric_names import HELD_OUT
from mlxdoctor.evidence.training_log import Segment, Series, TrainingLog
from mlxdoctor.finding import Measurement, Seen
from mlxdoctor.judge.curve import (
    CHANCE,
    ENOUGH,
    FALL,
    NOISES,
    begins_high,
    fall_in_noises,
    held_out_scores,
    level_of,
)
from mlxdoctor.judge.extent import extent, passes_told, remarked, warned
from mlxdoctor.safety.quoting import quoted

#: Nats that three decimals show.
VISIBLE = 1e-3
#: Share of its fall by which a validation loss that still falls lies below the one before.
FALLING = 0.05
#: Nats, and the larger loss over the smaller, from which on the two losses stand apart.
APART, TIMES = 0.2, 1.25
#: Share of its fall that little is.
LITTLE = 0.1
#: Share of a loss that a small fall has at most.
SMALL = 0.15
#: The first report over the level of the first ones, below which it is an outlier.
OUTLIER = 0.5
#: Share of its end by which single reports of the second half differ where that is told.
STRAY = 0.2
#: Nats above which a loss is told as a perplexity, too: of text that the model can hardly predict.
#: 7 of 227 sound public logs end there, and 31 of 169 others.
UNREADABLE = 4.0
#: Nats of a blind guess among more tokens than any model has.
GUESS = 13.0
#: Share of a loss within which it is level, whatever its noise, and at most; and share of the run
#: that a level has at least.
LEVEL, WOBBLE, LEVEL_SHARE = 0.02, 0.1, 0.3
#: Windows that a run has at most whose medians tell where it is level.
WINDOWS = 20
#: Nats from which on a loss is near zero: a perplexity of 1.1.
NEAR_ZERO = 0.1
#: The same within one pass over the rows: 0.13 in a public run whose rows were nearly alike.
LOW_AT_ONCE = 0.15
#: The larger loss over the smaller where rows are known better than others.
KNOWN_BETTER = 3.0
#: A loss falls to its end where its last third of the second half lies below the third before by so
#: much of that half's fall: 0.2 in a steady fall that flattens, 0 between the steps of stairs.
STEADY = 0.1
#: Validations that show from both sides where a loss turned.
VALIDATIONS = 4
#: The highest loss over the first, and noises of a report, from which on a rise on the way is told.
PEAK, PEAK_NOISES = 1.25, 5.0
#: Other runs of a log that are told.
MOST = 4
#: Updates after which little is learned for good: after ten, 62 sound runs of real text have 0.15
#: and more of the fall of their loss before them.
TRIAL = 12
#: Share of a loss by which one of few reports has fallen.
SHOWN = 0.01
#: Noises of a report between the highest and the lowest of a loss without a trend, at most: 3.4 in
#: a public log that lies level, 7 and 15 in two in which single reports stand out.
SCATTER = 6.0
#: Reports from which on medians tell what a loss passes, and parts that a long log is divided into.
MANY, PARTS = 40, 25
#: Share of a pass over the rows below which most were never seen.
PASS = 0.25
#: Of a loss, what it falls by where a pass begins and rows are known again: 0.24 and 0.39 in two
#: public logs. Times what the last reports before that differ by; and half as many reports.
KNOWN_AGAIN, AT_ONCE, EDGE = 0.15, 2.0, 2

_HELD_OUT = re.compile(HELD_OUT)
_VALIDATED = re.compile(r"\b(?:val|eval)", re.IGNORECASE)

#: The losses that runs are told by, and their words.
_LOSSES = {"val_loss": "validation loss", "train_loss": "training loss"}

_NEAR_ZERO = (
    "[Both losses end near zero{both}|The training loss ends near zero and the validation loss at "
    "{held_out:.3f}: the rows trained on are known better than others|The training loss ends near "
    "zero, and no later validation{scored} tells of other rows].[ Such a loss has three usual "
    "reasons: the rows are nearly alike or known by heart, the answer stands in the prompt, or it "
    "is no mean over tokens{readings}.][ Validation rows with so low a loss may be much like those "
    "trained on{both}.]"
)

_BEGINS = "The log begins [in epoch {epoch:.3g}|at {unit} {first}]: how the run began is not in it."
_SHORT = (
    "[What ends at {unit} {trial} shows that training runs, and little of what it learns|The log "
    "ends after {share:.1%} of a pass over the rows]."
)
_FELL = (
    "The {series} fell from {first:.3f} [at {unit} {first_at}|before the first update] to "
    "{last:.3f}[, a perplexity of {perplexity:.0f}, where few sound runs end,]"
    "[ (median of the last {level_of} reports, to {unit} {last_at})| at {unit} {last_at}]"
    "[, by {share:.1%} in all][; it was lowest at {unit} {lowest_at} ({lowest:.3f}{lowest_in}), "
    "and ends {regained:.1%} above that]."
    "[ {on_the_way}: {way}.][ Lone reports stand out: {lone}.][ It rose from {low_before:.3f} "
    "around {unit} {low_at} to {peak:.3f} around {peak_at}, in medians of {peak_of} reports.| It "
    "rose from {low_before:.3f} at {unit} {low_at} to {peak:.3f} at {peak_at}.]"
    "[ It still falls at the end{falling}.][ In the second half single reports lie between "
    "{stray_low:.3f} and {stray_high:.3f}.]"
    "[ From {unit} {level_from} on its level{level_in} stays within {level_by:.2g} of that.]"
    "[ It ends {below:.2f} below the validation loss.| It ends {above:.2f} above the validation "
    "loss.][ The log has no validation{alone}.]"
)
_LIES = (
    "The {series} [is {only:.3f}|{goes} from {first:.3f} to {last:.3f}{levels}, between "
    "{low:.3f}{low_at} and {high:.3f}] ({count:* report}, {unit} {first_at}[{of}| to {last_at}])."
    "[ {on_the_way}: {way}.][ Lone reports stand out: {lone}.][ The log has no validation{alone}.]"
)


def fell(first: float, last: float) -> bool:
    """Whether a loss fell by what shows; what is not above zero is no loss of a language model."""
    return last > 0.0 and first - last >= max(FALL * first, VISIBLE)


def courses(
    log: TrainingLog, *, is_told: bool = False, is_rewarded: bool = False
) -> Iterator[Seen]:
    """A sentence for each loss, the validation loss first, for the test and for the other runs.

    A validation loss that fell shows learning: it is not of the rows that are learned.

    Args:
        is_told: whether it is told already what both losses come to.
        is_rewarded: whether a reward tells what was learned, beside which the loss says nothing.
    """
    segment = log.main
    validation, training = segment.finite("val_loss"), segment.finite("train_loss")
    # An early validation says nothing of the end.
    is_both = len(validation) and len(training)
    is_late = is_both and 2 * validation.iterations[-1] >= training.iterations[-1]
    held_out_last = validation.facts.last if is_late else None
    # A validation that comes early shows the start, too.
    is_early = len(validation) > 1 and validation.iterations[0] <= np.diff(validation.iterations)[0]
    if len(training) and not (segment.shows_start or is_early):
        epochs = segment.finite("epoch").facts
        epoch = epochs.first if segment.axis == "row" and epochs.points else None
        first = int(training.iterations[0])
        # A batch that is left out has no loss.
        if first == segment.first and "resumed_from" not in log.notes.header:
            yield Seen(_BEGINS, {"epoch": epoch, "unit": segment.unit, "first": first})
    short = _too_short(log)
    if short:
        yield Seen(_SHORT, {"unit": segment.unit, **short})
    if len(training) and not (log.is_preference or is_told):
        scored = " loss" if held_out_scores(segment) else ""
        # Within the first pass no row was seen twice.
        low = LOW_AT_ONCE if 0.0 < passes_told(log) <= 1.0 else NEAR_ZERO
        yield from _together(training, held_out_last, scored, low)
    if len(validation):
        held_out = _course(segment, "validation loss", validation)
        # Rows that were trained on show nothing that was learned for others.
        shows = not (log.notes.copied or short.get("trial"))
        yield replace(held_out, learned=held_out.learned and shows)
    if len(training) and not is_rewarded:
        gap = held_out_last - training.facts.end if held_out_last is not None else 0.0
        # A level of reports that fall fast is none of the end.
        is_apart = held_out_last is not None and abs(held_out_last - training.facts.last) >= APART
        gap = gap if is_apart and not log.is_preference else 0.0
        is_scored = any(_VALIDATED.search(remark.text) for remark in log.notes.scores.values())
        yield _course(segment, "training loss", training, gap, is_scored=is_scored)
        if not log.is_preference and training.facts.first < GUESS:
            yield from _known_again(segment, training)
    yield from _scored(segment)
    means = log.notes.mean_losses
    if means and len(training) <= 1:
        told = (
            "[Of the loss only a mean over the run could be read, {only:.5g}|"
            "The mean loss over the run is {mean:.5g}]."
        )
        yield Seen(told, {"mean": means[-1], "only": None if segment.reports else means[-1]})
    if closed := closing(segment):
        yield Seen("A summary at the end of the log has {told}.", {"told": ", ".join(closed)})
    yield from remarked(log)
    yield from warned(log)
    if (clauses := extent(log)) and (segment.reports or means or log.notes.clocks):
        yield Seen("The log says of the run: {told}.", {"told": "; ".join(clauses)})
    if tests := log.notes.test_losses:
        above = tests[-1] - held_out_last if held_out_last is not None else 0.0
        yield Seen(
            "The [last of {tests} test losses|test loss] is {test_loss:.3f}[, {above:.2f} above "
            "the last validation][; number {best_at} of them is the lowest ({best:.3f})].",
            {
                "tests": len(tests) if len(tests) > 1 else None,
                "test_loss": tests[-1],
                "best": min(tests),
                "best_at": 1 + tests.index(min(tests)) if min(tests) < tests[-1] else None,
                "above": above if above >= APART else None,
            },
        )
    yield from _beside(log)


def _known_again(segment: Segment, losses: Series) -> Iterator[Seen]:
    """Where a pass over the rows begins with a far lower loss than the one before ended with."""
    passes = segment.finite("epoch")
    places, of_loss, of_pass = np.intersect1d(
        losses.iterations, passes.iterations, return_indices=True
    )
    values, counted = losses.values[of_loss], passes.values[of_pass]
    # An epoch of 1.00 is the end of the first pass; counters name the one that they are in.
    is_counter = bool(np.all(counted == np.rint(counted)))
    numbers = counted if is_counter else np.ceil(counted)
    for place in np.flatnonzero(np.diff(numbers) > 0) + 1:
        before, after = values[:place][numbers[:place] == numbers[place - 1]], values[place:]
        after = after[numbers[place:] == numbers[place]]
        if len(before) < 2 * EDGE or len(after) < 2:
            continue
        # Of more reports their medians differ less by chance.
        edge = max(EDGE, min(len(before) // 4, len(after) // 4, MAX_EDGE))
        last, first = median(before[-edge:]), median(after[:edge])
        off = float(np.ptp(before[-2 * EDGE :])) * math.sqrt(EDGE / edge)
        # What falls all the while falls there, too.
        off = max(off, abs(median(before[-2 * edge : -edge]) - last))
        least = max(KNOWN_AGAIN * last, AT_ONCE * off)
        if last - first >= least:
            yield Seen(
                "The training loss falls from {known_before:.3f} to {known_after:.3f} where a pass "
                "over the rows begins ({unit} {place}): rows that come again seem to be known by "
                "heart.",
                {
                    "known_before": last,
                    "known_after": first,
                    "unit": segment.unit,
                    "place": int(places[place]),
                },
            )
            return


def _scored(segment: Segment) -> Iterator[Seen]:
    """What else was measured on held-out rows; what rose shows learning."""
    for name, scores in list(held_out_scores(segment).items())[:1]:
        first, last = scores.facts.first, scores.facts.last
        most = 1.0 if scores.facts.highest <= 1.0 else 100.0
        is_learned = last - first >= FALL * (most - first) > 0.0
        yield Seen(
            "The {name} on held-out rows goes from {first:.3f} to {last:.3f}[; it was highest at "
            "{unit} {highest_at} ({highest:.3f})].",
            {
                "name": name,
                "first": first,
                "last": last,
                "unit": segment.unit,
                "highest": scores.facts.highest,
                "highest_at": scores.facts.highest_at if last < scores.facts.highest else None,
            },
            learned=is_learned,
        )


def _too_short(log: TrainingLog) -> dict[str, Measurement]:
    """How far a log goes where that is too little: few updates, or part of a pass."""
    segment = log.main
    last = segment.last or 0
    # What broke, breaks off or went nowhere is told otherwise.
    names = segment.series.keys() & {"train_loss", "val_loss"}
    losses = [segment.series[name].values for name in names]
    has_fallen = any(each[-1] <= (1.0 - SHOWN) * each[0] for each in losses if len(each))
    is_open = log.notes.bars or last < (segment.announced_iterations or 0)
    is_first = last == 1 and "train_loss" in names
    if log.notes.failures or not (has_fallen or is_first) or is_open:
        return {}
    if segment.is_counted and 0 < last <= TRIAL:
        return {"trial": last}
    passes = segment.finite("epoch").facts.last
    return {"share": passes} if 0.0 < passes < PASS else {}


def _together(training: Series, held_out: float | None, scored: str, low: float) -> Iterator[Seen]:
    """What both losses come to.

    Args:
        held_out: the last validation loss of the trained model.
        scored: " loss" where scores of a validation tell of other rows.
        low: nats below which a training loss is near zero.
    """
    end = training.facts.end
    above = training.values[training.values > 0.0]
    is_rounded = bool(len(above)) and float(above[-1]) < NEAR_ZERO
    is_better = held_out is not None and held_out >= max(KNOWN_BETTER * end, NEAR_ZERO)
    both = "" if held_out is not None and held_out < NEAR_ZERO else None
    # An exact zero is no loss, save where losses came near to it and were rounded.
    is_loss = training.facts.lowest > -VISIBLE and (end != 0.0 or is_rounded)
    # Of a few high reports among low ones the median is near zero, and the mean is not.
    mean = float(training.values[-training.facts.edge :].mean())
    is_low = is_loss and end < low and mean < 2.0 * low
    if is_low and (held_out is None or is_better or both is not None):
        readings = None if is_better else ""
        known = {"both": both, "held_out": held_out, "readings": readings, "scored": scored}
        yield Seen(_NEAR_ZERO, known)


def _course(
    segment: Segment, words: str, losses: Series, gap: float = 0.0, *, is_scored: bool = False
) -> Seen:
    facts, is_held_out = losses.facts, words.startswith("validation")
    announced, end = segment.announced_iterations, int(losses.iterations[-1])
    is_part = announced is not None and segment.is_counted and end <= announced
    of_all = f" of {announced}" if is_part else ""
    named: dict[str, Measurement] = {
        "series": words,
        "unit": segment.unit,
        "first": facts.first,
        "first_at": int(losses.iterations[0]),
        "last_at": f"{end}{'' if is_held_out else of_all}",
        **on_the_way(losses, segment.unit),
    }
    last = facts.last if is_held_out else facts.end
    # Among noisy reports the first may be a high one.
    is_many = len(losses) >= ENOUGH
    is_alone = not (is_held_out or is_scored or any(map(_HELD_OUT.match, segment.series)))
    is_noise = is_many and fall_in_noises(facts) <= CHANCE and not begins_high(facts)
    is_noise |= not is_many and facts.first - last < LITTLE * (facts.highest - facts.lowest)
    # Far below the level that it begins at, the first report tells nothing of where that went.
    is_noise |= facts.first < OUTLIER * facts.start
    # A small fall shows where many reports agree on it.
    is_clear = is_many and facts.end > 0.0 and fall_in_noises(facts) > NOISES
    has_fallen = fell(facts.first, last) or (is_clear and facts.first > last)
    shows_start = is_held_out or segment.shows_start
    if len(losses) > 1 and shows_start and has_fallen and not is_noise:
        is_base = is_held_out and facts.first == segment.base_val_loss
        named["first_at"] = None if is_base else named["first_at"]
        named |= _fall(losses, last, gap, is_held_out=is_held_out)
        # Of one that ends near zero it is told already.
        named["alone"] = "" if is_alone and last >= NEAR_ZERO else None
        shows = fell(facts.first, last)
        return Seen(_FELL, named, learned=is_held_out and shows, fell=not is_held_out and shows)
    # Of many noisy reports the first and the last say little.
    width = _width(losses)
    named |= {
        "first": median(losses.values[:width]),
        "last": median(losses.values[-width:]),
        "levels": f" (medians of {width} reports)" if width > 1 else "",
        "goes": _verb(facts, has_fallen=has_fallen and not is_noise),
        "only": facts.first if f"{np.ptp(losses.values):.3f}" == "0.000" else None,
        "low": facts.lowest,
        "low_at": f" at {segment.unit} {facts.lowest_at}" if is_held_out else "",
        "high": facts.highest,
        "count": len(losses),
        "last_at": named["last_at"] if len(losses) > 1 else None,
        "of": of_all if len(losses) == 1 else None,
        "alone": "" if is_alone and len(losses) > 1 and not segment.is_preference else None,
    }
    has_come_down = not is_held_out and named["goes"] == "falls"
    return Seen(_LIES, named, fell=has_come_down and fell(facts.first, last))


def _verb(facts: SeriesFacts, *, has_fallen: bool) -> str:
    """What a loss does from its first to its last level; "goes" of one that does neither."""
    if has_fallen and facts.last < facts.first:
        return "falls"
    if facts.points < ENOUGH:
        return "goes"
    fall = fall_in_noises(facts)
    has_risen = fall < -CHANCE and facts.last > facts.first
    is_level = abs(fall) < CHANCE and facts.highest - facts.lowest < SCATTER * facts.noise
    return "rises" if has_risen else "has no trend: it goes" if is_level else "goes"


def _width(losses: Series) -> int:
    """Of how many reports a level is the median: of few it would be a value of none."""
    return max(losses.facts.edge, len(losses) // PARTS) if len(losses) >= MANY else 1


def on_the_way(losses: Series, unit: str) -> dict[str, Measurement]:
    """What a loss or a reward passed, and the single reports that stand out of it."""
    facts = losses.facts

    def shown(places: list[tuple[int, float]]) -> str:
        return ", ".join(
            f"{value:.3f} ({'' if count else f'{unit} '}{place:,})"
            for count, (place, value) in enumerate(places)
        )

    width = _width(losses)
    way = stations(losses.iterations, losses.values, width)
    peaks = lone_peaks(losses.iterations, losses.values)
    highest = sorted(sorted(peaks, key=lambda peak: -peak[1])[:MOST])
    return {
        "on_the_way": "On the way" + (f", in medians of {width} reports" if width > 1 else ""),
        "way": None if facts.is_constant else shown(way) or None,
        "lone": shown(highest) or None,
    }


def _fall(losses: Series, last: float, gap: float, *, is_held_out: bool) -> dict[str, Measurement]:
    """Where a loss that fell was lowest and highest, and how it ends."""
    values, facts = losses.values, losses.facts
    is_many = len(values) >= ENOUGH
    width = facts.edge if is_many else 1
    levels = smoothed(values, width)
    floors = np.minimum.accumulate(levels)
    peak = int(np.argmax(levels - floors))
    rise = levels[peak] - floors[peak]
    has_risen = rise >= max(PEAK_NOISES * facts.noise, (PEAK - 1.0) * floors[peak])
    half = values[_middle(losses) :]
    falls_on = _falls_on(losses, facts.first - last, is_held_out=is_held_out)
    strays = is_many and not falls_on and np.ptp(half) >= STRAY * last
    # Of the rows trained on single reports say little.
    lowest, lowest_at = (
        (facts.lowest, facts.lowest_at) if is_held_out else (facts.minimum, facts.minimum_at)
    )
    least = VISIBLE * lowest if is_held_out else max(LITTLE * lowest, NOISES * facts.noise)
    in_medians = f" in medians of {facts.edge} reports" if facts.edge > 1 else ""
    named: dict[str, Measurement] = {
        "last": last,
        "level_of": None if is_held_out else level_of(facts),
        "lowest_at": lowest_at if last - lowest >= least > 0.0 else None,
        "lowest": lowest,
        "lowest_in": "" if is_held_out else in_medians,
        "regained": last / lowest - 1.0 if lowest > 0.0 else None,
        # What begins above a guess is no mean over tokens.
        "perplexity": math.exp(last) if last >= UNREADABLE and facts.first < GUESS else None,
        "share": share if (share := 1.0 - last / facts.first) < SMALL else None,
        "peak": float(levels[peak]) if has_risen else None,
        "peak_of": width if width > 1 else None,
        "peak_at": int(losses.iterations[peak + width // 2]),
        "low_before": float(floors[peak]),
        "low_at": int(losses.iterations[int(np.argmin(levels[: peak + 1])) + width // 2]),
        "falling": "" if falls_on else None,
        "stray_low": float(half.min()) if strays else None,
        "stray_high": float(half.max()),
    }
    if is_many and not falls_on:
        named |= _plateau(losses)
    larger, smaller = max(last, last + gap), min(last, last + gap)
    if abs(gap) >= APART and larger >= TIMES * smaller:
        named["below" if gap > 0.0 else "above"] = abs(gap)
    return named


def _middle(losses: Series) -> int:
    """The report in the middle of a run, which need not be the middle one."""
    places = losses.iterations
    return int(np.searchsorted(places, (places[0] + places[-1]) / 2.0))


def _falls_on(losses: Series, fall: float, *, is_held_out: bool) -> bool:
    """Whether a loss that fell by so much still falls in its last validation, or its last half."""
    values, places = losses.values, losses.iterations
    if is_held_out:
        is_lowest = values[-1] == values.min()
        least = max(FALLING * fall, losses.facts.noise)
        return len(values) > 2 and is_lowest and float(values[-2] - values[-1]) >= least
    half = _middle(losses)
    line, span = trend(places[half:], values[half:]), float(places[-1] - places[half])
    fallen, facts = -line.slope * span, losses.facts
    is_lowest = facts.end - facts.minimum <= 0.1 * fallen
    is_clear = line.high < 0.0 and fallen >= max(FALLING * fall, LEVEL * facts.end)
    if len(values) < ENOUGH or not (is_clear and is_lowest):
        return False
    # Stairs fall where a pass begins, and lie level between.
    thirds = np.array_split(values[half:], 3)
    return median(thirds[1]) - median(thirds[2]) >= STEADY * fallen


def _plateau(losses: Series) -> dict[str, Measurement]:
    """From where on the level of a loss that fell stays as it ends; nothing of a short stretch."""
    facts = losses.facts
    places, values = blocks(losses.iterations, losses.values)
    of_block = -(-len(losses) // len(values))
    # Of more windows than this one lies apart by chance.
    width = max(facts.edge // of_block, len(values) // WINDOWS, 1)
    levels = smoothed(values, width)
    off = np.abs(levels - levels[-1])
    band = max(CHANCE * facts.noise / math.sqrt(facts.edge), LEVEL * facts.end)
    away = np.flatnonzero(off > band)
    first = int(away[-1]) + 1 if len(away) else 0
    by = float(np.abs(levels[first:] - facts.end).max())
    # The first of these reports may still be on their way.
    first += int(np.argmax(np.abs(values[first:] - facts.end) <= band))
    is_short = places[-1] - places[first] < LEVEL_SHARE * (places[-1] - places[0])
    if is_short or by > WOBBLE * facts.end:
        return {}
    return {
        "level_from": int(places[first]),
        "level_by": by,
        "level_in": f" (medians of {width * of_block} reports)" if width * of_block > 1 else "",
    }


def closing(segment: Segment) -> list[str]:
    """What a trainer's summary behind its reports says of the losses, in clauses."""
    return [
        f"a {words} loss of {losses.values[0]:.3f}"
        for name, words in (("last_val_loss", "validation"), ("last_train_loss", "training"))
        if len(losses := segment.finite(name)) == 1
    ]


def _beside(log: TrainingLog) -> Iterator[Seen]:
    """The other runs of a log, and which of all ends lowest."""
    main = log.main
    runs = [run for run in log.segments if run is main or _ends(run) or run.reports > 1]

    def called(run: Segment) -> str:
        name = next(name for each, name in zip(log.segments, log.names, strict=True) if each is run)
        lines = f"lines {run.first_line:,} to {run.last_line:,}"
        return lines + (f" ({quoted(name)})" if name else "")

    others = [f"{called(run)}, {_ends(run) or 'without a loss'}" for run in runs if run is not main]
    if not others:
        return
    # By the first of the losses that all of them have.
    loss = next((name for name in _LOSSES if all(len(run.finite(name)) for run in runs)), "")
    lowest = min(runs, key=lambda run: run.finite(loss).facts.end) if loss else None
    more = len(others) - MOST
    yield Seen(
        "The log has {others:* more run}: {told}[; and {more} more]. Judged is that of {judged}."
        "[ The {loss} ends lowest in {lowest}.]",
        {
            "others": len(others),
            "told": "; ".join(others[:MOST]),
            "more": more if more > 0 else None,
            "judged": called(main),
            "loss": _LOSSES.get(loss),
            "lowest": None if lowest is None else called(lowest),
        },
    )


def _ends(segment: Segment) -> str:
    """Where the losses of a run begin and end, in a clause; "" of none."""
    return ", ".join(
        f"{words} {losses.values[0]:.3f}"
        + (f" to {losses.values[-1]:.3f}" if len(losses) > 1 else "")
        for name, words in _LOSSES.items()
        if (losses := segment.get(name)) is not None and len(losses)
    )
