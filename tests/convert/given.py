"""Adapters for the tests of the conversion: altered fixtures, and small ones made up."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import load
from numpy.typing import NDArray

from mlxdoctor.evidence.safetensors_file import read_safetensors
from tests.conftest import BASE, FIXTURES
from tests.edits import Tensors
from tests.weight_files import lora, save, write_config

#: Other tensors instead of these.
Change = Callable[[Tensors], Tensors]

WRITTEN = FIXTURES / "adapters" / "peft-written"
Q = "model.layers.1.self_attn.q_proj"
V = "model.layers.1.self_attn.v_proj"
#: Inputs and outputs in the base model.
SHAPES = {Q: (96, 96), V: (96, 48)}

TOKENS = np.array([5, 17, 300, 42, 7, 99, 512, 3])
#: Adapters that mlx-lm saves: type, keys, number of layers.
KINDS: Mapping[str, tuple[str, list[str] | None, int]] = {
    "lora": ("lora", None, 2),
    "dora": ("dora", None, 4),
    "whole-names": ("lora", ["model.layers.0.mlp.up_proj", "model.layers.2.self_attn.q_proj"], 1),
}

PEFT_CONFIG: Mapping[str, Any] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": 4,
    "lora_alpha": 8,
    "lora_dropout": 0.0,
    "target_modules": ["q_proj", "v_proj"],
    "bias": "none",
}


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def bits(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Type, shape and bytes of every tensor by name."""
    return {
        name: (tensor.dtype, tensor.shape, tensor.read((0, tensor.nbytes)).tobytes())
        for name, tensor in read_safetensors(path).tensors.items()
    }


def stated(files: Mapping[str, bytes]) -> dict[str, Any]:
    """The configuration among the files of a conversion."""
    config: dict[str, Any] = json.loads(files["adapter_config.json"])
    return config


def mlx_adapter(folder: Path, change: Change = dict, **config: Any) -> Path:
    """Write an mlx-lm adapter of two modules, its tensors altered by `change`."""
    save(folder / "adapters.safetensors", change(lora(SHAPES)))
    write_config(folder, **config)
    return folder


def peft_adapter(folder: Path, change: Change = dict, **config: Any) -> Path:
    """Write a PEFT adapter of two modules, its tensors altered by `change`."""
    tensors = {
        f"base_model.model.{name[:-7]}.lora_{name[-1].upper()}.weight": values.T.copy()
        for name, values in lora(SHAPES).items()
    }
    save(folder / "adapter_model.safetensors", change(tensors))
    (folder / "adapter_config.json").write_text(json.dumps({**PEFT_CONFIG, **config}))
    return folder


def logits(
    adapter: Path | None, tokens: NDArray[Any] = TOKENS, base: Path = BASE
) -> NDArray[np.float32]:
    """What mlx-lm computes, (tokens, vocabulary)."""
    path = str(adapter) if adapter is not None else None
    model: Any = load(str(base), adapter_path=path)[0]
    return np.array(model(mx.array(tokens)[None])[0].astype(mx.float32))


def saved_by_mlx(folder: Path, kind: str, keys: list[str] | None, num_layers: int) -> Path:
    """An adapter with random factors, attached and saved by mlx-lm's own functions."""
    mx.random.seed(0)
    model: Any = load(str(BASE))[0]
    model.freeze()
    parameters: dict[str, Any] = {"rank": 6, "scale": 3.0, "dropout": 0.0}
    if keys is not None:
        parameters["keys"] = keys
    linear_to_lora_layers(model, num_layers, parameters, use_dora=kind == "dora")
    tensors = {}
    for name, value in tree_flatten(model.trainable_parameters()):
        noise = mx.random.normal(value.shape)
        tensors[name] = value * (1 + 0.2 * noise) if name.endswith(".m") else value + 0.05 * noise
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "adapters.safetensors"), tensors)
    config = {"fine_tune_type": kind, "num_layers": num_layers, "lora_parameters": parameters}
    (folder / "adapter_config.json").write_text(json.dumps({**config, "model": str(BASE)}))
    return folder
