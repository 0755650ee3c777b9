"""Floor 5: the array API standard's names for what Lamina has (data-apis.org, 2024.12): NumPy's convention.

`x.__array_namespace__()` gives this module, for tensors and traced values: `axis`, `keepdims`, `concat`, …
What the standard has and Lamina has not (sorting, linear algebra, complex numbers) is absent. Functions take tensors,
arrays and numbers, and raise as the functions of `lamina.ops` do.
"""

from __future__ import annotations

import builtins
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from lamina import ops, spec, tensors
from lamina._lazy import listing
from lamina.ops.core import register_namespace
from lamina.runtime import Device
from lamina.spec import DType, float32, float64, int8, int16, int32, int64, uint8
from lamina.tensors import Tensor

__array_api_version__ = "2024.12"

bool = spec.bool_
e, inf, nan, newaxis, pi = math.e, math.inf, math.nan, None, math.pi

# ---- elementwise: the same function under the standard's name
abs, add, ceil, cos, exp, floor, log = ops.abs, ops.add, ops.ceil, ops.cos, ops.exp, ops.floor, ops.log
logical_and, logical_not, logical_or = ops.logical_and, ops.logical_not, ops.logical_or
maximum, minimum, pow, reciprocal, sign = ops.maximum, ops.minimum, ops.pow, ops.reciprocal, ops.sign
sin, sqrt, square, tan, tanh, trunc = ops.sin, ops.sqrt, ops.square, ops.tan, ops.tanh, ops.trunc
subtract, multiply, divide, negative = ops.sub, ops.mul, ops.div, ops.neg
equal, not_equal = ops.eq, ops.ne
less, less_equal, greater, greater_equal = ops.lt, ops.le, ops.gt, ops.ge
matmul, where = ops.matmul, ops.where


def positive(x: Any, /) -> Any:
    """x itself."""
    return ops.identity(x)


def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    """x, not below min and not above max."""
    return ops.clamp(x, min, max)


# ---- reductions
Axis = int | tuple[int, ...] | None


def sum(x: Any, /, *, axis: Axis = None, dtype: DType | None = None, keepdims: builtins.bool = False) -> Any:
    """The sum along axes."""
    return ops.sum(x, axis, keepdims, dtype=dtype)


def prod(x: Any, /, *, axis: Axis = None, dtype: DType | None = None, keepdims: builtins.bool = False) -> Any:
    """The product along axes."""
    return ops.prod(x, axis, keepdims, dtype=dtype)


def mean(x: Any, /, *, axis: Axis = None, keepdims: builtins.bool = False) -> Any:
    """The mean along axes."""
    return ops.mean(x, axis, keepdims)


def max(x: Any, /, *, axis: Axis = None, keepdims: builtins.bool = False) -> Any:
    """The largest element along axes."""
    return ops.amax(x, axis, keepdims)


def min(x: Any, /, *, axis: Axis = None, keepdims: builtins.bool = False) -> Any:
    """The smallest element along axes."""
    return ops.amin(x, axis, keepdims)


def var(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: builtins.bool = False) -> Any:
    """The variance along axes."""
    return ops.var(x, axis, correction=correction, keepdim=keepdims)


def std(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: builtins.bool = False) -> Any:
    """The standard deviation along axes."""
    return ops.std(x, axis, correction=correction, keepdim=keepdims)


def argmax(x: Any, /, *, axis: int | None = None, keepdims: builtins.bool = False) -> Any:
    """The index of the first largest element."""
    return ops.argmax(x, axis, keepdims)


def argmin(x: Any, /, *, axis: int | None = None, keepdims: builtins.bool = False) -> Any:
    """The index of the first smallest element."""
    return ops.argmin(x, axis, keepdims)


# ---- shapes
def reshape(x: Any, /, shape: tuple[int, ...], *, copy: builtins.bool | None = None) -> Any:
    """The elements under another shape; copy=True gives memory of their own."""
    found = ops.reshape(x, shape)
    return tensors.tensor(found) if copy and isinstance(found, Tensor) else found


def permute_dims(x: Any, /, axes: tuple[int, ...]) -> Any:
    """The axes in another order."""
    return ops.permute(x, axes)


def matrix_transpose(x: Any, /) -> Any:
    """The last two axes exchanged."""
    return ops.transpose(x, -2, -1)


def expand_dims(x: Any, /, *, axis: int = 0) -> Any:
    """With a new axis of size 1."""
    return ops.unsqueeze(x, axis)


def squeeze(x: Any, /, axis: int | tuple[int, ...]) -> Any:
    """Without axes of size 1. Raises ValueError for an axis of another size."""
    axes = (axis,) if isinstance(axis, int) else axis
    if any(x.shape[a] != 1 for a in axes):
        raise ValueError(f"squeeze: axes {axes} of shape {x.shape} are not all of size 1")
    return ops.squeeze(x, axis)


def concat(arrays: Sequence[Any], /, *, axis: int | None = 0) -> Any:
    """Arrays one behind the other along an axis; None: all flattened."""
    return ops.cat([ops.flatten(x) for x in arrays], 0) if axis is None else ops.cat(arrays, axis)


def stack(arrays: Sequence[Any], /, *, axis: int = 0) -> Any:
    """Arrays side by side along a new axis."""
    return ops.stack(arrays, axis)


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    """The parts along an axis, without it."""
    return tuple(ops.squeeze(part, axis) for part in ops.split(x, 1, axis))


def flip(x: Any, /, *, axis: Axis = None) -> Any:
    """Reversed along axes."""
    return ops.flip(x, tuple(range(x.ndim)) if axis is None else axis)


def broadcast_to(x: Any, /, shape: tuple[int, ...]) -> Any:
    """Repeated up to a shape."""
    return ops.expand(x, shape)


# ---- making arrays
def asarray(
    obj: Any,
    /,
    *,
    dtype: DType | None = None,
    device: Device | str | None = None,
    copy: builtins.bool | None = None,
) -> Any:
    """A tensor of numbers, lists or an array; its memory is shared where copy is not True."""
    if copy:
        return tensors.tensor(obj, dtype, device)
    return tensors.as_tensor(obj).to(device, dtype)


def from_dlpack(
    x: Any, /, *, device: Device | str | None = None, copy: builtins.bool | None = None
) -> Tensor:
    """A tensor over another library's memory, copied where asked for or where the device differs."""
    found = tensors.from_dlpack(x)
    return tensors.tensor(found, device=device) if copy else found.to(device)


def astype(x: Any, dtype: DType, /, *, copy: builtins.bool = True, device: Device | str | None = None) -> Any:
    """x in another dtype."""
    made = ops.cast(x, dtype)
    return made if device is None else made.to(device)


def empty(shape: Any, *, dtype: DType | None = None, device: Device | str | None = None) -> Tensor:
    """Arbitrary values."""
    return tensors.empty(shape, dtype=dtype or float32, device=device)


def full(
    shape: Any, fill_value: Any, *, dtype: DType | None = None, device: Device | str | None = None
) -> Tensor:
    """The same value everywhere; its kind gives the dtype unless that is given."""
    kinds: dict[type, DType] = {builtins.bool: bool, int: int64}
    return tensors.full(shape, fill_value, dtype or kinds.get(type(fill_value), float32), device)


def zeros(shape: Any, *, dtype: DType | None = None, device: Device | str | None = None) -> Tensor:
    """Zeros."""
    return tensors.zeros(shape, dtype=dtype or float32, device=device)


def ones(shape: Any, *, dtype: DType | None = None, device: Device | str | None = None) -> Tensor:
    """Ones."""
    return tensors.ones(shape, dtype=dtype or float32, device=device)


def empty_like(x: Any, /, *, dtype: DType | None = None, device: Device | str | None = None) -> Tensor:
    """Arbitrary values of x's shape."""
    return empty(x.shape, dtype=dtype or x.dtype, device=device or _device_of(x))


def full_like(
    x: Any, /, fill_value: Any, *, dtype: DType | None = None, device: Device | str | None = None
) -> Tensor:
    """The same value everywhere, of x's shape."""
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device or _device_of(x))


def zeros_like(x: Any, /, *, dtype: DType | None = None, device: Device | str | None = None) -> Tensor:
    """Zeros of x's shape."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Any, /, *, dtype: DType | None = None, device: Device | str | None = None) -> Tensor:
    """Ones of x's shape."""
    return full_like(x, 1, dtype=dtype, device=device)


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: DType | None = None,
    device: Device | str | None = None,
) -> Tensor:
    """Evenly spaced numbers from start up to, not including, stop."""
    values = np.arange(start, step=step) if stop is None else np.arange(start, stop, step)
    return tensors.tensor(values, dtype, device)


def linspace(
    start: float,
    stop: float,
    /,
    num: int,
    *,
    dtype: DType | None = None,
    device: Device | str | None = None,
    endpoint: builtins.bool = True,
) -> Tensor:
    """num evenly spaced numbers from start to stop."""
    return tensors.tensor(np.linspace(start, stop, num, endpoint=endpoint), dtype, device)


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: DType | None = None,
    device: Device | str | None = None,
) -> Tensor:
    """Ones on a diagonal, zeros elsewhere."""
    return tensors.tensor(np.eye(n_rows, n_cols, k), dtype or float32, device)


def broadcast_arrays(*arrays: Any) -> tuple[Any, ...]:
    """Arrays repeated up to one shape."""
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    return tuple(ops.expand(x, shape) for x in arrays)


def isdtype(dtype: DType, kind: Any) -> builtins.bool:
    """Whether a dtype is another, or of a kind: "bool", "signed integer", "real floating", …, or one of several."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, DType):
        return dtype == kind
    kinds = {
        "bool": "b", "signed integer": "i", "unsigned integer": "u", "integral": "iu", "real floating": "f",
        "complex floating": "c", "numeric": "iufc",
    }  # fmt: skip
    if kind not in kinds:
        raise ValueError(f"isdtype: kind must be a dtype or one of {', '.join(kinds)}, got {kind!r}")
    return ("f" if dtype.is_float else dtype.kind) in kinds[kind]


def _device_of(x: Any) -> Device | None:
    """Where a tensor is; None for traced values."""
    return x.device if isinstance(x, Tensor) else None


__all__ = [
    "abs",
    "add",
    "arange",
    "argmax",
    "argmin",
    "asarray",
    "astype",
    "bool",
    "broadcast_arrays",
    "broadcast_to",
    "ceil",
    "clip",
    "concat",
    "cos",
    "divide",
    "e",
    "empty",
    "empty_like",
    "equal",
    "exp",
    "expand_dims",
    "eye",
    "flip",
    "float32",
    "float64",
    "floor",
    "from_dlpack",
    "full",
    "full_like",
    "greater",
    "greater_equal",
    "inf",
    "int8",
    "int16",
    "int32",
    "int64",
    "isdtype",
    "less",
    "less_equal",
    "linspace",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "matmul",
    "matrix_transpose",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "multiply",
    "nan",
    "negative",
    "newaxis",
    "not_equal",
    "ones",
    "ones_like",
    "permute_dims",
    "pi",
    "positive",
    "pow",
    "prod",
    "reciprocal",
    "reshape",
    "sign",
    "sin",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "subtract",
    "sum",
    "tan",
    "tanh",
    "trunc",
    "uint8",
    "unstack",
    "var",
    "where",
    "zeros",
    "zeros_like",
]
__dir__ = listing(__all__)
register_namespace(sys.modules[__name__])
