"""The header of a .safetensors file, checked strictly, and the files of a model folder.

The safetensors library is not used: with NumPy it refuses bfloat16, and here no
byte of a tensor is to be read before someone asks for its values. The rules are
those of the format (github.com/huggingface/safetensors, "Format"): a length, a
JSON object, then bytes that the tensors cover without overlap or hole.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from mlxdoctor.evidence.json_text import without_repeats
from mlxdoctor.evidence.source import open_file, read_json_object, require_content
from mlxdoctor.evidence.tensor import DTYPE_BITS, TensorRef
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current, exceeded
from mlxdoctor.safety.stages import weights_opened

#: Sizes in a shape, and the bytes that a shape may come to with its zeros left out.
MAX_DIMENSIONS = 32
MAX_TENSOR_BYTES = 2**62
#: Numbers and texts that a header has for each tensor, with its shape and its name.
_ITEMS_PER_TENSOR = 16

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
    size, header, start = _header(path)
    # MLX writes null where it has no metadata, which the format does not foresee.
    metadata = header.pop("__metadata__", None) or {}
    if not _is_text_mapping(metadata):
        raise InputError(path, "has metadata that is not pairs of text", _DAMAGED)
    tensors = [_tensor(path, name, entry, start) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.nbytes))
    end = start
    for tensor in tensors:
        if tensor.offset < end:
            raise InputError(path, f"{tensor.name} overlaps the tensor before it", _DAMAGED)
        if tensor.offset > end:
            raise InputError(path, f"has bytes before {tensor.name} that are nobody's", _DAMAGED)
        end = tensor.offset + tensor.nbytes
    if end > size:
        raise InputError(
            path,
            f"is truncated: its header promises {end:,} bytes and it has {size:,}",
            "copy or save it again",
        )
    if end < size:
        raise InputError(path, f"has {size - end:,} bytes after its last tensor", _DAMAGED)
    weights_opened(path)
    return SafetensorsFile(path, {tensor.name: tensor for tensor in tensors}, metadata)


def _header(path: Path) -> tuple[int, dict[str, Any], int]:
    """The file's size, its header as JSON, and where the tensors begin."""
    limits = current()
    with open_file(path) as stream:
        size = require_content(path, stream)
        prefix = stream.read(8)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or length > size - 8:
            raise InputError(
                path,
                f"is not a safetensors file or is truncated ({size:,} bytes)",
                "its first eight bytes give a header longer than the file",
            )
        if length > limits.header_bytes:
            raise exceeded(path, f"has a header of {length:,} bytes", "header_bytes")
        text = stream.read(length)
    # Counted before anything is made of it: a list takes 30 times the memory of its text.
    if text.count(b"{") > limits.tensors + 2 or (
        text.count(b",") + text.count(b"[") > limits.tensors * _ITEMS_PER_TENSOR
    ):
        raise exceeded(path, "has a header with more tensors", "tensors")
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=without_repeats)
    except (ValueError, RecursionError) as error:
        raise InputError(path, f"has a header that is not valid ({error})", _DAMAGED) from None
    if not isinstance(header, dict):
        raise InputError(path, "has a header that is not a JSON object", _DAMAGED)
    return size, header, 8 + length


def _is_text_mapping(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _are_sizes(values: object) -> bool:
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value <= MAX_TENSOR_BYTES for value in values
    )


def _tensor(path: Path, name: str, entry: object, start: int) -> TensorRef:
    def wrong(problem: str) -> InputError:
        return InputError(path, f"{name} {problem}", _DAMAGED)

    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise wrong("has no dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise wrong(f"has the unknown type {str(dtype)[:40]!r}")
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise wrong("has a shape that is not a list of sizes")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise wrong("has offsets that are not two positions")
    begin, end = offsets
    bits = prod(shape) * DTYPE_BITS[dtype]
    if bits % 8 or end - begin != bits // 8:
        stated = f"{dtype} of shape {tuple(shape)}, {bits // 8:,} bytes"
        raise wrong(f"is {stated}, but its offsets span {end - begin:,}")
    if not bits and prod(max(size, 1) for size in shape) * DTYPE_BITS[dtype] > 8 * MAX_TENSOR_BYTES:
        raise wrong("is empty and has an impossible shape")
    return TensorRef(name, tuple(shape), dtype, path, start + begin, end - begin)


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
        if not _is_text_mapping(weight_map) or not weight_map:
            raise InputError(index, "has no weight_map from tensors to files", _DAMAGED)
        names = sorted(set(weight_map.values()))
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
