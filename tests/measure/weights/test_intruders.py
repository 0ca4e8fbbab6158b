"""Intruder dimensions against matrices whose singular vectors are known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from mlxdoctor.cli import main
from mlxdoctor.cli.inspect import inspect
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.measure.weights.intruders import MAX_SMALLER_SIZE, closest_cosines, module_intruders
from tests.conftest import FIXTURES, RUNS
from tests.weight_files import lora, save, write_config

RANDOM = np.random.default_rng(0)
OUT, IN = 96, 64
Q = "model.layers.0.self_attn.q_proj"
BASE = str(FIXTURES / "base")


def orthonormal(size: int, columns: int) -> NDArray[np.float64]:
    return np.linalg.qr(RANDOM.normal(size=(size, columns)))[0]


LEFT, RIGHT = orthonormal(OUT, IN), orthonormal(IN, IN)
WEIGHT = (LEFT * np.linspace(2, 1, IN)) @ RIGHT.T
#: The same share of 25 old directions: a fifth of each.
NEW = LEFT[:, 20:45].sum(axis=1) / 5


def planted(direction: NDArray[np.float64]) -> tuple[float, ...]:
    """The base weight with a direction so large that it is the first singular vector."""
    update = 1000 * np.outer(direction, RIGHT[:, 3])
    return closest_cosines(WEIGHT.astype("f4"), (WEIGHT + update).astype("f4"))


def test_an_unchanged_weight_has_no_intruder() -> None:
    cosines = closest_cosines(WEIGHT.astype("f4"), WEIGHT.astype("f4"))
    assert cosines == pytest.approx([1.0] * 10, abs=1e-3)


def test_a_planted_intruder_is_the_only_one() -> None:
    cosines = planted(NEW)
    assert len(cosines) == 10
    assert cosines[0] == pytest.approx(0.2, abs=0.01)
    assert sum(one < 0.5 for one in cosines) == 1


def test_an_old_direction_made_larger_is_none() -> None:
    assert all(one > 0.5 for one in planted(LEFT[:, 7]))


@pytest.mark.parametrize(("cosine", "is_new"), [(0.45, True), (0.55, False)])
def test_the_largest_cosine_decides(cosine: float, is_new: bool) -> None:
    direction = cosine * LEFT[:, 0] + np.sqrt(1 - cosine**2) * NEW
    first = planted(direction)[0]
    assert first == pytest.approx(cosine, abs=0.01)
    assert (first < 0.5) is is_new


def model(folder: Path, weight: NDArray[np.float64]) -> BaseModel:
    save(folder / "model.safetensors", {f"{Q}.weight": weight.astype("f4")})
    (folder / "config.json").write_text("{}")
    return BaseModel.read(folder)


def test_the_count_of_a_module(tmp_path: Path) -> None:
    factors = {
        f"{Q}.lora_a": RIGHT[:, 3:4].astype("f4"),
        f"{Q}.lora_b": NEW[None].astype("f4"),
    }
    adapter = Adapter.read(save(tmp_path / "adapters.safetensors", factors))
    config = TrainingConfig.read(
        write_config(tmp_path, lora_parameters={"rank": 1, "scale": 1000.0, "dropout": 0.0})
    )
    base = model(tmp_path / "base", WEIGHT)
    (found,) = module_intruders(adapter, config, base)
    assert (found.module, found.count, found.reason) == (Q, 1, "")
    (unknown,) = module_intruders(adapter, None, base)
    assert (unknown.count, unknown.reason) == (None, "its scale is not stated")


def test_a_weight_that_is_too_large_is_left_out(tmp_path: Path) -> None:
    size = MAX_SMALLER_SIZE + 1
    adapter = Adapter.read(save(tmp_path / "adapters.safetensors", lora({Q: (size, size)})))
    config = TrainingConfig.read(write_config(tmp_path))
    (found,) = module_intruders(adapter, config, model(tmp_path / "b", np.zeros((size, size))))
    assert found.count is None
    assert "larger than 2,048" in found.reason


def test_a_weight_of_another_shape_is_left_out(tmp_path: Path) -> None:
    adapter = Adapter.read(save(tmp_path / "adapters.safetensors", lora({Q: (OUT, IN)})))
    config = TrainingConfig.read(write_config(tmp_path))
    (found,) = module_intruders(adapter, config, model(tmp_path / "base", WEIGHT))
    assert (found.count, found.reason) == (None, "its shape is not that of the base's weight")


def test_the_column_of_inspect() -> None:
    arguments = [str(RUNS / "healthy-ordinary"), "--base", BASE, "--intruders"]
    result = CliRunner().invoke(inspect, arguments, standalone_mode=False)
    assert "intruders" in result.output
    result = CliRunner().invoke(inspect, [*arguments, "--format", "json"], standalone_mode=False)
    (found,) = json.loads(result.output)["adapters"]
    counts = [row["intruders"] for row in found["modules"]]
    assert all(0 <= count <= 10 for count in counts)
    assert 4 < np.mean(counts) < 9


def test_a_run_that_learned_nothing_has_none() -> None:
    run = RUNS / "rate-too-low"
    found = module_intruders(
        Adapter.read(run), TrainingConfig.read(run), BaseModel.read(FIXTURES / "base")
    )
    assert {one.count for one in found} == {0}


@pytest.mark.parametrize(
    "arguments",
    [
        [str(RUNS / "rate-too-low")],
        [str(RUNS / "rate-too-low"), str(RUNS / "overfitting"), "--base", BASE],
        [str(RUNS / "adapter-never-attached"), "--base", BASE],
    ],
)
def test_what_it_needs(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", *arguments, "--intruders"]) == 2
    assert "--intruders" in capsys.readouterr().err
