"""Artifacts of every kind, made by the real tools: faulty ones are named, sound ones never.

Read and not run, sound ones of a short run are inconclusive: their answers were not seen.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm import convert
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import save_model

from mlxdoctor.api import run_checks
from mlxdoctor.check import discover
from mlxdoctor.diagnosis import judge
from mlxdoctor.finding import Outcome, Severity, Status
from mlxdoctor.run import Run
from tests.conftest import BASE, FIXTURES
from tests.edits import change_json
from tests.reproduce.real import trained
from tests.twin.small import small_moe

pytestmark = pytest.mark.slow(50)
LONG_ENOUGH: dict[str, Any] = {"iters": 80, "steps_per_eval": 40, "val_batches": -1}


def examined(folder: Path, *, models: bool = False) -> tuple[Outcome, ...]:
    outcomes = tuple(run_checks(discover(), Run.discover([folder], allow_model=models)))
    assert [outcome.reason for outcome in outcomes if outcome.status is Status.CRASHED] == []
    return outcomes


def first_cause(folder: Path, *, models: bool = False) -> str:
    """The first cause that is named, or else the verdict."""
    judged = judge(examined(folder, models=models))
    return judged.diagnosis[0].cause.id if judged.diagnosis else judged.verdict.value


def errors(folder: Path) -> list[str]:
    findings = [finding for outcome in examined(folder) for finding in outcome.findings]
    return [finding.code for finding in findings if finding.severity is Severity.ERROR]


def edited(run: Path, out: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    """The run with other weights, in the adapter and in every checkpoint."""
    shutil.copytree(run, out)
    for path in out.glob("*.safetensors"):
        weights: Any = mx.load(str(path))
        mx.eval(weights)
        mx.save_safetensors(str(path), change(weights))
    return out


@pytest.mark.long
def test_a_quantised_base(tmp_path: Path) -> None:
    base = tmp_path / "base"
    convert(str(BASE), str(base), quantize=True, q_bits=8, q_group_size=32)
    # Quantised layers are slow without a GPU: half the rows a step.
    run = trained(tmp_path / "run", model=str(base), batch_size=2, **LONG_ENOUGH)
    assert first_cause(run) == "inconclusive"
    zeroed = edited(
        run,
        tmp_path / "zeroed",
        lambda weights: {k: v * 0 if k.endswith("lora_b") else v for k, v in weights.items()},
    )
    assert first_cause(zeroed) == "adapter-not-trained"


@pytest.mark.long
def test_dora(tmp_path: Path) -> None:
    dora = trained(tmp_path / "dora", fine_tune_type="dora", **LONG_ENOUGH)
    assert first_cause(dora) == "inconclusive"
    change_json(dora / "adapter_config.json", fine_tune_type="lora")
    assert first_cause(dora, models=True) == "adapter-not-loaded"


def test_an_adapter_that_peft_wrote(tmp_path: Path) -> None:
    run = shutil.copytree(FIXTURES / "adapters" / "peft-written", tmp_path / "run")
    change_json(run / "adapter_config.json", base_model_name_or_path=str(BASE))
    assert not errors(run)
    turned = edited(run, tmp_path / "turned", lambda weights: {k: v.T for k, v in weights.items()})
    assert first_cause(turned) == "adapter-not-loaded"


def test_a_mixture_of_experts(tmp_path: Path) -> None:
    model = small_moe()
    base, run = tmp_path / "base", tmp_path / "run"
    save_model(base, model)
    sizes = {"model_type": "mixtral", "num_hidden_layers": 2, "hidden_size": 16, "vocab_size": 64}
    (base / "config.json").write_text(json.dumps(sizes))
    model.freeze()
    parameters = {"rank": 4, "scale": 10.0, "dropout": 0.0}
    linear_to_lora_layers(model, 2, parameters)
    run.mkdir()
    trainable = tree_flatten(model.trainable_parameters())
    factors: dict[str, Any] = {k: v + 0.01 * mx.random.normal(v.shape) for k, v in trainable}
    mx.save_safetensors(str(run / "adapters.safetensors"), factors)
    stated = {"model": str(base), "num_layers": 2, "fine_tune_type": "lora"}
    (run / "adapter_config.json").write_text(json.dumps({**stated, "lora_parameters": parameters}))
    assert not errors(run)
    assert any("switch_mlp" in name for name in factors)
    moved = edited(
        run, tmp_path / "moved", lambda weights: {f"model.{k}": v for k, v in weights.items()}
    )
    assert first_cause(moved) == "adapter-not-loaded"


@pytest.mark.parametrize(
    ("rate", "cause"), [(3e-4, "inconclusive"), (1e-2, "learning-rate-too-high")]
)
def test_a_full_fine_tune(tmp_path: Path, rate: float, cause: str) -> None:
    run = trained(
        tmp_path / "run",
        fine_tune_type="full",
        num_layers=-1,
        learning_rate=rate,
        **LONG_ENOUGH,
    )
    assert first_cause(run) == cause
    assert errors(run) == ([] if cause == "inconclusive" else ["full-weights.exploded"])
