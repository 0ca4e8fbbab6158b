"""Saves of a made-up run, for tests that need a certain course."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlxdoctor.bisect.table import Bisection, bisect
from mlxdoctor.evidence.checkpoints import CheckpointHistory
from mlxdoctor.run import Run
from tests.conftest import BASE
from tests.weight_files import lora, save, write_config

MODULES = {f"model.layers.{layer}.self_attn.q_proj": (64, 64) for layer in range(4)}
#: Factors that were never trained.
ZERO = lora(MODULES, b=0.0)


def state(size: float, seed: int = 0) -> dict[str, Any]:
    """Factors whose update has `size` times the usual norm of a weight, at scale 1."""
    tensors = lora(MODULES)
    random = np.random.default_rng(seed)
    for name in MODULES:
        b = random.normal(size=(4, 64))
        norm = np.linalg.norm(tensors[f"{name}.lora_a"].astype(float) @ b)
        tensors[f"{name}.lora_b"] = (b * size * 8 / norm).astype("f4")
    return tensors


def changed(tensors: dict[str, Any], layer: int, factor: float) -> dict[str, Any]:
    """The factors with one layer's B multiplied."""
    name = f"model.layers.{layer}.self_attn.q_proj.lora_b"
    return {**tensors, name: tensors[name] * np.float32(factor)}


def bisected(folder: Path, *, model: bool = False) -> Bisection:
    base = BASE if model else None
    return bisect(Run.discover([folder], base=base, allow_model=model))


def standings(judged: Iterable[Any]) -> str:
    """How each save was judged, by its first letter."""
    return "".join(one.standing.value[0] for one in judged)


def history(
    folder: Path, states: Sequence[dict[str, Any]], final: dict[str, Any] | None = None
) -> CheckpointHistory:
    """The states as checkpoints 100, 200, …, with a configuration of scale 1."""
    for number, tensors in enumerate(states, 1):
        save(folder / f"{number * 100:07d}_adapters.safetensors", tensors)
    if final is not None:
        save(folder / "adapters.safetensors", final)
    write_config(folder, num_layers=4, lora_parameters={"rank": 4, "scale": 1.0})
    return CheckpointHistory.read(folder)
