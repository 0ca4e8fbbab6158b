"""Adapters against adaptersentry, drift against reading the files, and a diagnosis at real size.

The real base and its rows are those of the real split, made on demand and never committed (`python
-m fixtures.lab.real`): without them there is nothing to measure.
"""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import mlx.core as mx
import numpy as np

from fixtures.lab.cases.workshop import write_config
from fixtures.lab.real import base_folder, data_folder
from tests.benchmarks.setup import Line, Setup, at_most, measure
from tests.weight_files import lora, save

ADAPTER_LAYERS, WIDTH, ADAPTER_RANK = 20, 4096, 16
HIDDEN, FEED, VOCABULARY, RANK = 4096, 11008, 32000, 8
#: Of the real base: layers with factors, inputs, and outputs of the two projections that have some.
BASE, TASK, PARAMETERS = "smol-bf16", "sessions", 134_515_008
LAYERS, REAL_WIDTH = range(22, 30), 576
OUTPUTS = {"self_attn.q_proj": 576, "self_attn.v_proj": 192}
#: Seconds and a multiple of the weights' size in float32.
LONGEST, LARGEST = 60.0, 1.5
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

#: Repeated in every tensor: what is measured does not depend on the values.
DRAWN = np.random.default_rng(0).normal(0, 0.02, 1 << 20).astype(np.float32)


def drawn(*shape: int) -> mx.array:
    """Small normal values, as a base's weights are."""
    return mx.array(np.resize(DRAWN, shape))


def peft_adapter(folder: Path, layers: int) -> Path:
    """An adapter in float32: two projections in each layer, rank 16; 21 MB in 20 layers."""
    folder.mkdir()
    tensors = {
        f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{half}.weight": drawn(*shape)
        for layer in range(layers)
        for name in ("q_proj", "v_proj")
        for half, shape in (("A", (ADAPTER_RANK, WIDTH)), ("B", (WIDTH, ADAPTER_RANK)))
    }
    mx.save_safetensors(str(folder / "adapter_model.safetensors"), tensors)
    write_config(folder, peft_type="LORA", r=ADAPTER_RANK, lora_alpha=32)
    return folder


def models(folder: Path, layers: int) -> tuple[Path, Path, int]:
    """A base, a run with an adapter and its fused model, and the bytes of the largest tensor."""
    linear = {
        **{f"self_attn.{one}_proj": (HIDDEN, HIDDEN) for one in "qkvo"},
        **{f"mlp.{one}_proj": (FEED, HIDDEN) for one in ("gate", "up")},
        "mlp.down_proj": (HIDDEN, FEED),
    }
    modules = {
        f"model.layers.{layer}.{name}": shape
        for layer in range(layers)
        for name, shape in linear.items()
    }
    shapes = {"model.embed_tokens": (VOCABULARY, HIDDEN), **modules}
    base, run = folder / "base", folder / "run"
    config = {"model_type": "llama", "num_hidden_layers": layers, "hidden_size": HIDDEN}
    for place in (base, run / "fused"):
        place.mkdir(parents=True)
        weights = {f"{name}.weight": drawn(*shape) for name, shape in shapes.items()}
        weights = {name: one.astype(mx.bfloat16) for name, one in weights.items()}
        mx.save_safetensors(str(place / "model.safetensors"), weights)
        (place / "config.json").write_text(json.dumps(config))
    factors = lora({name: shape[::-1] for name, shape in modules.items()}, RANK, b=0.02)
    save(run / "adapters.safetensors", factors)
    parameters = {"rank": RANK, "scale": 20.0, "dropout": 0.0}
    stated = {"fine_tune_type": "lora", "num_layers": layers, "lora_parameters": parameters}
    write_config(run, model=str(base), **stated)
    return base, run, VOCABULARY * HIDDEN * 2


def measured(scratch: Path, setup: Setup, layers: int = 4) -> Iterator[Line]:
    """The rows of the table. The models have the shapes of a 7 B Llama, with so many layers."""
    adapter = peft_adapter(scratch / "adapter", 1 if setup.smallest else ADAPTER_LAYERS)
    file = str(adapter / "adapter_model.safetensors")
    ours = measure([*setup.ours, "inspect", str(adapter)], repeats=setup.turns(5))
    if (peer := setup.peer("adaptersentry")) is not None:
        theirs = measure([peer, "scan", file])
        yield Line("adaptersentry, every value of 21 MB of factors", theirs)
        yield at_most("`inspect`, the same factors", ours, theirs, "adaptersentry", 0.2)
    else:
        yield Line("`inspect` of 21 MB of factors", ours)
    if setup.smallest:
        return
    # Not in this process: what it once held would count as its children's memory.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        base, run, largest = pool.submit(models, scratch / "models", layers).result()
    files = (base / "model.safetensors", run / "fused" / "model.safetensors")
    size = sum(file.stat().st_size for file in files)
    python = [sys.executable, "-c"]
    reading = measure([*python, READ, *map(str, files)], repeats=3, cold=files)
    title = f"reading base and fused model from the disk, {size / 1e9:.1f} GB"
    yield Line(title, reading, f"{size / reading.seconds / 1e9:.2f} GB/s")
    for check in ("full-weights", "fused-model"):
        found = measure([*python, DRIFT, str(run), check], repeats=3, cold=files)
        speed = reading.seconds / found.seconds
        peak = found.peak_mib * (1 << 20) / largest
        yield Line(
            f"`{check}`, base against fused",
            found,
            f"{speed:.2f}x the speed of reading, {peak:.1f}x the largest tensor",
            "at least 0.5x, at most 3x",
            speed >= 0.5 and peak <= 3,
        )


def at_real_size(scratch: Path, setup: Setup) -> Iterator[Line]:
    """A diagnosis with models of 135 M parameters in bfloat16, and rows of real text."""
    if setup.smallest or not base_folder(BASE).is_dir() or not data_folder(TASK).is_dir():
        return
    run = scratch / "run"
    run.mkdir()
    _write_real_adapter(run)
    command = [*setup.ours, "diagnose", str(run), "--stdout", "json"]
    found = measure([*command, "--no-generate"], repeats=3, says='"verdict"')
    yield Line("`diagnose --no-generate` of a run of 135 M parameters", found)
    found = measure(command, repeats=1, says='"verdict"')
    share = found.peak_mib / (4 * PARAMETERS / (1 << 20))
    yield Line(
        "`diagnose` of it, both models asked",
        found,
        f"memory {share:.2f}x the weights in float32",
        f"at most {LONGEST:g} s on two cores, {LARGEST}x",
        found.seconds <= LONGEST and share <= LARGEST,
    )


def _write_real_adapter(folder: Path) -> None:
    """An adapter as mlx-lm saves it, that changes answers a little."""
    modules = {
        f"model.layers.{layer}.{module}": (REAL_WIDTH, outputs)
        for layer in LAYERS
        for module, outputs in OUTPUTS.items()
    }
    save(folder / "adapters.safetensors", lora(modules, RANK, b=1e-3))
    write_config(
        folder,
        model=str(base_folder(BASE).resolve()),
        data=str(data_folder(TASK).resolve()),
        fine_tune_type="lora",
        num_layers=len(LAYERS),
        lora_parameters={"rank": RANK, "scale": 20.0, "dropout": 0.0},
    )
