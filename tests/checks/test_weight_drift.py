"""How large an update may be, on real runs and either side of each limit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.engines.tensors import straight_way
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.finding import Outcome, Status
from mlxdoctor.judge.save_flaws import EXPLODED, NOMINAL_LARGE
from tests.conftest import FIXTURES, RUNS, check_called
from tests.given import outcome, severities
from tests.weight_files import lora, save, write_config

weight_drift = check_called("weight-drift")
LARGE, NEGLIGIBLE, NOMINAL_EXPLODED, STRAIGHT = (
    weight_drift.function.__globals__[name]
    for name in ("LARGE", "NEGLIGIBLE", "NOMINAL_EXPLODED", "STRAIGHT")
)


BASE = BaseModel.read(FIXTURES / "base")
MODULES = {f"model.layers.{i}.self_attn.q_proj": (96, 96) for i in range(4)}


def examine(
    folder: Path, tensors: dict[str, Any], base: BaseModel | None = BASE, **config: Any
) -> Outcome:
    save(folder / "adapters.safetensors", tensors)
    config.setdefault("lora_parameters", {"rank": 4, "scale": 1.0})
    # A rate that allows every update here, so that the bound stays out of the way.
    config.setdefault("learning_rate", 1e9)
    stated = TrainingConfig.read(write_config(folder, **config))
    return outcome(weight_drift, Adapter.read(folder), stated, *([base] if base else []))


def factors(size: float, base: BaseModel | None = BASE, still: int = 0) -> dict[str, Any]:
    """Factors whose update is `size` times the base's weight; the first modules' B is zero."""
    tensors = lora(MODULES)
    for number, name in enumerate(MODULES):
        a, b = (tensors[f"{name}.lora_{x}"].astype(float) for x in "ab")
        wanted = size * (base.weight_norm(name) if base is not None else np.sqrt(96))
        factor = wanted / np.linalg.norm(a @ b) if number >= still else 0.0
        tensors[f"{name}.lora_b"] = (b * factor).astype("f4")
    return tensors


@pytest.mark.parametrize(
    ("base", "size", "expected"),
    [
        (BASE, EXPLODED * 1.01, {"exploded": "error"}),
        (BASE, EXPLODED * 0.99, {"exploded": "warning"}),
        (BASE, LARGE * 1.01, {"exploded": "warning"}),
        (BASE, LARGE * 0.99, {}),
        (BASE, NEGLIGIBLE * 1.01, {}),
        (BASE, NEGLIGIBLE * 0.99, {"negligible": "warning"}),
        (BASE, NEGLIGIBLE * 0.2 * 1.01, {"negligible": "warning"}),
        (BASE, NEGLIGIBLE * 0.2 * 0.99, {"negligible": "error"}),
        (None, NOMINAL_EXPLODED * 1.01, {"exploded": "error"}),
        (None, NOMINAL_EXPLODED * 0.99, {"exploded": "warning"}),
        (None, NOMINAL_LARGE * 1.01, {"exploded": "warning"}),
        (None, NOMINAL_LARGE * 0.99, {}),
        (None, NEGLIGIBLE / 4 * 1.01, {}),
        (None, NEGLIGIBLE / 4 * 0.99, {"negligible": "warning"}),
        (None, NEGLIGIBLE / 4 * 0.2 * 0.99, {"negligible": "error"}),
    ],
)
def test_the_size_of_the_update(
    tmp_path: Path, base: BaseModel | None, size: float, expected: dict[str, str]
) -> None:
    # Modules whose B is zero have no update.
    for still in (0, 3):
        judged = examine(tmp_path, factors(size, base, still), base)
        assert severities(judged) == expected
        for finding in judged.findings:
            median = "median_relative_norm" if base else "median_nominal_norm"
            assert finding.measured[median] == pytest.approx(size, rel=1e-4)
            assert finding.measured["modules"] == 4 - still


@pytest.mark.parametrize("base", [BASE, None])
@pytest.mark.parametrize(("size", "hit"), [(1.05, True), (0.95, False)])
def test_one_module_out_of_all_proportion(
    tmp_path: Path, base: BaseModel | None, size: float, hit: bool
) -> None:
    usual = 0.1
    tensors = factors(usual, base)
    name = "model.layers.2.self_attn.q_proj"
    tensors[f"{name}.lora_b"] *= 10 * size / usual
    judged = examine(tmp_path, tensors, base)
    assert severities(judged) == ({"one-module-overwritten": "error"} if hit else {})
    assert all(finding.where == name for finding in judged.findings)


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize(
    ("times", "updates", "hit"),
    # B that went more than the whole way had another rate than the one that is stated.
    [(1.05, 50, True), (0.95, 50, False), (1.05, 49, False), (1.05 / STRAIGHT, 50, False)],
)
def test_b_that_went_straight_ahead(
    tmp_path: Path, times: float, updates: int, hit: bool, corrected: bool
) -> None:
    tensors = factors(0.3)
    size = np.median([np.sqrt(np.mean(v**2)) for n, v in tensors.items() if n.endswith("b")])
    way = straight_way(updates, bias_correction=corrected)
    config: dict[str, Any] = {
        "learning_rate": float(size / times / STRAIGHT / way),
        "iters": 2 * updates,
        "grad_accumulation_steps": 2,
        "optimizer_config": {"adam": {"bias_correction": corrected}},
    }
    judged = examine(tmp_path, tensors, **config)
    assert severities(judged) == ({"straight": "warning"} if hit else {})
    for finding in judged.findings:
        assert finding.measured["straightness"] == pytest.approx(times * STRAIGHT)
    other = {**config, "optimizer": "adafactor"}
    assert severities(examine(tmp_path / "other", tensors, **other)) == {}


def test_what_has_no_size(tmp_path: Path) -> None:
    broken = factors(0.3)
    broken["model.layers.0.self_attn.q_proj.lora_b"][0, 0] = np.nan
    assert examine(tmp_path, broken).status is Status.INCONCLUSIVE
    path = save(tmp_path / "alone" / "adapters.safetensors", factors(9))
    judged = outcome(weight_drift, Adapter.read(path), BASE)
    assert (judged.status, "scale" in judged.reason) == (Status.INCONCLUSIVE, True)
    assert examine(tmp_path, lora(MODULES, b=0.0)).status is Status.SKIPPED
    assert outcome(weight_drift, BASE).status is Status.SKIPPED


@pytest.mark.parametrize("run", ["healthy-ordinary", "healthy-noisy-batch1"])
def test_healthy_runs_without_a_base_pass(run: str) -> None:
    evidence = Adapter.read(RUNS / run), TrainingConfig.read(RUNS / run)
    assert severities(outcome(weight_drift, *evidence)) == {}
