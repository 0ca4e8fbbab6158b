"""The arrays of a .npz archive, without pickle and without unbounded decompression.

Trainers of before 2024 wrote adapters so: they are small, and read as a whole.
"""

from __future__ import annotations

import struct
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.source import open_file, require_content
from mlxdoctor.evidence.tensor import NUMPY_TYPES, TensorRef
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current, exceeded
from mlxdoctor.safety.stages import weights_opened

#: Archives that unpack to less than this may be packed as tightly as they like (bytes).
HARMLESS_BYTES = 64 << 20
#: The types that are read, by NumPy's code. MLX writes bfloat16, which NumPy lacks, as two bytes
#: of no type.
_DTYPES = {code[1:]: name for name, code in NUMPY_TYPES.items()} | {"V2": "BF16"}

# What zipfile and NumPy raise for damaged archives is nowhere listed; fuzzing found most of these.
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    ArithmeticError,
    OSError,
    EOFError,
    ValueError,
    TypeError,
    SyntaxError,
    TokenError,
    MemoryError,
    struct.error,
    LookupError,
)


@dataclass(frozen=True)
class UnpackedTensor(TensorRef):
    """An array that was read from an archive: `offset` is nowhere in it."""

    stored: NDArray[np.uint8] = field(repr=False, compare=False)

    def read(self, start: int, count: int) -> NDArray[np.uint8]:
        """`count` of the array's bytes."""
        return self.stored[start : start + count]


def read_npz(path: Path) -> Mapping[str, TensorRef]:
    """The arrays of the archive by name.

    Raises:
        InputError: it is not an archive of plain arrays, or it unpacks to too much.
    """
    tensors: dict[str, TensorRef] = {}
    with open_file(path) as file:
        size = require_content(path, file)
        try:
            with zipfile.ZipFile(file) as archive:
                _refuse_bomb(path, size, archive.infolist())
            # Before its values are read, which it may take memory for.
            weights_opened(path)
            with warnings.catch_warnings(), np.load(file, allow_pickle=False) as arrays:
                # Of headers that Python 2 wrote.
                warnings.simplefilter("ignore")
                for name in arrays.files:
                    if name in tensors:
                        raise InputError(path, f"{name!r} is there twice", "it is damaged")
                    tensors[name] = _tensor(path, name, arrays[name])
        except _UNREADABLE as error:
            reason = str(error).partition("\n")[0][:200]
            raise InputError(path, f"is not a readable .npz archive ({reason})") from None
    return tensors


def _refuse_bomb(path: Path, size: int, members: list[zipfile.ZipInfo]) -> None:
    """Refuse what the archive's own list says would fill the memory; nothing is unpacked yet."""
    limits = current()
    if len(members) > limits.archive_members:
        raise exceeded(path, f"has {len(members):,} arrays", "archive_members")
    unpacked = sum(member.file_size for member in members)
    if unpacked > limits.unpacked_bytes:
        raise exceeded(path, f"unpacks to {unpacked:,} bytes", "unpacked_bytes")
    if unpacked > max(HARMLESS_BYTES, size * limits.unpacked_ratio):
        raise exceeded(path, f"unpacks to {unpacked // size:,} times its size", "unpacked_ratio")


def _tensor(path: Path, name: str, array: Any) -> TensorRef:
    if not isinstance(array, np.ndarray):
        raise InputError(path, f"{name} is not an array")
    dtype = _DTYPES.get(array.dtype.str[1:])
    if dtype is None or array.dtype.byteorder == ">":
        problem = f"{name} holds {array.dtype} values"
        raise InputError(path, problem, "only plain numbers are read, objects never")
    stored = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return UnpackedTensor(name, array.shape, dtype, path, 0, array.nbytes, stored)
