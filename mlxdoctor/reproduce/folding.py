"""The report of a run, with what the experiments say of its causes folded in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from mlxdoctor.causes import Cause
from mlxdoctor.confirmation import (
    CauseTried,
    Confirmation,
    DirectExperiment,
    Experiment,
    Rerun,
)
from mlxdoctor.diagnosis import Diagnosed
from mlxdoctor.report import Fix, Report
from mlxdoctor.reproduce.direct import RENAMED
from mlxdoctor.reproduce.investigate import Investigation
from mlxdoctor.reproduce.rules import Ruling
from mlxdoctor.safety.texts import as_seen_here
from mlxdoctor.verdict import Verdict

R = TypeVar("R", bound=Report)

#: Verdicts in the order in which they are listed; causes that were not tried are undecided.
_ORDER: Mapping[Confirmation | None, int] = {"confirmed": 0, "undecided": 1, None: 1, "refuted": 2}


def folded(
    report: R,
    state: Investigation,
    causes: Mapping[str, Cause],
    trials: Iterable[Rerun] = (),
) -> R:
    """The report with the verdicts, confirmed causes first and refuted ones last.

    Args:
        state: what was tried, and what came of it.
        causes: all there are.
        trials: the reruns.
    """
    rulings = state.rulings
    diagnosis = _diagnosis(report, rulings, causes)
    tried = [
        CauseTried(cause=name, title=causes[name].title, verdict=one.verdict, reason=one.sentence)
        for name, one in rulings.items()
    ]
    experiments: list[Experiment] = [*sorted(tried, key=lambda one: _ORDER[one.verdict])]
    experiments += [state.agreement] if state.agreement is not None else []
    experiments += [
        DirectExperiment(cause=name, label=RENAMED, iterations=0, seconds=ruling.seconds)
        for name, ruling in rulings.items()
        if ruling.seconds is not None
    ]
    experiments += trials
    fix = _fix(report, diagnosis, rulings)
    folded_in = replace(report, diagnosis=diagnosis, fix=fix, experiments=tuple(experiments))
    return as_seen_here(folded_in)


def _diagnosis(
    report: Report, rulings: Mapping[str, Ruling], causes: Mapping[str, Cause]
) -> tuple[Diagnosed, ...]:
    diagnosis = [
        replace(one, confirmation=rulings[one.cause.id].verdict) if one.cause.id in rulings else one
        for one in report.diagnosis
    ]
    listed = {one.cause.id for one in diagnosis}
    if report.verdict in (Verdict.UNHEALTHY, Verdict.SUSPECT):
        diagnosis += [
            Diagnosed(causes[name], 0.0, (), (), (), (), "confirmed")
            for name, one in rulings.items()
            if name not in listed and one.verdict == "confirmed"
        ]
    return tuple(sorted(diagnosis, key=lambda one: _ORDER[one.confirmation]))


def _fix(
    report: Report, diagnosis: Sequence[Diagnosed], rulings: Mapping[str, Ruling]
) -> Fix | None:
    """The change that cured it, rather than the one that the diagnosis would have tried."""
    root = diagnosis[0].cause.id if diagnosis else None
    ruling = rulings.get(root or "")
    if ruling is not None and ruling.verdict == "confirmed" and ruling.fix is not None:
        return ruling.fix
    if report.diagnosis and root != report.diagnosis[0].cause.id:
        return None
    return report.fix
