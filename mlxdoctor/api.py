"""`diagnose`: paths in, report out. The command line and the gate are thin layers over it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TypeAlias

from mlxdoctor.causes import load_causes
from mlxdoctor.check import Check, Thresholds, discover, selected, with_thresholds
from mlxdoctor.diagnosis import Diagnosed, Judged, judge, unlocks_most
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.environment import Environment
from mlxdoctor.evidence.kind import Progress
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Outcome, Severity, Status
from mlxdoctor.formats.withheld import without_text
from mlxdoctor.installed import version_here
from mlxdoctor.judge.remedy import fix_for, needed_values
from mlxdoctor.models.load import NOT_ASKED
from mlxdoctor.report import FileRead, Fix, MissingEvidence, NextCheck, ReadBack, Report
from mlxdoctor.run import Run
from mlxdoctor.run_texts import texts_of
from mlxdoctor.safety.texts import as_seen_here
from mlxdoctor.safety.time_budget import TimeBudget
from mlxdoctor.timeline import timeline


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
    *,
    base: AnyPath | None = None,
    adapter: AnyPath | None = None,
    log: Iterable[AnyPath] = (),
    data: AnyPath | None = None,
    generations: AnyPath | None = None,
    against: AnyPath | None = None,
    allow_model: bool = True,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    score: str | None = None,
    trainer: str | None = None,
    thresholds: Thresholds | None = None,
    with_text: bool = True,
    progress: Progress | None = None,
    budget: float | None = None,
    measured: AnyPath | None = None,
    files_alone: Callable[[RunReport], None] | None = None,
) -> RunReport:
    """Examine what a run left behind and say why it failed, if it did.

    Args:
        paths: the run's folder, or any of its files; one, or several.
        base: the base model's folder, where the run does not name it.
        adapter: the adapter, where it lies elsewhere.
        log: training logs, where they lie elsewhere.
        data: the data folder, where the run does not name it.
        generations: recorded answers; none are produced then.
        against: a healthy run to compare with.
        allow_model: run base and tuned model where both are at hand.
        select: names or codes of checks: only these.
        ignore: names or codes of checks: not these.
        score: `FILE:FUNCTION`, a user's own score of an answer. Runs that code.
        trainer: `FILE:FUNCTION` that returns the parts of a user's own trainer, for a
            training step to be measured. Runs that code.
        thresholds: check -> threshold -> value, in place of those that ship.
        with_text: let the report quote training rows and outputs.
        progress: called with what is being done, a count done, and a total.
        budget: seconds after which no more rows and prompts are given to models; the report
            says what was left out. None measures all of them.
        measured: a file of what models measured. What it holds of these very files is read back,
            and no model is run for it; what models measure is added to it. It is made where it
            is not there, and must lie outside what is inspected.
        files_alone: called with the report of the files alone, before models are run.

    Raises:
        InputError: a path or an option is unusable. A file in a run that can't
            be read is no error: the report lists it.
    """
    places = [Path(one) for one in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    logs = [Path(one) for one in log]
    said = {"base": base, "adapter": adapter, "data": data, "generations": generations}
    named = {
        name: None if path is None else Path(path)
        for name, path in (said | {"against": against}).items()
    }
    kept = None if measured is None else Path(measured)
    checks = with_thresholds(selected(_all_checks(), select, ignore), thresholds or {})
    run = Run.discover(
        places,
        **named,
        log=logs,
        allow_model=allow_model,
        score=score,
        trainer=trainer,
        progress=progress,
        budget=TimeBudget(budget),
        measured=kept,
    )

    given = [str(path) for path in places]
    given += [f"--log={one}" for one in logs]
    given += [f"--{name}={path}" for name, path in named.items() if path]
    if not with_text:
        given.append("--no-text")

    def reported(outcomes: tuple[Outcome, ...]) -> RunReport:
        report = _report(run, outcomes, partial(_command, given, kept))
        return as_seen_here(report if with_text else without_text(report, texts_of(run)))

    if files_alone is None or not run.allow_model or run.get(BaseModel) is None:
        with run.keeping():
            outcomes = run_checks(checks, run, progress, select, ignore)
        return reported(outcomes)
    known: dict[str, Outcome] = {}
    first: list[Outcome] = []
    with run.without_models():
        for one in checks:
            run.asked_for_models = False
            first += run_checks([one], run, None, select, ignore)
            if not run.asked_for_models:
                known[one.name] = first[-1]
        if len(known) < len(checks):
            files_alone(reported(tuple(first)))
    left = [one for one in checks if one.name not in known]
    with run.keeping():
        known |= {one.check: one for one in run_checks(left, run, progress, select, ignore)}
    return reported(tuple(known[one.name] for one in checks))


def examined(
    run: Run,
    *,
    thresholds: Thresholds | None = None,
    with_text: bool = True,
    progress: Progress | None = None,
) -> RunReport:
    """The report of a run that was put together already, by all checks.

    Args:
        run: the run.
        thresholds: check -> threshold -> value, in place of those that ship.
        with_text: let the report quote training rows and outputs.
        progress: called with what is being done, a count done, and a total.
    """
    with run.keeping():
        outcomes = run_checks(with_thresholds(_all_checks(), thresholds or {}), run, progress)
    report = _report(run, outcomes, lambda _: "")
    return as_seen_here(report if with_text else without_text(report, texts_of(run)))


@cache  # a gate asks for them with every adapter
def _all_checks() -> tuple[Check, ...]:
    return discover()


def run_checks(
    checks: Sequence[Check],
    run: Run,
    progress: Progress | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> tuple[Outcome, ...]:
    """Every check's outcome on `run`, in the order given; unselected codes are dropped."""
    outcomes = []
    for number, one in enumerate(checks):
        if progress is not None:
            progress(one.name, number, len(checks))
        outcome = one.run(run)
        if select or ignore:
            outcome = _filtered(outcome, set(select), set(ignore))
        outcomes.append(outcome)
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
    left_out = {one.code for one in outcome.findings} - {one.code for one in kept}
    unsought = {**outcome.unsought, **dict.fromkeys(left_out, "it was not asked for")}
    return replace(outcome, findings=kept, status=status, unsought=unsought)


def _report(run: Run, outcomes: tuple[Outcome, ...], command: Callable[[bool], str]) -> RunReport:
    knowledge = load_causes()
    unreadable = tuple(str(error) for error in run.unreadable)
    judged = judge(outcomes, knowledge, whole=not unreadable)
    diagnosis = judged.diagnosis
    fix = _fix(run, diagnosis[0], outcomes) if diagnosis else None
    log = run.get(TrainingLog)
    return RunReport(
        run=run,
        name=run.name,
        verdict=judged.verdict,
        outcomes=outcomes,
        diagnosis=diagnosis,
        coverage=judged.coverage,
        evidence=tuple(
            FileRead(kind, str(source.path), source.sha256, source.note)
            for kind, sources in _read(run)
            for source in sources
        ),
        missing=tuple(MissingEvidence(kind, why) for kind, why in run.missing),
        left_out=run.left_out,
        read_back=_read_back(run),
        contributing=_contributing(outcomes, diagnosis),
        fix=fix,
        timeline=timeline(outcomes),
        next=_next(judged, outcomes, command),
        commands=(command(run.allow_model),),
        versions={**Environment.read().here, **(log.versions if log is not None else {})},
        unreadable=unreadable,
        version=version_here(),
    )


def _read(run: Run) -> Iterator[tuple[str, tuple[Source, ...]]]:
    """Every kind of evidence that was read, with its files."""
    for record in run.evidence:
        yield record.kind, record.sources
    if run.measured is not None and run.measured.source is not None:
        yield "what models measured", (run.measured.source,)


def _read_back(run: Run) -> ReadBack | None:
    from mlxdoctor.measure.kept.bindings import named

    file = run.measured
    if file is None or (file.source is None and (file.is_written or file.problems)):
        return None
    return ReadBack(
        source=str(file.path),
        kinds=tuple(file.used),
        made=tuple(dict.fromkeys(made.words for made in file.used.values())),
        absent=tuple(named(file.absent)),
        sampled=tuple(named(file.sampled)),
        unused=file.unused,
        is_there=file.source is not None,
    )


def _fix(run: Run, first: Diagnosed, outcomes: Sequence[Outcome]) -> Fix | None:
    """The first cause's change of the configuration, as what speaks for the cause advises it."""
    findings = [one for outcome in outcomes for one in outcome.findings]
    speaking = [one for one in findings if one.code in first.supporting]
    change, needed = first.cause.change, needed_values(speaking)
    if change is None or (change.advised_only and change.key not in needed):
        return None
    return fix_for(change, run.get(TrainingConfig), needed)


def _contributing(outcomes: Iterable[Outcome], diagnosis: Sequence[Diagnosed]) -> tuple[str, ...]:
    """Warnings that the first cause does not account for."""
    explained = set(diagnosis[0].supporting) if diagnosis else set()
    codes = [
        finding.code
        for outcome in outcomes
        for finding in outcome.findings
        if finding.severity is Severity.WARNING and finding.code not in explained
    ]
    return tuple(dict.fromkeys(codes))


def _next(
    judged: Judged, outcomes: Sequence[Outcome], command: Callable[[bool], str]
) -> NextCheck | None:
    unlocks = unlocks_most(outcomes, judged)
    if unlocks is None:
        return None
    redone = command(True) if unlocks.why == NOT_ASKED else ""
    return NextCheck(unlocks.why, unlocks.how, unlocks.settles, redone)


def _command(given: Sequence[str], measured: Path | None, allow_model: bool) -> str:
    withheld = [] if allow_model else ["--no-generate"]
    kept = [] if measured is None else ["--measured", str(measured)]
    return shlex.join(["mlxdoctor", "diagnose", *given, *withheld, *kept])
