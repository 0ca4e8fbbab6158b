"""A diagnosis with models at real size: 135 M parameters in bfloat16, and rows of real text.

The base and the rows are those of the real split, which is made on demand and never committed
(`python -m fixtures.lab.real`): without them there is nothing to measure.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fixtures.lab.real import base_folder, data_folder
from tests.benchmarks.peers import Peers
from tests.benchmarks.table import Line
from tests.benchmarks.timing import Measurement, measure
from tests.weight_files import save

BASE, TASK = "smol-bf16", "sessions"
LAYERS, RANK, SCALE = range(22, 30), 8, 20.0
#: Of the base: inputs, and outputs of the two projections that have factors.
WIDTH, OUTPUTS = 576, {"self_attn.q_proj": 576, "self_attn.v_proj": 192}
PARAMETERS = 134_515_008
#: A run without a log may be inconclusive, which is no error here.
DIAGNOSE = "import sys; from mlxdoctor.cli import main; sys.exit(5 * (main(sys.argv[1:]) == 2))"
#: Seconds and a multiple of the weights' size in float32.
LONGEST, LARGEST = 60.0, 1.5


def measured(scratch: Path, peers: Peers) -> Iterator[Line]:
    """The rows of the table."""
    del peers
    if not base_folder(BASE).is_dir() or not data_folder(TASK).is_dir():
        return
    run = scratch / "run"
    run.mkdir()
    _write_adapter(run)
    command = [sys.executable, "-c", DIAGNOSE, "diagnose", str(run), "--stdout", "json"]
    found = measure([*command, "--no-generate"], repeats=3)
    yield Line("`diagnose --no-generate` of a run of 135 M parameters", *_figures(found))
    found = measure(command, repeats=1)
    weights = 4 * PARAMETERS / (1 << 20)
    share = found.peak_mib / weights
    yield Line(
        "`diagnose` of it, both models asked",
        *_figures(found),
        result=f"memory {share:.2f}x the weights in float32",
        aim=f"at most {LONGEST:g} s on two cores, {LARGEST}x",
        met=found.seconds <= LONGEST and share <= LARGEST,
    )


def _figures(found: Measurement) -> tuple[float, float]:
    return found.seconds, found.peak_mib


def _write_adapter(folder: Path) -> None:
    """An adapter as mlx-lm saves it, that changes answers a little."""
    random = np.random.default_rng(0)
    factors = {}
    for layer in LAYERS:
        for module, outputs in OUTPUTS.items():
            name = f"model.layers.{layer}.{module}"
            bound = WIDTH**-0.5
            factors[f"{name}.lora_a"] = random.uniform(-bound, bound, (WIDTH, RANK))
            factors[f"{name}.lora_b"] = 1e-3 * random.standard_normal((RANK, outputs))
    written = {name: values.astype(np.float32) for name, values in factors.items()}
    save(folder / "adapters.safetensors", written)
    config = {
        "model": str(base_folder(BASE).resolve()),
        "data": str(data_folder(TASK).resolve()),
        "fine_tune_type": "lora",
        "num_layers": len(LAYERS),
        "lora_parameters": {"rank": RANK, "scale": SCALE, "dropout": 0.0},
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
