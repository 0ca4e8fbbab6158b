import pytest

from mlxdoctor.api import diagnose
from tests.conftest import RUNS, run_names

CHECKS = [
    "adapter-presence",
    "adapter-structure",
    "checkpoint-history",
    "full-weights",
    "trainable-ratio",
    "weight-drift",
]
NEVER_TRAINED = {
    "adapter-presence.zero-b",
    "checkpoint-history.never-changed",
    "checkpoint-history.zero-b-throughout",
}
NOT_FINITE = {"adapter-presence.non-finite", "checkpoint-history.non-finite"}
FOUND = {
    "adapter-never-attached": {
        "adapter-presence.full-weights",
        "adapter-presence.no-lora-tensors",
        "full-weights.frozen-changed",
    },
    "adapter-not-loaded": {"adapter-structure.modules-not-in-base"},
    "b-never-trained": NEVER_TRAINED,
    "collapse-frequent-token": {"weight-drift.exploded"},
    "gradients-blocked": NEVER_TRAINED,
    "no-supervised-tokens": NOT_FINITE,
    "rate-far-too-high-nan": NOT_FINITE,
    "rate-too-high-garbled": {"weight-drift.exploded"},
    "rate-too-low": {"weight-drift.negligible", "weight-drift.straight"},
    "scale-too-large": {"weight-drift.exploded"},
    "wrong-base-model": {"adapter-structure.shape-mismatch"},
}


@pytest.mark.parametrize("run", run_names())
def test_fixture_runs(run: str) -> None:
    report = diagnose([RUNS / run], allow_model=False, select=CHECKS)
    assert {finding.code for finding in report.findings} == FOUND.get(run, set())
