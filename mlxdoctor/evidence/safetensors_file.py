"""The header of a .safetensors file, checked by its library, and the files of a model folder.

The library's own tensors are not used: with NumPy it refuses bfloat16, and here no byte of a
tensor is to be read before someone asks for its values.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from mlxdoctor.evidence.source import open_file, read_json_object, require_content
from mlxdoctor.evidence.tensor import TensorRef
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current, exceeded
from mlxdoctor.safety.stages import weights_opened

#: Sizes in a shape, and what they may come to with zeros left out: NumPy makes no larger arrays.
MAX_DIMENSIONS, MAX_SIZE = 32, 2**59
#: Characters shown of what the library says.
MAX_REASON = 200

_DAMAGED = "it is damaged or was not written to the end"


@dataclass(frozen=True)
class SafetensorsFile:
    """What the header of a .safetensors file says.

    Attributes:
        tensors: every tensor by name, in the order of their bytes.
        metadata: the free text pairs that the writer left.
    """

    path: Path
    tensors: Mapping[str, TensorRef]
    metadata: Mapping[str, str]


def read_safetensors(path: Path) -> SafetensorsFile:
    """Read and check the header; no tensor is read.

    Raises:
        InputError: the file is missing, empty, truncated, or its header lies.
    """
    from safetensors import SafetensorError, safe_open

    limits = current()
    with open_file(path) as stream:
        size = require_content(path, stream)
        length = int.from_bytes(stream.read(8), "little")
        if limits.header_bytes < length <= size:
            raise exceeded(path, f"has a header of {length:,} bytes", "header_bytes")
        try:
            with safe_open(path, framework="numpy"):
                header = json.loads(stream.read(length))
        except SafetensorError as error:
            reason = str(error).removeprefix("Error while deserializing header: ")[:MAX_REASON]
            problem = f"is not a whole .safetensors file: it has {size:,} bytes ({reason})"
            raise InputError(path, problem, _DAMAGED) from None
    # MLX writes null where it has no metadata.
    metadata = header.pop("__metadata__", None) or {}
    if len(header) > limits.tensors:
        raise exceeded(path, f"has {len(header):,} tensors", "tensors")
    tensors: dict[str, TensorRef] = {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        if len(shape) > MAX_DIMENSIONS or prod(max(each, 1) for each in shape) > MAX_SIZE:
            raise InputError(path, f"{name} has an impossible shape", _DAMAGED)
        tensors[name] = TensorRef(
            name, shape, entry["dtype"], path, 8 + length + begin, end - begin
        )
    weights_opened(path)
    return SafetensorsFile(path, tensors, metadata)


def model_files(folder: Path) -> tuple[Path, ...]:
    """The weight files of a model folder: those its index names, or `*.safetensors`.

    Raises:
        InputError: there are none, or the index names a file outside the folder.
    """
    if not folder.is_dir():
        raise InputError(folder, "is not a folder", "name the folder of the model")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        value, _ = read_json_object(index)
        weight_map = value.get("weight_map")
        names = list(weight_map.values()) if isinstance(weight_map, dict) else []
        if not names or not all(isinstance(name, str) for name in names):
            raise InputError(index, "has no weight_map from tensors to files", _DAMAGED)
        names = sorted(set(names))
        if len(names) > current().folder_entries:
            raise exceeded(index, f"names {len(names):,} files", "folder_entries")
        for name in names:
            # Links inside the folder are fine (the Hugging Face cache is made of them).
            if name != Path(name).name or name in ("", ".", "..") or "\\" in name:
                raise InputError(index, f"names the file {name!r}, outside its folder")
            if not name.endswith(".safetensors"):
                raise InputError(index, f"names {name!r}, which is no .safetensors file")
        return tuple(folder / name for name in names)
    weights = sorted(folder.glob("model*.safetensors")) or sorted(
        path
        for path in folder.glob("*.safetensors")
        if "adapter" not in path.name and "optimizer" not in path.name
    )
    if not weights:
        raise InputError(folder, "holds no .safetensors weights", "name the folder of the model")
    return tuple(weights)


def merged_tensors(files: Iterable[SafetensorsFile]) -> dict[str, TensorRef]:
    """The tensors of several files as one model, by name.

    Raises:
        InputError: two files hold the same tensor.
    """
    tensors: dict[str, TensorRef] = {}
    for file in files:
        if both := tensors.keys() & file.tensors.keys():
            name = min(both)
            raise InputError(file.path, f"{name} is also in {tensors[name].path.name}")
        tensors |= file.tensors
    return tensors
