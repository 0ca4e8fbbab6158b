"""What the full-weights check finds in full fine-tunes."""

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
from tests.given import Given
from tests.weight_files import lora, save, to_bfloat16, write_config

full_weights = check_called("full-weights")

BASE = BaseModel.read(FIXTURES / "base")
WEIGHTS = {name: tensor.load() for name, tensor in BASE.tensors.items()}
MATRICES = [name for name, one in WEIGHTS.items() if one.ndim == 2]
Q = "model.layers.0.self_attn.q_proj"


def moved(by: float, names: list[str] | None = None) -> dict[str, Any]:
    """The base's weights, those of `names` (all of them) moved by a share of their norm."""
    random = np.random.default_rng(0)
    weights = {name: one.copy() for name, one in WEIGHTS.items()}
    for name in names if names is not None else list(weights):
        step = random.normal(size=weights[name].shape)
        step *= by * np.linalg.norm(weights[name]) / np.linalg.norm(step)
        weights[name] += step.astype("f4")
    return weights


def full_run(folder: Path, weights: dict[str, Any], *more: object) -> Outcome:
    """The check on a full fine-tune, as mlx-lm leaves it."""
    config = TrainingConfig.read(write_config(folder, fine_tune_type="full"))
    path = save(folder / "adapters.safetensors", weights)
    return full_weights.run(Given(TunedModel.read(path), BASE, config, *more))


def model(folder: Path, weights: dict[str, Any], *more: object) -> Outcome:
    """The check on a tuned model's folder, without a configuration of the training."""
    save(folder / "model.safetensors", weights)
    return full_weights.run(Given(TunedModel.read(folder), BASE, *more))


def codes(outcome: Outcome) -> dict[str, Severity]:
    assert outcome.status is not Status.CRASHED, outcome.reason
    return {one.code.removeprefix("full-weights."): one.severity for one in outcome.findings}


@pytest.mark.parametrize("by", [0.001, 0.95])
def test_a_sound_change_passes(tmp_path: Path, by: float) -> None:
    assert full_run(tmp_path, moved(by)).status is Status.PASSED


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        (1.05, {"exploded": Severity.WARNING}),
        (3.1, {"exploded": Severity.ERROR}),
    ],
)
def test_the_median_change_is_judged(
    tmp_path: Path, by: float, expected: dict[str, Severity]
) -> None:
    outcome = full_run(tmp_path, moved(by))
    assert codes(outcome) == expected
    measured = outcome.findings[0].measured
    assert measured["median_relative_change"] == pytest.approx(by, rel=1e-5)
    assert measured["matrices"] == len(MATRICES)


def test_a_few_large_changes_are_not_the_median(tmp_path: Path) -> None:
    weights = moved(0.2) | {name: one for name, one in moved(9.0).items() if name in MATRICES[:3]}
    assert full_run(tmp_path, weights).status is Status.PASSED


def test_norms_are_not_judged_by_their_size(tmp_path: Path) -> None:
    norms = [name for name in WEIGHTS if name not in MATRICES]
    weights = moved(0.2) | {name: moved(9.0)[name] for name in norms}
    assert full_run(tmp_path, weights).status is Status.PASSED


def test_nothing_changed(tmp_path: Path) -> None:
    outcome = full_run(tmp_path / "run", dict(WEIGHTS))
    assert codes(outcome) == {"unchanged": Severity.ERROR}
    assert outcome.findings[0].measured == {"compared": 38, "changed": 0}
    assert codes(model(tmp_path / "model", dict(WEIGHTS))) == {"unchanged": Severity.WARNING}


def test_one_changed_bit_is_a_change(tmp_path: Path) -> None:
    weights = moved(0.0, [])
    flat = weights[MATRICES[0]].reshape(-1)
    flat[0] = np.nextafter(flat[0], np.float32(9))
    assert "unchanged" not in codes(full_run(tmp_path, weights))


def test_nan_and_infinity_are_counted(tmp_path: Path) -> None:
    weights = moved(0.2)
    weights[f"{Q}.weight"][3, :5] = np.nan
    weights["model.norm.weight"][0] = np.inf
    outcome = full_run(tmp_path, weights)
    assert codes(outcome) == {"non-finite": Severity.ERROR}
    assert outcome.findings[0].measured == {"nonfinite": 6, "tensors": 2, "compared": 38}
    assert f"{Q}.weight" in (outcome.findings[0].where or "")


def test_frozen_embeddings_are_usual(tmp_path: Path) -> None:
    layers = [name for name in WEIGHTS if "layers." in name]
    assert full_run(tmp_path, moved(0.2, layers)).status is Status.PASSED


def test_another_precision_is_judged_by_its_values(tmp_path: Path) -> None:
    halves = {name: to_bfloat16(one) for name, one in moved(3.5).items()}
    save(tmp_path / "model.safetensors", halves, dict.fromkeys(halves, "BF16"))
    outcome = full_weights.run(Given(TunedModel.read(tmp_path), BASE))
    assert codes(outcome) == {"exploded": Severity.ERROR}


def test_a_model_quantised_afterwards_is_not_judged(tmp_path: Path) -> None:
    mx = pytest.importorskip("mlx.core")
    tensors: dict[str, Any] = {}
    for name, values in WEIGHTS.items():
        if values.ndim == 2:
            parts = mx.quantize(mx.array(values), group_size=32, bits=4)
            module = name.removesuffix(".weight")
            tensors |= {
                f"{module}.{part}": np.array(one)
                for part, one in zip(("weight", "scales", "biases"), parts, strict=True)
            }
        else:
            tensors[name] = values
    (tmp_path / "config.json").write_text('{"quantization": {"group_size": 32, "bits": 4}}')
    assert model(tmp_path, tensors).status is Status.INCONCLUSIVE
    tensors["model.norm.weight"] = 2 * tensors["model.norm.weight"]
    assert model(tmp_path, tensors).status is not Status.INCONCLUSIVE


def test_only_a_full_fine_tune_is_judged_by_its_size(tmp_path: Path) -> None:
    adapter = Adapter.read(save(tmp_path / "adapters.safetensors", lora({Q: (96, 96)})))
    lora_run = TrainingConfig.read(write_config(tmp_path, fine_tune_type="lora"))
    alone = TunedModel.read(save(tmp_path / "run" / "adapters.safetensors", moved(9.0)))
    for outcome in (
        model(tmp_path / "fused", moved(9.0), adapter),
        full_weights.run(Given(alone, BASE, lora_run)),
    ):
        assert "exploded" not in codes(outcome)
        assert "full-weights.exploded" in outcome.unsought


def test_names_that_match_nothing_are_inconclusive(tmp_path: Path) -> None:
    outcome = full_run(tmp_path, {"transformer.h.0.weight": np.ones((3, 3), "f4")})
    assert outcome.status is Status.INCONCLUSIVE


def test_missing_evidence_is_skipped() -> None:
    assert full_weights.run(Given(BASE)).status is Status.SKIPPED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "expected"), [(3e-4, set()), (1e-1, {"exploded"}), (0.0, {"unchanged"})]
)
def test_real_full_fine_tunes(tmp_path: Path, rate: float, expected: set[str]) -> None:
    pytest.importorskip("mlx.core")
    from mlxdoctor.twin import Settings, train

    settings = Settings(
        model=str(FIXTURES / "base"),
        data=str(FIXTURES / "data" / "geography"),
        fine_tune_type="full",
        num_layers=-1,
        learning_rate=rate,
        iters=6,
        val_batches=1,
        max_seq_length=128,
        adapter_path=str(tmp_path),
        mode="parity",
    )
    train(settings)
    tuned = TunedModel.read(tmp_path / "adapters.safetensors")
    outcome = full_weights.run(Given(tuned, BASE, TrainingConfig.read(tmp_path)))
    assert set(codes(outcome)) == expected


# Weights that were to stay frozen.


def weights(**changes: Any) -> dict[str, Any]:
    return {name: value.copy() for name, value in WEIGHTS.items()} | changes


def frozen(path: Path, *more: object) -> Outcome:
    return full_weights.run(Given(TunedModel.read(path), BASE, *more))


def test_an_unchanged_copy(tmp_path: Path) -> None:
    outcome = frozen(save(tmp_path / "adapters.safetensors", weights()))
    assert codes(outcome) == {}
    assert "38 weights that were to stay frozen are the base model's" in outcome.seen[0].message


def test_one_bit_is_enough(tmp_path: Path) -> None:
    tensors = weights()
    flat = tensors["model.norm.weight"]
    flat[0] = np.nextafter(flat[0], np.float32(9))
    outcome = frozen(save(tmp_path / "adapters.safetensors", tensors))
    (finding,) = outcome.findings
    assert (finding.code, finding.severity) == ("full-weights.frozen-changed", Severity.ERROR)
    assert finding.measured["changed"] == 1
    assert finding.measured["components"] == ("norms: 1",)
    assert finding.where == "model.norm.weight"


def test_the_change_is_measured(tmp_path: Path) -> None:
    tensors = weights()
    tensors[f"{Q}.weight"] *= 1.25
    (finding,) = frozen(save(tmp_path / "adapters.safetensors", tensors)).findings
    assert finding.measured["largest_relative_change"] == pytest.approx(0.25, rel=1e-6)


def test_weights_saved_from_inside_a_lora_layer(tmp_path: Path) -> None:
    tensors = {**lora({Q: (96, 96)}), f"{Q}.linear.weight": 2 * WEIGHTS[f"{Q}.weight"]}
    path = save(tmp_path / "adapters.safetensors", tensors)
    assert codes(frozen(path, Adapter.read(path))) == {"frozen-changed": "error"}


def test_another_precision_is_no_change(tmp_path: Path) -> None:
    halves = {name: to_bfloat16(value) for name, value in WEIGHTS.items()}
    path = save(tmp_path / "adapters.safetensors", halves, dict.fromkeys(halves, "BF16"))
    assert codes(frozen(path)) == {}
    halves[f"{Q}.weight"] = to_bfloat16(WEIGHTS[f"{Q}.weight"] * 1.01)
    path = save(tmp_path / "b" / "adapters.safetensors", halves, dict.fromkeys(halves, "BF16"))
    assert codes(frozen(path)) == {"frozen-changed": "error"}


def test_a_fused_model_may_differ_where_it_was_adapted(tmp_path: Path) -> None:
    adapter = Adapter.read(save(tmp_path / "adapters.safetensors", lora({Q: (96, 96)})))
    tensors = weights()
    tensors[f"{Q}.weight"] += 1
    save(tmp_path / "fused" / "model.safetensors", tensors)
    assert frozen(tmp_path / "fused", adapter).status is Status.PASSED
    tensors["model.norm.weight"] += 1
    save(tmp_path / "other" / "model.safetensors", tensors)
    outcome = frozen(tmp_path / "other", adapter)
    assert codes(outcome) == {"frozen-changed": "warning"}


def test_the_run_whose_adapter_was_never_attached() -> None:
    folder = RUNS / "adapter-never-attached"
    tuned = TunedModel.of(Adapter.read(folder))
    outcome = full_weights.run(Given(tuned, BASE, TrainingConfig.read(folder)))
    (finding,) = outcome.findings
    assert finding.code == "full-weights.frozen-changed"
    assert finding.measured["changed"] == finding.measured["compared"] == 38
