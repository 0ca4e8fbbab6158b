"""A complete, realistic report to render: told as JSON has it, and made of it."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import EnumType
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from mlxdoctor.causes import Cause
from mlxdoctor.confirmation import CauseTried, Experiment, Rerun
from mlxdoctor.diagnosis import Diagnosed
from mlxdoctor.exhibits import CheckpointSizes, DriftByLayer, LossCurve, SampleAnswer
from mlxdoctor.finding import Finding, Outcome, Status
from mlxdoctor.report import Report
from mlxdoctor.verdict import Verdict

EXHIBITS = {
    "loss": LossCurve,
    "drift": DriftByLayer,
    "checkpoints": CheckpointSizes,
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
    """The outcome of a check."""
    return {
        "check": check,
        "status": status,
        "reason": reason,
        "seconds": 0.01,
        "findings": list(findings),
        "seen": [],
        "unsought": {},
    }


def covered(cause: str, status: str, why: str, needs: str = "") -> dict[str, Any]:
    """What is known of a cause."""
    return {"cause": cause, "status": status, "why": why, "needs": needs}


def file(kind: str, name: str, sha256: str | None, note: str = "") -> dict[str, Any]:
    """A file that was read."""
    return {"kind": kind, "source": f"runs/llama-commas/{name}", "sha256": sha256, "note": note}


def term(code: str, group: str, weight: float) -> dict[str, Any]:
    """A finding that counts in a score."""
    return {"code": code, "group": group, "weight": weight, "note": "found"}


def diagnosed(cause: str, score: float, **fields: Any) -> dict[str, Any]:
    """A diagnosed cause with every key."""
    rest: dict[str, Any] = {
        "supporting": [],
        "contradicting": [],
        "unknown": [],
        "arithmetic": [],
        "confirmation": None,
        "probability": None,
    }
    return {"cause": cause, "score": score, **rest, **fields}


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
    nan = float("nan")
    away = "the base model 'mlx-community/Llama' is not on this machine"
    steps = list(range(5, 205, 5))
    train = [2.148, 2.609, 4.104, 10.965] + [10.2 - 0.001 * step for step in steps[4:]]
    text = {
        "learning-rate-too-high": {
            "title": "The learning rate is too high",
            "summary": "the step (rate × scale) destroys the model: loss rises or explodes",
            "explanation": "Each update moves the adapter by about `learning_rate`.",
            "remedy": "Lower `learning_rate` tenfold and add a warm-up of 50 updates.",
        },
        "scale-too-large": {
            "title": "The LoRA scale is too large",
            "summary": "The LoRA scale multiplies the update by too much.",
            "explanation": "`scale` is a plain multiplier in mlx-lm.",
            "remedy": "Divide `scale` by the rank.",
        },
    }
    return {
        "schema_version": 3,
        "coverage": [
            covered("learning-rate-too-high", "named", "loss-trend.diverged"),
            covered("bad-data", "ruled-out", "data-quality.duplicates"),
            covered("wrong-base-model", "open", away, "name its folder with --base"),
        ],
        "tool": {"name": "mlxdoctor", "version": "0.1.0"},
        "name": "llama-commas",
        "verdict": "unhealthy",
        "run": {
            "evidence": [
                file("training configuration", "adapter_config.json", "ab" * 32),
                file("training log", "train.log", "cd" * 32),
                file("adapter", "adapters.safetensors", None, "not hashed: 700,000,000 bytes"),
            ],
            "missing": [
                {
                    "kind": "base model",
                    "why": "'mlx-community/Llama' is not on this machine; name it with --base",
                }
            ],
            "left_out": [],
        },
        "diagnosis": [
            diagnosed(
                "learning-rate-too-high",
                5.25,
                supporting=["loss-trend.diverged", "loss-floors.worse-than-unigram"],
                unknown=["adapter-drift.exploded"],
                arithmetic=[
                    term("loss-trend.diverged", "loss", 4.0),
                    term("loss-floors.worse-than-unigram", "floor", 2.25),
                ],
            ),
            diagnosed(
                "scale-too-large",
                1.5,
                supporting=["loss-trend.diverged"],
                contradicting=["loss-trend.fell-first"],
                arithmetic=[term("loss-trend.diverged", "loss", 4.0)],
            ),
        ],
        "outcomes": [
            outcome(
                "loss-trend",
                "found",
                finding(
                    "loss-trend.diverged",
                    "error",
                    "The training loss rose from 2.148 to 10.97 within 20 iterations.",
                    measured={"first": 2.148, "peak": 10.965, "last": 10.0, "reports": 40},
                    expected="the loss falls, or at least ends below where it began",
                    onset=10,
                    fix="Lower the learning rate.",
                ),
            ),
            outcome(
                "loss-floors",
                "found",
                finding(
                    "loss-floors.worse-than-unigram",
                    "error",
                    "The last loss, 10.0, is worse than always guessing by token frequency (6.9).",
                    measured={"last": 10.0, "unigram": 6.9, "worst": nan},
                ),
            ),
            outcome("adapter-presence", "passed"),
            outcome(
                "config-sanity",
                "found",
                finding("config-sanity.no-seed", "info", "No seed is stated; mlx-lm uses 0."),
            ),
            outcome(
                "adapter-drift",
                "skipped",
                reason=away,
            ),
        ],
        "experiments": [],
        "causes": text,
        "fix": {
            "before": {"learning_rate": 0.0002},
            "after": {"learning_rate": 2e-05},
            "diff": (
                "--- adapter_config.json\n+++ adapter_config.json\n"
                '-  "learning_rate": 0.0002,\n+  "learning_rate": 2e-05,\n'
            ),
        },
        "figures": {
            "loss": {
                "train": {"iterations": steps, "values": train},
                "val": {"iterations": [1, 100, 200], "values": [1.858, 10.4, 9.997]},
                "onset": 10,
                "floors": [
                    {"label": "uniform guess, ln(128,256)", "value": 11.762},
                    {"label": "best constant guess", "value": 6.9},
                    {"label": "base model", "value": 1.858},
                ],
                "axis": "iteration",
            },
            "replay": None,
            "drift": {
                "rows": [f"layer {index}" for index in range(16)],
                "columns": ["self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"],
                "values": [[0.1 * 1.2**row, 0.3, nan] for row in range(16)],
                "quantity": "‖update‖ / ‖weight‖",
            },
            "checkpoints": {
                "rows": ["layer 0", "layer 1"],
                "columns": ["50", "100", "150", "final"],
                "values": [[0.1, 0.2, nan, nan], [0.0, 0.3, 9.0, 9.0]],
                "broken": [False, False, True, True],
                "quantity": "‖ΔW‖/‖W‖",
            },
        },
        "next": {
            "why": away,
            "how": "name its folder with --base",
            "settles": ["wrong-base-model", "adapter-not-loaded"],
            "command": "",
        },
        "commands": ["mlxdoctor diagnose runs/llama-commas"],
        "versions": {"mlxdoctor": "0.1.0", "mlx": "0.32.4", "mlx-lm": "0.32.2"},
        "sample": {
            "prompt": "What is 2 + 2?",
            "base": "2 + 2 is 4.",
            "tuned": "," * 80,
        },
        "unreadable": [],
        "withheld": False,
        "planned": None,
    }


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
    first, *rest = [made_outcome(one) for one in data["outcomes"]] or [Outcome("", Status.PASSED)]
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
    """A finding."""
    return of_type(Finding, data)  # type: ignore[no-any-return]


def made_outcome(data: Mapping[str, Any]) -> Outcome:
    """The outcome of a check."""
    return of_type(Outcome, data)  # type: ignore[no-any-return]


def made_experiment(data: Mapping[str, Any]) -> Experiment:
    """What was tried."""
    kind = CauseTried if data["experiment"] == "verdict" else Rerun
    return of_type(kind, data)  # type: ignore[no-any-return]


def _diagnosed(data: Mapping[str, Any], words: Mapping[str, Any]) -> Diagnosed:
    cause = Cause(id=data["cause"], prior=0.0, **words[data["cause"]])
    return of_type(Diagnosed, {**data, "cause": cause})  # type: ignore[no-any-return]
