"""What happened when, from the log and the onsets of findings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from mlxdoctor.evidence.checkpoints import CheckpointHistory
from mlxdoctor.evidence.training_log import Segment, TrainingLog
from mlxdoctor.finding import Outcome
from mlxdoctor.run import Run

#: Saves listed one by one; more are summed up.
MAX_SAVES = 6


def timeline(run: Run, outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Events by iteration; those that have none come first."""
    events: list[tuple[int, str]] = []
    log = run.get(TrainingLog)
    if log is not None:
        events.extend(_reports(log.main))
    events.extend(_saves(run.get(CheckpointHistory)))
    for outcome in outcomes:
        events.extend(
            (finding.onset, f"{finding.code}: {finding.message}")
            for finding in outcome.findings
            if finding.onset is not None and finding.severity.rank > 0
        )
    events.sort(key=lambda event: event[0])
    return [{"iteration": iteration, "event": event} for iteration, event in events]


def _reports(segment: Segment) -> list[tuple[int, str]]:
    events = []
    for name, label in (("val_loss", "validation loss"), ("train_loss", "training loss")):
        series = segment.get(name)
        if series is None or not len(series.values):
            continue
        first, last = int(series.iterations[0]), int(series.iterations[-1])
        events.append((first, f"first {label}: {series.values[0]:.3f}"))
        if last != first:
            events.append((last, f"last {label}: {series.values[-1]:.3f}"))
        finite = np.isfinite(series.values)
        if finite.any() and name == "val_loss" and len(series.values) > 2:
            lowest = int(np.nanargmin(np.where(finite, series.values, np.inf)))
            iteration = int(series.iterations[lowest])
            events.append((iteration, f"lowest {label}: {series.values[lowest]:.3f}"))
    return events


def _saves(history: CheckpointHistory | None) -> list[tuple[int, str]]:
    if history is None:
        return []
    numbered = [one for one in history.checkpoints if one.iteration is not None]
    events = [(one.iteration or 0, f"saved {one.path.name}") for one in numbered[:MAX_SAVES]]
    if len(numbered) > MAX_SAVES:
        last = numbered[-1]
        events.append((last.iteration or 0, f"saved {last.path.name}, the last of {len(numbered)}"))
    return events
