"""The report of a run, with what the experiments say of its causes folded in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from mlxdoctor.causes import Cause
from mlxdoctor.confirmation import CauseTried, Confirmation, DirectExperiment, Experiment, Rerun
from mlxdoctor.diagnosis import Diagnosed
from mlxdoctor.exhibits import Curve
from mlxdoctor.experiments.shared.bench import Trial
from mlxdoctor.report import Fix, Report
from mlxdoctor.reproduce.investigate import Investigation
from mlxdoctor.safety.texts import as_seen_here
from mlxdoctor.verdict import Verdict

R = TypeVar("R", bound=Report)

#: Verdicts in the order in which they are listed; causes that were not tried are undecided.
_ORDER: Mapping[Confirmation | None, int] = {"confirmed": 0, "undecided": 1, None: 1, "refuted": 2}


def folded(
    report: R,
    state: Investigation,
    causes: Mapping[str, Cause],
    trials: Iterable[Trial] = (),
) -> R:
    """The report with the verdicts, confirmed causes first and refuted ones last."""
    diagnosis = _diagnosis(report, state, causes)
    tried = [
        CauseTried(cause=name, title=causes[name].title, verdict=one.verdict, reason=one.sentence)
        for name, one in state.rulings.items()
    ]
    experiments: list[Experiment] = [*sorted(tried, key=lambda one: _ORDER[one.verdict])]
    experiments += [state.agreement] if state.agreement is not None else []
    experiments += [
        DirectExperiment(
            cause=name, label=one.label, iterations=one.iterations, seconds=one.seconds
        )
        for name, one in state.measured.items()
    ]
    experiments += map(_rerun, trials)
    return as_seen_here(
        replace(
            report,
            diagnosis=diagnosis,
            fix=_fix(report, diagnosis, state),
            experiments=tuple(experiments),
        )
    )


def _diagnosis(
    report: Report, state: Investigation, causes: Mapping[str, Cause]
) -> tuple[Diagnosed, ...]:
    diagnosis = [
        replace(one, confirmation=state.rulings[one.cause.id].verdict)
        if one.cause.id in state.rulings
        else one
        for one in report.diagnosis
    ]
    known = {one.cause.id for one in diagnosis}
    if report.verdict in (Verdict.UNHEALTHY, Verdict.SUSPECT):
        diagnosis += [
            Diagnosed(causes[name], 0.0, (), (), (), (), "confirmed")
            for name, one in state.rulings.items()
            if name not in known and one.verdict == "confirmed"
        ]
    return tuple(sorted(diagnosis, key=lambda one: _ORDER[one.confirmation]))


def _fix(report: Report, diagnosis: Sequence[Diagnosed], state: Investigation) -> Fix | None:
    """The change that cured it, rather than the one that the diagnosis would have tried."""
    root = diagnosis[0].cause.id if diagnosis else None
    is_confirmed = root is not None and diagnosis[0].confirmation == "confirmed"
    ruling = state.rulings.get(root) if root is not None and is_confirmed else None
    if ruling is not None and ruling.fix is not None:
        return ruling.fix
    if report.diagnosis and root != report.diagnosis[0].cause.id:
        return None
    return report.fix


def _rerun(trial: Trial) -> Rerun:
    seen = trial.observation
    return Rerun(
        experiment=trial.condition.kind,
        cause=trial.cause,
        label=trial.condition.label,
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
