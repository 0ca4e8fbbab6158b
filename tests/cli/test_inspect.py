import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from mlxdoctor.cli.inspect import command as inspect
from tests.conftest import FIXTURES, RUNS
from tests.weight_files import lora, save, write_config

Q = "model.layers.1.self_attn.q_proj"
HEALTHY, BASE = str(RUNS / "healthy-ordinary"), str(FIXTURES / "base")


def inspected(*arguments: str) -> tuple[int, str]:
    """The exit code, and what is printed."""
    result = CliRunner().invoke(inspect, arguments, standalone_mode=False)
    assert result.exception is None, result.output
    return result.return_value, result.output


def rows(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and each adapter of the JSON."""
    code, printed = inspected(*arguments, "--stdout", "json")
    return code, json.loads(printed)["adapters"]


def adapter(folder: Path, tensors: dict[str, Any], **config: Any) -> str:
    save(folder / "adapters.safetensors", tensors)
    write_config(folder, **config)
    return str(folder)


def test_a_healthy_adapter() -> None:
    code, (found,) = rows(HEALTHY, "--base", BASE)
    assert code == 0
    assert not found["faulty"]
    assert len(found["modules"]) == 28
    assert {row["verdict"] for row in found["modules"]} <= {"ok", "larger than its weight"}
    assert all(0.01 < row["relative"] < 3 for row in found["modules"])
    assert found["configuration"]["scale"] == 20.0


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        (1.0, math.nan, "non-finite"),
        (1.0, 0.0, "fresh: never trained"),
        (2.0, 0.0, "zero B"),
        (0.0, 1.0, "zero A"),
    ],
)
def test_certain_faults_exit_with_1(tmp_path: Path, a: float, b: float, verdict: str) -> None:
    tensors = lora({Q: (40, 30)})
    tensors[f"{Q}.lora_a"] *= np.float32(a)
    tensors[f"{Q}.lora_b"] *= np.float32(b)
    code, (found,) = rows(adapter(tmp_path, tensors))
    assert code == 1
    assert found["modules"][0]["verdict"] == verdict


def test_verdicts_on_the_base(tmp_path: Path) -> None:
    names = (Q, "other.layers.1.self_attn.q_proj", "model.layers.2.self_attn.v_proj")
    tensors = lora(dict.fromkeys((*names, "model.layers.3.self_attn.q_proj"), (96, 96)))
    tensors["model.layers.3.self_attn.q_proj.lora_b"] *= 1e3
    code, (found,) = rows(adapter(tmp_path, tensors), "--base", BASE)
    verdicts = {row["module"]: row["verdict"] for row in found["modules"]}
    assert code == 0
    assert verdicts == {
        Q: "ok",
        "other.layers.1.self_attn.q_proj": "not in the base",
        "model.layers.2.self_attn.v_proj": "does not fit the base",
        "model.layers.3.self_attn.q_proj": "larger than its weight",
    }


def test_without_its_base_no_size_is_called_ok() -> None:
    code, (found,) = rows(HEALTHY)
    assert (code, {row["verdict"] for row in found["modules"]}) == (0, {"finite"})
    assert "--base" in inspected(HEALTHY)[1]
    assert "--base" not in inspected(HEALTHY, "--base", BASE)[1]


def test_a_whole_model_is_no_adapter() -> None:
    code, (found,) = rows(str(RUNS / "adapter-never-attached"))
    assert code == 1
    assert (found["modules"], found["other_tensors"]) == ([], 38)
    assert "no complete pair" in inspected(str(RUNS / "adapter-never-attached"))[1]


def test_peft_and_several_adapters(tmp_path: Path) -> None:
    name = f"base_model.model.{Q}"
    factors = {
        f"{name}.lora_A.weight": np.ones((2, 8), np.float32),
        f"{name}.lora_B.weight": np.ones((6, 2), np.float32),
    }
    save(tmp_path / "adapter_model.safetensors", factors)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 8, "base_model_name_or_path": "x"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    code, (one, two) = rows(str(tmp_path), HEALTHY)
    assert code == 0
    assert (one["naming"], two["naming"]) == ("peft", "mlx-lm")
    (row,) = one["modules"]
    assert (row["layer"], row["projection"], row["scale"]) == (1, "self_attn.q_proj", 4.0)
    assert row["update_norm"] == pytest.approx(4 * 2 * math.sqrt(48))
    # Every column is the same.
    assert row["spectral_norm"] == pytest.approx(row["update_norm"])
    assert row["stable_rank"] == pytest.approx(1.0)
    # What is said of one does not depend on those beside it.
    assert rows(HEALTHY) == (0, [two])
    code, printed = inspected(HEALTHY, str(RUNS / "b-never-trained"))
    assert (code, "fresh: never trained" in printed) == (1, True)


def test_without_a_configuration_the_scale_is_unknown(tmp_path: Path) -> None:
    path = save(tmp_path / "some.safetensors", lora({Q: (40, 30)}))
    _, (found,) = rows(str(path))
    assert found["modules"][0]["scale"] is None
    assert "‖A·B‖" in inspected(str(path))[1]
