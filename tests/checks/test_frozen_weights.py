"""What the frozen-weights check finds changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.finding import Outcome, Severity, Status
from tests.conftest import FIXTURES, RUNS, check_called
from tests.weight_files import Evidence, lora, save, to_bfloat16, write_config

frozen_weights = check_called("frozen-weights")


BASE = BaseModel.read(FIXTURES / "base")
WEIGHTS = {name: tensor.load() for name, tensor in BASE.tensors.items()}
Q = "model.layers.0.self_attn.q_proj"


def weights(**changes: Any) -> dict[str, Any]:
    return {name: value.copy() for name, value in WEIGHTS.items()} | changes


def examine(path: Path, *more: object) -> Outcome:
    return frozen_weights.run(Evidence(TunedModel.read(path), BASE, *more))


def codes(outcome: Outcome) -> set[str]:
    assert outcome.status is not Status.CRASHED, outcome.reason
    return {finding.code.removeprefix("frozen-weights.") for finding in outcome.findings}


def test_an_unchanged_copy(tmp_path: Path) -> None:
    outcome = examine(save(tmp_path / "adapters.safetensors", weights()))
    assert codes(outcome) == set()
    assert "38 weights that were to stay frozen are the base model's" in outcome.seen[0].message


def test_one_bit_is_enough(tmp_path: Path) -> None:
    tensors = weights()
    flat = tensors["model.norm.weight"]
    flat[0] = np.nextafter(flat[0], np.float32(9))
    outcome = examine(save(tmp_path / "adapters.safetensors", tensors))
    (finding,) = outcome.findings
    assert (finding.code, finding.severity) == ("frozen-weights.changed", Severity.ERROR)
    assert finding.measured["changed"] == 1
    assert finding.measured["components"] == ("norms: 1",)
    assert finding.where == "model.norm.weight"


def test_the_change_is_measured(tmp_path: Path) -> None:
    tensors = weights()
    tensors[f"{Q}.weight"] *= 1.25
    (finding,) = examine(save(tmp_path / "adapters.safetensors", tensors)).findings
    assert finding.measured["largest_relative_change"] == pytest.approx(0.25, rel=1e-6)


def test_weights_saved_from_inside_a_lora_layer(tmp_path: Path) -> None:
    tensors = {**lora({Q: (96, 96)}), f"{Q}.linear.weight": 2 * WEIGHTS[f"{Q}.weight"]}
    path = save(tmp_path / "adapters.safetensors", tensors)
    assert codes(examine(path, Adapter.read(path))) == {"changed"}


def test_another_precision_is_no_change(tmp_path: Path) -> None:
    halves = {name: to_bfloat16(value) for name, value in WEIGHTS.items()}
    path = save(tmp_path / "adapters.safetensors", halves, dict.fromkeys(halves, "BF16"))
    assert codes(examine(path)) == set()
    halves[f"{Q}.weight"] = to_bfloat16(WEIGHTS[f"{Q}.weight"] * 1.01)
    path = save(tmp_path / "b" / "adapters.safetensors", halves, dict.fromkeys(halves, "BF16"))
    assert codes(examine(path)) == {"changed"}


def test_a_fused_model_may_differ_where_it_was_adapted(tmp_path: Path) -> None:
    adapter = Adapter.read(save(tmp_path / "adapters.safetensors", lora({Q: (96, 96)})))
    tensors = weights()
    tensors[f"{Q}.weight"] += 1
    save(tmp_path / "fused" / "model.safetensors", tensors)
    assert examine(tmp_path / "fused", adapter).status is Status.PASSED
    tensors["model.norm.weight"] += 1
    save(tmp_path / "other" / "model.safetensors", tensors)
    outcome = examine(tmp_path / "other", adapter)
    assert codes(outcome) == {"changed-outside-adapter"}
    assert outcome.findings[0].severity is Severity.WARNING


def test_a_fused_model_without_its_adapter_is_not_judged(tmp_path: Path) -> None:
    save(tmp_path / "model.safetensors", weights())
    assert examine(tmp_path).status is Status.SKIPPED


def test_a_full_fine_tune_is_not_judged(tmp_path: Path) -> None:
    config = TrainingConfig.read(write_config(tmp_path, fine_tune_type="full"))
    path = save(tmp_path / "adapters.safetensors", weights())
    assert examine(path, config).status is Status.SKIPPED


def test_names_that_match_nothing_are_inconclusive(tmp_path: Path) -> None:
    path = save(tmp_path / "adapters.safetensors", {"x.weight": np.ones(3, np.float32)})
    assert examine(path).status is Status.INCONCLUSIVE


def test_missing_evidence_is_skipped() -> None:
    assert frozen_weights.run(Evidence(BASE)).status is Status.SKIPPED


def test_the_run_whose_adapter_was_never_attached() -> None:
    folder = RUNS / "adapter-never-attached"
    tuned = TunedModel.of(Adapter.read(folder))
    outcome = frozen_weights.run(Evidence(tuned, BASE, TrainingConfig.read(folder)))
    (finding,) = outcome.findings
    assert finding.code == "frozen-weights.changed"
    assert finding.measured["changed"] == finding.measured["compared"] == 38
