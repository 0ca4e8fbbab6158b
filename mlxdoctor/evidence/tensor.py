"""A tensor in a file: its name, shape and type now, its values on demand."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.source import open_file
from mlxdoctor.safety.errors import InputError

#: The types that NumPy has, by their name in a safetensors header.
NUMPY_TYPES = {"BOOL": "|b1"} | {
    f"{kind.upper()}{8 * size}": f"<{kind}{size}" for kind in "iuf" for size in (1, 2, 4, 8)
}

#: A start, and the stop that follows its last one.
Span = tuple[int, int]
#: How much of a tensor is held at once where it is read in blocks (bytes).
BLOCK_BYTES = 16 << 20


@dataclass(frozen=True)
class TensorRef:
    """A tensor that was found in a file but not read.

    Attributes:
        dtype: the type's name in the safetensors format ("F32", "BF16", "U32", …).
        offset: where its bytes begin in the file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    path: Path
    offset: int
    nbytes: int

    @property
    def size(self) -> int:
        """How many elements it has."""
        return prod(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether its elements are floating-point numbers that `load` can give."""
        return self.dtype in ("F64", "F32", "F16", "BF16")

    def load(self) -> NDArray[Any]:
        """The values: float64 as stored, any other float as float32, integers as stored.

        Raises:
            InputError: the file changed, cannot be read, or the type has no values here.
        """
        return self.decode(self.read((0, self.nbytes))).reshape(self.shape)

    def blocks(self, block_bytes: int = BLOCK_BYTES) -> Iterator[NDArray[Any]]:
        """The values as `load` gives them, flat, a block at a time."""
        for start in range(0, self.nbytes, block_bytes):
            yield self.decode(self.read((start, min(start + block_bytes, self.nbytes))))

    def elements(self, *spans: Span) -> NDArray[Any]:
        """Elements of these spans in storage order, flat, as `load` gives them."""
        item_bytes = self.nbytes // max(self.size, 1)
        return self.decode(
            self.read(*((start * item_bytes, stop * item_bytes) for start, stop in spans))
        )

    def rows(self, *spans: Span) -> NDArray[Any]:
        """Rows of these spans of the tensor seen as a matrix of its last size, like `load`."""
        width = self.shape[-1]
        elements = self.elements(*((start * width, stop * width) for start, stop in spans))
        return elements.reshape(-1, width)

    def read(self, *spans: Span) -> NDArray[np.uint8]:
        """The stored bytes of these spans, after each other.

        Raises:
            InputError: the file changed or cannot be read.
        """
        raw = np.empty(sum(stop - start for start, stop in spans), np.uint8)
        rest = raw.data
        # Read into an array of our own: a mapped file that shrinks would kill the process.
        with open_file(self.path) as stream:
            for start, stop in spans:
                stream.seek(self.offset + start)
                view, rest = rest[: stop - start], rest[stop - start :]
                while view and (size := stream.readinto(view)):
                    view = view[size:]
                if view:
                    problem = f"ended inside {self.name}"
                    raise InputError(self.path, problem, "it changed while it was being read")
        return raw

    def decode(self, raw: NDArray[np.uint8]) -> NDArray[Any]:
        """The values that stored bytes of whole elements stand for, flat, as `load` gives them.

        Raises:
            InputError: the type has no values here.
        """
        if self.dtype == "BF16":
            import ml_dtypes

            return np.asarray(raw.view(ml_dtypes.bfloat16), np.float32)
        if self.dtype not in NUMPY_TYPES:
            raise InputError(self.path, f"{self.name} is {self.dtype}, whose values are not read")
        values: NDArray[Any] = raw.view(NUMPY_TYPES[self.dtype])
        if self.dtype != "F16":
            return values
        # A signalling NaN is NaN: no reason for a warning.
        with np.errstate(invalid="ignore"):
            return values.astype(np.float32)


def count_nonfinite(tensor: TensorRef) -> int:
    """How many elements are NaN or infinite; 0 for a type that has no such values."""
    blocks = tensor.blocks() if tensor.is_float else ()
    return sum(int(np.count_nonzero(~np.isfinite(block))) for block in blocks)
