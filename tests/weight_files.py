"""Small files of weights for tests, and runs of evidence for checks."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NAMES = {"float32": "F32", "float64": "F64", "float16": "F16", "uint16": "BF16"}
_NAMES |= {"uint32": "U32", "int8": "I8", "uint8": "U8"}


def to_bfloat16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """The upper halves of float32 values, rounded to the nearest."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def packed(
    tensors: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, str] | None = None,
    dtypes: Mapping[str, str] | None = None,
) -> bytes:
    """A .safetensors file; uint16 stands for bfloat16, and `dtypes` overrides a type's name."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    body = b""
    for name, values in tensors.items():
        content = np.ascontiguousarray(values).tobytes()
        dtype = (dtypes or {}).get(name) or _NAMES[str(values.dtype)]
        header[name] = entry(list(values.shape), len(body), len(body) + len(content), dtype)
        body += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def save(
    path: Path,
    tensors: Mapping[str, NDArray[Any]],
    dtypes: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write these tensors as a .safetensors file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed(tensors, metadata, dtypes))
    return path


def save_raw(path: Path, header: Mapping[str, Any] | bytes, body: bytes = b"") -> Path:
    """Write a header and a body as they are, with the right length before them."""
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(header)) + header + body)
    return path


def entry(shape: list[Any], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    """What the header of a .safetensors file says of one tensor."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def lora(
    modules: Mapping[str, tuple[int, int]], rank: int = 4, b: float = 0.01, seed: int = 0
) -> dict[str, NDArray[Any]]:
    """mlx-lm factors for modules of (in, out): A as drawn, B normal with deviation `b`."""
    random = np.random.default_rng(seed)
    tensors: dict[str, NDArray[Any]] = {}
    for name, (inputs, outputs) in modules.items():
        bound = 1 / np.sqrt(inputs)
        tensors[f"{name}.lora_a"] = random.uniform(-bound, bound, (inputs, rank)).astype("f4")
        tensors[f"{name}.lora_b"] = (b * random.normal(size=(rank, outputs))).astype("f4")
    return tensors


MLX_CONFIG: Mapping[str, Any] = {
    "fine_tune_type": "lora",
    "num_layers": 2,
    "learning_rate": 1e-4,
    "iters": 1000,
    "optimizer": "adam",
    "lora_parameters": {"rank": 4, "scale": 10.0, "dropout": 0.0},
}


def write_config(folder: Path, **changes: Any) -> Path:
    """Write an mlx-lm adapter_config.json with `changes`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**MLX_CONFIG, **changes}))
    return path
