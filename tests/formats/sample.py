"""A complete, realistic report to render: told as JSON has it, and made of it."""

import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import EnumType
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from mlxdoctor.causes import Cause
from mlxdoctor.diagnosis import Diagnosed
from mlxdoctor.exhibits import LossCurve, SampleAnswer
from mlxdoctor.finding import Finding, Outcome, Status
from mlxdoctor.report import Report
from mlxdoctor.verdict import CauseTried, Experiment, Rerun, Verdict

EXHIBITS = {
    "loss": LossCurve,
}


def finding(code: str, severity: str, message: str, **fields: Any) -> dict[str, Any]:
    """A finding with every key."""
    rest = {"measured": {}, "expected": "", "where": None, "onset": None, "fix": ""}
    return {
        "code": code,
        "severity": severity,
        "message": message,
        **rest,
        **fields,
        "fingerprint": "0" * 16,
    }


def outcome(check: str, status: str, *findings: dict[str, Any], reason: str = "") -> dict[str, Any]:
    return {
        "check": check,
        "status": status,
        "reason": reason,
        "seconds": 0.01,
        "findings": list(findings),
        "seen": [],
        "unsought": {},
    }


def file(kind: str, name: str, sha256: str | None, note: str = "") -> dict[str, Any]:
    return {"kind": kind, "source": f"runs/llama-commas/{name}", "sha256": sha256, "note": note}


def rerun(**changes: Any) -> dict[str, Any]:
    """One rerun as the report lists it."""
    return {
        "experiment": "as recorded",
        "cause": None,
        "label": "rerun as recorded",
        "seed": 0,
        "symptom": True,
        "errors": [],
        "base_loss": 5.0,
        "loss": 4.0,
        "iterations": 50,
        "seconds": 2.5,
        "curve": {"iterations": [1, 2, 3], "values": [4.0, 3.0, 2.0]},
        "samples": [],
        **changes,
    }


def unhealthy() -> dict[str, Any]:
    """A run whose learning rate was too high: seed 000, as it would be reported."""
    told: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
    return told


def healthy() -> dict[str, Any]:
    """A run with nothing wrong."""
    data = unhealthy()
    steps = list(range(10, 410, 10))
    data |= {
        "verdict": "healthy",
        "name": "geography",
        "diagnosis": [],
        "outcomes": [
            outcome("loss-trend", "passed")
            | {
                "seen": [
                    {
                        "message": "The validation loss fell from 2.1 to 1.2.",
                        "measured": {"first": 2.1, "last": 1.2},
                        "learned": True,
                        "fell": False,
                        "stood": False,
                    }
                ]
            },
            outcome("adapter-presence", "passed"),
            outcome("adapter-drift", "skipped", reason="no base model"),
        ],
        "coverage": data["coverage"][1:],
        "causes": {},
        "fix": None,
    }
    data["figures"] |= {
        "loss": {
            "train": {"iterations": steps, "values": [5.4 * 0.99**step + 0.19 for step in steps]},
            "val": {"iterations": [1, 200, 400], "values": [5.5, 1.0, 0.3]},
            "onset": None,
            "floors": [{"label": "uniform guess, ln(512)", "value": 6.238}],
            "axis": "iteration",
        },
        "replay": None,
    }
    return data


def inconclusive() -> dict[str, Any]:
    """A run of which next to nothing was left."""
    data = healthy()
    return data | {
        "verdict": "inconclusive",
        "name": "adapters",
        "outcomes": [
            outcome("loss-trend", "skipped", reason="no training log was found"),
            outcome("adapter-presence", "crashed", reason="KeyError: 'x' (adapter.py:12)"),
        ],
        "figures": dict.fromkeys(data["figures"]),
        "unreadable": ["adapters/adapters.safetensors: is cut off; copy it again"],
    }


def made(data: Mapping[str, Any]) -> Report:
    """The report whose JSON this is."""
    outcomes = [of_type(Outcome, one) for one in data["outcomes"]]
    first, *rest = outcomes or [Outcome("", Status.PASSED)]
    exhibits = [of_type(EXHIBITS[name], one) for name, one in data["figures"].items() if one]
    exhibits += [SampleAnswer(**data["sample"])] if data["sample"] else []
    told = {**vars(first), "exhibits": tuple(exhibits), "marks_onset": True}
    parts = {**data, **data["run"], "left_out": data["run"].get("left_out", ())}
    types = get_type_hints(Report)
    plain = ("coverage", "fix", "next", "commands", "unreadable")
    read = ("evidence", "missing", "left_out")
    return Report(
        name=data["name"],
        verdict=Verdict(data["verdict"]),
        outcomes=(Outcome(**told), *rest) if data["outcomes"] else (),
        diagnosis=tuple(_diagnosed(one, data["causes"]) for one in data["diagnosis"]),
        experiments=tuple(made_experiment(one) for one in data["experiments"]),
        versions=data["versions"],
        withheld=data["withheld"],
        version=data["tool"]["version"],
        **{name: of_type(types[name], parts[name]) for name in (*plain, *read)},
    )


def of_type(kind: Any, value: Any) -> Any:
    """A value of a type, from its JSON: a dataclass, an enumeration, a tuple, or what may be None.

    A dataclass may be given some of its fields as they are to be.
    """
    if get_origin(kind) is UnionType:
        return None if value is None else of_type(get_args(kind)[0], value)
    if get_origin(kind) is tuple:
        return tuple(of_type(get_args(kind)[0], one) for one in value)
    if is_dataclass(kind) and isinstance(value, Mapping):
        types = get_type_hints(kind)
        return kind(**{name: of_type(types[name], one) for name, one in value.items()})  # type: ignore[operator]
    return kind(value) if isinstance(kind, EnumType) else value


def made_finding(data: Mapping[str, Any]) -> Finding:
    return of_type(Finding, data)  # type: ignore[no-any-return]


def made_experiment(data: Mapping[str, Any]) -> Experiment:
    kind = CauseTried if data["experiment"] == "verdict" else Rerun
    return of_type(kind, data)  # type: ignore[no-any-return]


def _diagnosed(data: Mapping[str, Any], words: Mapping[str, Any]) -> Diagnosed:
    cause = Cause(id=data["cause"], prior=0.0, **words[data["cause"]])
    return of_type(Diagnosed, {**data, "cause": cause})  # type: ignore[no-any-return]
