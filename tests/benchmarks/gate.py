"""How many adapters `gate` judges: a thousand of 1 MB, on one core and on all of them.

The adapters have the shapes of LoRA on the queries and values of a 1,024-wide model, each
with factors of its own, and are judged statically, as CI does it. Memory is that of the
largest process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.benchmarks.peers import Peers
from tests.benchmarks.table import Line
from tests.benchmarks.timing import Measurement, measure

FEW, MANY = 100, 1_000
#: Of linear over the cores; of the memory that a tenth of the adapters takes.
LEAST_SCALING, MOST_MEMORY = 0.8, 1.2
WIDTH, LAYERS, RANK = 1024, 12, 4
MODULES = {"self_attn.q_proj": 2 * WIDTH, "self_attn.v_proj": WIDTH}
CONFIG = {
    "model": "not/here",
    "fine_tune_type": "lora",
    "num_layers": LAYERS,
    "learning_rate": 1e-4,
    "iters": 1000,
    "optimizer": "adamw",
    "lora_parameters": {"rank": RANK, "scale": 10.0, "dropout": 0.0, "keys": sorted(MODULES)},
}


def adapter(folder: Path, seed: int) -> None:
    """Write an adapter that has learned something: A as it is drawn, B a little off zero."""
    random = np.random.default_rng(seed)
    bound = WIDTH**-0.5
    tensors = {}
    for layer in range(LAYERS):
        for name, outputs in MODULES.items():
            key = f"model.layers.{layer}.{name}"
            tensors[f"{key}.lora_a"] = random.uniform(-bound, bound, (WIDTH, RANK)).astype("f4")
            tensors[f"{key}.lora_b"] = random.normal(0, 5e-3, (RANK, outputs)).astype("f4")
    folder.mkdir()
    save_file(tensors, folder / "adapters.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG))


def measured(scratch: Path, peers: Peers) -> Iterator[Line]:
    """The rows of the table."""
    del peers
    folder = scratch / "adapters"
    folder.mkdir()
    for number in range(MANY):
        adapter(folder / f"{number:03}", number)
    cores = os.cpu_count() or 1

    def gate(pattern: str, jobs: int) -> Measurement:
        command = [sys.executable, "-m", "mlxdoctor", "gate", f"{folder}/{pattern}/"]
        return measure([*command, "--jobs", str(jobs)], repeats=3)

    few = gate("0*", cores)
    yield Line(f"`gate` on {FEW} adapters of 1 MB, {cores} processes", few.seconds, few.peak_mib)
    alone = gate("*", 1)
    rate = MANY / alone.seconds
    yield Line(
        f"`gate` on {MANY:,}, 1 process", alone.seconds, alone.peak_mib, f"{rate:.0f} a second"
    )
    all_cores = gate("*", cores)
    scaling = alone.seconds / all_cores.seconds / cores
    yield Line(
        f"`gate` on {MANY:,}, {cores} processes",
        all_cores.seconds,
        all_cores.peak_mib,
        f"{MANY / all_cores.seconds:.0f} a second, {scaling:.2f} of linear",
        f"at least {LEAST_SCALING:g} of linear",
        scaling >= LEAST_SCALING,
    )
    memory = all_cores.peak_mib / few.peak_mib
    yield Line(
        "its memory against that for a tenth of them",
        result=f"{memory:.2f}x",
        aim=f"at most {MOST_MEMORY:g}x",
        met=memory <= MOST_MEMORY,
    )
