"""Weight files that lie: refused in one sentence, before anything large is made of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.safetensors_file import model_files, read_safetensors
from mlxdoctor.measure.weights.adapter_facts import factor_facts
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import using
from tests.weight_files import entry, save_raw


@pytest.mark.parametrize(
    ("header", "data"),
    [
        ({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, 12),
        ({"a": entry([2], 0, 8), "b": entry([2], 0, 8)}, 8),
        ({"a": entry([2], 4, 12)}, 12),
        ({"a": entry([2], 0, 8)}, 4),
        ({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, 12),
        ({"a": entry([1], 0, 4)}, 8),
        ({"a": entry([1], -4, 0)}, 4),
        ({"a": {"shape": [1], "data_offsets": [0, 4]}}, 4),
        (b"[1, 2]", 0),
        ({"a": entry([2], 8, 0)}, 8),
        ({"a": entry([-2], 0, 8)}, 8),
        ({"a": entry([2.0], 0, 8)}, 8),
        ({"a": entry([True], 0, 4)}, 4),
        ({"a": entry([2**62, 2**62, 2**62], 0, 8)}, 8),
        ({"a": entry([2**70], 0, 8)}, 8),
        ({"a": entry([2], 0, 8, "F128" * 99)}, 8),
        ({"a": entry([3], 0, 2, "F4")}, 2),
        (b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1e3]}}', 4),
        (b'{"\xff": 1}', 0),
        (b"[" * 100_000, 0),
        (b'{"a":' * 50_000, 0),
        (b'{"__metadata__": {"a": 1}}', 0),
        (b'{"__metadata__": {"a": "b"}', 0),
    ],
)
def test_a_header_that_lies(tmp_path: Path, header: dict[str, Any] | bytes, data: int) -> None:
    path = save_raw(tmp_path / "adapters.safetensors", header, bytes(data))
    with pytest.raises(
        InputError, match=r"is not a whole .safetensors file: it has [\d,]+ bytes \(.{9,200}\)"
    ):
        read_safetensors(path)


@pytest.mark.parametrize(("shape", "end"), [([0, 2**60, 2**60], 0), ([1] * 33, 4)])
def test_a_shape_that_no_array_has(tmp_path: Path, shape: list[int], end: int) -> None:
    path = save_raw(tmp_path / "a.safetensors", {"a": entry(shape, 0, end)}, bytes(end))
    with pytest.raises(InputError, match="a has an impossible shape"):
        read_safetensors(path)


def test_more_tensors_than_the_limit(tmp_path: Path) -> None:
    header = {f"{number}": entry([0], 0, 0) for number in range(11)}
    path = save_raw(tmp_path / "a.safetensors", header)
    with (
        using(["tensors=10"]),
        pytest.raises(InputError, match=r"has 11 tensors, .*--limit tensors="),
    ):
        read_safetensors(path)


def test_a_header_over_the_limit_names_it(tmp_path: Path) -> None:
    path = save_raw(tmp_path / "a.safetensors", {"a": entry([1], 0, 4)}, bytes(4))
    with using(["header_bytes=16"]), pytest.raises(InputError, match="limit header_bytes of 16"):
        read_safetensors(path)
    assert read_safetensors(path).tensors["a"].shape == (1,)


def test_empty_and_not_a_number(tmp_path: Path) -> None:
    """Factors of no size, and factors of NaN, are read; what they mean is for the checks."""
    header = {
        "layers.0.q.lora_a": entry([0, 4], 0, 0),
        "layers.0.q.lora_b": entry([4, 2], 0, 32),
        "layers.1.q.lora_a": entry([2, 4], 32, 64),
        "layers.1.q.lora_b": entry([4, 2], 64, 96),
    }
    nothing = np.full(8, np.nan, np.float32).tobytes()
    adapter = Adapter.read(save_raw(tmp_path / "adapters.safetensors", header, nothing * 3))
    assert [len(adapter.modules), len(factor_facts(adapter))] == [2, 2]


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = save_raw(tmp_path / "a.safetensors", {"a": entry([64], 0, 256)}, bytes(256))
    tensor = read_safetensors(path).tensors["a"]
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(InputError, match="changed while it was being read"):
        tensor.load()


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("../outside.safetensors", "outside its folder"),
        ("/etc/passwd", "outside its folder"),
        ("..", "outside its folder"),
        ("..\\outside.safetensors", "outside its folder"),
        ("model.safetensors.index.json", "no .safetensors file"),
    ],
)
def test_an_index_that_points_elsewhere(tmp_path: Path, name: str, problem: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(InputError, match=problem):
        model_files(tmp_path)


def test_an_index_of_missing_or_too_many_files(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "\0.safetensors"}})
    )
    for file in model_files(tmp_path):
        with pytest.raises(InputError, match=r"no such file|no name that a file can have"):
            read_safetensors(file)
    with using(["folder_entries=1"]), pytest.raises(InputError, match="limit folder_entries"):
        model_files(tmp_path)
