"""Weight files that lie: refused in one sentence, before anything large is made of them."""

import json
import time
from collections.abc import Mapping
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


def written(path: Path, header: Mapping[str, Any] | bytes, data: bytes = b"") -> Path:
    return save_raw(
        path, header if isinstance(header, bytes) else json.dumps(header).encode(), data
    )


@pytest.mark.parametrize(
    ("header", "data", "problem"),
    [
        ({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, 12, "overlaps"),
        ({"a": entry([2], 0, 8), "b": entry([2], 0, 8)}, 8, "overlaps"),
        ({"a": entry([2], 4, 12)}, 12, "nobody's"),
        ({"a": entry([2], 0, 8)}, 4, "truncated"),
        ({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, 12, "bytes before b"),
        ({"a": entry([1], 0, 4)}, 8, "after its last tensor"),
        ({"a": entry([1], -4, 0)}, 4, "two positions"),
        ({"a": {"shape": [1], "data_offsets": [0, 4]}}, 4, "no dtype"),
        (b"[1, 2]", 0, "not a JSON object"),
        ({"a": entry([2], 8, 0)}, 8, "span"),
        ({"a": entry([-2], 0, 8)}, 8, "list of sizes"),
        ({"a": entry([2.0], 0, 8)}, 8, "list of sizes"),
        ({"a": entry([True], 0, 4)}, 4, "list of sizes"),
        ({"a": entry([1] * 33, 0, 4)}, 4, "list of sizes"),
        ({"a": entry([2**62, 2**62, 2**62], 0, 8)}, 8, "span"),
        ({"a": entry([2**70], 0, 8)}, 8, "list of sizes"),
        ({"a": entry([0, 2**60, 2**60], 0, 0)}, 0, "impossible shape"),
        ({"a": entry([2], 0, 8, "F128" * 99)}, 8, "unknown type"),
        ({"a": entry([3], 0, 2, "F4")}, 2, "span"),
        (b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1e3]}}', 4, "two positions"),
        (b'{"\xff": 1}', 0, "not valid"),
        (b"[" * 100_000, 0, "not valid"),
        (b'{"a":' * 50_000, 0, "not valid"),
        (b'{"a": 1, "a": 2}', 0, "there twice"),
        (b'{"__metadata__": {"a": 1}}', 0, "pairs of text"),
        (b'{"__metadata__": {"a": "b"}', 0, "not valid"),
    ],
)
def test_a_header_that_lies(
    tmp_path: Path, header: dict[str, Any] | bytes, data: int, problem: str
) -> None:
    path = written(tmp_path / "adapters.safetensors", header, bytes(data))
    with pytest.raises(InputError, match=problem):
        read_safetensors(path)


def test_a_header_of_nothing_but_brackets_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = written(tmp_path / "a.safetensors", b'{"a":[' + b"[]," * 200_000 + b"[]]}")
    with (
        using(["tensors=1000"]),
        pytest.raises(InputError, match=r"limit tensors of 1,000; .*--limit tensors="),
    ):
        read_safetensors(path)


def test_a_key_twice_at_the_end_of_many(tmp_path: Path) -> None:
    names = ",".join(f'"{i}":0' for i in range(100_000))
    path = written(tmp_path / "a.safetensors", f'{{{names},"99999":1}}'.encode())
    begun = time.monotonic()
    with pytest.raises(InputError, match="'99999' is there twice"):
        read_safetensors(path)
    # It took a minute where each name was counted among all of them.
    assert time.monotonic() - begun < 20


def test_a_header_over_the_limit_names_it(tmp_path: Path) -> None:
    path = written(tmp_path / "a.safetensors", {"a": entry([1], 0, 4)}, bytes(4))
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
    adapter = Adapter.read(written(tmp_path / "adapters.safetensors", header, nothing * 3))
    assert [len(adapter.modules), len(factor_facts(adapter))] == [2, 2]


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "a.safetensors", {"a": entry([64], 0, 256)}, bytes(256))
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
