"""A configuration in, a report out: what it plans, looked at by the checks of `diagnose`."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxdoctor.api import RunReport, examined
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.kind import Missing, Progress
from mlxdoctor.evidence.options import Options
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.finding import Severity, Status
from mlxdoctor.measure.run_cost import RunCost, machine_memory
from mlxdoctor.preflight.configuration import all_changes, planned_config
from mlxdoctor.report import Planned
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.time_budget import TimeBudget
from mlxdoctor.template import duration
from mlxdoctor.twin.predict import Device, Timed, predict_memory, predict_time
from mlxdoctor.twin.reach import Reach
from mlxdoctor.twin.rerun import recorded_settings
from mlxdoctor.verdict import CauseStatus, Readiness, Verdict

#: What a plan can have; the rest comes with the run.
_BEFORE = frozenset(
    kind.kind for kind in (BaseModel, Tokenizer, Dataset, SupervisedRows, Reach, RunCost)
)
#: Of the time for steps, the share that the first one and those that are timed may take.
_TIMED_SHARE = 0.4


def examine(
    config: Any,
    keys: Mapping[str, Any],
    options: Options,
    progress: Progress | None,
    *,
    elsewhere: bool,
    memory: int | None,
) -> RunReport:
    """What `mlxdoctor.preflight` does; `keys` are mlx-lm's, before those of the file."""
    begun, steps, seconds = time.perf_counter(), options.allow_model, options.budget or 0.0
    file, values = _stated(config)
    plan = planned_config(file, {**values, **keys})
    run = Run.planned(plan, options, progress=progress)
    run, steps_timed, problem = _make_steps(run, seconds) if steps else (run, None, "")
    device: Device = "metal"
    if not elsewhere and memory is None:
        device, memory = machine_memory()
    cost = _cost_of(run, plan, device, memory, steps_timed)
    if cost is not None:
        run = run.having(cost)
    # Training has twice the budget, and nothing else takes time here.
    budget = TimeBudget(max(seconds - (time.perf_counter() - begun), 1.0) / 2)
    report = examined(replace(run, budget=budget))
    readiness, why = _readiness_of(report)
    learning = [problem or _learning(report)] if steps else []
    facts = tuple(filter(None, (*learning, *_facts(run, plan), *_seen(report, "predicted-memory"))))
    fix = all_changes(plan, report.diagnosis, report.findings)
    report = replace(report, planned=Planned(readiness, why, facts), fix=fix, next=None)
    return _without_what_comes_later(report)


def _stated(config: Any) -> tuple[Path | None, dict[str, Any]]:
    if isinstance(config, Path | str):
        return Path(config), {}
    if config is None:
        return None, {}
    values = config if isinstance(config, Mapping) else getattr(config, "__dict__", None)
    if not isinstance(values, Mapping):
        remedy = "give a path, a mapping, or the arguments of mlx_lm.lora"
        raise InputError(None, f"{type(config).__name__} is no configuration", remedy)
    return None, dict(values)


def _make_steps(run: Run, seconds: float) -> tuple[Run, Timed | None, str]:
    """Make the first step, and some for their time.

    Returns:
        The run with what the first one showed, what the others took, and why something could not
        be made, as a sentence.
    """
    from mlxdoctor.preflight.steps import first_step, timed
    from mlxdoctor.twin.prepared import prepared

    begun = time.perf_counter()
    if run.get(BaseModel) is None or run.get(Dataset) is None:
        return run, None, "No step was made: it takes the base model and the data."
    try:
        start = prepared(recorded_settings(run))
        run = run.having(first_step(start, run.progress))
        left = _TIMED_SHARE * seconds - (time.perf_counter() - begun)
        return run, timed(start, max(left, 1.0)), ""
    except (InputError, Missing) as error:
        return run, None, f"No step could be made, or not all: {error}."


def _cost_of(
    run: Run, config: TrainingConfig, device: Device, memory: int | None, timed: Timed | None
) -> RunCost | None:
    """What the run would take; None where rows or shapes are not known."""
    base, rows = run.get(BaseModel), run.get(SupervisedRows)
    batch_size = config.batch_size
    if base is None or rows is None or not (rows.batches and batch_size and config.max_seq_length):
        return None
    widths = [rows.width(batch) - 1 for batch in rows.batches]
    tokens = max(widths)
    frugal = replace(config, values={**config.values, "grad_checkpoint": True})
    predicted = predict_memory(base, config, tokens, device)
    checkpointed = predict_memory(base, frugal, tokens, device)
    if predicted is None or checkpointed is None:
        return None
    seconds, iterations = None, config.iters
    if timed is not None and timed.trained and timed.validated and iterations:
        split = run.need(Dataset).splits.get("valid")
        batches = len(split.rows) // batch_size if split is not None else 0
        if config.val_batches is not None and config.val_batches >= 0:
            batches = min(batches, config.val_batches)
        # mlx-lm validates before the first iteration, every so many, and at the last.
        every = config.steps_per_eval or 200
        validations = len({1, iterations, *range(every, iterations + 1, every)})
        seconds = predict_time(timed, iterations, batch_size, widths, validations * batches)
    return RunCost(
        peak=predicted.peak,
        memory=memory,
        batch_size=batch_size,
        tokens=tokens,
        is_rough=predicted.is_rough,
        checkpointed=None if predicted == checkpointed else checkpointed.peak,
        seconds=seconds,
    )


def _readiness_of(report: RunReport) -> tuple[Readiness, str]:
    """Whether the run may be begun, and what could not be looked at, as a clause."""
    run = report.run
    lacking = [
        name
        for name, kind in (("base model's tokenizer", Tokenizer), ("training data", Dataset))
        if run.get(kind) is None
    ]
    why = ""
    if lacking:
        reasons = dict.fromkeys(
            absent.why.partition("; ")[0]
            for absent in report.missing
            if absent.kind in (Tokenizer.kind, Dataset.kind)
        )
        said = f": {', and '.join(reasons)}" if reasons else ""
        why = f"the {' and the '.join(lacking)} could not be looked at{said}"
    elif report.unreadable:
        why = "not every file could be read"
    if report.verdict is Verdict.UNHEALTHY:
        return Readiness.NOT_READY, why
    if why:
        return Readiness.UNKNOWN, why
    warned = any(finding.severity is Severity.WARNING for finding in report.findings)
    if warned or report.verdict is Verdict.SUSPECT:
        return Readiness.READY_BUT, ""
    return Readiness.READY, ""


def _without_what_comes_later(report: RunReport) -> RunReport:
    """The report without asking for logs and adapters, which nobody has before a run."""
    missing = tuple(lacking for lacking in report.missing if lacking.kind in _BEFORE)
    reasons = {lacking.why.partition("; ")[0] for lacking in missing}
    coverage = tuple(
        replace(cause, why="what remains of it shows in training", needs="")
        if cause.status is CauseStatus.OPEN and cause.why not in reasons
        else cause
        for cause in report.coverage
    )
    later = {lacking.why for lacking in report.missing if lacking.kind not in _BEFORE}
    outcomes = tuple(
        replace(outcome, reason="it looks at what a run leaves")
        if outcome.status is Status.SKIPPED and outcome.reason in later
        else outcome
        for outcome in report.outcomes
    )
    return replace(report, missing=missing, coverage=coverage, outcomes=outcomes)


def _learning(report: RunReport) -> str:
    """What the first updates show, as a sentence; where they were not made, why."""
    if seen := _seen(report, "reach"):
        return seen[0]
    outcome = next(each for each in report.outcomes if each.check == "reach")
    if outcome.findings:
        return ""
    return f"Whether these settings teach the model its rows was not seen: {outcome.reason}."


def _seen(report: RunReport, check: str) -> list[str]:
    return [
        seen.message
        for outcome in report.outcomes
        if outcome.check == check
        for seen in outcome.seen
    ]


def _facts(run: Run, config: TrainingConfig) -> Iterator[str]:
    """What the plan comes to, in sentences, that no check says."""
    dataset, rows, cost = run.get(Dataset), run.get(SupervisedRows), run.get(RunCost)
    train = dataset.splits.get("train") if dataset is not None else None
    iters, batch = config.iters, config.batch_size
    if train is not None and iters and batch and 0 < batch <= len(train.rows):
        passes = iters / (len(train.rows) // batch)
        yield (
            f"{len(train.rows):,} rows in batches of {batch}: {iters:,} iterations are "
            f"{format(passes, '.2g' if passes < 10 else ',.0f')} passes over them."
        )
    if rows is not None and rows.rows:
        longest = max(len(row.tokens) for row in rows.rows)
        cut = sum(len(row.tokens) > rows.max_seq_length for row in rows.rows)
        part = "" if rows.examined_rows == rows.total_rows else f" of {rows.examined_rows:,}"
        how_many = f"and {cut:,} are cut" if cut else "none is cut"
        yield (
            f"The longest row{part} has {longest:,} tokens; {how_many} after "
            f"{rows.max_seq_length:,}."
        )
    if cost is not None and cost.seconds is not None:
        low, likely, high = map(duration, cost.seconds)
        yield (
            f"From its first iteration to its last the run takes about {likely} here ({low} to "
            f"{high}), what is compiled at first aside."
        )
