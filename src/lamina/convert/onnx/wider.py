"""Integer initializers of types that Lamina lacks (2 and 4 bits, unsigned 16 to 64), held in a wider type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx

from lamina import ops
from lamina.convert.onnx.node import Array, OnnxError
from lamina.convert.onnx.proto import External, external_bytes, listed, require_count, shape_of, type_name
from lamina.spec import DType, int8, int32, int64, uint8
from lamina.tensors import Tensor


@dataclass(frozen=True)
class Wider:
    """The wider type of integers of `bits` bits."""

    dtype: DType
    bits: int

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest number of the type itself."""
        if self.dtype == int8:
            return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1
        return 0, (1 << self.bits) - 1


#: ONNX's code of an element type -> its wider type.
WIDER: dict[int, Wider] = {
    onnx.TensorProto.INT2: Wider(int8, 2), onnx.TensorProto.INT4: Wider(int8, 4),
    onnx.TensorProto.UINT2: Wider(uint8, 2), onnx.TensorProto.UINT4: Wider(uint8, 4),
    onnx.TensorProto.UINT16: Wider(int32, 16), onnx.TensorProto.UINT32: Wider(int64, 32),
    onnx.TensorProto.UINT64: Wider(int64, 64),
}  # fmt: skip

#: The operators that only read values, so that a wider type changes no result: (domain, operator).
READERS = {
    ("", "DequantizeLinear"), ("", "QuantizeLinear"), ("", "Cast"), ("com.microsoft", "DequantizeLinear"),
    ("com.microsoft", "QuantizeLinear"), ("com.microsoft", "GatherBlockQuantized"),
}  # fmt: skip


def widened(proto: onnx.TensorProto, external: External | None) -> Tensor:
    """An initializer of one of these types. Raises OnnxError for sizes that do not match its data."""
    held, shape = WIDER[proto.data_type], shape_of(proto)
    count = prod(shape)
    nbytes = -(-count * held.bits // 8)
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        data = np.frombuffer(external_bytes(proto, external, held.bits), np.uint8)
    elif proto.HasField("raw_data"):
        require_count(proto, len(proto.raw_data), nbytes, "bytes")
        data = np.frombuffer(proto.raw_data, np.uint8)
    elif held.bits < 8:
        data = listed(proto, "int32_data", nbytes, np.int32).astype(np.uint8)
    else:
        field = "int32_data" if held.bits == 16 else "uint64_data"
        data = listed(proto, field, count, np.int32 if held.bits == 16 else np.uint64)
        data = data.astype(f"<u{held.bits // 8}").view(np.uint8)
    numbers = _unpacked(data, held)[:count]
    if held.bits == 64 and numbers.size and int(numbers.max()) > np.iinfo(np.int64).max:
        raise OnnxError(f"tensor {proto.name!r} has numbers from 2^63 on, which Lamina has no type for")
    return ops.operand(numbers.astype(held.dtype.numpy).reshape(shape))


def _unpacked(data: Array, held: Wider) -> Array:
    """Bytes as numbers; if a byte holds several, the low bits come first."""
    if held.bits >= 8:
        return data.view(f"<u{held.bits // 8}")
    shifts = np.arange(0, 8, held.bits, dtype=np.uint8)
    codes = (data[:, None] >> shifts & ((1 << held.bits) - 1)).reshape(-1).astype(np.int16)
    low, high = held.bounds
    wrapped: Array = np.where(codes > high, codes - (high - low + 1), codes)
    return wrapped


def check_readers(codes: Mapping[str, int], readers: Mapping[str, Any]) -> None:
    """Raises OnnxError if an operator that computes in the type itself reads a tensor that is held in a wider one.

    codes: the element types of such tensors by name. readers: the nodes that read each name.
    """
    for name, code in codes.items():
        for step in readers.get(name, ()):
            if step.key not in READERS:
                kind = type_name(code)
                raise OnnxError(
                    f"{step}: input {name!r} is of element type {kind}, which has no counterpart in Lamina; such "
                    "tensors are read by Cast, QuantizeLinear and DequantizeLinear alone"
                )
