"""The arrays of a .npz archive, without pickle and without unbounded decompression."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from mlxdoctor.errors import InputError
from mlxdoctor.evidence.source import require_file
from mlxdoctor.evidence.tensor import TensorRef

#: Archives that unpack to more than this are refused (bytes).
MAX_UNPACKED_BYTES = 4 << 30

#: MLX writes bfloat16, which NumPy lacks, as two bytes of no type.
_DTYPES = {
    "V2": "BF16",
    "b1": "BOOL",
    "u1": "U8",
    "i1": "I8",
    "u2": "U16",
    "i2": "I16",
    "f2": "F16",
    "u4": "U32",
    "i4": "I32",
    "f4": "F32",
    "u8": "U64",
    "i8": "I64",
    "f8": "F64",
}

_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    KeyError,
    OSError,
    EOFError,
)


def read_npz(path: Path) -> Mapping[str, TensorRef]:
    """The arrays of the archive by name; their headers are read, their values are not.

    Raises:
        InputError: it is not an archive of plain arrays, or it unpacks to too much.
    """
    if require_file(path) == 0:
        raise InputError(path, "is empty", "it was probably not written to the end")
    tensors: dict[str, TensorRef] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = [one for one in archive.infolist() if not one.is_dir()]
            unpacked = sum(one.file_size for one in members)
            if unpacked > MAX_UNPACKED_BYTES:
                raise InputError(
                    path, f"unpacks to {unpacked:,} bytes, over the limit of {MAX_UNPACKED_BYTES:,}"
                )
            for member in members:
                name = member.filename.removesuffix(".npy")
                if name in tensors:
                    raise InputError(path, f"{name!r} is there twice", "it is damaged")
                with archive.open(member) as stream:
                    tensors[name] = _tensor(path, name, member, stream)
    except _UNREADABLE as error:
        raise InputError(path, f"is not a readable .npz archive ({error})") from None
    return tensors


def _array_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    version = npy_format.read_magic(stream)
    read = {
        (1, 0): npy_format.read_array_header_1_0,
        (2, 0): npy_format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ValueError(f"version {version} of the format")
    shape, fortran_order, dtype = read(stream)
    return shape, fortran_order, dtype


def _tensor(path: Path, name: str, member: zipfile.ZipInfo, stream: IO[bytes]) -> TensorRef:
    try:
        shape, fortran_order, dtype = _array_header(stream)
    except ValueError as error:
        raise InputError(path, f"{member.filename} is not an array ({error})") from None
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
    return TensorRef(name, tuple(shape), known, path, offset, nbytes, member.filename)


def read_member(tensor: TensorRef) -> NDArray[np.uint8]:
    """The bytes of an array in an archive, exactly as many as its header promised.

    Raises:
        InputError: the archive changed or is damaged.
    """
    try:
        with zipfile.ZipFile(tensor.path) as archive, archive.open(tensor.member or "") as stream:
            stream.read(tensor.offset)
            content = stream.read(tensor.nbytes)
    except _UNREADABLE as error:
        raise InputError(tensor.path, f"{tensor.name} cannot be unpacked ({error})") from None
    if len(content) != tensor.nbytes:
        raise InputError(tensor.path, f"ended inside {tensor.name}", "it is damaged")
    return np.frombuffer(bytearray(content), np.uint8)
