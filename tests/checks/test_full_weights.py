from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.finding import Outcome, Status
from tests.conftest import FIXTURES, check_called
from tests.given import outcome, severities
from tests.measure.weights.test_changes import quantized
from tests.reproduce.real import trained
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


def examined(path: Path, *more: object) -> Outcome:
    tuned = TunedModel.read(path) if path.is_dir() else TunedModel.of(Adapter.read(path))
    return outcome(full_weights, tuned, BASE, *more)


def full_run(folder: Path, weights: dict[str, Any]) -> Outcome:
    """The check on a full fine-tune, as mlx-lm leaves it."""
    config = TrainingConfig.read(write_config(folder, fine_tune_type="full"))
    return examined(save(folder / "adapters.safetensors", weights), config)


def model(folder: Path, weights: dict[str, Any], *more: object) -> Outcome:
    """The check on a tuned model's folder, without a configuration of the training."""
    save(folder / "model.safetensors", weights)
    return examined(folder, *more)


def changed(name: str, values: Any) -> dict[str, Any]:
    """The base's weights, one of them other values."""
    return {**WEIGHTS, name: values}


def one_bit(name: str) -> dict[str, Any]:
    values = WEIGHTS[name].copy()
    values.reshape(-1)[0] = np.nextafter(values.reshape(-1)[0], np.float32(9))
    return changed(name, values)


NORM = "model.norm.weight"
NORMS = [name for name in WEIGHTS if name not in MATRICES]
BROKEN = moved(0.2)
BROKEN[f"{Q}.weight"][3, :5] = np.nan
BROKEN[NORM][0] = np.inf
LARGE = moved(9.0)
LARGER = {"matrices": len(MATRICES), "median_relative_change": pytest.approx(1.05, rel=1e-5)}


@pytest.mark.parametrize(
    ("weights", "expected", "figures"),
    [
        (moved(0.001), {}, {}),
        (moved(0.95), {}, {}),
        (
            moved(1.05),
            {"exploded": "warning"},
            LARGER,
        ),
        (moved(3.1), {"exploded": "error"}, {}),
        # A few large changes are not the median; norms are not judged by their size.
        (moved(0.2) | {name: LARGE[name] for name in MATRICES[:3]}, {}, {}),
        (moved(0.2) | {name: LARGE[name] for name in NORMS}, {}, {}),
        # Frozen embeddings are usual.
        (moved(0.2, [name for name in WEIGHTS if "layers." in name]), {}, {}),
        (WEIGHTS, {"unchanged": "error"}, {"compared": 38, "changed": 0}),
        (one_bit(MATRICES[0]), {}, {}),
        (BROKEN, {"exploded": "error"}, {"nonfinite": 6, "tensors": 2, "compared": 38}),
    ],
)
def test_a_full_fine_tune(
    tmp_path: Path, weights: dict[str, Any], expected: dict[str, str], figures: dict[str, Any]
) -> None:
    judged = full_run(tmp_path, weights)
    assert severities(judged) == expected
    assert judged.status is (Status.FOUND if expected else Status.PASSED)
    for finding in judged.findings:
        assert finding.measured.items() >= figures.items()


def test_a_folder_of_which_no_configuration_says_how_it_was_trained(tmp_path: Path) -> None:
    assert severities(model(tmp_path / "same", WEIGHTS)) == {"unchanged": "warning"}
    halves = {name: to_bfloat16(one) for name, one in moved(3.5).items()}
    save(tmp_path / "model.safetensors", halves, dict.fromkeys(halves, "BF16"))
    assert severities(examined(tmp_path)) == {"exploded": "error"}


def test_a_model_quantised_afterwards_is_not_judged(tmp_path: Path) -> None:
    tensors = quantized(WEIGHTS, group_size=32, bits=4)
    (tmp_path / "config.json").write_text('{"quantization": {"group_size": 32, "bits": 4}}')
    assert model(tmp_path, tensors).status is Status.INCONCLUSIVE
    tensors["model.norm.weight"] = 2 * tensors["model.norm.weight"]
    assert model(tmp_path, tensors).status is not Status.INCONCLUSIVE


def test_only_a_full_fine_tune_is_judged_by_its_size(tmp_path: Path) -> None:
    adapter = Adapter.read(save(tmp_path / "adapters.safetensors", lora({Q: (96, 96)})))
    lora_run = TrainingConfig.read(write_config(tmp_path, fine_tune_type="lora"))
    alone = save(tmp_path / "run" / "adapters.safetensors", LARGE)
    for judged in (model(tmp_path / "fused", LARGE, adapter), examined(alone, lora_run)):
        assert "exploded" not in severities(judged)
        assert "full-weights.exploded" in judged.unsought


def test_nothing_to_compare(tmp_path: Path) -> None:
    judged = full_run(tmp_path, {"transformer.h.0.weight": np.ones((3, 3), "f4")})
    assert judged.status is Status.INCONCLUSIVE
    assert outcome(full_weights, BASE).status is Status.SKIPPED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "expected"), [(3e-4, set()), (1e-1, {"exploded"}), (0.0, {"unchanged"})]
)
def test_real_full_fine_tunes(tmp_path: Path, rate: float, expected: set[str]) -> None:
    pytest.importorskip("mlx.core")
    short = {"iters": 6, "val_batches": 1, "max_seq_length": 128}
    trained(tmp_path, fine_tune_type="full", learning_rate=rate, **short)
    tuned = TunedModel.of(Adapter.read(tmp_path))
    judged = outcome(full_weights, tuned, BASE, TrainingConfig.read(tmp_path))
    assert severities(judged).keys() == expected


HALVES = {name: to_bfloat16(value) for name, value in WEIGHTS.items()}


@pytest.mark.parametrize(
    ("weights", "figures"),
    [
        (WEIGHTS, {}),
        (HALVES, {}),
        (one_bit(NORM), {"changed": 1}),
        (
            changed(f"{Q}.weight", 1.25 * WEIGHTS[f"{Q}.weight"]),
            {"largest_relative_change": pytest.approx(0.25, rel=1e-6)},
        ),
        ({**HALVES, f"{Q}.weight": to_bfloat16(1.01 * WEIGHTS[f"{Q}.weight"])}, {"changed": 1}),
        # Saved from inside a LoRA layer.
        ({**lora({Q: (96, 96)}), f"{Q}.linear.weight": 2 * WEIGHTS[f"{Q}.weight"]}, {"changed": 1}),
    ],
)
def test_weights_that_were_to_stay_frozen(
    tmp_path: Path, weights: dict[str, Any], figures: dict[str, Any]
) -> None:
    is_half = all(value.dtype == np.uint16 for value in weights.values())
    dtypes = dict.fromkeys(weights, "BF16") if is_half else None
    path = save(tmp_path / "adapters.safetensors", weights, dtypes)
    judged = examined(path, Adapter.read(path))
    assert severities(judged) == ({"frozen-changed": "error"} if figures else {})
    for finding in judged.findings:
        assert all(finding.measured[key] == value for key, value in figures.items())
    if not figures:
        told = "38 weights that were to stay frozen are the base model's"
        assert told in judged.seen[0].message


def test_a_fused_model_may_differ_where_it_was_adapted(tmp_path: Path) -> None:
    adapter = Adapter.read(save(tmp_path / "adapters.safetensors", lora({Q: (96, 96)})))
    tensors = changed(f"{Q}.weight", WEIGHTS[f"{Q}.weight"] + 1)
    assert model(tmp_path / "fused", tensors, adapter).status is Status.PASSED
    judged = model(tmp_path / "other", {**tensors, NORM: WEIGHTS[NORM] + 1}, adapter)
    assert severities(judged) == {"frozen-changed": "warning"}
