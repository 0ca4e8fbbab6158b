"""The report of a run, with what the experiments say of its causes folded in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mlxdoctor.causes import Cause
from mlxdoctor.experiments import Measured
from mlxdoctor.experiments.shared.bench import Trial
from mlxdoctor.formats.model import Report, home_folder, without_folders
from mlxdoctor.reproduce.investigate import Investigation
from mlxdoctor.reproduce.minimize import Minimized

#: Verdicts in the order in which they are listed; causes that were not tried are undecided.
_ORDER = {"confirmed": 0, "undecided": 1, "refuted": 2}


def folded(
    report: Report,
    state: Investigation,
    causes: Mapping[str, Cause],
    trials: Iterable[Trial] = (),
    minimized: Minimized | None = None,
) -> Report:
    """The report with the verdicts, confirmed causes first and refuted ones last."""
    data = report.to_dict()
    diagnosis = _diagnosis(data, state)
    named = {one["cause"] for one in diagnosis} - set(data["causes"])
    experiments = [
        *sorted(
            (_verdict(name, causes, state) for name in state.rulings),
            key=lambda one: _ORDER[one["verdict"]],
        ),
        *([state.agreement.to_dict()] if state.agreement is not None else []),
        *([minimized.to_dict()] if minimized is not None else []),
        *(_measured(name, one) for name, one in state.measured.items()),
        *(_trial(one) for one in trials),
    ]
    changed = {
        **data,
        "diagnosis": diagnosis,
        "causes": {**data["causes"], **{name: _texts(causes[name]) for name in named}},
        "fix": _fix(data, diagnosis, state, minimized),
        "experiments": experiments,
    }
    return Report(without_folders(changed, [str(Path.cwd())], home=home_folder()))


def _diagnosis(data: Mapping[str, Any], state: Investigation) -> list[dict[str, Any]]:
    diagnosis = [
        {**one, "confirmation": state.rulings[one["cause"]].verdict}
        if one["cause"] in state.rulings
        else one
        for one in data["diagnosis"]
    ]
    known = {one["cause"] for one in diagnosis}
    if data["verdict"] == "unhealthy":
        diagnosis += [
            _unsuspected(name)
            for name, one in state.rulings.items()
            if name not in known and one.verdict == "confirmed"
        ]
    return sorted(diagnosis, key=lambda one: _ORDER.get(one["confirmation"] or "", 1))


def _unsuspected(name: str) -> dict[str, Any]:
    return {
        "cause": name,
        "score": 0.0,
        "supporting": [],
        "contradicting": [],
        "unknown": [],
        "confirmation": "confirmed",
        "arithmetic": [],
    }


def _fix(
    data: Mapping[str, Any],
    diagnosis: list[dict[str, Any]],
    state: Investigation,
    minimized: Minimized | None,
) -> dict[str, Any] | None:
    """The change that cured it, rather than the one that the diagnosis would have tried."""
    root = diagnosis[0]["cause"] if diagnosis else None
    is_confirmed = root is not None and diagnosis[0]["confirmation"] == "confirmed"
    ruling = state.rulings.get(root) if root is not None and is_confirmed else None
    if ruling is not None and ruling.fix is not None:
        return ruling.fix.to_dict()
    if minimized is not None and minimized.fix is not None and not is_confirmed:
        return minimized.fix.to_dict()
    if data["diagnosis"] and root != data["diagnosis"][0]["cause"]:
        return None
    fix: dict[str, Any] | None = data["fix"]
    return fix


def _texts(cause: Cause) -> dict[str, str]:
    return {
        "title": cause.title,
        "summary": cause.summary,
        "explanation": cause.explanation,
        "remedy": cause.remedy,
    }


def _verdict(name: str, causes: Mapping[str, Cause], state: Investigation) -> dict[str, Any]:
    return {
        "experiment": "verdict",
        "cause": name,
        "title": causes[name].title,
        "verdict": state.rulings[name].verdict,
        "reason": state.rulings[name].reason,
    }


def _measured(cause: str, one: Measured) -> dict[str, Any]:
    return {
        "experiment": "direct",
        "cause": cause,
        "label": one.label,
        "iterations": one.iterations,
        "seconds": one.seconds,
    }


def _trial(trial: Trial) -> dict[str, Any]:
    seen = trial.observation
    return {
        "experiment": trial.condition.kind,
        "cause": trial.cause,
        "label": trial.condition.label,
        "seed": trial.seed,
        "symptom": trial.shows,
        "errors": list(seen.errors),
        "base_loss": seen.base_loss,
        "loss": seen.loss,
        "iterations": len(seen.iterations),
        "seconds": seen.seconds,
        "curve": {"iterations": list(seen.iterations), "values": list(seen.losses)},
        "samples": [
            {"prompt": one.prompt, "base": one.base, "tuned": one.tuned} for one in seen.samples
        ],
    }
