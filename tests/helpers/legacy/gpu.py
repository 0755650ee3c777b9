"""Operands on the GPU for the tests of operations: upload, run, read back, compare with float64.

Values are drawn in float64 and rounded to the operand's type first, so that the reference has cuDNN's inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from lamina.c.errors import CudnnBadParam, CudnnNotSupported
from lamina.cudnn import legacy
from lamina.runtime import Buffer, Device, from_host, to_host

Array = np.ndarray[Any, np.dtype[Any]]

NUMPY: dict[str, Any] = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "int8": np.int8,
    "uint8": np.uint8,
    "int32": np.int32,
}
#: Largest error, as a fraction of the largest value: sums in float32 or float64, results rounded once or twice.
TOLERANCE = {
    "float64": 1e-10,
    "float32": 5e-5,
    "float16": 4e-3,
    "bfloat16": 3e-2,
    "int8": 0,
    "uint8": 0,
    "int32": 0,
}
FLOATS = ("float64", "float32", "float16", "bfloat16")
#: Types supported by every operation; of the others cuDNN may refuse some, with a typed error and a reason.
SURE = ("float64", "float32", "float16")
#: (alpha, beta): the result alone, over NaN in the output; and a blend with the previous values.
BLENDS = ((1.0, 0.0), (0.5, 2.0))


def compute_type(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


class Operand:
    """A tensor or filter: descriptor, memory, and its values in float64 in the order N, C, spatial."""

    def __init__(self, gpu: Gpu, desc: Any, memory: Buffer, values: Array, dtype: str, format: str) -> None:
        self.gpu, self.desc, self.memory, self.values = gpu, desc, memory, values
        self.dtype, self.format = dtype, format

    def read(self) -> Array:
        """The memory's contents after all queued work, in float64, N, C, spatial."""
        shape = stored(np.empty(self.values.shape), self.format).shape
        found = self.gpu.read(self.memory, shape, self.dtype).astype(np.float64)
        return np.moveaxis(found, -1, 1) if self.format == "nhwc" else found

    def named(self, name: str) -> dict[str, Any]:
        """Keywords for an operation: {name}_desc and {name}."""
        return {f"{name}_desc": self.desc, name: self.memory}

    def check(self, wanted: Array, *, tolerance: float | None = None) -> None:
        """Check that the memory holds `wanted`, within the type's tolerance."""
        close(self.read(), wanted, TOLERANCE[self.dtype] if tolerance is None else tolerance)


def stored(values: Array, format: str) -> Array:
    """N, C, spatial -> the axes in memory order."""
    return np.moveaxis(values, 1, -1) if format == "nhwc" else values


def close(found: Array, wanted: Array, tolerance: float) -> None:
    assert found.shape == wanted.shape
    assert np.isfinite(found).all(), "not finite: something was not written, or was read from the output"
    scale = max(1.0, float(np.abs(wanted).max(initial=0.0)))
    error = float(np.abs(found - wanted).max(initial=0.0))
    assert error <= tolerance * scale, f"largest error {error:.3g} among values up to {scale:.3g}"


class Gpu:
    """One GPU with a handle."""

    def __init__(self) -> None:
        self.device = Device("cuda:0")
        self.handle = legacy.Handle(self.device)
        self.rng = np.random.default_rng(0)

    def normal(self, shape: Sequence[int]) -> Array:
        return self.rng.standard_normal(tuple(shape))

    def integers(self, shape: Sequence[int], low: int = -4, high: int = 5) -> Array:
        return self.rng.integers(low, high, tuple(shape)).astype(np.float64)

    # ---- memory
    def put(self, array: Array) -> Buffer:
        return from_host(np.ascontiguousarray(array), self.device)

    def zeros(self, nbytes: int) -> Buffer:
        return self.put(np.zeros(max(nbytes, 1), np.uint8))

    def read(self, memory: Buffer, shape: Sequence[int], dtype: str) -> Array:
        self.handle.synchronize()
        return to_host(memory).view(NUMPY[dtype]).reshape(tuple(shape))

    # ---- operands
    def tensor(self, values: Array, dtype: str = "float32", format: str = "nchw") -> Operand:
        array = stored(values, format).astype(NUMPY[dtype])
        desc = legacy.TensorDescriptor(array.shape, data_type=dtype, format=format)
        return Operand(self, desc, self.put(array), _rounded(values, dtype), dtype, format)

    def filter(self, values: Array, dtype: str = "float32", format: str = "nchw") -> Operand:
        array = stored(values, format).astype(NUMPY[dtype])
        desc = legacy.FilterDescriptor(array.shape, data_type=dtype, format=format)
        return Operand(self, desc, self.put(array), _rounded(values, dtype), dtype, format)

    def output(
        self,
        shape: Sequence[int],
        dtype: str = "float32",
        format: str = "nchw",
        beta: float = 0.0,
        make: str = "tensor",
    ) -> Operand:
        """An output operand: filled with NaN (which must not be read) or, for a blend, values."""
        old = self.normal(shape) if beta else np.full(tuple(shape), np.nan if dtype in FLOATS else 99)
        found: Operand = getattr(self, make)(old, dtype, format)
        found.values = found.values if beta else np.zeros(tuple(shape))
        return found


def _rounded(values: Array, dtype: str) -> Array:
    return values.astype(NUMPY[dtype]).astype(np.float64)


def ran(operation: Callable[[], Any], *, sure: bool) -> bool:
    """Run it, and return whether it ran. If not `sure`, it may be refused, by a typed error with its call."""
    try:
        operation()
        return True
    except (CudnnNotSupported, CudnnBadParam) as error:
        refused = error
    assert not sure, f"cuDNN refuses what it always took: {refused}"
    assert refused.code.startswith(("CUDNN_STATUS_NOT_SUPPORTED", "CUDNN_STATUS_BAD_PARAM"))
    assert refused.function.startswith("cudnn")
    print(f"refused: {refused}")
    return False
