"""How far two tensors are apart, added up in blocks of a fixed size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite, prod, sqrt
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.quantized import QuantizedTensor
from mlxdoctor.evidence.tensor import TensorRef

Stored = TensorRef | QuantizedTensor
_Bytes = NDArray[np.uint8]

#: Bytes of each tensor that a thread holds at once (measured: a quarter of it is a third slower,
#: since the calls cost more than the sums), and what one task covers.
_BLOCK_BYTES = 1 << 21
_PIECE_BYTES = 1 << 26
#: Elements that are held at once where they have to be decoded first, and what a task covers.
_BLOCK_ELEMENTS = 1 << 17
_PIECE_ELEMENTS = 1 << 23
#: Squares that are added up in float32 before float64 takes over.
_RUN = 1 << 12
#: A sum of squares below this may have lost terms to underflow in float32.
_UNDERFLOW = 1e-24


@dataclass(frozen=True)
class Sums:
    """What a part of two tensors adds up to.

    Attributes:
        change: the sum of squares of W' − W; infinite where W' is not finite.
        norm: the sum of squares of the finite values of W.
        nonfinite: NaN or infinite values of W'.
    """

    change: float = 0.0
    norm: float = 0.0
    nonfinite: int = 0

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.change + other.change, self.norm + other.norm, self.nonfinite + other.nonfinite
        )

    @property
    def relative(self) -> float:
        """‖W' − W‖/‖W‖; infinite where W is zero or W' not finite."""
        if not self.change:
            return 0.0
        return sqrt(self.change / self.norm) if self.norm and isfinite(self.change) else inf


class TensorPair(Protocol):
    """Two tensors of one shape, compared a range of units at a time, by any thread."""

    @property
    def units(self) -> int:
        """How many there are."""

    @property
    def piece(self) -> int:
        """How many are worth a task of their own."""

    @property
    def has_values(self) -> bool:
        """Whether both are floating-point numbers; other tensors have sums of zero."""

    def sums(self, start: int, stop: int) -> Sums | None:
        """What these units add up to, or None where they are the same, bit for bit."""

    def norm(self, start: int, stop: int) -> float:
        """The sum of squares of the finite values of W in these units."""


def pair_of(old: Stored, new: Stored) -> TensorPair:
    """Two tensors of one shape, made ready to be compared."""
    if isinstance(old, TensorRef) and isinstance(new, TensorRef) and old.dtype == new.dtype:
        return _SameType(old, new)
    return _Decoded(old, new)


def storage(one: Stored) -> str:
    """How a tensor is stored: "BF16", or "4-bit affine/64" in groups of 64."""
    if isinstance(one, TensorRef):
        return one.dtype
    return f"{one.bits}-bit {one.mode}/{one.group_size}"


def steps(start: int, stop: int, step: int) -> Iterator[tuple[int, int]]:
    """The range cut into parts of `step`, the last one shorter."""
    return pairwise((*range(start, stop, step), stop))


@dataclass(frozen=True)
class _SameType:
    """Two plain tensors of one type; the unit is a byte."""

    old: TensorRef
    new: TensorRef

    @property
    def piece(self) -> int:
        return max(_PIECE_BYTES, self._block)

    @property
    def _block(self) -> int:
        # Whatever is read of an archive's member, all of it is unpacked.
        is_packed = self.old.is_packed or self.new.is_packed
        return max(self.units, _BLOCK_BYTES) if is_packed else _BLOCK_BYTES

    @property
    def units(self) -> int:
        return self.old.nbytes

    @property
    def has_values(self) -> bool:
        return self.old.is_float

    def sums(self, start: int, stop: int) -> Sums | None:
        # Memory that is used again: to be given new pages would take longer than the sums.
        before, after, *scratch = (np.empty(self._block, np.uint8) for _ in range(4))
        total: Sums | None = None
        for first, last in steps(start, stop, self._block):
            old, new = before[: last - first], after[: last - first]
            self.old.read_into(first, old)
            self.new.read_into(first, new)
            if total is None:
                if _is_same(old, new):
                    continue
                total = Sums(norm=self.norm(start, first))
            if self.has_values:
                total += self._sums(old, new, scratch)
        return total

    def norm(self, start: int, stop: int) -> float:
        if not self.has_values:
            return 0.0
        total = 0.0
        for first, last in steps(start, stop, self._block):
            values = self.old.decode(self.old.read(first, last - first))
            total += _sums(values, values).norm
        return total

    def _sums(self, old: _Bytes, new: _Bytes, scratch: list[_Bytes]) -> Sums:
        x, y = (one[: old.size] for one in scratch)
        if self.old.dtype == "BF16" and old.size % 4 == 0:
            found = _sums_of_bfloat16(old, new, x.view("<u4"), y.view("<u4"))
        elif self.old.dtype == "F16" and old.size % 4 == 0:
            found = _sums_of_float16(old, new, x.view("<i4"), y.view("<i4"))
        elif self.old.dtype == "F32":
            found = _quick_sums(old.view("<f4"), new.view("<f4"), x.view("<f4"))
        else:
            found = None
        return found or _sums(self.old.decode(old), self.new.decode(new))


@dataclass(frozen=True)
class _Decoded:
    """Two tensors that are stored differently, or quantised; the unit is a row beside a
    quantised matrix, else an element."""

    old: Stored
    new: Stored

    @property
    def units(self) -> int:
        return prod(self.old.shape) // self._width

    @property
    def piece(self) -> int:
        return max(_PIECE_ELEMENTS // self._width, 1)

    @property
    def has_values(self) -> bool:
        return all(isinstance(x, QuantizedTensor) or x.is_float for x in (self.old, self.new))

    def sums(self, start: int, stop: int) -> Sums | None:
        is_alike = storage(self.old) == storage(self.new)
        total: Sums | None = None
        for first, last in self._blocks(start, stop):
            if total is None:
                if is_alike and all(
                    map(_is_same, *(self._raw(x, first, last) for x in (self.old, self.new)))
                ):
                    continue
                total = Sums(norm=self.norm(start, first))
            if self.has_values:
                total += _sums(*(self._values(x, first, last) for x in (self.old, self.new)))
        return total

    def norm(self, start: int, stop: int) -> float:
        total = 0.0
        for first, last in self._blocks(start, stop) if self.has_values else ():
            values = self._values(self.old, first, last)
            total += _sums(values, values).norm
        return total

    @property
    def _width(self) -> int:
        if isinstance(self.old, TensorRef) and isinstance(self.new, TensorRef):
            return 1
        return max(self.old.shape[-1], 1)

    def _blocks(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        return steps(start, stop, max(_BLOCK_ELEMENTS // self._width, 1))

    def _values(self, one: Stored, first: int, last: int) -> NDArray[Any]:
        if isinstance(one, QuantizedTensor):
            return one.rows(first, last).ravel()
        return one.elements(first * self._width, last * self._width)

    def _raw(self, one: Stored, first: int, last: int) -> list[_Bytes]:
        """The stored bytes of rows, one array for each tensor that holds some of them."""
        parts = [one] if isinstance(one, TensorRef) else [one.weight, one.scales, one.biases]
        row_bytes = [(part, part.nbytes // self.units) for part in parts if part is not None]
        return [part.read(first * size, (last - first) * size) for part, size in row_bytes]


def _is_same(before: _Bytes, after: _Bytes) -> bool:
    words = len(before) // 8 * 8
    return np.array_equal(
        before[:words].view(np.uint64), after[:words].view(np.uint64)
    ) and np.array_equal(before[words:], after[words:])


def _sums_of_bfloat16(
    old: _Bytes, new: _Bytes, x: NDArray[np.uint32], y: NDArray[np.uint32]
) -> Sums | None:
    """Sums of bfloat16 values, using the memory of x and y; None where float32 will not do.

    A word of 32 bits holds two values, and either becomes a float32 where the other's bits are
    cleared: half the work of widening one by one, and the order of squares does not matter.
    """
    np.left_shift(old.view("<u4"), np.uint32(16), out=x)
    np.left_shift(new.view("<u4"), np.uint32(16), out=y)
    even = _quick_sums(x.view(np.float32), y.view(np.float32), y.view(np.float32))
    if even is None:
        return None
    np.bitwise_and(old.view("<u4"), np.uint32(0xFFFF0000), out=x)
    np.bitwise_and(new.view("<u4"), np.uint32(0xFFFF0000), out=y)
    odd = _quick_sums(x.view(np.float32), y.view(np.float32), y.view(np.float32))
    return None if odd is None else even + odd


def _sums_of_float16(
    old: _Bytes, new: _Bytes, x: NDArray[np.int32], y: NDArray[np.int32]
) -> Sums | None:
    """Sums of float16 values, using the memory of x and y; None where float32 will not do.

    Moved to the places of a float32's exponent and fraction, the bits mean a value 2¹¹² times too
    small, and infinity and NaN come out as 65,536 or more. No value is that large where neither
    sum of squares reaches 2³⁰.
    """
    total = Sums()
    for is_even in (True, False):
        for raw, bits in ((old, x), (new, y)):
            if is_even:
                np.left_shift(raw.view("<i4"), 16, out=bits)
                np.right_shift(bits, 3, out=bits)
            else:
                np.right_shift(raw.view("<i4"), 3, out=bits)
            # The sign, copied into the three places below it by the shift, and the value's bits.
            np.bitwise_and(bits, np.int32(0x0FFFE000 - (1 << 31)), out=bits)
            np.multiply(bits.view(np.float32), np.float32(2.0**112), out=bits.view(np.float32))
        found = _quick_sums(x.view(np.float32), y.view(np.float32), y.view(np.float32))
        if found is None or max(found.norm, found.change) >= 2.0**30:
            return None
        total += found
    return total


def _quick_sums(
    old: NDArray[np.float32], new: NDArray[np.float32], gap: NDArray[np.float32]
) -> Sums | None:
    """Sums in float32, using the memory of `gap`; None where it is too narrow for the squares."""
    with np.errstate(all="ignore"):
        np.subtract(new, old, out=gap)
        change, norm = _square(gap), _square(old)
    is_sound = isfinite(change + norm) and norm > _UNDERFLOW
    return Sums(change, norm) if is_sound and (change > _UNDERFLOW or not gap.any()) else None


def _square(values: NDArray[np.float32]) -> float:
    """The sum of squares, in runs that are added up in float64."""
    whole = len(values) // _RUN * _RUN
    runs, rest = values[:whole].reshape(-1, _RUN), values[whole:]
    # A dot product for each run: BLAS would wake threads of its own for a longer one.
    total = np.matmul(runs[:, None, :], runs[:, :, None]).sum(dtype=np.float64)
    return float(total + np.square(rest, dtype=np.float64).sum())


def _sums(old: NDArray[Any], new: NDArray[Any]) -> Sums:
    """Sums of any floating-point values, exactly where float32 will not do."""
    if old.dtype == new.dtype == np.float32:
        found = _quick_sums(old, new, np.empty_like(old))
        if found is not None:
            return found
    with np.errstate(all="ignore"):
        before, after = old.astype(np.float64), new.astype(np.float64)
        change = float(np.square(np.where(before == after, 0.0, after - before)).sum())
        known = np.where(np.isfinite(before), before, 0.0)
        return Sums(
            change if isfinite(change) else inf,
            float(np.square(known).sum()),
            int(np.count_nonzero(~np.isfinite(after))),
        )
