"""Floor 5: the array API standard (data-apis.org, 2024.12): its names for Lamina's functions, as in NumPy.

`x.__array_namespace__()` returns this module, for tensors and traced values: `axis`, `keepdims`, `concat`, …
Parts of the standard that Lamina lacks (linear algebra, complex numbers, wider unsigned integers) are absent.
Functions take tensors, arrays and numbers, and raise as the functions of `lamina.ops` do.
"""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np

from lamina import ops, spec, tensors
from lamina._lazy import listing
from lamina.runtime import Device
from lamina.spec import DType, float32, float64, int8, int16, int32, int64, uint8
from lamina.tensors import Tensor

__array_api_version__ = "2024.12"

bool = spec.bool_
e, inf, nan, newaxis, pi = math.e, math.inf, math.nan, None, math.pi

# ---- elementwise: the same function under the standard's name
abs, add, ceil, cos, exp, floor, log = ops.abs, ops.add, ops.ceil, ops.cos, ops.exp, ops.floor, ops.log
logical_and, logical_not, logical_or = ops.logical_and, ops.logical_not, ops.logical_or
maximum, minimum, pow, reciprocal = ops.maximum, ops.minimum, ops.pow, ops.reciprocal
sin, sqrt, square, tan, tanh, trunc = ops.sin, ops.sqrt, ops.square, ops.tan, ops.tanh, ops.trunc
subtract, multiply, divide, negative = ops.sub, ops.mul, ops.div, ops.neg
equal, not_equal = ops.eq, ops.ne
less, less_equal, greater, greater_equal = ops.lt, ops.le, ops.gt, ops.ge
matmul, where = ops.matmul, ops.where
acos, acosh, asin, asinh, atan, atan2, atanh = (
    ops.acos, ops.acosh, ops.asin, ops.asinh, ops.atan, ops.atan2, ops.atanh,
)  # fmt: skip
cosh, sinh, expm1, log1p, log2, log10, hypot = (
    ops.cosh, ops.sinh, ops.expm1, ops.log1p, ops.log2, ops.log10, ops.hypot,
)  # fmt: skip
bitwise_and, bitwise_or, bitwise_xor, bitwise_invert = (
    ops.bitwise_and, ops.bitwise_or, ops.bitwise_xor, ops.bitwise_not,
)  # fmt: skip
bitwise_left_shift, bitwise_right_shift = ops.bitwise_left_shift, ops.bitwise_right_shift
copysign, floor_divide, logaddexp, logical_xor, remainder = (
    ops.copysign, ops.floor_divide, ops.logaddexp, ops.logical_xor, ops.remainder,
)  # fmt: skip
isfinite, isinf, isnan, signbit = ops.isfinite, ops.isinf, ops.isnan, ops.signbit


def round(x: Any, /) -> Any:
    """Rounded to the nearest integer, halves to even."""
    return ops.round(x)


def sign(x: Any, /) -> Any:
    """-1, 0 or 1; NaN for NaN, where `ops.sign` gives 0."""
    x = ops.identity(x)
    return ops.where(x == x, ops.sign(x), x)


def positive(x: Any, /) -> Any:
    """x itself."""
    return ops.identity(x)


def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    """x clamped between min and max."""
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


def any(x: Any, /, *, axis: Axis = None, keepdims: builtins.bool = False) -> Any:
    """Whether any element along axes is true."""
    return ops.ne(ops.any(x, axis, keepdims), 0)


def all(x: Any, /, *, axis: Axis = None, keepdims: builtins.bool = False) -> Any:
    """Whether all elements along axes are true."""
    return ops.ne(ops.all(x, axis, keepdims), 0)


def count_nonzero(x: Any, /, *, axis: Axis = None, keepdims: builtins.bool = False) -> Any:
    """The number of nonzero elements along axes."""
    return ops.sum(ops.ne(x, 0), axis, keepdims)


def _line(what: str, x: Any, axis: int | None) -> int:
    """The given axis, or the only one. Raises ValueError if none is given and there are several."""
    if axis is None and x.ndim != 1:
        raise ValueError(f"{what}: axis must be given for an array of {x.ndim} axes")
    return 0 if axis is None else axis


def cumulative_sum(
    x: Any, /, *, axis: int | None = None, dtype: DType | None = None, include_initial: builtins.bool = False
) -> Any:
    """Cumulative sums, with a leading 0 if requested."""
    line = _line("cumulative_sum", x, axis)
    return _with_first(ops.cumsum(x, line, dtype=dtype), line, 0, include_initial)


def cumulative_prod(
    x: Any, /, *, axis: int | None = None, dtype: DType | None = None, include_initial: builtins.bool = False
) -> Any:
    """Cumulative products, with a leading 1 if requested."""
    line = _line("cumulative_prod", x, axis)
    return _with_first(ops.cumprod(x, line, dtype=dtype), line, 1, include_initial)


def _with_first(x: Any, axis: int, value: int, asked: builtins.bool) -> Any:
    if not asked:
        return x
    shape = tuple(1 if a == axis % x.ndim else n for a, n in enumerate(x.shape))
    return ops.cat([np.full(shape, value, x.dtype.numpy), x], axis)


def diff(x: Any, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Any:
    """The n-th differences of neighbors."""
    return ops.diff(x, n, axis, prepend, append)


# ---- sorting, searching and sets
def sort(
    x: Any, /, *, axis: int = -1, descending: builtins.bool = False, stable: builtins.bool = True
) -> Any:
    """The elements sorted along an axis; always stable."""
    return ops.sort(x, axis, descending).values


def argsort(
    x: Any, /, *, axis: int = -1, descending: builtins.bool = False, stable: builtins.bool = True
) -> Any:
    """The indices that sort the elements along an axis; always stable."""
    return ops.argsort(x, axis, descending)


def searchsorted(x1: Any, x2: Any, /, *, side: Literal["left", "right"] = "left", sorter: Any = None) -> Any:
    """The insertion points of elements in a sorted vector."""
    return ops.searchsorted(x1, x2, side=side, sorter=sorter)


def nonzero(x: Any, /) -> tuple[Any, ...]:
    """The indices along each axis of the nonzero elements."""
    return tuple(ops.nonzero(x, as_tuple=True))


def isin(x1: Any, x2: Any, /, *, invert: builtins.bool = False) -> Any:
    """Whether each element is among others."""
    return ops.isin(x1, x2, invert=invert)


def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Any:
    """The slices along an axis at a vector of indices."""
    return ops.index_select(x, _line("take", x, axis), indices)


def take_along_axis(x: Any, indices: Any, /, *, axis: int = -1) -> Any:
    """The elements at indices along an axis."""
    return ops.take_along_dim(x, indices, axis)


class UniqueAll(NamedTuple):
    """Distinct elements, the first index of each, the inverse indices, and the count of each."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCounts(NamedTuple):
    """Distinct elements, and the count of each."""

    values: Any
    counts: Any


class UniqueInverse(NamedTuple):
    """Distinct elements, and the inverse indices."""

    values: Any
    inverse_indices: Any


def unique_all(x: Any, /) -> UniqueAll:
    """The distinct elements with first indices, inverse indices and counts."""
    values, inverse, counts = ops.unique(x, return_inverse=True, return_counts=True)
    order = ops.argsort(ops.flatten(inverse))  # stable: the first occurrence of each comes first
    first = ops.index_select(order, 0, ops.sub(ops.cumsum(counts, 0), counts))
    return UniqueAll(values, first, inverse, counts)


def unique_counts(x: Any, /) -> UniqueCounts:
    """The distinct elements and their counts."""
    return UniqueCounts(*ops.unique(x, return_counts=True))


def unique_inverse(x: Any, /) -> UniqueInverse:
    """The distinct elements and the inverse indices."""
    return UniqueInverse(*ops.unique(x, return_inverse=True))


def unique_values(x: Any, /) -> Any:
    """The distinct elements."""
    return ops.unique(x)


def argmax(x: Any, /, *, axis: int | None = None, keepdims: builtins.bool = False) -> Any:
    """The index of the largest element; the first of equals."""
    return ops.argmax(x, axis, keepdims)


def argmin(x: Any, /, *, axis: int | None = None, keepdims: builtins.bool = False) -> Any:
    """The index of the smallest element; the first of equals."""
    return ops.argmin(x, axis, keepdims)


# ---- shapes
def reshape(x: Any, /, shape: tuple[int, ...], *, copy: builtins.bool | None = None) -> Any:
    """The elements in another shape; copy=True always copies."""
    found = ops.reshape(x, shape)
    return tensors.tensor(found) if copy and isinstance(found, Tensor) else found


def permute_dims(x: Any, /, axes: tuple[int, ...]) -> Any:
    """The axes permuted."""
    return ops.permute(x, axes)


def matrix_transpose(x: Any, /) -> Any:
    """The last two axes swapped."""
    return ops.transpose(x, -2, -1)


def expand_dims(x: Any, /, *, axis: int = 0) -> Any:
    """x with a new axis of size 1."""
    return ops.unsqueeze(x, axis)


def squeeze(x: Any, /, axis: int | tuple[int, ...]) -> Any:
    """x without axes of size 1. Raises ValueError for an axis of another size."""
    axes = (axis,) if isinstance(axis, int) else axis
    if builtins.any(x.shape[a] != 1 for a in axes):
        raise ValueError(f"squeeze: axes {axes} of shape {x.shape} are not all of size 1")
    return ops.squeeze(x, axis)


def concat(arrays: Sequence[Any], /, *, axis: int | None = 0) -> Any:
    """Arrays concatenated along an axis; None: all flattened."""
    return ops.cat([ops.flatten(x) for x in arrays], 0) if axis is None else ops.cat(arrays, axis)


def stack(arrays: Sequence[Any], /, *, axis: int = 0) -> Any:
    """Arrays stacked along a new axis."""
    return ops.stack(arrays, axis)


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    """The slices along an axis, without it."""
    return tuple(ops.squeeze(part, axis) for part in ops.split(x, 1, axis))


def flip(x: Any, /, *, axis: Axis = None) -> Any:
    """Reversed along axes."""
    return ops.flip(x, tuple(range(x.ndim)) if axis is None else axis)


def broadcast_to(x: Any, /, shape: tuple[int, ...]) -> Any:
    """Broadcast to a shape."""
    return ops.expand(x, shape)


def moveaxis(x: Any, source: int | tuple[int, ...], destination: int | tuple[int, ...], /) -> Any:
    """Axes moved to other positions."""
    return ops.movedim(x, source, destination)


def roll(x: Any, /, shift: int | tuple[int, ...], *, axis: Axis = None) -> Any:
    """Elements shifted along axes, wrapping around."""
    if isinstance(axis, tuple) and isinstance(shift, int):
        shift = (shift,) * len(axis)
    return ops.roll(x, shift, axis)


def repeat(x: Any, repeats: Any, /, *, axis: int | None = None) -> Any:
    """Each element repeated a number of times, consecutively."""
    return ops.repeat_interleave(x, repeats, axis)


def tile(x: Any, repetitions: tuple[int, ...], /) -> Any:
    """Tiled along the axes."""
    return ops.tile(x, repetitions)


def tril(x: Any, /, *, k: int = 0) -> Any:
    """The elements on and below a diagonal."""
    return ops.tril(x, k)


def triu(x: Any, /, *, k: int = 0) -> Any:
    """The elements on and above a diagonal."""
    return ops.triu(x, k)


def meshgrid(*arrays: Any, indexing: Literal["xy", "ij"] = "xy") -> tuple[Any, ...]:
    """Vectors broadcast over the grid that they span."""
    return ops.meshgrid(*arrays, indexing=indexing)


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape under broadcasting."""
    return functools.reduce(spec.broadcast_shapes, shapes, ())


# ---- products
def tensordot(x1: Any, x2: Any, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Any:
    """Products summed over axes."""
    return ops.tensordot(x1, x2, axes)


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Products summed over an axis."""
    product = ops.mul(x1, x2)
    return ops.cast(ops.sum(product, axis), product.dtype)


# ---- creating arrays
def asarray(
    obj: Any,
    /,
    *,
    dtype: DType | None = None,
    device: Device | str | None = None,
    copy: builtins.bool | None = None,
) -> Any:
    """A tensor from numbers, lists or an array; its memory is shared unless copy is True."""
    if copy:
        return tensors.tensor(obj, dtype, device)
    return tensors.as_tensor(obj).to(device, dtype)


def from_dlpack(
    x: Any, /, *, device: Device | str | None = None, copy: builtins.bool | None = None
) -> Tensor:
    """A tensor over another library's memory, copied if requested or if the device differs."""
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
    """The same value everywhere; its type gives the default dtype."""
    kinds: dict[type, DType] = {builtins.bool: bool, int: int64}
    return tensors.full(shape, fill_value, dtype or kinds.get(type(fill_value), float32), device)


def zeros(shape: Any, *, dtype: DType | None = None, device: Device | str | None = None) -> Tensor:
    """Zeros."""
    return tensors.zeros(shape, dtype=dtype or float32, device=device)


def ones(shape: Any, *, dtype: DType | None = None, device: Device | str | None = None) -> Tensor:
    """Ones."""
    return tensors.ones(shape, dtype=dtype or float32, device=device)


def empty_like(x: Any, /, *, dtype: DType | None = None, device: Device | str | None = None) -> Tensor:
    """Arbitrary values in x's shape."""
    return empty(x.shape, dtype=dtype or x.dtype, device=device or _device_of(x))


def full_like(
    x: Any, /, fill_value: Any, *, dtype: DType | None = None, device: Device | str | None = None
) -> Tensor:
    """The same value everywhere, in x's shape."""
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device or _device_of(x))


def zeros_like(x: Any, /, *, dtype: DType | None = None, device: Device | str | None = None) -> Tensor:
    """Zeros in x's shape."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Any, /, *, dtype: DType | None = None, device: Device | str | None = None) -> Tensor:
    """Ones in x's shape."""
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
    """Evenly spaced numbers from start up to, but excluding, stop."""
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
    """Arrays broadcast to a common shape."""
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    return tuple(ops.expand(x, shape) for x in arrays)


class FloatInfo(NamedTuple):
    """The limits of a float dtype."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


class IntegerInfo(NamedTuple):
    """The limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


def finfo(type: Any, /) -> FloatInfo:
    """The limits of a float dtype, or of an array's."""
    kind = type if isinstance(type, DType) else type.dtype
    known: Any = ml_dtypes.finfo
    found = known(kind.numpy)
    limits = (float(found.eps), float(found.max), float(found.min), float(found.smallest_normal))
    return FloatInfo(8 * kind.itemsize, *limits, kind)


def iinfo(type: Any, /) -> IntegerInfo:
    """The limits of an integer dtype, or of an array's."""
    kind = type if isinstance(type, DType) else type.dtype
    found = np.iinfo(kind.numpy)
    return IntegerInfo(8 * kind.itemsize, int(found.max), int(found.min), kind)


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The common dtype of arrays and dtypes in computations."""
    kinds = [x if isinstance(x, DType) else x.dtype for x in arrays_and_dtypes]
    return functools.reduce(spec.promote_types, kinds)


def can_cast(from_: Any, to: DType, /) -> builtins.bool:
    """Whether a dtype can be cast to another without loss."""
    kind = from_ if isinstance(from_, DType) else from_.dtype
    return builtins.bool(kind.category <= to.category and spec.promote_types(kind, to) == to)


def isdtype(dtype: DType, kind: Any) -> builtins.bool:
    """Whether a dtype equals another, or is of a kind: "bool", "signed integer", "real floating", …, or one of
    several.
    """
    if isinstance(kind, tuple):
        return builtins.any(isdtype(dtype, k) for k in kind)
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
    """The device of a tensor; None for traced values."""
    return x.device if isinstance(x, Tensor) else None


__all__ = [
    "abs",
    "acos",
    "acosh",
    "add",
    "all",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "asarray",
    "asin",
    "asinh",
    "astype",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "bool",
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "can_cast",
    "ceil",
    "clip",
    "concat",
    "copysign",
    "cos",
    "cosh",
    "count_nonzero",
    "cumulative_prod",
    "cumulative_sum",
    "diff",
    "divide",
    "e",
    "empty",
    "empty_like",
    "equal",
    "exp",
    "expand_dims",
    "expm1",
    "eye",
    "finfo",
    "flip",
    "float32",
    "float64",
    "floor",
    "floor_divide",
    "from_dlpack",
    "full",
    "full_like",
    "greater",
    "greater_equal",
    "hypot",
    "iinfo",
    "inf",
    "int8",
    "int16",
    "int32",
    "int64",
    "isdtype",
    "isfinite",
    "isin",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "linspace",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "matrix_transpose",
    "max",
    "maximum",
    "mean",
    "meshgrid",
    "min",
    "minimum",
    "moveaxis",
    "multiply",
    "nan",
    "negative",
    "newaxis",
    "nonzero",
    "not_equal",
    "ones",
    "ones_like",
    "permute_dims",
    "pi",
    "positive",
    "pow",
    "prod",
    "reciprocal",
    "remainder",
    "repeat",
    "reshape",
    "result_type",
    "roll",
    "round",
    "searchsorted",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "sort",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "subtract",
    "sum",
    "take",
    "take_along_axis",
    "tan",
    "tanh",
    "tensordot",
    "tile",
    "tril",
    "triu",
    "trunc",
    "uint8",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "unstack",
    "var",
    "vecdot",
    "where",
    "zeros",
    "zeros_like",
]
__dir__ = listing(__all__)
