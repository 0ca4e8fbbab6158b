"""Modules of a block whose sizes do not go together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.adapter import Adapter
from tests.conftest import FIXTURES, RUNS, check_called
from tests.given import outcome

block_sizes = check_called("block-sizes")
ATTENTION = {"q_proj": (96, 128), "k_proj": (96, 48), "v_proj": (96, 48), "o_proj": (128, 96)}
FEED_FORWARD = {"gate_proj": (96, 256), "up_proj": (96, 256), "down_proj": (256, 96)}


def adapter(
    folder: Path, block: str, sizes: dict[str, tuple[int, int]], experts: int = 0
) -> Adapter:
    from safetensors.numpy import save_file

    tensors: dict[str, Any] = {}
    for name, (inputs, outputs) in sizes.items():
        a, b = (inputs, 4), (4, outputs)
        if experts:
            a, b = (experts, *a[::-1]), (experts, *b[::-1])
        tensors[f"model.layers.0.{block}.{name}.lora_a"] = np.ones(a, np.float32)
        tensors[f"model.layers.0.{block}.{name}.lora_b"] = np.ones(b, np.float32)
    save_file(tensors, folder / "adapters.safetensors")
    return Adapter.read(folder)


def messages(found: Adapter) -> list[str]:
    return [one.message for one in outcome(block_sizes, found).findings]


@pytest.mark.parametrize("experts", [0, 3])
@pytest.mark.parametrize(
    ("block", "sizes", "agree"),
    [
        ("self_attn", ATTENTION, True),
        ("mlp", FEED_FORWARD, True),
        # The gate of Qwen3-Next's attention doubles the queries.
        ("self_attn", {**ATTENTION, "q_proj": (96, 256)}, True),
        ("self_attn", {**ATTENTION, "k_proj": (48, 96)}, False),
        ("self_attn", {"q_proj": (96, 96), "v_proj": (48, 96)}, False),
        ("mlp", {**FEED_FORWARD, "up_proj": (256, 96)}, False),
        ("mlp", {**FEED_FORWARD, "down_proj": (96, 256)}, False),
        ("mlp", {"up_proj": (96, 256), "down_proj": (128, 96)}, False),
        ("mlp", {"down_proj": (96, 256)}, True),
    ],
)
def test_sizes(
    tmp_path: Path, block: str, sizes: dict[str, tuple[int, int]], agree: bool, experts: int
) -> None:
    found = messages(adapter(tmp_path, block, sizes, experts))
    assert bool(found) is not agree


def test_what_is_said(tmp_path: Path) -> None:
    found = messages(adapter(tmp_path, "mlp", {**FEED_FORWARD, "up_proj": (96, 128)}))
    assert found == [
        "The sizes of 1 of 1 blocks do not go together: in model.layers.0.mlp, gate_proj maps 96 "
        "to 256, up_proj maps 96 to 128, down_proj maps 256 to 96."
    ]


def test_sound_adapters() -> None:
    for folder in (*sorted(RUNS.glob("healthy-*")), FIXTURES / "adapters" / "peft-written"):
        assert messages(Adapter.read(folder)) == []
