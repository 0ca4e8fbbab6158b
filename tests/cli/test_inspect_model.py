import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.base_model import BaseModel
from tests.cli.test_inspect import inspected
from tests.conftest import FIXTURES, RUNS, Call
from tests.weight_files import save, write_config

BASE = str(FIXTURES / "base")
WEIGHTS = {name: one.load() for name, one in BaseModel.read(FIXTURES / "base").tensors.items()}
Q = "model.layers.0.self_attn.q_proj.weight"


def figures(*arguments: str) -> tuple[int, dict[str, Any]]:
    code, printed = inspected(*arguments, "--base", BASE, "--format", "json")
    (found,) = json.loads(printed)["models"]
    return code, found


def model(folder: Path, **changes: Any) -> str:
    """A copy of the base with other weights; None leaves one out."""
    tensors = {**WEIGHTS, **changes}
    save(folder / "model.safetensors", {k: v for k, v in tensors.items() if v is not None})
    (folder / "config.json").write_text((FIXTURES / "base" / "config.json").read_text())
    return str(folder)


def test_a_model_folder(tmp_path: Path) -> None:
    changed = {Q: 1.5 * WEIGHTS[Q], "model.norm.weight": None}
    code, found = figures(model(tmp_path, **changed))
    assert code == 0
    tensors = {row["tensor"]: row for row in found["tensors"]}
    assert tensors[Q]["relative"] == pytest.approx(0.5, rel=1e-6)
    assert (tensors[Q]["shape"], tensors[Q]["layer"], tensors[Q]["stored"]) == ([96, 96], 0, "F32")
    assert {row["status"] for name, row in tensors.items() if name not in changed} == {"same"}
    assert tensors["model.norm.weight"]["status"] == "missing"


@pytest.mark.parametrize("table_format", ["text", "markdown"])
def test_the_table_names_every_tensor_once(tmp_path: Path, table_format: str) -> None:
    path = model(tmp_path, **{Q: 1.5 * WEIGHTS[Q]})
    code, printed = inspected(path, "--base", BASE, "--format", table_format)
    assert code == 0
    lines = printed.splitlines()
    assert all(sum(name in line for line in lines) == 1 for name in WEIGHTS)
    assert "tensors: 37 same, 1 changed" in lines


def test_values_that_are_not_finite_fail(tmp_path: Path) -> None:
    broken = WEIGHTS[Q].copy()
    broken[0, :3] = np.nan
    path = model(tmp_path, **{Q: broken})
    code, found = figures(path)
    assert code == 1
    row = next(row for row in found["tensors"] if row["tensor"] == Q)
    assert (row["nonfinite"], row["relative"]) == (3, None)
    assert "3 values are NaN or infinite" in inspected(path, "--base", BASE)[1]


def test_full_weights_in_an_adapters_place() -> None:
    code, found = figures(str(RUNS / "adapter-never-attached"))
    assert code == 1
    assert found["stated_type"] == "lora"
    assert {row["status"] for row in found["tensors"]} == {"changed"}


def test_a_full_fine_tune_is_no_fault(tmp_path: Path) -> None:
    write_config(tmp_path, fine_tune_type="full")
    save(tmp_path / "adapters.safetensors", {Q: 1.2 * WEIGHTS[Q]})
    code, found = figures(str(tmp_path))
    assert code == 0
    assert found["stated_type"] == "full"


def test_a_model_needs_its_base(tmp_path: Path, call: Call) -> None:
    code, _, err = call("inspect", model(tmp_path))
    assert (code, "--base" in err) == (2, True)
