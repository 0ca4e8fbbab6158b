"""Floating-point tensors as the bits that a file holds, so that nothing is rounded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import frexp
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import TensorSpec, serialize

from mlxdoctor.evidence.tensor import TensorRef
from mlxdoctor.safety.errors import InputError

#: The types that both libraries load, and the integers of the same width.
_BITS = {"F32": "<u4", "F16": "<u2", "BF16": "<u2"}
#: What the library that writes them calls the types.
_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class RawTensor:
    """A tensor's stored bits.

    Attributes:
        dtype: "F32", "F16" or "BF16".
        bits: the values' bits as unsigned integers of their width, in the tensor's shape.
    """

    dtype: str
    bits: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        shape: tuple[int, ...] = self.bits.shape
        return shape

    @property
    def transposed(self) -> RawTensor:
        """The same bits with the axes in the opposite order."""
        return RawTensor(self.dtype, self.bits.T)

    def is_same(self, other: RawTensor) -> bool:
        """Whether type, shape and every bit agree."""
        return self.dtype == other.dtype and np.array_equal(self.bits, other.bits)

    def padded(self, axis: int, size: int) -> RawTensor:
        """With zeros appended along `axis` up to `size`; the bits of zero are zeros."""
        widths = [(0, 0)] * self.bits.ndim
        widths[axis] = (0, size - self.bits.shape[axis])
        return RawTensor(self.dtype, np.pad(self.bits, widths))

    def times(self, factor: float) -> RawTensor | None:
        """The values times `factor`, None unless every product is exact in this type.

        Only powers of two are tried: others round nearly every value.
        """
        if abs(frexp(factor)[0]) != 0.5:
            return None
        wanted = self._values() * factor
        with np.errstate(over="ignore", invalid="ignore"):
            result = RawTensor(self.dtype, self._bits_of(wanted))
        exact = np.array_equal(result._values(), wanted, equal_nan=True)
        return result if exact else None

    def _values(self) -> NDArray[np.float64]:
        bits = np.ascontiguousarray(self.bits)
        with np.errstate(invalid="ignore"):
            if self.dtype == "BF16":
                return (bits.astype("<u4") << np.uint32(16)).view("<f4").astype(np.float64)
            return bits.view("<f4" if self.dtype == "F32" else "<f2").astype(np.float64)

    def _bits_of(self, values: NDArray[np.float64]) -> NDArray[Any]:
        if self.dtype == "F16":
            return values.astype("<f2").view("<u2")
        single = values.astype("<f4").view("<u4")
        return (single >> np.uint32(16)).astype("<u2") if self.dtype == "BF16" else single


def read_raw(tensor: TensorRef) -> RawTensor:
    """The bits of a stored tensor.

    Raises:
        InputError: its type is not one that both libraries load, or it cannot be read.
    """
    if tensor.dtype not in _BITS:
        raise InputError(
            tensor.path, f"{tensor.name} is {tensor.dtype}, which is not a type of both libraries"
        )
    raw = tensor.read(0, tensor.nbytes)
    return RawTensor(tensor.dtype, raw.view(_BITS[tensor.dtype]).reshape(tensor.shape))


def safetensors_bytes(tensors: Mapping[str, RawTensor], metadata: Mapping[str, str]) -> bytes:
    """A .safetensors file of these tensors."""
    # The library is given addresses: the arrays have to outlive the call.
    bits = {name: np.ascontiguousarray(tensor.bits) for name, tensor in tensors.items()}
    stored = {
        name: TensorSpec(
            dtype=_NAMES[tensors[name].dtype],
            shape=one.shape,
            data_ptr=one.ctypes.data,
            data_len=one.nbytes,
        )
        for name, one in bits.items()
    }
    return bytes(serialize(stored, metadata=dict(metadata)))
