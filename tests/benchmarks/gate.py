"""How many adapters `gate` judges: a thousand of 1 MB, on one core and on all of them.

The adapters have the shapes of LoRA on the queries and values of a 1,024-wide model, each
with factors of its own, and are judged statically, as CI does it. Memory is that of the
largest process.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.setup import Line, Measurement, Setup, measure
from tests.weight_files import lora, save, write_config

FEW, MANY = 100, 1_000
#: Of linear over the cores; of the memory that a tenth of the adapters takes.
LEAST_SCALING, MOST_MEMORY = 0.8, 1.2
WIDTH, LAYERS, RANK = 1024, 12, 4
MODULES = {"self_attn.q_proj": 2 * WIDTH, "self_attn.v_proj": WIDTH}
PARAMETERS = {"rank": RANK, "scale": 10.0, "dropout": 0.0, "keys": sorted(MODULES)}


def adapter(folder: Path, seed: int) -> None:
    """Write an adapter that has learned something: A as it is drawn, B a little off zero."""
    modules = {
        f"model.layers.{layer}.{name}": (WIDTH, outputs)
        for layer in range(LAYERS)
        for name, outputs in MODULES.items()
    }
    save(folder / "adapters.safetensors", lora(modules, RANK, b=5e-3, seed=seed))
    stated = {"model": "not/here", "num_layers": LAYERS, "optimizer": "adamw"}
    write_config(folder, **stated, lora_parameters=PARAMETERS)


def measured(scratch: Path, setup: Setup) -> Iterator[Line]:
    """The rows of the table."""
    folder = scratch / "adapters"
    folder.mkdir()
    many = 4 if setup.smallest else MANY
    for number in range(many):
        adapter(folder / f"{number:03}", number)
    cores = os.cpu_count() or 1

    def gate(pattern: str, jobs: int) -> Measurement:
        command = [*setup.ours, "gate", f"{folder}/{pattern}/"]
        return measure([*command, "--jobs", str(jobs)], repeats=setup.turns(3), cwd=scratch)

    few = gate("000" if setup.smallest else "0*", cores)
    yield Line(f"`gate` on {1 if setup.smallest else FEW} adapters of 1 MB, {cores} processes", few)
    alone = gate("*", 1)
    yield Line(f"`gate` on {many:,}, 1 process", alone, f"{many / alone.seconds:.0f} a second")
    all_cores = gate("*", cores)
    scaling = alone.seconds / all_cores.seconds / cores
    yield Line(
        f"`gate` on {many:,}, {cores} processes",
        all_cores,
        f"{many / all_cores.seconds:.0f} a second, {scaling:.2f} of linear",
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
