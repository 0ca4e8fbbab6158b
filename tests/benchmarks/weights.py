"""Adapters against adaptersentry, and drift against reading the files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.peers import Peers
from tests.benchmarks.table import Line, at_most, plain
from tests.benchmarks.timing import measure

ADAPTER_LAYERS, WIDTH, ADAPTER_RANK = 20, 4096, 16
HIDDEN, FEED, VOCABULARY, RANK = 4096, 11008, 32000, 8
READ = """
import sys
buffer = bytearray(8 << 20)
for path in sys.argv[1:]:
    with open(path, "rb", buffering=0) as stream:
        while stream.readinto(buffer):
            pass
"""
DRIFT = """
import sys
from pathlib import Path
from mlxdoctor.check import discover
from mlxdoctor.run import Run
run = Run.discover([Path(sys.argv[1])], allow_model=False)
for check in discover():
    if check.name == sys.argv[2]:
        outcome = check.run(run)
        assert outcome.status.value in ("passed", "found"), outcome.reason
"""


def save(path: Path, tensors: Mapping[str, tuple[tuple[int, ...], str]], random: bool) -> None:
    """A .safetensors file, written a tensor at a time: small normal values."""
    generator, sizes = np.random.default_rng(0), {"BF16": 2, "F32": 4}
    header: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    offset = 0
    for name, (shape, dtype) in tensors.items():
        end = offset + int(np.prod(shape)) * sizes[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(len(encoded).to_bytes(8, "little") + encoded)
        for shape, dtype in tensors.values():
            for block in _values(int(np.prod(shape)), generator if random else None):
                as_stored = block if dtype == "F32" else _bfloat16(block)
                stream.write(as_stored.tobytes())


def _values(count: int, generator: np.random.Generator | None) -> Iterator[NDArray[np.float32]]:
    # Drawn once and repeated: what is measured does not depend on the values.
    drawn = (generator or np.random.default_rng(1)).normal(0, 0.02, 1 << 20).astype(np.float32)
    while count:
        yield drawn[:count]
        count -= min(count, len(drawn))


def _bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def peft_adapter(folder: Path) -> Path:
    """An adapter of 52 MB in float32: two projections in each of 20 layers, rank 16."""
    folder.mkdir()
    shapes = {
        f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{half}.weight": (shape, "F32")
        for layer in range(ADAPTER_LAYERS)
        for name in ("q_proj", "v_proj")
        for half, shape in (("A", (ADAPTER_RANK, WIDTH)), ("B", (WIDTH, ADAPTER_RANK)))
    }
    save(folder / "adapter_model.safetensors", shapes, random=True)
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": ADAPTER_RANK, "lora_alpha": 32})
    )
    return folder


def models(folder: Path, layers: int) -> tuple[Path, Path, int]:
    """A base, a run with an adapter and its fused model, and the bytes of the largest tensor."""
    linear = {
        **{f"self_attn.{one}_proj": (HIDDEN, HIDDEN) for one in "qkvo"},
        "mlp.gate_proj": (FEED, HIDDEN),
        "mlp.up_proj": (FEED, HIDDEN),
        "mlp.down_proj": (HIDDEN, FEED),
    }
    weights = {"model.embed_tokens.weight": ((VOCABULARY, HIDDEN), "BF16")}
    factors = {}
    for layer in range(layers):
        for name, (rows, columns) in linear.items():
            module = f"model.layers.{layer}.{name}"
            weights[f"{module}.weight"] = ((rows, columns), "BF16")
            factors[f"{module}.lora_a"] = ((columns, RANK), "F32")
            factors[f"{module}.lora_b"] = ((RANK, rows), "F32")
    base, run = folder / "base", folder / "run"
    for place, random in ((base, True), (run / "fused", False)):
        place.mkdir(parents=True)
        save(place / "model.safetensors", weights, random)
        (place / "config.json").write_text(
            json.dumps({"model_type": "llama", "num_hidden_layers": layers, "hidden_size": HIDDEN})
        )
    save(run / "adapters.safetensors", factors, random=True)
    (run / "adapter_config.json").write_text(
        json.dumps(
            {
                "model": str(base),
                "fine_tune_type": "lora",
                "num_layers": layers,
                "lora_parameters": {"rank": RANK, "scale": 20.0, "dropout": 0.0},
            }
        )
    )
    return base, run, VOCABULARY * HIDDEN * 2


def measured(scratch: Path, peers: Peers, layers: int = 4) -> Iterator[Line]:
    """The rows of the table. The models have the shapes of a 7 B Llama, with so many layers."""
    adapter = peft_adapter(scratch / "adapter")
    peer = peers.command("adaptersentry")
    theirs = measure([peer, "scan", str(adapter / "adapter_model.safetensors")])
    yield plain("adaptersentry, every value of 42 MB of factors", theirs)
    ours = measure([sys.executable, "-m", "mlxdoctor", "inspect", str(adapter)])
    yield at_most("`inspect`, the same factors", ours, theirs, "adaptersentry", 0.3)
    base, run, largest = models(scratch / "models", layers)
    files = (base / "model.safetensors", run / "fused" / "model.safetensors")
    size = sum(file.stat().st_size for file in files)
    python = [sys.executable, "-c"]
    reading = measure([*python, READ, *map(str, files)], repeats=3, cold=files)
    title = f"reading base and fused model from the disk, {size / 1e9:.1f} GB"
    yield plain(title, reading, f"{size / reading.seconds / 1e9:.2f} GB/s")
    for check in ("frozen-weights", "fused-model"):
        found = measure([*python, DRIFT, str(run), check], repeats=3, cold=files)
        speed = reading.seconds / found.seconds
        peak = found.peak_mib * (1 << 20) / largest
        yield Line(
            f"`{check}`, base against fused",
            found.seconds,
            found.peak_mib,
            f"{speed:.2f}x the speed of reading, {peak:.1f}x the largest tensor",
            "at least 0.5x, at most 3x",
            speed >= 0.5 and peak <= 3,
        )
