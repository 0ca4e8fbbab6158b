"""`diagnose`: paths in, report out. The command line and the gate are thin layers over it."""

import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from mlxdoctor.causes import load_causes
from mlxdoctor.check import Check, discover, selected
from mlxdoctor.diagnosis import Diagnosed, judge, severities, unlocks_most
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.discovery import UNREAD_LOG
from mlxdoctor.evidence.kind import Progress
from mlxdoctor.evidence.options import NOT_ASKED, Options
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Outcome, Severity, Status
from mlxdoctor.formats.format import files_of, text_of
from mlxdoctor.formats.summary import OF_ANSWERS, headline, is_clear
from mlxdoctor.formats.withheld import without_text
from mlxdoctor.installed import version_here, versions_here
from mlxdoctor.judge.remedy import fix_for, needed_values
from mlxdoctor.models.generations import Generations
from mlxdoctor.report import Fix, Report
from mlxdoctor.run import Run
from mlxdoctor.safety.atomic import refuse_inside, write_files
from mlxdoctor.safety.texts import as_seen_here
from mlxdoctor.verdict import Verdict

#: Why nothing was trained again. Of 59 faulty runs of the ward's test split, 51 had a clear cause
#: by then: all of them the right one, and training again made one of them wrong.
CLEAR = "the cause is clear without training again; --replay does it all the same"


AnyPath: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class RunReport(Report):
    """A report, which a notebook shows, and the run that it is about, with the evidence read."""

    run: Run

    def __repr__(self) -> str:
        return f"<report on {self.name}: {headline(self)}>"

    def to_markdown(self) -> str:
        """The whole report as Markdown, without pictures."""
        return text_of(self, "markdown")

    def to_html(self) -> str:
        """The whole report as one HTML page with its pictures."""
        return text_of(self, "html")

    def _repr_html_(self) -> str:
        from mlxdoctor.formats.html_format import first_screen

        return first_screen(self)

    def save(self, folder: AnyPath, formats: Iterable[str] = ("markdown",)) -> list[Path]:
        """Write the report into a folder, which is made.

        Args:
            formats: names of formats: "markdown" (with its pictures), "html", "json".

        Returns:
            The files that were written.

        Raises:
            InputError: the folder lies in the run's own, in which nothing is written, or it
                can't be written.
        """
        target = Path(folder)
        refuse_inside(target, self.run.files.roots)
        return write_files(target, files_of(self, *formats))


#: The settings that make an update large or small.
STEP = frozenset({"learning_rate", "lora_parameters.scale"})


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
        paths: the run's folder or any of its files: one path, or several.
        options: where the evidence is, and what to do with it.
        progress: called with the current step, the steps done, and their total.
        files_first: called with the report of the files alone, before models are run.
        changes: fields of `Options`, by name:
            `diagnose("adapters", base="models/llama", allow_model=False)`.

    Raises:
        InputError: a path or an option is unusable. An unreadable file in a run
            is no error: the report lists it.
        TypeError: `Options` has no field of that name.
    """
    paths = [paths] if isinstance(paths, str | os.PathLike) else paths
    options = replace(options or Options(), **changes)
    checks = selected(discover(), options.select, options.ignore)
    run = Run.discover(map(Path, paths), options, progress=progress)
    of_models = [check for check in checks if check.needs_models]
    training = [check for check in of_models if check.trains]
    outcomes = run_checks([check for check in checks if not check.needs_models], run)
    may_run = options.allow_model and run.get(BaseModel) is not None
    if files_first is not None and of_models and may_run:
        why = "the models are being asked"
        waiting = [Outcome(check.name, Status.SKIPPED, why) for check in of_models]
        files_first(_report(run, (*outcomes, *waiting)))
    is_clear = options.replay is None and may_run and _is_clear(run, outcomes)
    outcomes += run_checks([check for check in of_models if not check.trains], run)
    # What the models say may speak against what was clear by the files.
    if training and is_clear and _is_clear(run, outcomes):
        outcomes += tuple(Outcome(check.name, Status.SKIPPED, CLEAR) for check in training)
    else:
        outcomes += run_checks(training, run)
    by_check = {outcome.check: outcome for outcome in outcomes}
    return _report(run, tuple(by_check[check.name] for check in checks))


def examined(run: Run) -> RunReport:
    """The report of all checks on a run that is already put together."""
    return _report(run, run_checks(discover(), run))


def run_checks(checks: Sequence[Check], run: Run) -> tuple[Outcome, ...]:
    """Every check's outcome on `run`, in the order given, without findings that were not asked for.

    `Options.select` and `Options.ignore` name checks and codes.
    """
    select, ignore = set(run.options.select), set(run.options.ignore)
    outcomes = []
    for number, check in enumerate(checks):
        if run.progress is not None:
            run.progress(check.name, number, len(checks))
        outcomes.append(_filtered(check.run(run), select, ignore))
    return tuple(outcomes)


def _filtered(outcome: Outcome, select: set[str], ignore: set[str]) -> Outcome:
    selects_all = not select or outcome.check in select
    codes = {finding.code for finding in outcome.findings}
    asked = {code for code in codes - ignore if selects_all or code in select}
    if asked == codes:
        return outcome
    status = Status.PASSED if not asked and outcome.status is Status.FOUND else outcome.status
    findings = tuple(finding for finding in outcome.findings if finding.code in asked)
    unsought = {**outcome.unsought, **dict.fromkeys(codes - asked, "it was not asked for")}
    return replace(outcome, findings=findings, status=status, unsought=unsought)


def _is_clear(run: Run, outcomes: tuple[Outcome, ...]) -> bool:
    """Whether the files tell the root cause: something that brings it about, and not effects alone.

    A loss that rose or an update that is too large has many causes, and the twin tells which. Of a
    step that is too large or too small it tells the rate with which these rows are learned.
    """
    report, knowledge = _report(run, outcomes), load_causes()
    if report.root is None or not is_clear(report):
        return False
    if report.fix is not None and not STEP.isdisjoint(report.fix.after):
        return False
    noted = severities(outcomes)
    bad = [code for code in report.root.supporting if noted[code] is not Severity.INFO]
    return not all(map(knowledge.is_effect, bad))


def _is_whole(run: Run, outcomes: tuple[Outcome, ...]) -> bool:
    """Whether all files could be read without which no run is healthy.

    A model that reached what its rows teach did so whatever its log says.
    """
    has_reached = "reach.reached" in severities(outcomes)
    return all(
        has_reached and (error.problem == UNREAD_LOG or error.path in run.files.logs)
        for error in run.unreadable
    )


def _report(run: Run, outcomes: tuple[Outcome, ...]) -> RunReport:
    knowledge = load_causes()
    judged = judge(outcomes, knowledge, whole=_is_whole(run, outcomes))
    if judged.verdict is Verdict.HEALTHY:
        outcomes = tuple(_answered(outcome, judged.answered) for outcome in outcomes)
    diagnosis = judged.diagnosis
    fix = _fix(run, diagnosis[0], outcomes) if diagnosis else None
    log = run.get(TrainingLog)
    unlocks = unlocks_most(judged.coverage)
    if unlocks is not None and unlocks.why == NOT_ASKED:
        unlocks = replace(unlocks, command=_command(run, allow_model=True))
    report = RunReport(
        run=run,
        name=run.name,
        verdict=judged.verdict,
        outcomes=outcomes,
        diagnosis=diagnosis,
        coverage=judged.coverage,
        evidence=run.evidence,
        missing=run.missing,
        left_out=run.left_out,
        fix=fix,
        next=unlocks,
        commands=() if run.is_planned else (_command(run, allow_model=run.options.allow_model),),
        versions={**versions_here(), **(log.notes.versions if log is not None else {})},
        unreadable=tuple(str(error) for error in run.unreadable),
        version=version_here(),
    )
    return as_seen_here(report if run.options.with_text else without_text(report, texts_of(run)))


def _answered(outcome: Outcome, answered: Collection[str]) -> Outcome:
    """With errors that are answered as notes; that answers are poor stays what it is."""
    findings = tuple(
        replace(finding, severity=Severity.INFO)
        if finding.code in answered and not finding.code.startswith(OF_ANSWERS)
        else finding
        for finding in outcome.findings
    )
    return replace(outcome, findings=findings)


def texts_of(run: Run) -> Iterator[str]:
    """All text of a run that may be nobody else's business: its rows, and what the model said."""
    if (dataset := run.get(Dataset)) is not None:
        yield from dataset.texts
    generations = run.get(Generations)
    for item in generations.items if generations is not None else ():
        yield from filter(None, (item.prompt, item.base, item.tuned, item.expected))


def _fix(run: Run, first: Diagnosed, outcomes: Sequence[Outcome]) -> Fix | None:
    """The change of the configuration that mends the first cause, with the findings' values.

    What speaks for the cause most has its value first: one that was tried before a usual one.
    """
    findings = [finding for outcome in outcomes for finding in outcome.findings]
    supporting = [finding for finding in findings if finding.code in first.supporting]
    supporting.sort(key=lambda finding: first.supporting.index(finding.code))
    change, needed = first.cause.change, needed_values(supporting)
    if change is None or (change.advised_only and change.key not in needed):
        return None
    return fix_for(change, run.get(TrainingConfig), needed)


def _command(run: Run, *, allow_model: bool) -> str:
    options = run.options
    arguments = [str(path) for path in run.files.roots]
    arguments += [f"--log={path}" for path in options.log]
    arguments += [f"--{name}={path}" for name, path in options.paths.items()]
    arguments += [] if options.with_text else ["--no-text"]
    arguments += [] if allow_model else ["--no-generate"]
    return shlex.join(["mlxdoctor", "diagnose", *arguments])
