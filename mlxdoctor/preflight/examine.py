"""A configuration in, a report out, before a step was made."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxdoctor.api import RunReport, examined
from mlxdoctor.check import Thresholds
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.kind import Progress
from mlxdoctor.evidence.options import Options
from mlxdoctor.evidence.planned_run import PlannedRun
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.finding import Severity, Status
from mlxdoctor.measure.machine_memory import machine_memory
from mlxdoctor.measure.rate_range import RateRange
from mlxdoctor.measure.run_cost import RunCost
from mlxdoctor.preflight.changes import all_changes
from mlxdoctor.preflight.configuration import planned_config
from mlxdoctor.preflight.cost import cost_of
from mlxdoctor.preflight.facts import facts
from mlxdoctor.preflight.planned_step import Device
from mlxdoctor.preflight.steps import make_steps
from mlxdoctor.report import Planned
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.time_budget import TimeBudget
from mlxdoctor.verdict import CauseStatus, Readiness, Verdict

#: What a plan can have; the rest comes with the run.
_BEFORE = frozenset(
    one.kind for one in (BaseModel, Tokenizer, Dataset, SupervisedRows, RateRange, RunCost)
)
_LATER = "what remains of it shows in training"
_OF_A_RUN = "it looks at what a run leaves"


def examine(
    config: Any,
    options: Mapping[str, Any],
    *,
    base: Path | None,
    data: Path | None,
    steps: bool,
    seconds: float,
    elsewhere: bool,
    memory: int | None,
    thresholds: Thresholds | None,
    with_text: bool,
    progress: Progress | None,
) -> RunReport:
    """What `mlxdoctor.preflight` does."""
    begun = time.perf_counter()
    file, values = _stated(config)
    planned = planned_config(file, {**values, **options})
    said_of_it = Options(
        base=base,
        data=data,
        allow_model=steps,
        thresholds=thresholds or {},
        with_text=with_text,
    )
    run = Run.planned(planned, said_of_it, progress=progress)
    problems = tuple(make_steps(run, planned, seconds)) if steps else ()
    where = _here(run, elsewhere=elsewhere, memory=memory)
    cost = cost_of(run, planned, *where)
    if cost is not None:
        run.give(cost)
    budget = TimeBudget(max(seconds - (time.perf_counter() - begun), 1.0))
    report = examined(replace(run, budget=budget))
    fix = all_changes(planned, report.diagnosis, report.findings)
    readiness, why = readiness_of(report)
    said = (*facts(run, planned), *problems)
    report = replace(report, planned=Planned(readiness, why, said), fix=fix, next=None)
    return _without_what_comes_later(report)


def _without_what_comes_later(report: RunReport) -> RunReport:
    """The report without asking for logs and adapters, which nobody has before a run."""
    missing = tuple(one for one in report.missing if one.kind in _BEFORE)
    reasons = {one.why.partition("; ")[0] for one in missing}
    coverage = tuple(
        replace(one, why=_LATER, needs="")
        if one.status is CauseStatus.OPEN and one.why not in reasons
        else one
        for one in report.coverage
    )
    asked = {one.why for one in report.missing if one.kind not in _BEFORE}
    outcomes = tuple(
        replace(one, reason=_OF_A_RUN)
        if one.status is Status.SKIPPED and one.reason in asked
        else one
        for one in report.outcomes
    )
    return replace(report, missing=missing, coverage=coverage, outcomes=outcomes)


def _here(run: Run, *, elsewhere: bool, memory: int | None) -> tuple[Device, int | None]:
    """Where the run will be made, and how much memory there is; the run is told too."""
    plan = run.need(PlannedRun)
    if elsewhere or memory is not None:
        run.give(replace(plan, has_gpu=True))
        return "metal", memory
    found = machine_memory()
    run.give(replace(plan, has_gpu=found.device != "cpu"))
    return found.device, found.bytes


def _stated(config: Any) -> tuple[Path | None, dict[str, Any]]:
    if isinstance(config, Path | str):
        return Path(config), {}
    if config is None:
        return None, {}
    values = config if isinstance(config, Mapping) else getattr(config, "__dict__", None)
    if not isinstance(values, Mapping):
        raise InputError(
            None,
            f"{type(config).__name__} is no configuration",
            "give a path, a mapping, or the arguments of mlx_lm.lora",
        )
    return None, dict(values)


def readiness_of(report: RunReport) -> tuple[Readiness, str]:
    """Whether the run may be begun, and what could not be looked at, as a clause."""
    run = report.run
    lacking = [
        name
        for name, kind in (("base model's tokenizer", Tokenizer), ("training data", Dataset))
        if run.get(kind) is None
    ]
    why = ""
    if lacking:
        why = f"the {' and the '.join(lacking)} could not be looked at"
    elif report.unreadable:
        why = "not every file could be read"
    if report.verdict is Verdict.UNHEALTHY:
        return Readiness.NOT_READY, why
    if why:
        return Readiness.UNKNOWN, why
    warned = any(one.severity is Severity.WARNING for one in report.findings)
    if warned or report.verdict is Verdict.SUSPECT:
        return Readiness.READY_BUT, ""
    return Readiness.READY, ""
