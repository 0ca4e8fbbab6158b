"""Experiments: make a failed run again, change one thing, and compare.

    confirmed = reproduce(diagnose([run]), Path("reports/run"), minutes=10)

`observe` makes a run again with one change, and looks at what came out. `changes` says which change
a cause asks for, `rules` how it is judged. `investigate` tries the causes in turn.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mlxdoctor.api import RunReport, texts_of
from mlxdoctor.causes import load_causes
from mlxdoctor.diagnosis import Diagnosed
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import Missing
from mlxdoctor.finding import Severity, onset_of
from mlxdoctor.formats.withheld import without_text
from mlxdoctor.judge.rate import usual_rates
from mlxdoctor.report import Fix
from mlxdoctor.reproduce.bench import Bench, Failure, length_of
from mlxdoctor.reproduce.investigate import candidates, investigate
from mlxdoctor.reproduce.observe import Laboratory
from mlxdoctor.reproduce.rules import Ruling, undecided
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.texts import as_seen_here
from mlxdoctor.twin.rerun import recorded_settings
from mlxdoctor.verdict import CauseTried, Confirmation, Experiment, Verdict

#: Verdicts in the order in which they are listed; causes that were not tried are undecided.
_ORDER: Mapping[Confirmation | None, int] = {"confirmed": 0, "undecided": 1, None: 1, "refuted": 2}


def reproduce(
    report: RunReport,
    folder: Path,
    *,
    causes: Sequence[str] = (),
    seeds: int = 3,
    iterations: int | None = None,
    minutes: float | None = None,
) -> RunReport:
    """Make the failure again, try its likeliest causes, and say in the report what came of it.

    It tells of its progress, and quotes text, as the diagnosis of the report did.

    Args:
        folder: where experiments are made, one after the other; none of them stays.
        causes: ids to try besides the leading ones.
        seeds: how many seeds at most; two thirds of them have to agree.
        iterations: of each rerun; by default past the onset of the failure.
        minutes: after which no experiment goes on.

    Returns:
        The report with `experiments` and confirmations; unchanged where the run did not fail
        and no cause was asked for.

    Raises:
        InputError: a cause is unknown, or the folder can't be written.
    """
    asked = tuple(dict.fromkeys(causes))
    for name in asked:
        if name not in load_causes().causes:
            raise InputError(None, f"there is no cause {name!r}", "see `mlxdoctor explain`")
    if not report.diagnosis and not asked:
        return report
    run = report.run
    try:
        settings, config = recorded_settings(run), run.need(TrainingConfig)
    except Missing as reason:
        ruling = undecided(
            f"the run can't be made again: {reason}",
            "base, rows and configuration of the run (--base, --data, or their files beside it)",
        )
        names = [diagnosed.cause.id for diagnosed in report.diagnosis[:1]]
        rulings = dict.fromkeys((*names, *asked), ruling)
        return _folded(report, rulings, ())
    leading = report.diagnosis[0].cause if report.diagnosis else None
    length = length_of(onset_of(report.outcomes, Severity.ERROR), leading, settings.iters)
    rates = usual_rates(config, run.get(BaseModel))
    failure = Failure(
        report.outcomes,
        seeds=tuple(settings.seed + number for number in range(seeds)),
        iterations=iterations or length,
        usual={"learning_rate": rates} if rates is not None else {},
        coverage={covered.cause: covered for covered in report.coverage},
    )
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    lab = Laboratory(config, settings, folder, deadline, run.progress)
    bench, tried = Bench(lab, failure), candidates(failure, config, report.diagnosis, asked)
    rulings = investigate(bench, run, tried, asked)
    return _folded(report, rulings, bench.trials)


def _folded(
    report: RunReport, rulings: Mapping[str, Ruling], reruns: Sequence[Experiment]
) -> RunReport:
    """The report with the verdicts, confirmed causes first and refuted ones last."""
    causes = load_causes().causes
    tried = [
        CauseTried(
            cause=name, title=causes[name].title, verdict=ruling.verdict, reason=ruling.reason
        )
        for name, ruling in rulings.items()
    ]
    tried.sort(key=lambda verdict: _ORDER[verdict.verdict])
    diagnosis = _diagnosis(report, rulings)
    fix, experiments = _fix(report, diagnosis, rulings), (*tried, *reruns)
    shown = as_seen_here(replace(report, diagnosis=diagnosis, fix=fix, experiments=experiments))
    return shown if report.run.options.with_text else without_text(shown, texts_of(report.run))


def _diagnosis(report: RunReport, rulings: Mapping[str, Ruling]) -> tuple[Diagnosed, ...]:
    diagnosis = [
        replace(diagnosed, confirmation=ruling.verdict)
        if (ruling := rulings.get(diagnosed.cause.id)) is not None
        else diagnosed
        for diagnosed in report.diagnosis
    ]
    listed = {diagnosed.cause.id for diagnosed in diagnosis}
    if report.verdict in (Verdict.UNHEALTHY, Verdict.SUSPECT):
        diagnosis += [
            Diagnosed(load_causes().causes[name], 0.0, (), (), (), (), "confirmed")
            for name, ruling in rulings.items()
            if name not in listed and ruling.verdict == "confirmed"
        ]
    return tuple(sorted(diagnosis, key=lambda diagnosed: _ORDER[diagnosed.confirmation]))


def _fix(
    report: RunReport, diagnosis: Sequence[Diagnosed], rulings: Mapping[str, Ruling]
) -> Fix | None:
    """The change that cured it, rather than the one that the diagnosis would have tried."""
    root = diagnosis[0].cause.id if diagnosis else None
    ruling = rulings.get(root or "")
    if ruling is not None and ruling.verdict == "confirmed" and ruling.fix is not None:
        return ruling.fix
    if report.diagnosis and root != report.diagnosis[0].cause.id:
        return None
    return report.fix
