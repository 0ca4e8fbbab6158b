"""Logs of users: what the checks of a log say of each. Of the fixture runs: test_runs."""

import pytest

from mlxdoctor.evidence.training_log import TrainingLog
from tests.checks.log_evidence import finding
from tests.conftest import LOGS, check_called
from tests.given import outcome as judge

CHECKS = (
    *("loss-trend", "loss-level", "loss-finite", "series-facts", "log-failures", "preferences"),
)
#: Log -> signs, those that are no errors with their severity. Of all others nothing is said.
SIGNS = {
    "CONTROL-mlx-lm-330-llama3.2-3b-wikisql-cuda": ["log-failures.ends-early info"],
    "gh-kcsanjeeb-example-code-1-1": ["loss-trend.overfitting"],
    "gh-maformac-metal-oom": ["log-failures.out-of-memory"],
    "gh-nyay-2e-4-exploded": ["loss-trend.diverged", "loss-level.stays-at-chance"],
    "gh-qwen3-distill-overfit": ["loss-trend.overfitting", "log-failures.interrupted warning"],
    "mlx-examples-1233-grpo-zero": [
        *("loss-finite.exact-zero warning", "preferences.no-signal warning"),
    ],
    "mlx-examples-199-flat": ["loss-trend.never-learned warning"],
    "mlx-examples-620-a-rank64-lr7e-5": ["loss-trend.diverged"],
    "mlx-examples-620-c-qwen1.5-14b-before-nan": ["series-facts.memory-rose info"],
    "mlx-examples-664-oom": ["series-facts.memory-rose info", "log-failures.ends-early info"],
    "mlx-examples-724-memory-growth": [
        *("series-facts.memory-rose info", "log-failures.ends-early info"),
    ],
    "mlx-lm-18-a-0.22.0-suspiciously-fast": [
        *("loss-level.suspiciously-low info", "log-failures.ends-early info"),
    ],
    "mlx-lm-236-oom-full-ft": ["log-failures.out-of-memory"],
    "mlx-lm-423-longcat-nan": ["loss-finite.non-finite", "log-failures.ends-early info"],
    "mlx-examples-1210-orpo": ["log-failures.ends-early info"],
    "mlx-lm-6-dpo-orpo": ["log-failures.ends-early info"],
    "mlx-vlm-795-orpo": ["series-facts.same-token-count info"],
    "torch-MiniCPM-V-212-loss0-gradnan": [
        *("loss-finite.hidden-non-finite", "series-facts.gradient-never-finite"),
    ],
    "torch-TRACE-5-same-every-epoch": ["loss-trend.repeats"],
    "torch-gemma_pytorch-24-intermittent-nan": [
        "loss-trend.exploded warning",
        "loss-finite.non-finite-now-and-then",
        "series-facts.gradient-not-finite warning",
    ],
    "torch-nanoVLM-187-nan": [
        *("loss-finite.non-finite-before-training", "series-facts.not-finite info"),
    ],
    "torch-trl-1473-orpo-nan": [
        *("loss-finite.hidden-non-finite", "series-facts.gradient-never-finite"),
        *("series-facts.rate-negligible info", "series-facts.not-finite info"),
    ],
    "CONTROL-torch-transformers-35438-ga1": ["loss-level.starts-near-uniform info"],
    "torch-unsloth-255-plain": ["loss-level.starts-near-uniform info"],
}
PATHS = {path.stem: path for path in sorted(LOGS.glob("*.log"))}


@pytest.mark.parametrize("name", PATHS)
def test_what_is_said_of_a_log(name: str) -> None:
    log = TrainingLog.read([PATHS[name]])
    findings = [each for check in CHECKS for each in judge(check_called(check), log).findings]
    signs = [f"{each.code} {each.severity}".removesuffix(" error") for each in findings]
    assert signs == SIGNS.get(name, [])


@pytest.mark.parametrize(
    ("name", "code", "onset", "measured"),
    [
        ("mlx-lm-423-longcat-nan", "loss-finite.non-finite", 10, {"base_validation_loss": 11.392}),
        (
            "torch-MiniCPM-V-212-loss0-gradnan",
            "loss-finite.hidden-non-finite",
            2,
            {"zeros_count": 6},
        ),
        ("mlx-examples-620-a-rank64-lr7e-5", "loss-trend.diverged", 25, {"end": 6.509}),
        ("mlx-lm-236-oom-full-ft", "log-failures.out-of-memory", 50, {"peak_memory_gb": 34.108}),
    ],
)
def test_since_when_and_by_how_much(
    name: str, code: str, onset: int, measured: dict[str, float]
) -> None:
    check, _, symptom = code.partition(".")
    sign = finding(judge(check_called(check), TrainingLog.read([PATHS[name]])), symptom)
    assert sign.onset == onset
    assert sign.measured.items() >= measured.items()
