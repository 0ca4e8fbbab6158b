"""The arrays of a .npz archive, without pickle and without unbounded decompression."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import IO, ClassVar

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from mlxdoctor.evidence.source import open_file, require_file
from mlxdoctor.evidence.tensor import NUMPY_TYPES, TensorRef
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current, exceeded
from mlxdoctor.safety.stages import weights_opened

#: Archives that unpack to less than this may be packed as tightly as they like (bytes).
HARMLESS_BYTES = 64 << 20
#: Bytes of one array's name and shape.
MAX_HEADER_BYTES = 10_000

#: The types that are read, by NumPy's code. MLX writes bfloat16, which NumPy lacks, as two bytes
#: of no type.
_DTYPES = {code[1:]: name for name, code in NUMPY_TYPES.items()} | {"V2": "BF16"}

#: The bit of a member's flags that says so.
_ENCRYPTED = 0x1

# What zipfile raises for damaged archives is nowhere listed; fuzzing found the last three.
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    OSError,
    EOFError,
    ValueError,
    struct.error,
    LookupError,
)


@dataclass(frozen=True)
class PackedTensor(TensorRef):
    """An array in an archive: `offset` is where its bytes begin in the member `member`."""

    member: str

    is_packed: ClassVar[bool] = True

    def read(self, start: int, count: int) -> NDArray[np.uint8]:
        """`count` of the array's bytes, which are exactly as many as its header promised.

        Raises:
            InputError: the archive changed or is damaged.
        """
        try:
            with (
                open_file(self.path) as file,
                zipfile.ZipFile(file) as archive,
                archive.open(self.member) as stream,
            ):
                stream.read(self.offset)
                content = stream.read(self.nbytes)
        except _UNREADABLE as error:
            raise InputError(self.path, f"{self.name} cannot be unpacked ({error})") from None
        if len(content) != self.nbytes:
            raise InputError(self.path, f"ended inside {self.name}", "it is damaged")
        return np.frombuffer(content, np.uint8)[start : start + count]


def read_npz(path: Path) -> Mapping[str, TensorRef]:
    """The arrays of the archive by name; their headers are read, their values are not.

    Raises:
        InputError: it is not an archive of plain arrays, or it unpacks to too much.
    """
    size = require_file(path)
    if size == 0:
        raise InputError(path, "is empty", "it was probably not written to the end")
    tensors: dict[str, TensorRef] = {}
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            _refuse_bomb(path, size, members)
            for member in members:
                name = member.filename.removesuffix(".npy")
                if name in tensors:
                    raise InputError(path, f"{name!r} is there twice", "it is damaged")
                if member.flag_bits & _ENCRYPTED:
                    raise InputError(path, f"{name!r} is encrypted", "save it without a password")
                with archive.open(member) as stream:
                    tensors[name] = _tensor(path, name, member, stream)
    except _UNREADABLE as error:
        raise InputError(path, f"is not a readable .npz archive ({error})") from None
    weights_opened(path)
    return tensors


def _refuse_bomb(path: Path, size: int, members: Sequence[zipfile.ZipInfo]) -> None:
    """Refuse what the archive's own list says would fill the memory; nothing is unpacked yet."""
    limits = current()
    if len(members) > limits.archive_members:
        raise exceeded(path, f"has {len(members):,} arrays", "archive_members")
    unpacked = sum(member.file_size for member in members)
    if unpacked > limits.unpacked_bytes:
        raise exceeded(path, f"unpacks to {unpacked:,} bytes", "unpacked_bytes")
    if unpacked > max(HARMLESS_BYTES, size * limits.unpacked_ratio):
        raise exceeded(path, f"unpacks to {unpacked // size:,} times its size", "unpacked_ratio")


def _array_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    version = npy_format.read_magic(stream)
    # A header is a Python literal; NumPy parses it, and bounds it by this.
    read = {
        (1, 0): npy_format.read_array_header_1_0,
        (2, 0): npy_format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ValueError(f"version {version} of the format")
    shape, fortran_order, dtype = read(stream, max_header_size=MAX_HEADER_BYTES)
    return shape, fortran_order, dtype


def _tensor(path: Path, name: str, member: zipfile.ZipInfo, stream: IO[bytes]) -> TensorRef:
    try:
        shape, fortran_order, dtype = _array_header(stream)
    except (ValueError, TypeError, RecursionError, MemoryError, SyntaxError, TokenError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise InputError(path, f"{member.filename} is not an array ({reason})") from None
    known = _DTYPES.get(dtype.str[1:])
    if dtype.hasobject or known is None or dtype.byteorder == ">":
        raise InputError(
            path, f"{name} holds {dtype} values", "only plain numbers are read, objects never"
        )
    if fortran_order and len(shape) > 1:
        raise InputError(path, f"{name} is stored column by column, which is not read")
    if any(size < 0 for size in shape):
        raise InputError(path, f"{name} has the impossible shape {shape}", "it is damaged")
    nbytes = prod(shape) * dtype.itemsize
    offset = stream.tell()
    if offset + nbytes != member.file_size:
        raise InputError(
            path, f"{name} promises {nbytes:,} bytes and has {member.file_size - offset:,}"
        )
    return PackedTensor(name, tuple(shape), known, path, offset, nbytes, member.filename)
