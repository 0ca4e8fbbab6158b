"""Sizes of a base model, and of an adapter, of which nothing can be built."""

import json
import math
import os
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fixtures.lab.cases.workshop import copied_base
from mlxdoctor.api import diagnose
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.finding import Status
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import using
from tests.conftest import FIXTURES
from tests.weight_files import entry, save_raw


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
