"""Quantised weights as MLX stores them: their true shapes, and their values in float32.

A quantised matrix is three tensors: `weight`, uint32 words that hold the codes as one
stream of bits per row; `scales`, one per group of inputs; and `biases` in the affine
mode. The block formats (MXFP4, MXFP8, NVFP4) have scales of eight bits and no biases
(OCP Microscaling Formats 1.0; E4M3 as in OCP 8-bit Floating Point 1.0).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.tensor import Span, TensorRef
from mlxdoctor.safety.errors import InputError


@dataclass(frozen=True)
class QuantizedTensor:
    """The tensors that make up one quantised matrix.

    Attributes:
        weight: the packed codes, uint32 (..., out, in · bits / 32).
        scales: (..., out, in / group_size).
        biases: like `scales` in the affine mode, else None.
        mode: "affine", "mxfp4", "mxfp8" or "nvfp4".
    """

    weight: TensorRef
    scales: TensorRef
    biases: TensorRef | None
    bits: int
    group_size: int
    mode: str

    #: As `TensorRef.is_float`.
    is_float: ClassVar[bool] = True

    @property
    def dtype(self) -> str:
        """How the values are stored: "4-bit affine/64" in groups of 64."""
        return f"{self.bits}-bit {self.mode}/{self.group_size}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix that it stands for: (..., out, in)."""
        return (*self.weight.shape[:-1], self.scales.shape[-1] * self.group_size)

    def rows(self, *spans: Span) -> NDArray[np.float32]:
        """Rows of these spans of the dequantised matrix, float32 (rows, in).

        Stacked matrices count as one, their rows after each other.

        Raises:
            InputError: a file cannot be read, or the mode is unknown.
        """
        codes = _unpack(self.weight.rows(*spans), self.bits)
        scales = self.scales.rows(*spans)
        groups = codes.reshape(*scales.shape, self.group_size)
        if self.mode == "affine" and self.biases is not None:
            values = groups * scales[..., None] + self.biases.rows(*spans)[..., None]
        elif self.mode in ("mxfp4", "mxfp8", "nvfp4"):
            kind = "float4_e2m1fn" if self.bits == 4 else "float8_e4m3fn"
            scale = "float8_e4m3fn" if self.mode == "nvfp4" else "float8_e8m0fnu"
            values = _as_type(groups, kind) * _as_type(scales, scale)[..., None]
        else:
            problem = f"{self.weight.name} is quantised in the unknown mode {self.mode}"
            raise InputError(self.weight.path, problem)
        return np.asarray(values.reshape(len(codes), -1), np.float32)

    def elements(self, *spans: Span) -> NDArray[np.float32]:
        """Elements of these spans of whole rows, flat."""
        width = self.shape[-1]
        return self.rows(*((start // width, stop // width) for start, stop in spans)).ravel()

    def rounding(self) -> float:
        """The Frobenius norm that rounding evenly spread values to these codes adds on average.

        In the affine mode a code is off by up to half a step, so a squared step over 12 on
        average; the block formats' codes are not evenly spaced, and 0 is given for them.
        """
        if self.mode != "affine":
            return 0.0
        squares = (np.square(block, dtype=np.float64).sum() for block in self.scales.blocks())
        return float(np.sqrt(sum(squares) * self.group_size / 12))


#: A tensor as it lies in a file, or the quantised matrix that it is a part of.
Stored = TensorRef | QuantizedTensor


def stored(tensors: Mapping[str, TensorRef], config: Mapping[str, Any]) -> dict[str, Stored]:
    """A model's tensors by name, each quantised matrix once, under the name of its `weight`."""
    quantized = quantized_tensors(tensors, config)
    parts = {f"{module}.{part}" for module in quantized for part in ("scales", "biases")}
    matrices = {f"{module}.weight": matrix for module, matrix in quantized.items()}
    kept = {name: tensor for name, tensor in tensors.items() if name not in parts}
    return {name: matrices.get(name, tensor) for name, tensor in kept.items()}


def quantization_stated(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The quantisation's settings in a model's `config.json`; None for an unquantised one."""
    tables = (config.get(key) for key in ("quantization", "quantization_config"))
    return next((table for table in tables if isinstance(table, dict)), None)


def quantized_tensors(
    tensors: Mapping[str, TensorRef], config: Mapping[str, Any]
) -> dict[str, QuantizedTensor]:
    """The quantised matrices among a model's tensors, by module name."""
    stated = quantization_stated(config) or {}
    matrices: dict[str, QuantizedTensor] = {}
    for name, scales in tensors.items():
        module = name.removesuffix(".scales")
        weight = tensors.get(f"{module}.weight")
        if module == name or weight is None or weight.dtype != "U32" or len(weight.shape) < 2:
            continue
        own = stated.get(module)
        settings = {**stated, **(own if isinstance(own, dict) else {})}
        group_size = settings.get("group_size", 64)
        if type(group_size) is not int or weight.shape[:-1] != scales.shape[:-1]:
            continue
        inputs, stored_bits = scales.shape[-1] * group_size, weight.shape[-1] * 32
        if inputs and stored_bits % inputs == 0:
            # The bits follow from the shapes: what a configuration states may not fit the file.
            matrices[module] = QuantizedTensor(
                weight,
                scales,
                tensors.get(f"{module}.biases"),
                stored_bits // inputs,
                group_size,
                str(settings.get("mode", "affine")),
            )
    return matrices


def _unpack(words: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Codes of `bits` bits each from the little-endian bit stream of every row."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return octets
    # Eight codes fill as many bytes as one code has bits.
    packed = octets.reshape(*octets.shape[:-1], -1, bits)
    codes = np.empty((*packed.shape[:-1], 8), np.uint8)
    for place in range(8):
        byte, shift = divmod(place * bits, 8)
        code = packed[..., byte] >> np.uint8(shift)
        if shift + bits > 8:
            code |= packed[..., byte + 1] << np.uint8(8 - shift)
        np.bitwise_and(code, np.uint8((1 << bits) - 1), out=codes[..., place])
    return codes.reshape(*octets.shape[:-1], -1)


def _as_type(codes: NDArray[Any], name: str) -> NDArray[np.float32]:
    """Codes of eight bits as the values of a type of `ml_dtypes`."""
    import ml_dtypes

    return np.asarray(codes.view(getattr(ml_dtypes, name)), np.float32)
