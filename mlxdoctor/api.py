"""`diagnose`: paths in, report out. The command line and the gate are thin layers over it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

from mlxdoctor.causes import load_causes
from mlxdoctor.check import Check, discover, selected
from mlxdoctor.diagnosis import Diagnosed, judge, unlocks_most
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import Progress
from mlxdoctor.evidence.options import Options
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Outcome, Status
from mlxdoctor.formats.withheld import without_text
from mlxdoctor.installed import version_here, versions_here
from mlxdoctor.judge.remedy import fix_for, needed_values
from mlxdoctor.models.load import NOT_ASKED
from mlxdoctor.report import Fix, Report
from mlxdoctor.run import Run
from mlxdoctor.run_texts import texts_of
from mlxdoctor.safety.texts import as_seen_here
from mlxdoctor.timeline import timeline

#: Why a check that runs models has no outcome yet.
NOT_YET = "the models are being asked"


@dataclass(frozen=True, kw_only=True)
class RunReport(Report):
    """A report with the run that it is about, for whoever wants to know more of that.

    Attributes:
        run: what was read is remembered in it.
    """

    run: Run


#: A path as people write it.
AnyPath: TypeAlias = str | os.PathLike[str]


def diagnose(
    paths: AnyPath | Iterable[AnyPath],
    options: Options | None = None,
    *,
    progress: Progress | None = None,
    files_first: Callable[[RunReport], None] | None = None,
    **changes: Any,
) -> RunReport:
    """Examine what a run left behind and say why it failed, if it did.

    Args:
        paths: the run's folder, or any of its files; one, or several.
        options: what is said of the run; `changes` are fields of it, by name:
            `diagnose("adapters", base="models/llama", allow_model=False)`.
        progress: called with what is being done, a count done, and a total.
        files_first: called with the report of the files alone, before models are run.

    Raises:
        InputError: a path or an option is unusable. A file in a run that can't
            be read is no error: the report lists it.
        TypeError: `changes` has a name that `Options` has not.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    places = [Path(path) for path in given]
    options = replace(options or Options(), **changes)
    checks = selected(_all_checks(), options.select, options.ignore)
    run = Run.discover(places, options, progress=progress)
    command = partial(_command, places, options)
    on_files = [check for check in checks if not check.needs_models]
    with_models = sorted(
        (check for check in checks if check.needs_models), key=lambda check: check.trains
    )
    outcomes = run_checks(on_files, run)
    may_run = options.allow_model and run.get(BaseModel) is not None
    if files_first is not None and with_models and may_run:
        waiting = [Outcome(check.name, Status.SKIPPED, NOT_YET) for check in with_models]
        files_first(_report(run, (*outcomes, *waiting), command))
    outcomes += run_checks(with_models, run)
    place = {check.name: number for number, check in enumerate(checks)}
    return _report(run, tuple(sorted(outcomes, key=lambda outcome: place[outcome.check])), command)


def examined(run: Run) -> RunReport:
    """The report of a run that was put together already, by all checks."""
    return _report(run, run_checks(_all_checks(), run), lambda _: "")


@cache  # a gate asks for them with every adapter
def _all_checks() -> tuple[Check, ...]:
    return discover()


def run_checks(checks: Sequence[Check], run: Run) -> tuple[Outcome, ...]:
    """Every check's outcome on `run`, in the order given; unselected codes are dropped."""
    select, ignore = set(run.options.select), set(run.options.ignore)
    outcomes = []
    for number, check in enumerate(checks):
        if run.progress is not None:
            run.progress(check.name, number, len(checks))
        outcome = check.run(run)
        outcomes.append(_filtered(outcome, select, ignore) if select or ignore else outcome)
    return tuple(outcomes)


def _filtered(outcome: Outcome, select: set[str], ignore: set[str]) -> Outcome:
    whole = not select or outcome.check in select
    kept = tuple(
        finding
        for finding in outcome.findings
        if finding.code not in ignore and (whole or finding.code in select)
    )
    if kept == outcome.findings:
        return outcome
    status = Status.PASSED if not kept and outcome.status is Status.FOUND else outcome.status
    left_out = {finding.code for finding in outcome.findings} - {finding.code for finding in kept}
    unsought = {**outcome.unsought, **dict.fromkeys(left_out, "it was not asked for")}
    return replace(outcome, findings=kept, status=status, unsought=unsought)


def _report(run: Run, outcomes: tuple[Outcome, ...], command: Callable[[bool], str]) -> RunReport:
    knowledge = load_causes()
    unreadable = tuple(str(error) for error in run.unreadable)
    judged = judge(outcomes, knowledge, whole=not unreadable)
    diagnosis = judged.diagnosis
    fix = _fix(run, diagnosis[0], outcomes) if diagnosis else None
    log = run.get(TrainingLog)
    unlocks = unlocks_most(judged.coverage)
    if unlocks is not None and unlocks.why == NOT_ASKED:
        unlocks = replace(unlocks, command=command(True))
    report = Report(
        name=run.name,
        verdict=judged.verdict,
        outcomes=outcomes,
        diagnosis=diagnosis,
        coverage=judged.coverage,
        evidence=run.evidence,
        missing=run.missing,
        left_out=run.left_out,
        fix=fix,
        timeline=timeline(outcomes),
        next=unlocks,
        commands=(command(run.options.allow_model),),
        versions={**versions_here(), **(log.versions if log is not None else {})},
        unreadable=unreadable,
        version=version_here(),
    )
    shown = as_seen_here(report if run.options.with_text else without_text(report, texts_of(run)))
    return RunReport(run=run, **{part.name: getattr(shown, part.name) for part in fields(shown)})


def _fix(run: Run, first: Diagnosed, outcomes: Sequence[Outcome]) -> Fix | None:
    """The first cause's change of the configuration, as what speaks for the cause advises it."""
    findings = [finding for outcome in outcomes for finding in outcome.findings]
    speaking = [finding for finding in findings if finding.code in first.supporting]
    change, needed = first.cause.change, needed_values(speaking)
    if change is None or (change.advised_only and change.key not in needed):
        return None
    return fix_for(change, run.get(TrainingConfig), needed)


def _command(paths: Sequence[Path], options: Options, allow_model: bool) -> str:
    given = [str(path) for path in paths]
    given += [f"--log={path}" for path in options.log]
    given += [f"--{name}={path}" for name, path in options.paths.items()]
    given += [] if options.with_text else ["--no-text"]
    given += [] if allow_model else ["--no-generate"]
    return shlex.join(["mlxdoctor", "diagnose", *given])
