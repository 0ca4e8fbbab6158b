import shutil
from pathlib import Path

import numpy as np
import pytest

from fixtures.lab.cases.workshop import copied_run
from mlxdoctor.api import diagnose
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.tuned_model import base_name
from mlxdoctor.measure.weights.adapter_facts import factor_facts
from tests.conftest import FIXTURES, HEALTHY
from tests.weight_files import lora, save

Q = "model.layers.3.self_attn.q_proj"


def test_mlx_names(tmp_path: Path) -> None:
    tensors = lora({Q: (12, 20), "lm_head": (12, 50)}, rank=4)
    tensors[f"{Q}.m"] = np.ones(20, np.float32)
    adapter = Adapter.read(save(tmp_path / "adapters.safetensors", tensors))
    first, head = adapter.modules
    assert (first.name, first.layer, first.projection) == (Q, 3, "self_attn.q_proj")
    assert (first.rank, first.in_features, first.out_features) == (4, 12, 20)
    assert first.magnitude is not None
    assert (head.layer, head.projection) == (None, "lm_head")
    assert adapter.naming == "mlx-lm"
    assert adapter.others == ()
    assert adapter.parameter_count == 4 * (12 + 20) + 20 + 4 * (12 + 50)


@pytest.mark.parametrize(
    "pattern",
    [
        "base_model.model.{}.lora_{}.weight",
        "base_model.model.{}.lora_{}.default.weight",
        "{}.lora_{}.weight",
    ],
)
def test_peft_names_and_orientation(tmp_path: Path, pattern: str) -> None:
    a, b = np.arange(24, dtype=np.float32).reshape(2, 12), np.ones((20, 2), np.float32)
    tensors = {pattern.format(Q, "A"): a, pattern.format(Q, "B"): b}
    adapter = Adapter.read(save(tmp_path / "adapter_model.safetensors", tensors))
    (module,) = adapter.modules
    assert adapter.naming == "peft"
    assert (module.name, module.rank) == (Q, 2)
    assert (module.in_features, module.out_features) == (12, 20)
    ours_a, ours_b = module.factors()
    np.testing.assert_array_equal(ours_a, a.T)
    np.testing.assert_array_equal(ours_b, b.T)


def test_experts(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.switch_mlp.up_proj"
    random = np.random.default_rng(0)
    a = random.normal(size=(3, 2, 8)).astype(np.float32)
    b = random.normal(size=(3, 6, 2)).astype(np.float32)
    tensors = {f"{name}.lora_a": a, f"{name}.lora_b": b}
    adapter = Adapter.read(save(tmp_path / "adapters.safetensors", tensors))
    (module,) = adapter.modules
    assert (module.experts, module.rank) == (3, 2)
    assert (module.in_features, module.out_features) == (8, 6)
    dense = b.astype(float) @ a.astype(float)
    (one,) = factor_facts(adapter, spectrum=True)
    assert one.product_norm == pytest.approx(np.linalg.norm(dense), rel=1e-9)
    largest = np.linalg.svd(dense, compute_uv=False).max()
    assert one.spectral_norm == pytest.approx(largest, rel=1e-9)


def test_incomplete_pairs(tmp_path: Path) -> None:
    tensors = lora({Q: (12, 20), "model.layers.0.mlp.up_proj": (12, 20)})
    del tensors[f"{Q}.lora_b"]
    tensors["model.layers.0.mlp.up_proj.lora_b"] = np.zeros((5, 20), np.float32)
    adapter = Adapter.read(save(tmp_path / "adapters.safetensors", tensors))
    assert adapter.modules == ()
    assert adapter.unpaired == (f"{Q}.lora_a",)
    assert adapter.mismatched == ("model.layers.0.mlp.up_proj",)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.layers.0.self_attn.q_proj.linear.weight", f"{Q[:13]}0.self_attn.q_proj.weight"),
        ("model.embed_tokens.embedding.weight", "model.embed_tokens.weight"),
        ("model.norm.weight", "model.norm.weight"),
        ("base_model.model.lm_head.base_layer.weight", "lm_head.weight"),
    ],
)
def test_wrapped_weights_have_the_base_models_name(name: str, expected: str) -> None:
    assert base_name(name) == expected


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration whose base model and rows are at hand, and no weights."""
    made = copied_run(tmp_path / "run")
    for name in ("adapters.safetensors", "train.log"):
        (made / name).unlink()
    return made


def test_a_link_to_nothing_is_unreadable(folder: Path) -> None:
    (folder / "adapters.safetensors").symlink_to("../blobs/0123abcd")
    report = diagnose([folder], allow_model=False)
    assert any("adapters.safetensors" in one for one in report.unreadable)


def test_of_two_files_the_one_that_mlx_lm_reads(folder: Path) -> None:
    """PEFT's name comes first in the alphabet."""
    shutil.copy(HEALTHY / "adapters.safetensors", folder)
    shutil.copy(FIXTURES / "adapters" / "peft-written" / "adapter_model.safetensors", folder)
    report = diagnose([folder], allow_model=False)
    found = [Path(one.source).name for one in report.evidence if one.kind == "adapter"]
    assert found == ["adapters.safetensors"]
