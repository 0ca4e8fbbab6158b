"""What happened when: the log's first, lowest and last losses, the saves, and findings' onsets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from mlxdoctor.exhibits import CheckpointSizes, Curve, LossCurve
from mlxdoctor.finding import Exhibit, Outcome, Severity
from mlxdoctor.report import Event

#: Saves that are listed; of more, these and the last.
MAX_SAVES = 6


def timeline(outcomes: Iterable[Outcome]) -> tuple[Event, ...]:
    """Events by iteration."""
    every = tuple(outcomes)
    exhibits = [one for outcome in every for one in outcome.exhibits]
    events = [*_losses(exhibits), *_saves(exhibits), *_onsets(every)]
    return tuple(sorted(events, key=lambda one: one.iteration or 0))


def _losses(exhibits: Iterable[Exhibit]) -> Iterator[Event]:
    for shown in exhibits:
        if isinstance(shown, LossCurve):
            yield from _of_curve(shown.val, "validation loss", with_lowest=True)
            yield from _of_curve(shown.train, "training loss", with_lowest=False)


def _of_curve(curve: Curve | None, label: str, *, with_lowest: bool) -> Iterator[Event]:
    if curve is None or not curve.values:
        return
    points = list(zip(curve.values, curve.iterations, strict=True))
    (first, start), (last, end) = points[0], points[-1]
    yield Event(start, f"first {label}: {first:.3f}")
    if end != start:
        yield Event(end, f"last {label}: {last:.3f}")
    finite = [one for one in points if math.isfinite(one[0])]
    if with_lowest and finite and len(points) > 2:
        lowest, at = min(finite)
        yield Event(at, f"lowest {label}: {lowest:.3f}")


def _saves(exhibits: Iterable[Exhibit]) -> Iterator[Event]:
    for shown in exhibits:
        if isinstance(shown, CheckpointSizes):
            saves = zip(shown.columns, shown.broken, strict=True)
            numbered = [(int(save), is_broken) for save, is_broken in saves if save.isdecimal()]
            for iteration, is_broken in (*numbered[:MAX_SAVES], *numbered[MAX_SAVES:][-1:]):
                yield Event(iteration, "a broken save" if is_broken else "a save")


def _onsets(outcomes: Iterable[Outcome]) -> Iterator[Event]:
    for outcome in outcomes:
        for one in outcome.findings:
            if one.onset is not None and one.severity is not Severity.INFO:
                yield Event(one.onset, f"{one.code}: {one.message}")
