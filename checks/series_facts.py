"""What is not ordinary in any column of the log.

What it finds. Columns with values that are no numbers, exactly zero, or the same in every report,
with a jump for good, or a peak that grows to the end: of gradients, speed, memory, rates, tokens
and times of validation.

Why it matters. These are facts, and they need few reports: a gradient of exactly zero trains
nothing while the loss still varies with the batches, and a run that swaps goes on many times
slower.

How it is measured. Every column is described in the same way (share and place of what is not
finite or zero, levels, the largest jump); a table says which pattern in which column is no ordinary
one. Tokens an iteration and the share of batches that were skipped are computed from others.

When it is wrong. Half-precision training with a loss scaler overflows now and then by design. A
trainer that clips survives a lone huge norm. Another job on the machine slows a run down too. Rows
that are packed or padded to one width have the same number of tokens.

What to do. Look at what the finding names: the batch, the gradient, the memory, the schedule.
"""

import re
from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.engines.series import median
from mlxdoctor.evidence.logs.metric_names import HELD_OUT, ROLES, SCORE, without_mean
from mlxdoctor.evidence.training_log import Series, TrainingLog
from mlxdoctor.finding import Seen, Sign, Unsought
from mlxdoctor.judge.curve import CHANCE, ENOUGH, fall_in_noises, levels, loss_figures
from mlxdoctor.judge.series_table import Columns, SeriesTable
from mlxdoctor.measure.policy_curves import policy_curves

#: Columns with a check of their own: of these only the patterns that name them are reported.
_WITH_OWN_CHECK = frozenset(
    {"train_loss", "val_loss", "grad_norm", "last_train_loss", "last_val_loss"}
)
_TABLE = SeriesTable.read("series_facts.toml")
#: Columns of counts and clocks, and those that other sentences speak of.
_UNTOLD = re.compile(
    r"(?:last_)?(?:train|val)_loss|epoch|micro|.*_of|.*tokens.*|val_seconds"
    r"|.*flos|[hms]|.*per_(?:second|iteration)|peak_memory_gb|percentage|.*steps?|lr|learning_rate|ts|timestamp"
)
#: Speeds are told where their level changes, by this.
_SPEED, _CHANGED = re.compile(r".*per_second"), 1.25
#: Times are told where there is little else.
_TIME = re.compile(r".*(?:time|seconds|runtime|elapsed).*|eta")
#: What is told before other columns, in this order: what a policy earns, how far it went for it,
#: and whether anything moved it.
_FIRST = (
    *("reward", "spread", "flat_groups", "distance", "margin", "accuracy", "chosen", "rejected"),
    *("cut_off", "length"),
)
_PLACES = {name: place for place, role in enumerate(_FIRST) for name in ROLES[role]}
_PLACES["grad_norm"] = _PLACES["train_loss"] = len(_FIRST)
_HELD_OUT = re.compile(rf"^{HELD_OUT}")
#: Share of the reports from which on it is told that a column is 0.
_OFTEN = 0.25
#: Columns that the report tells.
_MOST = 6
#: The highest value over the median from which on its place is told.
_LONE = 10.0
#: Share of its best by which a score ends below it where that is told.
_BETTER = 0.01
#: Reports, and share of all, from which on it is told that a column ends with the same value.
_SAME, _SAME_SHARE = 5, 0.2


@check(codes=_TABLE.symptoms, rerun_symptom=True)
def series_facts(log: TrainingLog) -> Iterator[Sign | Unsought | Seen]:
    columns = {**log.main.series, **_computed(log)}
    if _may_be_whole_seconds(columns, log):
        del columns["val_seconds"]
    if not columns:
        raise Inconclusive("the log holds no report")
    figures = partial(loss_figures, log.main)
    yield from _TABLE.signs(Columns(columns, figures), log.main.unit, _WITH_OWN_CHECK)
    others = {name: series.finite for name, series in log.main.series.items()}
    # Of the rest, what changes and is reported most often first.
    order = sorted(others, key=lambda name: (*_place(name, others[name]), -len(others[name])))
    # Of a run on rewards the loss is a column like others.
    policy = policy_curves(log)
    is_rewarded = policy.samples and "reward" in policy.series
    told = [
        _course(name, others[name], log.main.unit)
        for name in order
        if len(others[name])
        and (
            not _UNTOLD.fullmatch(name)
            or (is_rewarded and name == "train_loss")
            or _changes_speed(name, others[name])
        )
    ]
    if told:
        is_noisy = any(" from " in clause and ", between" in clause for clause in told[:_MOST])
        is_alone = not any("loss" in name.split("_") for name in others)
        yield Seen(
            "The log [also has{also}|has no loss; its {reports:* report} have] "
            "{columns}[ (of noisy ones {levels} of the start and of the end)].",
            {
                "also": None if is_alone else "",
                "reports": log.main.reports,
                "columns": "; ".join(told[:_MOST]),
                "levels": "levels" if is_noisy else None,
            },
        )


def _changes_speed(name: str, series: Series) -> bool:
    """Whether a column is a speed whose level changes from the start to the end."""
    if not _SPEED.fullmatch(name) or _HELD_OUT.match(name) or len(series) < ENOUGH:
        return False
    level, _ = levels(series)
    slow, fast = sorted((level.start, level.end))
    return fast >= _CHANGED * slow > 0.0


def _place(name: str, series: Series) -> tuple[float, bool]:
    """Where a column is told: a part of the reward that never changes right behind the whole."""
    is_still = len(series) > 1 and series.facts.is_constant
    is_nothing = len(series) > 0 and not series.values.any()
    if (is_still or is_nothing) and name.startswith("reward") and name not in _PLACES:
        return 0.5, False
    # What was measured on held-out rows right behind the same on those trained on.
    own = _HELD_OUT.sub("", name)
    behind = 0.2 if own != name else 0.0
    for known in (own, without_mean(own)):
        if known in _PLACES:
            return _PLACES[known] + behind, is_still
    behind = 1 if _TIME.fullmatch(name) else 0
    return len(_FIRST) + behind - (SCORE.search(name) is not None), is_still


def _course(name: str, series: Series, unit: str) -> str:
    """What a column says, in a clause: whence and whither, between what it lies, how often 0."""
    words, shown = _TABLE.words.get(name, name.replace("_", " ")), "{:.4g}".format
    facts = series.facts
    low, high = facts.lowest, facts.highest
    if low == high:
        return f"{words} {shown(low)}{' throughout' if len(series) > 1 else ''}"
    beyond = max(high - max(facts.first, facts.last), min(facts.first, facts.last) - low)
    same = facts.same
    stays = same is not None and same.at_end >= max(_SAME, _SAME_SHARE * facts.points)
    since = f", where it stays from {unit} {same.end_begins} on" if same and stays else ""
    if beyond <= 0.2 * (high - low):
        # Of a score the best report is a save that may be had.
        is_better = SCORE.search(name) and high - facts.last > _BETTER * abs(high)
        is_better = is_better and high > facts.first
        best = f", at most {shown(high)} ({unit} {facts.highest_at})" if is_better else ""
        return f"{words} from {shown(facts.first)} to {shown(facts.last)}{since}{best}"
    # Of noisy reports the first and the last are any: their levels tell, where they differ.
    told = []
    if facts.edge > 2:
        level, _ = levels(series)
        is_course = abs(fall_in_noises(level)) > CHANCE
        course = f"from {shown(level.start)} to {shown(level.end)}"
        told.append(course if is_course else f"around {shown(facts.median)}")
    peak = f" ({unit} {facts.highest_at})" if high > _LONE * abs(facts.median) else ""
    told.append(f"between {shown(low)} and {shown(high)}{peak}")
    if facts.zeros.share >= _OFTEN:
        told.append(f"0 in {facts.zeros.count} of {len(series)} reports")
    return f"{words} {', '.join(told)}"


def _may_be_whole_seconds(columns: Mapping[str, Series], log: TrainingLog) -> bool:
    """Whether the times of validations may be printed in whole seconds, so that 0 says nothing."""
    seconds, speed = columns.get("val_seconds"), columns.get("iterations_per_second")
    if seconds is None or (seconds.values % 1.0 > 0).any():
        return False
    # mlx-lm's own lines have decimals, whatever they say.
    if log.main.axis == "iteration" and "named values" in log.format:
        return False
    # An update slower than 5 s takes over a second forward, which whole seconds would show.
    return speed is None or not len(speed) or median(speed.values) > 0.2


def _computed(log: TrainingLog) -> dict[str, Series]:
    """Columns that follow from those of the log."""
    segment = log.main
    columns: dict[str, Series] = {}
    speed = segment.finite("iterations_per_second")
    if len(speed) and speed.facts.lowest > 0.0:
        columns["seconds_per_iteration"] = Series(speed.iterations, 1.0 / speed.values)
    tokens = segment.finite("trained_tokens")
    steps = np.diff(tokens.iterations)
    # The coloured table abbreviates (133.8k), and hides how counts differ.
    if segment.is_counted and (steps > 0).all() and "table" not in log.format:
        rates = np.diff(tokens.values) / steps
        columns["tokens_per_iteration"] = Series(tokens.iterations[1:], rates)
    skipped = segment.get("skipped") or segment.get("skipped_batch_loss")
    if skipped is not None:
        counts = skipped.finite.values
        # One trainer prints a line for each batch; others count up.
        if "skipped" not in segment.series:
            counts = np.arange(1.0, len(counts) + 1)
        columns["skipped_share"] = Series(
            skipped.finite.iterations, counts / max(segment.last or 0, 1)
        )
    return columns
