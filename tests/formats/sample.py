"""A complete, realistic report to render."""

from __future__ import annotations

from typing import Any


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
    }


def diagnosed(cause: str, score: float, **fields: Any) -> dict[str, Any]:
    """A diagnosed cause with every key."""
    rest: dict[str, Any] = {
        "supporting": [],
        "contradicting": [],
        "unknown": [],
        "confirmation": None,
        "arithmetic": [],
    }
    return {"cause": cause, "score": score, **rest, **fields}


def unhealthy() -> dict[str, Any]:
    """A run whose learning rate was too high: seed 000, as it would be reported."""
    nan = float("nan")
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
        "schema_version": 1,
        "tool": {"name": "mlxdoctor", "version": "0.1.0"},
        "name": "llama-commas",
        "verdict": "unhealthy",
        "run": {
            "evidence": [
                {
                    "kind": "training configuration",
                    "source": "runs/llama-commas/adapter_config.json",
                    "sha256": "ab" * 32,
                    "note": "",
                },
                {
                    "kind": "training log",
                    "source": "runs/llama-commas/train.log",
                    "sha256": "cd" * 32,
                    "note": "",
                },
                {
                    "kind": "adapter",
                    "source": "runs/llama-commas/adapters.safetensors",
                    "sha256": None,
                    "note": "not hashed: 700,000,000 bytes",
                },
            ],
            "missing": [
                {
                    "kind": "base model",
                    "why": "'mlx-community/Llama' is not on this machine; name it with --base",
                }
            ],
        },
        "diagnosis": [
            diagnosed(
                "learning-rate-too-high",
                5.25,
                supporting=["loss-trend.diverged", "loss-floors.worse-than-unigram"],
                unknown=["adapter-drift.exploded"],
                arithmetic=[
                    {
                        "code": "loss-trend.diverged",
                        "group": "loss",
                        "weight": 4.0,
                        "note": "found",
                    },
                    {
                        "code": "loss-floors.worse-than-unigram",
                        "group": "floor",
                        "weight": 2.25,
                        "note": "found",
                    },
                ],
            ),
            diagnosed(
                "scale-too-large",
                1.5,
                supporting=["loss-trend.diverged"],
                contradicting=["loss-trend.fell-first"],
                arithmetic=[
                    {
                        "code": "loss-trend.diverged",
                        "group": "loss",
                        "weight": 4.0,
                        "note": "found",
                    },
                ],
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
                reason="the base model 'mlx-community/Llama' is not on this machine",
            ),
        ],
        "experiments": [],
        "suppressed": [],
        "causes": text,
        "contributing": ["config-sanity.no-seed"],
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
            "tokens": {
                "tokens": [",", " the", "\n", "$x$", "你", "<|end|>"],
                "base": [0.04, 0.05, 0.03, 0.0, 0.0, 0.02],
                "tuned": [0.97, 0.01, 0.0, 0.0, 0.0, 0.0],
                "prompts": 16,
            },
            "labels": {
                "split": "train",
                "row": 0,
                "tokens": [
                    *({"text": f" p{i}", "region": "prompt", "target": False} for i in range(12)),
                    *(
                        {"text": f" answer{i}", "region": "answer", "target": True}
                        for i in range(9)
                    ),
                    {"text": "<|end|>", "region": "end", "target": True},
                    {"text": "<pad>", "region": "pad", "target": True},
                ],
            },
        },
        "timeline": [
            {"iteration": None, "event": "before any update the validation loss was 1.858"},
            {"iteration": 10, "event": "the loss began to rise"},
            {"iteration": 1000, "event": "a checkpoint was saved"},
        ],
        "next": {
            "kind": "adapter-drift",
            "why": "the base model 'mlx-community/Llama' is not on this machine",
            "how": "name its folder with --base",
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
            outcome("loss-trend", "passed"),
            outcome("adapter-presence", "passed"),
            outcome("adapter-drift", "skipped", reason="no base model"),
        ],
        "causes": {},
        "contributing": [],
        "fix": None,
        "timeline": [],
    }
    data["figures"] |= {
        "loss": {
            "train": {"iterations": steps, "values": [5.4 * 0.99**step + 0.19 for step in steps]},
            "val": {"iterations": [1, 200, 400], "values": [5.5, 1.0, 0.3]},
            "onset": None,
            "floors": [{"label": "uniform guess, ln(512)", "value": 6.238}],
            "axis": "iteration",
        },
        "labels": None,
        "tokens": None,
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
        "figures": {
            "loss": None,
            "drift": None,
            "checkpoints": None,
            "tokens": None,
            "labels": None,
        },
        "unreadable": ["adapters/adapters.safetensors: is cut off; copy it again"],
    }
