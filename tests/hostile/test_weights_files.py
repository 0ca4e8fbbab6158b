"""Weight files that lie, and models of which nothing can be built: refused in one sentence."""

import json
import math
import os
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.lab.cases.workshop import copied_base
from mlxdoctor.api import diagnose
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.safetensors_file import model_files, read_safetensors
from mlxdoctor.finding import Status
from mlxdoctor.measure.weights.adapter_facts import factor_facts
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import using
from tests.conftest import FIXTURES
from tests.weight_files import entry, save_raw

NOT_WHOLE = r"is not a whole .safetensors file: it has [\d,]+ bytes \(.{9,200}\)"
NO_SHAPE = "a has an impossible shape"


#: What the library refuses, of each kind one; shapes that no array has; more than the limit.
@pytest.mark.parametrize(
    ("header", "data", "problem"),
    [
        ({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, 12, NOT_WHOLE),
        ({"a": entry([2], 0, 8)}, 4, NOT_WHOLE),
        ({"a": entry([1], -4, 0)}, 4, NOT_WHOLE),
        ({"a": entry([2.0], 0, 8)}, 8, NOT_WHOLE),
        ({"a": entry([2**62, 2**62, 2**62], 0, 8)}, 8, NOT_WHOLE),
        ({"a": entry([2], 0, 8, "F128" * 99)}, 8, NOT_WHOLE),
        (b'{"\xff": 1}', 0, NOT_WHOLE),
        (b"[" * 100_000, 0, NOT_WHOLE),
        (b'{"__metadata__": {"a": 1}}', 0, NOT_WHOLE),
        ({"a": entry([0, 2**60, 2**60], 0, 0)}, 0, NO_SHAPE),
        ({"a": entry([1] * 33, 0, 4)}, 4, NO_SHAPE),
        ({f"{n}": entry([0], 0, 0) for n in range(11)}, 0, "has 11 tensors, .*--limit tensors="),
    ],
)
def test_a_header_that_lies(
    tmp_path: Path, header: dict[str, Any] | bytes, data: int, problem: str
) -> None:
    path = save_raw(tmp_path / "adapters.safetensors", header, bytes(data))
    with using(["tensors=10"]), pytest.raises(InputError, match=problem):
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


@pytest.mark.parametrize("value", [0, -4, "96", math.nan, math.inf, 3.5, True])
@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "vocab_size"])
def test_a_size_that_is_none_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"for {key}, where a whole number from 1 on is needed"):
        BaseModel.read(copied_base(tmp_path / "base", config={key: value}))


@pytest.mark.parametrize("value", [None, [96, 96], 96.0])
def test_what_some_families_state_is_not(tmp_path: Path, value: Any) -> None:
    BaseModel.read(copied_base(tmp_path / "base", config={"hidden_size": value}))


def test_factors_of_a_hundred_gigabytes_are_refused_by_their_header(tmp_path: Path) -> None:
    size, name = 100 << 30, "model.layers.0.self_attn.q_proj.lora_"
    header = {
        f"{name}{role}": entry(shape, begin, begin + size // 2)
        for role, shape, begin in (("a", [size >> 3, 1], 0), ("b", [1, size >> 3], size // 2))
    }
    path = save_raw(tmp_path / "adapters.safetensors", header)
    os.truncate(path, path.stat().st_size + size)
    with pytest.raises(InputError, match=r"bytes of factors, over the limit adapter_bytes"):
        Adapter.read(path)


@pytest.mark.long
@pytest.mark.slow
def test_an_adapter_of_every_expert_is_judged_in_seconds(tmp_path: Path) -> None:
    layers, experts, names = 94, 128, ("gate_proj", "up_proj", "down_proj")
    header: dict[str, Any] = {}
    for layer, expert, name in product(range(layers), range(experts), names):
        module = f"base_model.model.model.layers.{layer}.mlp.experts.{expert}.{name}.lora_"
        for role, shape in (("A", [1, 2]), ("B", [2, 1])):
            begin = 8 * len(header)
            header[f"{module}{role}.weight"] = entry(shape, begin, begin + 8)
    values = b"\x00\x00\x80\x3c\x00\x00\x00\xbd" * len(header)
    file = save_raw(tmp_path / "adapter_model.safetensors", header, values)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 1}))
    begun = time.process_time()
    report = diagnose([tmp_path], allow_model=False)
    assert time.process_time() - begun < 45  # 14 were measured
    assert not [one for one in report.outcomes if one.status is Status.CRASHED]
    assert len(Adapter.read(file).modules) == layers * experts * len(names)


def test_more_modules_than_can_be_measured_are_refused() -> None:
    run = FIXTURES / "runs" / "healthy-ordinary"
    with using(["modules=27"]), pytest.raises(InputError, match="factors of 28 modules, over"):
        Adapter.read(run)
    with using(["modules=28"]):
        assert len(Adapter.read(run).modules) == 28
