"""Adapters against adaptersentry, and drift against reading the files, side by side.

    python -m tests.benchmarks.weights [--peer PATH_TO_adaptersentry] [--layers N]

Prints a Markdown table. adaptersentry is installed from PyPI into an environment of its own
unless `--peer` names it. The models have the shapes of a 7 B Llama, with so many layers;
all 32 take 27 GB of disk. Compare the figures of one run with each other only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.timing import Measurement, measure

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


def installed_peer(folder: Path) -> Path:
    """adaptersentry from PyPI, in an environment of its own."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "adaptersentry"], check=True)
    return folder / "bin" / "adaptersentry"


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", type=Path, help="an adaptersentry that is installed")
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()
    rows: list[tuple[str, Measurement, str]] = []
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        peer = options.peer or installed_peer(scratch / "peer")
        adapter = peft_adapter(scratch / "adapter")
        theirs = measure([str(peer), "scan", str(adapter / "adapter_model.safetensors")])
        ours = measure([sys.executable, "-m", "mlxdoctor", "inspect", str(adapter)])
        rows += [
            ("adaptersentry scan, every value of 42 MB", theirs, ""),
            (
                "mlxdoctor inspect, the same factors",
                ours,
                f"{ours.seconds / theirs.seconds:.2f}x adaptersentry; aim: at most 0.3x",
            ),
        ]
        base, run, largest = models(scratch / "models", options.layers)
        files = (base / "model.safetensors", run / "fused" / "model.safetensors")
        size = sum(file.stat().st_size for file in files)
        python = [sys.executable, "-c"]
        reading = measure([*python, READ, *map(str, files)], repeats=3, cold=files)
        title = f"reading both files from the disk, {size / 1e9:.1f} GB"
        rows.append((title, reading, _speed(size, reading)))
        for check in ("frozen-weights", "fused-model"):
            found = measure([*python, DRIFT, str(run), check], repeats=3, cold=files)
            note = (
                f"{_speed(size, found)}, {reading.seconds / found.seconds:.2f}x the speed of "
                f"reading; aim: 0.5x. Peak {found.peak_mib * (1 << 20) / largest:.1f}x the "
                "largest tensor; aim: 3x"
            )
            rows.append((f"{check}, base against fused", found, note))
    print("| what | median | peak memory | |\n|---|---:|---:|---|")
    for title, measured, note in rows:
        print(f"| {title} | {measured.seconds:.2f} s | {measured.peak_mib:.0f} MiB | {note} |")


def _speed(size: int, measured: Measurement) -> str:
    return f"{size / measured.seconds / 1e9:.2f} GB/s"


if __name__ == "__main__":
    main()
