"""The first losses of a run against those that mlx-lm computes from the same files.

What it finds. A trainer that does not compute mlx-lm's loss, and what it computes in its place: a
loss over other targets, of other inputs, of another base model, of one batch again and again.

Why it matters. A run is a function of base model, rows, configuration and seed. Whatever a trainer
does otherwise shows in its first reports, whether anybody thought of it before or not.

How it is measured. The validation before the first update and the reports of the first 30
iterations are computed again, as mlx-lm computes them. They may differ by rounding, by the
sampling error of the rows, and by the order of the batches. Where they differ by more, the log is
held against readings: losses as other trainers compute them. One that leaves at most a third of
the disagreement, and agrees better than all others, is what the trainer did.

When it is wrong. Rows or a configuration that were edited after the run describe another one.
A trainer with a sound loss of its own kind (one that weighs tokens, say) is not mlx-lm either:
where the tuned model is as good as the check `reach` asks for, that is a warning, and where it is
as good as mlx-lm's trainer makes it in as many updates, it is no fault.

What to do. Ask `mlxdoctor probe FILE:FUNCTION` what one step of the trainer does.
"""

from collections.abc import Iterator

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.exhibits import Curve, ReplayCurve
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom, Unsought
from mlxdoctor.twin.levels import EXACT, Level, before_the_end, misfit
from mlxdoctor.twin.reach import LACKING, SHORT, Reach
from mlxdoctor.twin.readings import readings
from mlxdoctor.twin.replay import Replay

#: Nats of a disagreement that is an error whatever a trainer may have meant: sound forks without a
#: reading differ by less.
FAR = 0.5

_COMPARED = (
    "[before training the log has {recorded_before:.3f}, and mlx-lm computes {before:.3f}"
    "|its last validation has {recorded_after:.3f}, and mlx-lm computes {after:.3f}"
    "|the log has no validation before training][; at iteration {iteration}, {recorded_report:.3f} "
    "and {report:.3f}]"
)
_AS_COMPUTED = f"Computed again, the first losses are the log's: {_COMPARED}."
_AS_GOOD = (
    f"The log's first losses are of another kind than mlx-lm's: {_COMPARED}. The model is as good "
    "as mlx-lm's trainer makes it with the same settings."
)
_LEARNED = (
    f"The log's first losses are of another kind than mlx-lm's: {_COMPARED}. On held-out "
    "rows the model is better than a few updates at a usual rate make it."
)
_SAID = (
    "The log's losses are those {clause}. Compared with mlx-lm at the configured settings: "
    f"{_COMPARED}."
)

#: The reading of a trainer that changes what it does not save.
_ALONG = "base-trained-along"


@check(
    codes={
        "differs": Symptom.warning(
            "the trainer does not compute mlx-lm's loss",
            says=f"The log's first losses are not those of mlx-lm on these files: {_COMPARED}.",
            expected="the losses that mlx-lm computes from the same base, rows and configuration",
            fix="Look at one step of the trainer: `mlxdoctor probe FILE:FUNCTION`.",
        ),
        "unread": Symptom.warning(
            "the trainer does not compute mlx-lm's loss, by the readings that there was time for",
            says=f"The log's first losses are not those of mlx-lm on these files: {_COMPARED}. "
            "The time ran out before every known error was tried.",
            expected="the losses that mlx-lm computes from the same base, rows and configuration",
            fix="Run the diagnosis again with a larger --budget.",
        ),
        "as-computed": Symptom.info(
            "the trainer computes mlx-lm's loss",
            says=_AS_COMPUTED,
            expected="the losses that mlx-lm computes",
        ),
        "trains-otherwise": Symptom.info(
            "training goes another way than the configuration says",
            says="The validation loss before training is the one that mlx-lm computes[, counted "
            "{clause}], but the training losses are not: at iteration {iteration} the log has "
            "{recorded_report:.3f}, and mlx-lm computes {report:.3f}.",
            expected="the losses that the configured optimiser, rate and batches give",
            fix="Compare the optimiser's options, its schedule and the order of the rows with "
            "mlx-lm's.",
        ),
        **{
            reading.code: Symptom.error(
                f"the log's losses are those {reading.clause}",
                says=_SAID,
                expected="the losses that mlx-lm computes from the same base, rows and "
                "configuration",
                fix=reading.fix,
            )
            for reading in readings()
            if not reading.sound
        },
    }
)
def replay(replay: Replay, reach: Reach | None) -> Iterator[Sign | Seen | Unsought | ReplayCurve]:
    start, read = before_the_end(replay.configured), before_the_end(replay.best)
    is_sound = replay.reading is None or replay.reading.sound
    # It was told by the end alone.
    if not read and replay.reading is not None and not is_sound:
        after = next(level for level in replay.configured if level.what == "after")
        figures = {"recorded_after": after.recorded, "after": after.computed}
        yield Sign(replay.reading.code, figures | {"clause": replay.reading.clause})
        return
    if not start:
        raise Inconclusive("the log has no loss from the start that could be computed again")
    yield _curve(replay)
    measured = _figures(start)
    off = misfit(start)
    # That the end differs, too, is told by itself.
    is_of_training = all(level.what == "report" for level in read if level.misfit > 0.0)
    has_before = any(level.what == "before" for level in start)
    if off > 0.0 and has_before and is_sound and is_of_training and misfit(read) > 0.0:
        clause = replay.reading.clause if replay.reading is not None else None
        yield Sign("trains-otherwise", _figures(read) | {"clause": clause})
        return
    # A base that was trained along, and is not saved, would not end where the log does.
    ends = [level for level in replay.configured if level.what == "after"]
    is_whole = bool(ends) and all(level.beyond(EXACT) == 0.0 for level in ends)
    if replay.reading is not None and replay.reading.code == _ALONG and is_whole:
        yield Sign("trains-otherwise", measured | {"clause": None})
        return
    has_reached = reach is not None and reach.is_ahead and reach.split == "validation"
    # One figure that a reading comes near to, or that tells of training alone, proves nothing
    # against a model that learned.
    reports = sum(level.what == "report" for level in start)
    tells_once = replay.reading is not None and replay.reading.in_training and reports == 1
    is_near = has_reached and (tells_once or (misfit(read) > 0.0 and len(start) == 1))
    if replay.reading is not None and not replay.reading.sound and not is_near:
        yield Sign(replay.reading.code, measured | {"clause": replay.reading.clause})
        return
    if off == 0.0:
        yield Seen(_AS_COMPUTED, measured)
        # Losses within the noise of batches prove nothing against all updates made again.
        is_worse = reach is not None and reach.lacking > LACKING
        if any(level.what == "report" for level in start) and not is_worse:
            yield Sign("as-computed", measured)
        return
    if replay.reading is not None and replay.reading.sound and misfit(read) == 0.0:
        said = f"The log's first losses are those {{clause}}, which is sound: {_COMPARED}."
        yield Seen(said, measured | {"clause": replay.reading.clause})
        return
    if has_reached or (reach is not None and reach.is_as_good):
        yield Seen(_LEARNED if has_reached else _AS_GOOD, measured)
        return
    if replay.left_out:
        yield Sign("unread", measured)
        return
    # A loss of its own kind may teach what mlx-lm's does.
    has_learned = reach is not None and reach.tells and reach.shortfall <= SHORT
    severity = Severity.ERROR if off > FAR and not has_learned else None
    yield Sign("differs", measured | {"misfit": off}, severity=severity)


def _figures(start: list[Level]) -> dict[str, Measurement]:
    """The first validation, and the report that is furthest off."""
    before = next((level for level in start if level.what == "before"), None)
    reports = [level for level in start if level.what == "report"]
    worst = max(reports, key=lambda level: (level.misfit, abs(level.off)), default=None)
    return {
        "recorded_before": before.recorded if before is not None else None,
        "before": before.computed if before is not None else None,
        "iteration": worst.iteration if worst is not None else None,
        "recorded_report": worst.recorded if worst is not None else None,
        "report": worst.computed if worst is not None else None,
    }


def _curve(replay: Replay) -> ReplayCurve:
    def of(levels: tuple[Level, ...], name: str) -> Curve:
        shown = before_the_end(levels)
        values = tuple(float(getattr(level, name)) for level in shown)
        return Curve(tuple(level.iteration for level in shown), values)

    return ReplayCurve(
        recorded=of(replay.configured, "recorded"),
        computed=of(replay.configured, "computed"),
        read=of(replay.best, "computed") if replay.reading is not None else None,
        clause=replay.reading.clause if replay.reading is not None else "",
    )
