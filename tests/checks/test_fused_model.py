"""Models fused by mlx-lm itself: sound, rounded, without the update, with it twice."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import pytest
from mlx_lm import convert
from mlx_lm.fuse import main

from fixtures.lab.cases.workshop import copied_run
from mlxdoctor.api import run_checks
from mlxdoctor.check import discover
from mlxdoctor.diagnosis import judge
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.finding import Outcome
from mlxdoctor.run import Run
from tests.conftest import BASE, HEALTHY, check_called
from tests.given import outcome, severities
from tests.reproduce.real import trained

fused_model = check_called("fused-model")


def fuse(base: Path, adapter: Path, out: Path, *options: str) -> Path:
    """What `mlx_lm.fuse` writes; the folder."""
    command = ["fuse", "--model", str(base), "--adapter-path", str(adapter)]
    with patch.object(sys, "argv", [*command, "--save-path", str(out), *options]):
        main()
    return out


def quantized(model: Path, out: Path, bits: int) -> Path:
    """What `mlx_lm.convert -q` writes; the folder."""
    convert(str(model), str(out), quantize=True, q_bits=bits, q_group_size=32)
    return out


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The healthy run's model, fused and not quantised."""
    return fuse(BASE, HEALTHY, tmp_path_factory.mktemp("sound") / "fused")


def judged(fused: Path, base: Path = BASE, run: Path = HEALTHY) -> Outcome:
    stated = TrainingConfig.read(run / "adapter_config.json")
    evidence = Adapter.read(run), BaseModel.read(base), stated, TunedModel.read(fused)
    return outcome(fused_model, *evidence)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bits", "expected"),
    [(16, {}), (8, {}), (6, {}), (4, {"update-lost": "warning"}), (2, {"update-lost": "error"})],
)
def test_rounding_is_told_by_its_size(
    sound: Path, tmp_path: Path, bits: int, expected: dict[str, str]
) -> None:
    found = judged(quantized(sound, tmp_path / "fused", bits) if bits < 16 else sound)
    assert severities(found) == expected
    assert found.status == ("found" if expected else "passed")
    for one in found.findings:
        assert one.measured["gain"] == pytest.approx(1.0, abs=0.1)
        # Rounding explains the noise: nothing else happened.
        assert one.measured["noise"] == pytest.approx(one.measured["rounding"], rel=0.1)


def at_half_the_scale(tmp_path: Path) -> Path:
    stated = json.loads((HEALTHY / "adapter_config.json").read_text())["lora_parameters"]
    halved = {**stated, "scale": stated["scale"] / 2}
    other = copied_run(tmp_path / "other", lora_parameters=halved)
    return fuse(BASE, other, tmp_path / "half")


def half_of_the_layers(sound: Path, out: Path) -> Path:
    shutil.copytree(BASE, out)
    whole: Any = mx.load(str(sound / "model.safetensors"))
    base: Any = mx.load(str(BASE / "model.safetensors"))
    late = (".layers.2.", ".layers.3.")
    mixed = {k: v if any(part in k for part in late) else base[k] for k, v in whole.items()}
    mx.save_safetensors(str(out / "model.safetensors"), mixed, {"format": "mlx"})
    return out


@pytest.mark.slow
def test_what_else_may_be_wrong(sound: Path, tmp_path: Path) -> None:
    without_update, fused_twice = BASE, fuse(sound, HEALTHY, tmp_path / "twice")
    mixed = half_of_the_layers(sound, tmp_path / "mixed")
    for model in (without_update, fused_twice, mixed, at_half_the_scale(tmp_path)):
        assert severities(judged(model)) == {"update-lost": "error"}


@pytest.mark.slow
def test_a_weight_that_the_adapter_leaves_alone(sound: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(sound, moved)
    weights: Any = mx.load(str(sound / "model.safetensors"))
    weights["model.embed_tokens.weight"] = mx.roll(weights["model.embed_tokens.weight"], 1, 0)
    mx.save_safetensors(str(moved / "model.safetensors"), weights, {"format": "mlx"})
    out = quantized(moved, tmp_path / "fused", 8)
    assert judged(out).findings == ()
    for model, where in ((out, ["model.embed_tokens.weight"]), (sound, [])):
        evidence = (Adapter.read(HEALTHY), BaseModel.read(BASE), TunedModel.read(model))
        findings = outcome(check_called("full-weights"), *evidence).findings
        assert [one.where for one in findings] == where


@pytest.mark.slow
def test_a_quantised_base_swallows_a_small_update(tmp_path: Path) -> None:
    base = quantized(BASE, tmp_path / "base", 4)
    run = trained(tmp_path / "run", model=str(base), iters=4, learning_rate=1e-5, rank=4)
    found = judged(fuse(base, run, tmp_path / "fused"), base, run)
    assert severities(found) == {"update-lost": "error"}
    gain = found.findings[0].measured["gain"]
    assert isinstance(gain, float)
    assert gain < 0.5
    assert severities(judged(fuse(base, run, tmp_path / "whole", "--dequantize"), base, run)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dora", "lora"])
def test_each_kind_of_adapter(tmp_path: Path, kind: str) -> None:
    run = trained(tmp_path / "run", fine_tune_type=kind, iters=4, learning_rate=1e-3)
    assert severities(judged(fuse(BASE, run, tmp_path / "fused"), run=run)) == {}
    assert severities(judged(BASE, run=run)) == {"update-lost": "error"}


@pytest.mark.slow
def test_the_diagnosis_names_it(sound: Path, tmp_path: Path) -> None:
    run = copied_run(tmp_path / "run")
    for bits, first in ((8, []), (2, ["fused-model-differs"])):
        quantized(sound, run / "fused", bits)
        outcomes = run_checks(discover(), Run.discover([run], allow_model=False))
        said = judge(outcomes).diagnosis
        assert [one.cause.id for one in said][:1] == first
        shutil.rmtree(run / "fused")


@pytest.mark.slow
def test_a_teacher_is_not_what_the_run_fused(sound: Path, tmp_path: Path) -> None:
    run = copied_run(tmp_path / "run")
    weights: Any = mx.load(str(BASE / "model.safetensors"))
    teacher = {name: 0.8 * value + 0.01 for name, value in weights.items()}
    for name, kept in (("update", sound), ("no update", BASE), ("neither", None)):
        shutil.copytree(BASE if kept is None else kept, run / "model", dirs_exist_ok=True)
        if kept is None:
            mx.save_safetensors(str(run / "model/model.safetensors"), teacher, {"format": "mlx"})
        files = Run.discover([run]).files
        assert (files.tuned is None) == (name == "neither")
    # Named by itself it is what is asked about.
    assert Run.discover([run / "model"], base=BASE).files.tuned == run / "model"
