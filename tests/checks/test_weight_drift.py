"""How large an update may be, on real runs and either side of each limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.finding import Outcome, Severity, Status
from tests.conftest import FIXTURES, RUNS, check_called
from tests.given import Given
from tests.weight_files import lora, save, write_config

weight_drift = check_called("weight-drift")
LIMITS = weight_drift.limits


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
    return weight_drift.run(
        Given(*(one for one in (Adapter.read(folder), stated, base) if one is not None))
    )


def codes(outcome: Outcome) -> set[str]:
    assert outcome.status is not Status.CRASHED, outcome.reason
    return {finding.code.removeprefix("weight-drift.") for finding in outcome.findings}


def of_relative_norm(relative: float) -> dict[str, Any]:
    """Factors whose update is `relative` times the base weight in every module."""
    tensors = lora(MODULES)
    for name in MODULES:
        a, b = (tensors[f"{name}.lora_{x}"].astype(float) for x in "ab")
        wanted = relative * BASE.weight_norm(name)
        tensors[f"{name}.lora_b"] = (b * wanted / np.linalg.norm(a @ b)).astype("f4")
    return tensors


@pytest.mark.parametrize(
    ("relative", "expected", "severity"),
    [
        (LIMITS.exploded * 1.01, {"exploded"}, Severity.ERROR),
        (LIMITS.exploded * 0.99, {"large"}, Severity.WARNING),
        (LIMITS.large * 1.01, {"large"}, Severity.WARNING),
        (LIMITS.large * 0.99, set(), None),
        (0.3, set(), None),
        (LIMITS.negligible * 1.01, set(), None),
        (LIMITS.negligible * 0.99, {"negligible"}, Severity.WARNING),
        (LIMITS.negligible * 0.2 * 1.01, {"negligible"}, Severity.WARNING),
        (LIMITS.negligible * 0.2 * 0.99, {"negligible"}, Severity.ERROR),
    ],
)
def test_relative_norms(
    tmp_path: Path, relative: float, expected: set[str], severity: Severity | None
) -> None:
    outcome = examine(tmp_path, of_relative_norm(relative))
    assert codes(outcome) == expected
    for finding in outcome.findings:
        assert finding.severity is severity
        assert finding.measured["median_relative_norm"] == pytest.approx(relative, rel=1e-4)


def test_the_scale_counts(tmp_path: Path) -> None:
    tensors = of_relative_norm(0.5)
    scaled = {"rank": 4, "scale": 10.0}
    assert codes(examine(tmp_path, tensors, lora_parameters=scaled)) == {"exploded"}


def of_nominal_norm(nominal: float) -> dict[str, Any]:
    tensors = lora(MODULES)
    for name in MODULES:
        a, b = (tensors[f"{name}.lora_{x}"].astype(float) for x in "ab")
        factor = nominal * np.sqrt(96) / np.linalg.norm(a @ b)
        tensors[f"{name}.lora_b"] = (b * factor).astype("f4")
    return tensors


@pytest.mark.parametrize(
    ("nominal", "expected"),
    [
        (LIMITS.nominal_exploded * 1.01, {"exploded": Severity.ERROR}),
        (LIMITS.nominal_exploded * 0.99, {"large": Severity.WARNING}),
        (LIMITS.nominal_large * 1.01, {"large": Severity.WARNING}),
        (LIMITS.nominal_large * 0.99, {}),
        (LIMITS.negligible / 4 * 1.01, {}),
        (LIMITS.negligible / 4 * 0.99, {"negligible": Severity.WARNING}),
        (LIMITS.negligible / 4 * 0.2 * 0.99, {"negligible": Severity.ERROR}),
    ],
)
def test_without_a_base_model(
    tmp_path: Path, nominal: float, expected: dict[str, Severity]
) -> None:
    outcome = examine(tmp_path, of_nominal_norm(nominal), base=None)
    assert {one.code.partition(".")[2]: one.severity for one in outcome.findings} == expected


@pytest.mark.parametrize("base", [BASE, None])
@pytest.mark.parametrize(("size", "hit"), [(1.05, True), (0.95, False)])
def test_one_module_out_of_all_proportion(
    tmp_path: Path, base: BaseModel | None, size: float, hit: bool
) -> None:
    usual = 0.1
    tensors = of_relative_norm(usual) if base is not None else of_nominal_norm(usual)
    name = "model.layers.2.self_attn.q_proj"
    tensors[f"{name}.lora_b"] *= 10 * size / usual
    found = [one for one in examine(tmp_path, tensors, base).findings if "one-module" in one.code]
    expected = [("weight-drift.one-module-overwritten", Severity.ERROR)] if hit else []
    assert [(one.code, one.severity) for one in found] == expected
    assert all(one.where == name for one in found)


def straight_way(updates: int) -> float:
    """Adam without bias correction under a gradient of one, step by step, at a rate of one."""
    first = second = way = 0.0
    for _ in range(updates):
        first = 0.9 * first + 0.1
        second = 0.999 * second + 0.001
        way += first / np.sqrt(second)
    return way


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize(
    ("times", "updates", "hit"),
    # B that went more than the whole way had another rate than the one that is stated.
    [(1.05, 50, True), (0.95, 50, False), (1.05, 49, False), (1.05 / LIMITS.straight, 50, False)],
)
def test_b_that_went_straight_ahead(
    tmp_path: Path, times: float, updates: int, hit: bool, corrected: bool
) -> None:
    tensors = of_relative_norm(0.3)
    size = np.median([np.sqrt(np.mean(v**2)) for n, v in tensors.items() if n.endswith("b")])
    way = updates if corrected else straight_way(updates)
    config: dict[str, Any] = {
        "learning_rate": float(size / times / LIMITS.straight / way),
        "iters": 2 * updates,
        "grad_accumulation_steps": 2,
        "optimizer_config": {"adam": {"bias_correction": corrected}},
    }
    outcome = examine(tmp_path, tensors, **config)
    assert codes(outcome) == ({"straight"} if hit else set())
    for finding in outcome.findings:
        assert finding.severity is Severity.WARNING
        assert finding.measured["straightness"] == pytest.approx(times * LIMITS.straight)
    other = {**config, "optimizer": "adafactor"}
    assert codes(examine(tmp_path / "other", tensors, **other)) == set()


def test_modules_without_an_update_are_left_out(tmp_path: Path) -> None:
    tensors = of_relative_norm(0.3)
    for layer in (0, 1, 2):
        tensors[f"model.layers.{layer}.self_attn.q_proj.lora_b"][:] = 0
    assert codes(examine(tmp_path, tensors)) == set()
    large = of_relative_norm(LIMITS.exploded * 1.01)
    for layer in (0, 1, 2):
        large[f"model.layers.{layer}.self_attn.q_proj.lora_b"][:] = 0
    (finding,) = examine(tmp_path / "large", large).findings
    assert (finding.code, finding.measured["modules"]) == ("weight-drift.exploded", 1)


def test_an_unknown_scale_is_inconclusive(tmp_path: Path) -> None:
    path = save(tmp_path / "adapters.safetensors", of_relative_norm(9))
    outcome = weight_drift.run(Given(Adapter.read(path), BASE))
    assert outcome.status is Status.INCONCLUSIVE
    assert "scale" in outcome.reason


def test_values_that_have_no_norm_are_inconclusive(tmp_path: Path) -> None:
    tensors = of_relative_norm(0.3)
    tensors["model.layers.0.self_attn.q_proj.lora_b"][0, 0] = np.nan
    assert examine(tmp_path, tensors).status is Status.INCONCLUSIVE


def test_no_update_is_not_judged(tmp_path: Path) -> None:
    assert examine(tmp_path, lora(MODULES, b=0.0)).status is Status.SKIPPED


def test_missing_evidence_is_skipped() -> None:
    assert weight_drift.run(Given(BASE)).status is Status.SKIPPED


@pytest.mark.parametrize("with_base", [True, False])
@pytest.mark.parametrize(
    "run",
    ["healthy-ordinary", "healthy-noisy-batch1", "healthy-masked-warmup", "healthy-short-low-rate"],
)
def test_healthy_fixture_runs_pass(run: str, with_base: bool) -> None:
    evidence = [Adapter.read(RUNS / run), TrainingConfig.read(RUNS / run)]
    assert codes(weight_drift.run(Given(*evidence, *([BASE] if with_base else [])))) == set()


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ("collapse-frequent-token", {"exploded"}),
        ("rate-too-high-garbled", {"exploded"}),
        ("scale-too-large", {"exploded"}),
        ("rate-too-low", {"negligible", "straight"}),
    ],
)
def test_failed_fixture_runs_are_seen(run: str, expected: set[str]) -> None:
    evidence = Given(Adapter.read(RUNS / run), TrainingConfig.read(RUNS / run), BASE)
    assert codes(weight_drift.run(evidence)) == expected
