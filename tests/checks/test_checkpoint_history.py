"""What checkpoints say about the course of a run."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.checkpoints import CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.finding import Outcome, Severity, Status
from tests.conftest import RUNS, check_called
from tests.given import Given
from tests.weight_files import lora, save, write_config

checkpoint_history = check_called("checkpoint-history")


MODULES = {f"model.layers.{i}.self_attn.q_proj": (64, 64) for i in range(2)}


def state(size: float, seed: int = 0) -> dict[str, Any]:
    """Factors with a nominal update of `size` at scale 1."""
    tensors = lora(MODULES, seed=0)
    random = np.random.default_rng(seed)
    for name in MODULES:
        b = tensors[f"{name}.lora_b"] + 1e-4 * random.normal(size=(4, 64))
        norm = np.linalg.norm(tensors[f"{name}.lora_a"].astype(float) @ b)
        tensors[f"{name}.lora_b"] = (b * size * 8 / norm).astype("f4")
    return tensors


def examine(
    folder: Path, states: Sequence[dict[str, Any]], final: dict[str, Any] | None = None
) -> Outcome:
    for number, tensors in enumerate(states, 1):
        save(folder / f"{number * 100:07d}_adapters.safetensors", tensors)
    if final is not None:
        save(folder / "adapters.safetensors", final)
    config = write_config(folder, lora_parameters={"rank": 4, "scale": 1.0})
    return checkpoint_history.run(
        Given(CheckpointHistory.read(folder), TrainingConfig.read(config))
    )


def codes(outcome: Outcome) -> set[str]:
    assert outcome.status is not Status.CRASHED, outcome.reason
    return {finding.code.removeprefix("checkpoint-history.") for finding in outcome.findings}


def test_steady_growth_passes(tmp_path: Path) -> None:
    states = [state(0.1), state(0.15), state(0.2)]
    for final in (states[-1], state(0.3)):
        assert examine(tmp_path, states, final=final).status is Status.PASSED


def test_nothing_ever_changed(tmp_path: Path) -> None:
    (finding,) = examine(tmp_path, [state(0.1)] * 3).findings
    assert (finding.code, finding.severity) == ("checkpoint-history.never-changed", Severity.ERROR)
    assert (finding.onset, finding.measured["identical"]) == (100, 3)


@pytest.mark.parametrize("sizes", [(0.1, 0.1, 0.2), (0.1, 0.2, 0.2)])
def test_two_identical_ones_beside_a_change_pass(tmp_path: Path, sizes: Sequence[float]) -> None:
    assert examine(tmp_path, [state(size) for size in sizes]).status is Status.PASSED


def test_b_is_zero_throughout(tmp_path: Path) -> None:
    states = [lora(MODULES, b=0.0, seed=seed) for seed in (1, 2)]
    assert codes(examine(tmp_path, states)) == {"zero-b-throughout"}


def test_the_onset_of_nan(tmp_path: Path) -> None:
    broken = state(0.3)
    broken["model.layers.0.self_attn.q_proj.lora_a"][0, 0] = np.nan
    outcome = examine(tmp_path, [state(0.1), state(0.2), broken], final=broken)
    (finding,) = outcome.findings
    assert (finding.code, finding.severity) == ("checkpoint-history.non-finite", Severity.ERROR)
    assert (finding.onset, finding.measured["last_finite"]) == (300, 200)
    assert finding.fix == "use 0000200_adapters.safetensors"


def test_a_truncated_checkpoint_does_not_hide_the_others(tmp_path: Path) -> None:
    save(tmp_path / "0000050_adapters.safetensors", state(0.1))
    whole = (tmp_path / "0000050_adapters.safetensors").read_bytes()
    (tmp_path / "0000050_adapters.safetensors").write_bytes(whole[:-9])
    outcome = examine(tmp_path, [state(0.2), state(0.2)])
    assert codes(outcome) == {"unreadable", "never-changed"}


def test_missing_evidence_is_skipped() -> None:
    assert checkpoint_history.run(Given()).status is Status.SKIPPED


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ("healthy-ordinary", set()),
        ("healthy-noisy-batch1", set()),
        ("collapse-frequent-token", set()),
        ("b-never-trained", {"never-changed", "zero-b-throughout"}),
        ("no-supervised-tokens", {"non-finite"}),
    ],
)
def test_fixture_runs(run: str, expected: set[str]) -> None:
    folder = RUNS / run
    evidence = Given(CheckpointHistory.read(folder), TrainingConfig.read(folder))
    assert codes(checkpoint_history.run(evidence)) == expected


def test_a_final_file_that_began_otherwise_is_of_another_run(tmp_path: Path) -> None:
    states = [state(0.1), state(0.15), state(0.2)]
    stranger = state(0.12) | {
        name: value for name, value in lora(MODULES, seed=7).items() if name.endswith("lora_a")
    }
    (finding,) = examine(tmp_path, states, final=stranger).findings
    assert finding.code == "checkpoint-history.final-of-another-run"
    assert finding.severity is Severity.ERROR
    assert abs(float(finding.measured["cosine"])) < 0.2
    assert float(finding.measured["own_cosine"]) > 0.999


def test_where_saves_move_far_a_strange_final_file_tells_nothing(tmp_path: Path) -> None:
    """As at a rate that leaves nothing of the start."""
    states = [lora(MODULES, seed=seed) for seed in (1, 2, 3)]
    assert "final-of-another-run" not in codes(examine(tmp_path, states, final=lora(MODULES)))


def test_the_file_of_another_run_that_was_trained(tmp_path: Path) -> None:
    """Two fixture runs of one base, each begun with a seed of its own."""
    run = shutil.copytree(RUNS / "healthy-ordinary", tmp_path / "run")
    shutil.copy(RUNS / "healthy-masked-warmup" / "adapters.safetensors", run)
    given = Given(CheckpointHistory.read(run), TrainingConfig.read(run / "adapter_config.json"))
    assert "final-of-another-run" in codes(checkpoint_history.run(given))
