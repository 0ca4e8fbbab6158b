"""`reproduce`: a report in, the same report with its causes tried by experiment out."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlxdoctor.causes import Cause, load_causes
from mlxdoctor.errors import InputError
from mlxdoctor.report.model import Report, without_folders
from mlxdoctor.reproduce import store
from mlxdoctor.reproduce.direct import DIRECT
from mlxdoctor.reproduce.investigate import (
    Case,
    Investigation,
    Trial,
    candidates,
    case_of,
    investigate,
)
from mlxdoctor.reproduce.judge import Judgement
from mlxdoctor.reproduce.laboratory import Laboratory
from mlxdoctor.reproduce.limits import Limits
from mlxdoctor.reproduce.recipe import NotReproducible, recipe_of
from mlxdoctor.reproduce.symptoms import outcomes_of
from mlxdoctor.run import Progress, Run

#: The summary, beside the experiments' own folders.
SUMMARY_FILE = "reproduction.json"


@dataclass(frozen=True)
class Options:
    """What to try, and for how long.

    Attributes:
        causes: ids to try besides the leading ones.
        seeds: how many seeds at most; two thirds of them have to agree.
        iterations: of each rerun; by default past the onset of the failure.
        minutes: after which no experiment goes on; None: no limit.
        limits: the thresholds.
    """

    causes: tuple[str, ...] = ()
    seeds: int = 3
    iterations: int | None = None
    minutes: float | None = None
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Places:
    """Evidence that lies elsewhere than the run says."""

    base: Path | None = None
    data: Path | None = None


def reproduce(
    report: Report,
    paths: Sequence[Path],
    folder: Path,
    options: Options,
    *,
    places: Places | None = None,
    progress: Progress | None = None,
) -> Report:
    """Make the failure again, try its likeliest causes, and say in the report what came of it.

    Args:
        report: what `diagnose` says of the run.
        paths: the run's folder or files.
        folder: where experiments are written; one that was stopped goes on there.
        options: what to try.
        places: where base and data lie, if the run does not say.
        progress: called with what is being done, a count done, and a total.

    Returns:
        The report with `experiments` and confirmations; unchanged where the run did not fail.

    Raises:
        InputError: a cause is unknown, or the folder can't be written.
    """
    knowledge = load_causes()
    for name in options.causes:
        if name not in knowledge.causes:
            raise InputError(None, f"there is no cause {name!r}", "see `mlxdoctor explain`")
    content = report.to_dict()
    if content["verdict"] != "unhealthy":
        return report
    places = places or Places()
    run = Run.discover(paths, base=places.base, data=places.data)
    asked = tuple(dict.fromkeys(options.causes))
    try:
        recipe = recipe_of(run)
    except NotReproducible as reason:
        judgement = Judgement("undecided", f"the run can't be made again: {reason}")
        names = [one["cause"] for one in content["diagnosis"][:1]]
        state = Investigation(judgements=dict.fromkeys((*names, *asked), judgement))
        return _folded(report, state, knowledge.causes)
    minutes = options.minutes
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    lab = Laboratory(recipe, folder, deadline, progress)
    case = case_of(
        outcomes_of(content),
        knowledge,
        limits=options.limits,
        seeds=tuple(recipe.seed + number for number in range(options.seeds)),
        recorded_iterations=recipe.iterations,
        iterations=options.iterations,
    )
    state = _experiments(lab, case, run, asked)
    shown = _folded(report, state, knowledge.causes)
    store.write_json(
        folder / SUMMARY_FILE,
        {
            "experiments": shown.data["experiments"],
            "ignored_keys": list(recipe.ignored),
            "iterations": case.iterations,
        },
    )
    return shown


def _experiments(lab: Laboratory, case: Case, run: Run, asked: Sequence[str]) -> Investigation:
    causes = candidates(case, lab.recipe.config, asked)
    state = Investigation(iterations=case.iterations, onset=case.onset)
    for one in [one for one in causes if one.cause.id in DIRECT]:
        if one.score == -math.inf:
            reason = "nothing that was found in this run speaks for it"
            judgement = Judgement("undecided", reason)
        else:
            judgement = DIRECT[one.cause.id](lab, run)
        state = replace(state, judgements={**state.judgements, one.cause.id: judgement})
    rest = [one for one in causes if one.cause.id not in DIRECT]
    is_settled = any(one.verdict == "confirmed" for one in state.judgements.values())
    if is_settled:
        rest = [one for one in rest if one.cause.id in asked]
    if not rest:
        return state
    found = investigate(lab, case, rest)
    judged = dict(found.judgements)
    if is_settled:
        for name, verdict in judged.items():
            if verdict.verdict == "confirmed":
                reason = f"{verdict.reason}; but another cause was shown directly"
                judged[name] = Judgement("undecided", reason)
    return replace(found, judgements={**state.judgements, **judged})


def _folded(report: Report, state: Investigation, causes: Mapping[str, Cause]) -> Report:
    """The report with the verdicts, confirmed causes first and refuted ones last."""
    data = report.to_dict()
    diagnosis = [
        {**one, "confirmation": state.judgements[one["cause"]].verdict}
        if one["cause"] in state.judgements
        else one
        for one in data["diagnosis"]
    ]
    known = {one["cause"] for one in diagnosis}
    diagnosis += [
        _unsuspected(name, one.verdict)
        for name, one in state.judgements.items()
        if name not in known and one.verdict == "confirmed"
    ]
    order = {"confirmed": 0, "refuted": 2}
    diagnosis.sort(key=lambda one: order.get(one["confirmation"] or "", 1))
    root = diagnosis[0]["cause"] if diagnosis else None
    fix = data["fix"]
    if root is not None and root in state.fixes and state.judgements[root].verdict == "confirmed":
        fix = state.fixes[root].to_dict()
    elif root is not None and data["diagnosis"] and root != data["diagnosis"][0]["cause"]:
        fix = None
    verdicts = [
        {
            "experiment": "verdict",
            "cause": name,
            "title": causes[name].title,
            "verdict": one.verdict,
            "reason": one.reason,
        }
        for name, one in state.judgements.items()
    ]
    named = {one["cause"] for one in diagnosis}
    texts = {
        name: {
            "title": causes[name].title,
            "summary": causes[name].summary,
            "explanation": causes[name].explanation,
            "remedy": causes[name].remedy,
        }
        for name in named - set(data["causes"])
    }
    changed = {
        **data,
        "diagnosis": diagnosis,
        "causes": {**data["causes"], **texts},
        "fix": fix,
        "experiments": [*verdicts, *(_trial(one) for one in state.trials)],
    }
    return Report(without_folders(changed, [str(Path.cwd())], home=str(Path.home())))


def _unsuspected(name: str, verdict: str) -> dict[str, Any]:
    return {
        "cause": name,
        "score": 0.0,
        "supporting": [],
        "contradicting": [],
        "unknown": [],
        "confirmation": verdict,
        "arithmetic": [],
    }


def _trial(trial: Trial) -> dict[str, Any]:
    seen = trial.observation
    return {
        "experiment": trial.condition.kind,
        "cause": trial.cause,
        "label": trial.condition.label,
        "seed": trial.seed,
        "symptom": trial.shows,
        "errors": [code for code, severity in seen.findings if severity == "error"],
        "base_loss": seen.base_loss,
        "loss": seen.loss,
        "iterations": seen.steps,
        "seconds": seen.seconds,
        "curve": {"iterations": list(seen.iterations), "values": list(seen.losses)},
        "samples": [
            {"prompt": one.prompt, "base": one.base, "tuned": one.tuned} for one in seen.samples
        ],
    }
