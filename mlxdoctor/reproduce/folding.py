"""The report of a run, with what the experiments say of its causes folded in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from mlxdoctor.causes import Cause
from mlxdoctor.confirmation import (
    Agreement,
    CauseTried,
    Confirmation,
    DirectExperiment,
    Experiment,
    Rerun,
)
from mlxdoctor.diagnosis import Diagnosed
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.exhibits import Curve
from mlxdoctor.report import Fix, Report
from mlxdoctor.reproduce.bench import Trial
from mlxdoctor.reproduce.rerun import Observation
from mlxdoctor.reproduce.rules import Limits, Ruling
from mlxdoctor.safety.texts import as_seen_here
from mlxdoctor.verdict import Verdict

R = TypeVar("R", bound=Report)

#: Verdicts in the order in which they are listed; causes that were not tried are undecided.
_ORDER: Mapping[Confirmation | None, int] = {"confirmed": 0, "undecided": 1, None: 1, "refuted": 2}


def folded(
    report: R,
    rulings: Mapping[str, Ruling],
    causes: Mapping[str, Cause],
    *,
    same: Agreement | None = None,
    direct: Iterable[DirectExperiment] = (),
    trials: Iterable[Trial] = (),
) -> R:
    """The report with the verdicts, confirmed causes first and refuted ones last.

    Args:
        rulings: cause -> the verdict on it.
        causes: all there are.
        same: how the rerun as recorded compares with the log.
        direct: the experiments that were made once.
        trials: the reruns.
    """
    diagnosis = _diagnosis(report, rulings, causes)
    tried = [
        CauseTried(cause=name, title=causes[name].title, verdict=one.verdict, reason=one.sentence)
        for name, one in rulings.items()
    ]
    experiments: list[Experiment] = [*sorted(tried, key=lambda one: _ORDER[one.verdict])]
    experiments += [same] if same is not None else []
    experiments += [*direct, *map(_rerun, trials)]
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


def _rerun(trial: Trial) -> Rerun:
    seen = trial.observation
    return Rerun(
        experiment=trial.change.kind,
        cause=trial.cause,
        label=trial.change.label,
        seed=trial.seed,
        symptom=trial.shows,
        errors=seen.errors,
        base_loss=seen.base_loss,
        loss=seen.loss,
        iterations=len(seen.iterations),
        seconds=seen.seconds,
        curve=Curve(seen.iterations, seen.losses),
        samples=seen.samples,
    )


def agreement(
    log: TrainingLog | None, rerun: Observation | None, limits: Limits
) -> Agreement | None:
    """Compare reported losses with the means of the rerun's over the iterations between reports.

    Args:
        log: of the run that was examined.
        rerun: as recorded, with the recorded seed.
        limits: what counts as the same.

    Returns:
        None where the log has no training loss by iteration that the rerun reached.
    """
    series = log.main.get("train_loss") if log is not None else None
    if log is None or rerun is None or series is None or log.main.axis != "iteration":
        return None
    losses = dict(zip(rerun.iterations, rerun.losses, strict=True))
    reported = dict(zip(map(int, series.iterations), map(float, series.values), strict=True))
    compared: list[tuple[float, int, float, float]] = []
    for before, last in pairwise((0, *reported)):
        between = [losses[step] for step in range(before + 1, last + 1) if step in losses]
        if last <= before or len(between) < last - before:
            break
        mean = sum(between) / len(between)
        compared.append((_difference(reported[last], mean), last, reported[last], mean))
    if not compared:
        return None
    largest, iteration, recorded, mean = max(compared)
    return Agreement(
        reports=len(compared),
        last=compared[-1][1],
        difference=largest,
        iteration=iteration,
        recorded=recorded,
        rerun=mean,
        agrees=largest <= limits.same_step,
    )


def _difference(reported: float, rerun: float) -> float:
    if math.isfinite(reported) and math.isfinite(rerun):
        return abs(reported - rerun)
    return 0.0 if math.isfinite(reported) == math.isfinite(rerun) else math.inf
