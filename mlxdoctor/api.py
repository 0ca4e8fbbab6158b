"""`diagnose`: paths in, report out. The command line and the gate are thin layers over it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

from mlxdoctor.causes import load_causes
from mlxdoctor.check import Check, Thresholds, discover, selected, with_thresholds
from mlxdoctor.diagnosis import Diagnosed, Verdict, rank, unlocks_most, verdict
from mlxdoctor.diagnosis import diagnose as diagnose_outcomes
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.environment import Environment
from mlxdoctor.evidence.kind import Progress
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.figure_data import figure_data
from mlxdoctor.finding import Outcome, Severity, Status
from mlxdoctor.formats.model import SCHEMA_VERSION, Report, home_folder, without_folders
from mlxdoctor.formats.withheld import without_text
from mlxdoctor.judge.remedy import fix_for, usual_rates
from mlxdoctor.measure.generations import Generations
from mlxdoctor.run import Run
from mlxdoctor.run_texts import output_texts, row_texts
from mlxdoctor.timeline import timeline


def diagnose(
    paths: Iterable[Path],
    *,
    base: Path | None = None,
    adapter: Path | None = None,
    log: Iterable[Path] = (),
    data: Path | None = None,
    generations: Path | None = None,
    against: Path | None = None,
    allow_model: bool = True,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    score: str | None = None,
    trainer: str | None = None,
    thresholds: Thresholds | None = None,
    with_text: bool = True,
    progress: Progress | None = None,
) -> Report:
    """Examine what a run left behind and say why it failed, if it did.

    Args:
        paths: the run's folder, or any of its files.
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

    Raises:
        InputError: a path or an option is unusable. A file in a run that can't
            be read is no error: the report lists it.
    """
    paths = tuple(paths)
    checks = with_thresholds(selected(_all_checks(), select, ignore), thresholds or {})
    run = Run.discover(
        paths,
        base=base,
        adapter=adapter,
        log=log,
        data=data,
        generations=generations,
        against=against,
        allow_model=allow_model,
        score=score,
        trainer=trainer,
        progress=progress,
    )
    outcomes = run_checks(checks, run, progress, select, ignore)
    return _report(run, paths, outcomes, with_text)


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
        outcomes.append(_filtered(one.run(run), set(select), set(ignore)))
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
    return replace(outcome, findings=kept, status=status)


def _report(
    run: Run, paths: Sequence[Path], outcomes: tuple[Outcome, ...], with_text: bool
) -> Report:
    knowledge = load_causes()
    diagnosed = diagnose_outcomes(outcomes, knowledge)
    change = diagnosed[0].cause.change if diagnosed else None
    findings = [finding for outcome in outcomes for finding in outcome.findings]
    fix = fix_for(change, run.get(TrainingConfig), usual_rates(findings))
    log = run.get(TrainingLog)
    environment = Environment.read()
    figures = figure_data(run, outcomes)
    data: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "mlxdoctor", "version": version("mlxdoctor")},
        "verdict": verdict(outcomes).value,
        "run": {"evidence": _evidence(run), "missing": _missing(run)},
        "diagnosis": [one.to_dict() for one in diagnosed],
        "outcomes": [one.to_dict() for one in outcomes],
        "experiments": [],
        "suppressed": [],
        "name": run.name,
        "causes": {one.cause.id: _cause_text(one) for one in diagnosed},
        "contributing": _contributing(outcomes, diagnosed),
        "fix": fix.to_dict() if fix is not None else None,
        "figures": figures,
        "timeline": timeline(run, outcomes),
        "sample": _sample(run.get(Generations)),
        "next": _next(outcomes, diagnosed or rank(outcomes, knowledge)),
        "commands": [_command(run, paths, with_text)],
        "versions": {**environment.here, **(log.versions if log is not None else {})},
        "unreadable": [str(error) for error in run.unreadable],
        "withheld": False,
    }
    if not with_text:
        texts = chain(row_texts(run.get(Dataset)), output_texts(run.get(Generations)))
        data = without_text(data, texts)
    shown = without_folders(data, [str(Path.cwd())], home=home_folder())
    return Report(shown)


def _evidence(run: Run) -> list[dict[str, Any]]:
    return [
        {
            "kind": record.kind,
            "source": str(source.path),
            "sha256": source.sha256,
            "note": source.note,
        }
        for record in run.evidence
        for source in record.sources
    ]


def _missing(run: Run) -> list[dict[str, str]]:
    return [{"kind": kind, "why": why} for kind, why in run.missing]


def _cause_text(diagnosed: Diagnosed) -> dict[str, str]:
    cause = diagnosed.cause
    return {
        "title": cause.title,
        "summary": cause.summary,
        "explanation": cause.explanation,
        "remedy": cause.remedy,
    }


def _sample(generations: Generations | None) -> dict[str, str | None] | None:
    """The first answer that differs from the base model's, or the first."""
    items = generations.items if generations is not None else ()
    if not items:
        return None
    item = next((one for one in items if one.base != one.tuned), items[0])
    return {"prompt": item.prompt, "base": item.base, "tuned": item.tuned}


def _contributing(outcomes: Iterable[Outcome], diagnosed: Sequence[Diagnosed]) -> list[str]:
    """Warnings that the first cause does not account for."""
    explained = set(diagnosed[0].supporting) if diagnosed else set()
    codes = [
        finding.code
        for outcome in outcomes
        for finding in outcome.findings
        if finding.severity is Severity.WARNING and finding.code not in explained
    ]
    return list(dict.fromkeys(codes))


def _next(outcomes: Sequence[Outcome], ranked: Sequence[Diagnosed]) -> dict[str, str] | None:
    if verdict(outcomes) is Verdict.HEALTHY:
        return None
    unlocks = unlocks_most(outcomes, ranked)
    if unlocks is None:
        return None
    why, _, how = unlocks.reason.partition("; ")
    return {"kind": unlocks.check, "why": why, "how": how}


def _command(run: Run, paths: Sequence[Path], with_text: bool) -> str:
    arguments = ["mlxdoctor", "diagnose", *(str(path) for path in paths)]
    if not run.allow_model:
        arguments.append("--no-generate")
    if not with_text:
        arguments.append("--no-text")
    return shlex.join(arguments)
