"""What would have caught a run, each thing tried on the run before it is said."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from mlxdoctor.api import RunReport, run_checks
from mlxdoctor.check import discover
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Finding, Severity
from mlxdoctor.gate.weigh import caught_by, place
from mlxdoctor.report import Prevention
from mlxdoctor.safety.errors import InputError
from mlxdoctor.watch.alarms import Watch
from mlxdoctor.watch.report_stream import read_log

#: Reports of a log that the watch is tried on: an alarm after so many would have spared little.
TRIED = 200_000


def with_prevention(report: RunReport) -> RunReport:
    """The report of a run that failed, with the gate's and the watch's lines that catch it."""
    if not report.diagnosis:
        return report
    found = (_by_the_watch(report), _by_the_gate(report))
    return replace(report, prevention=tuple(one for one in found if one is not None))


def _by_the_gate(report: RunReport) -> Prevention | None:
    run = report.run
    static = report
    if run.allow_model or run.measured is not None:
        static = replace(report, outcomes=run_checks(discover(), run.of_files_alone()))
    path = shlex.quote(place(report))
    if (caught := caught_by(static)) is not None:
        return Prevention("gate", f"mlxdoctor gate {path}", "", _said(caught))
    speaking = set(report.diagnosis[0].supporting)
    warnings = [
        one for one in static.findings if one.code in speaking and one.severity is not Severity.INFO
    ]
    codes = frozenset(one.code for one in warnings)
    if codes and (caught := caught_by(static, fail=codes)) is not None:
        listed = ", ".join(f'"{one}"' for one in sorted(codes))
        return Prevention("gate", f"mlxdoctor gate {path}", f"fail = [{listed}]", _said(caught))
    if run.allow_model and (caught := caught_by(report)) is not None:
        return Prevention("gate", f"mlxdoctor gate --generate {path}", "", _said(caught))
    return None


def _said(caught: Finding) -> str:
    return f"it fails the run for {caught.code}"


def _by_the_watch(report: RunReport) -> Prevention | None:
    log = report.run.get(TrainingLog)
    if log is None:
        return None
    for source in log.sources:
        watch = Watch()
        try:
            rows = read_log(source.path)
        except InputError:
            continue
        for row in rows[:TRIED]:
            if (alarm := watch.see(row)) is not None:
                last = f" of {rows[-1].step:,}" if rows[-1].step > row.step else ""
                return Prevention(
                    "watch",
                    f"mlxdoctor watch {shlex.quote(Path(source.path).name)} --stop-pid PID",
                    "",
                    f"on this log it raises the alarm at {row.unit} {row.step:,}{last} "
                    f"({alarm.verdict.value.replace('-', ' ')})",
                )
    return None
