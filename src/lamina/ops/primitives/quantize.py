"""8-bit inference: quantization, and quantized convolutions and matrix products.

    Quantize         x, scale []                        ->  q = round(x / scale), int8 or float8_e4m3fn
    Dequantize       q, scale []                        ->  q * scale, float32
    QuantizedConv    x [N, C, *S], w [K, C/g, *k], scale [K]  ->  y [N, K, *O] float32
    QuantizedMatmul  a [M, K], b [N, K], scale [N]      ->  y [M, N] float32

Quantization is symmetric: the zero point is zero (Jacob et al. 2018; Wu et al. 2020, "Integer quantization for deep
learning inference"; for float8 Micikevicius et al. 2022). int8 products accumulate in int32, float8 ones in float32;
the sum is then multiplied by scale, the product of the input's scale and that of the output channel's weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lamina.ops.arguments import DTypeLike, checked
from lamina.ops.core import Arg, Array, BatchAxes, Op, Sample, call, first_axis, floating, is_number, operand
from lamina.ops.primitives.conv import Conv
from lamina.ops.primitives.elementary import round
from lamina.ops.primitives.marker import stop_gradient
from lamina.ops.primitives.matmul import Matmul
from lamina.ops.primitives.pointwise import clamp, logical_and, where
from lamina.ops.primitives.window import Window
from lamina.spec import (
    DType,
    DTypeError,
    ShapeError,
    Spec,
    as_dtype,
    bfloat16,
    float8_e4m3fn,
    float16,
    float32,
    int8,
    normalize_axis,
)

#: The largest number of each 8-bit dtype, to which a tensor's maximum is scaled.
LARGEST = {int8: 127.0, float8_e4m3fn: 448.0}
EIGHTS = tuple(LARGEST)


@dataclass(frozen=True)
class Quantize(Op):
    """(x, scale float32 []) -> the nearest number to x / scale in an 8-bit dtype: ties to even, saturating."""

    dtype: DType
    dtypes = (float32, float16, bfloat16)
    differentiable = False
    elementwise = True
    arity = 2

    def infer(self, x: Spec, scale: Spec) -> tuple[Spec]:
        self.check_float(x)
        _check_scale(self, scale, ())
        if self.dtype not in EIGHTS:
            raise DTypeError(f"{self.name}: to int8 or float8_e4m3fn, not to {self.dtype}")
        return (self.result(x.shape, self.dtype),)

    def reference(self, x: Array, scale: Array) -> tuple[Array]:
        q = x / scale
        if self.dtype == int8:
            return (np.clip(np.rint(q), -128, 127).astype(np.int8),)
        return (np.clip(q, -448, 448).astype(float8_e4m3fn.numpy),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        scale = Arg((), float32, value=(2,))
        for dtype in EIGHTS:
            for shape in ((2, 3, 5, 4), (33,), (), (0, 3), (4, 16)):
                yield Sample.of(cls(dtype), Arg(shape, low=-300.0, high=300.0), scale)
        yield Sample.of(cls(float8_e4m3fn), Arg((64, 3), low=-2000.0, high=2000.0), scale)
        yield Sample.of(cls(float8_e4m3fn), Arg((64, 3), low=-0.1, high=0.1), scale)  # subnormal


@dataclass(frozen=True)
class Dequantize(Op):
    """(q int8 or float8_e4m3fn, scale float32 []) -> q * scale in float32."""

    dtypes = EIGHTS
    differentiable = False
    elementwise = True
    arity = 2

    def infer(self, q: Spec, scale: Spec) -> tuple[Spec]:
        self.check_float(q)
        _check_scale(self, scale, ())
        return (self.result(q.shape, float32),)

    def reference(self, q: Array, scale: Array) -> tuple[Array]:
        return (q.astype(scale.dtype) * scale,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in ((2, 3, 5, 4), (33,), (), (0, 3), (4, 16)):
            yield Sample.of(cls(), _eights(*shape), Arg((), float32, low=0.1, high=2.0))


@dataclass(frozen=True)
class QuantizedConv(Op):
    """y[n, k] = scale[k] * Conv(window)(x, w)[n, k] for 8-bit x and w of one dtype."""

    window: Window
    dtypes = EIGHTS
    differentiable = False
    arity = 3
    #: The axis of the result along which scale varies.
    axis: ClassVar[int] = 1

    def infer(self, x: Spec, w: Spec, scale: Spec) -> tuple[Spec]:
        self.check_float(x, w)
        (y,) = Conv(self.window).infer(Spec(x.shape, float32), Spec(w.shape, float32))
        _check_scale(self, scale, (w.shape[0],))
        return (y,)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return first_axis(axes)

    def flops(self, x: Spec, w: Spec, scale: Spec) -> int:
        return Conv(self.window).flops(Spec(x.shape, float32), Spec(w.shape, float32))

    def reference(self, x: Array, w: Array, scale: Array) -> tuple[Array]:
        (y,) = Conv(self.window).reference(x.astype(np.float64), w.astype(np.float64))
        return ((y * scale.reshape(-1, *(1,) * (y.ndim - 2))).astype(scale.dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        cases = (
            (Window((1, 1), ((1, 1), (1, 1)), (1, 1)), (2, 16, 6, 5), (32, 16, 3, 3)),
            (Window((2, 1), ((1, 0), (0, 1)), (1, 1)), (2, 3, 7, 6), (5, 3, 3, 2)),
            (Window((1, 1), ((2, 2), (2, 2)), (2, 2), groups=2), (1, 8, 7, 7), (6, 4, 3, 3)),
            (Window((1,), ((1, 1),), (1,)), (2, 4, 9), (8, 4, 3)),
            (Window((2, 2), ((0, 0), (0, 0)), (1, 1), flip=True), (3, 16, 5, 5), (16, 16, 3, 3)),
        )
        for win, x, w in cases:
            yield Sample.of(cls(win), _eights(*x), _eights(*w), Arg((w[0],), float32, low=0.01, high=0.1))


@dataclass(frozen=True)
class QuantizedMatmul(Op):
    """y[m, n] = scale[n] * sum over k of a[m, k] b[n, k] for 8-bit a and b of one type."""

    dtypes = EIGHTS
    differentiable = False
    arity = 3
    axis: ClassVar[int] = 1

    def infer(self, a: Spec, b: Spec, scale: Spec) -> tuple[Spec]:
        self.check_float(a, b)
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
            raise ShapeError(f"{self.name}: needs [M, K] and [N, K], got {a} and {b}")
        _check_scale(self, scale, (b.shape[0],))
        return (self.result((a.shape[0], b.shape[0]), float32),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return first_axis(axes)

    def flops(self, a: Spec, b: Spec, scale: Spec) -> int:
        return 2 * a.shape[0] * b.numel

    def reference(self, a: Array, b: Array, scale: Array) -> tuple[Array]:
        (y,) = Matmul(False, True).reference(a.astype(np.float64), b.astype(np.float64))
        return ((y * scale).astype(scale.dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for m, n, k in ((3, 4, 5), (16, 32, 64), (1, 10, 33), (33, 16, 16), (2, 1, 1)):
            yield Sample.of(cls(), _eights(m, k), _eights(n, k), Arg((n,), float32, low=0.01, high=0.1))


def _eights(*shape: int) -> Arg:
    """Integers that both dtypes represent exactly (float8 rounds some)."""
    return Arg(shape, low=-127, high=128, integers=True)


def _check_scale(op: Op, scale: Spec, shape: tuple[int, ...]) -> None:
    if scale.dtype != float32 or scale.shape != shape:
        kind = ShapeError if scale.dtype == float32 else DTypeError
        raise kind(f"{op.name}: scale must be float32{list(shape)}, got {scale}")


@checked
def quantize(input: Any, scale: Any, dtype: DTypeLike = int8) -> Any:
    """round(x / scale) in int8 or float8_e4m3fn, saturating; scale: float32, a scalar. Raises DTypeError."""
    x, by = operand(input, "quantize"), operand(_single(scale), "quantize", "scale")
    return call(Quantize(as_dtype(dtype)), x, by)


def dequantize(input: Any, scale: Any) -> Any:
    """input * scale in float32, for 8-bit input; scale: float32, a scalar."""
    x, by = operand(input, "dequantize"), operand(_single(scale), "dequantize", "scale")
    return call(Dequantize(), x, by)


def _single(scale: Any) -> Any:
    return np.float32(scale) if isinstance(scale, int | float) else scale


def rounded(values: Array, dtype: DType, axis: int | None = None) -> tuple[Array, Array]:
    """Quantize an array, with one scale or one per index of `axis`, chosen so that its maximum is the dtype's.

    Returns (q, scale float32: [] or [values.shape[axis]]) with values near q * scale.
    """
    across: Sequence[int] = (
        [a for a in range(values.ndim) if a != axis] if axis is not None else range(values.ndim)
    )
    most = np.abs(values).max(tuple(across), keepdims=True).astype(np.float32)
    scale = np.where(most > 0, most / np.float32(LARGEST[dtype]), np.float32(1))
    (q,) = Quantize(dtype).reference(values.astype(np.float32), scale)
    return q, scale.reshape(()) if axis is None else scale.reshape(-1)


@checked
def fake_quantize_per_tensor_affine(
    input: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int
) -> Any:
    """input rounded to the values represented by integers from quant_min to quant_max, as
    torch.fake_quantize_per_tensor_affine: (clamp(round(x / scale) + zero_point) - zero_point) * scale.

    scale, zero_point: numbers, or one-element tensors. Straight-through gradient where the integer is in range, 0
    elsewhere (Bengio et al. 2013). Raises ValueError for quant_min > quant_max.
    """
    return _fake_quantized(
        "fake_quantize_per_tensor_affine", input, scale, zero_point, (), quant_min, quant_max
    )


@checked
def fake_quantize_per_channel_affine(
    input: Any, scale: Any, zero_point: Any, axis: int, quant_min: int, quant_max: int
) -> Any:
    """The same with a scale and a zero point [C] per entry along an axis, as torch.fake_quantize_per_channel_affine.
    Raises ShapeError for other shapes."""
    x = operand(input, "fake_quantize_per_channel_affine")
    place = normalize_axis(axis, x.ndim, "fake_quantize_per_channel_affine")
    shape = (x.shape[place],) + (1,) * (x.ndim - 1 - place)
    return _fake_quantized(
        "fake_quantize_per_channel_affine", x, scale, zero_point, shape, quant_min, quant_max
    )


def _fake_quantized(
    what: str, input: Any, scale: Any, zero_point: Any, shape: tuple[int, ...], low: int, high: int
) -> Any:
    """shape: the shape of scale and zero point that broadcasts to x."""
    if low > high:
        raise ValueError(f"{what}: quant_min={low} must be at most quant_max={high}")
    x = floating(input, what)
    beside = []
    for name, given in (("scale", scale), ("zero_point", zero_point)):
        value = operand(np.asarray(given, x.dtype.numpy) if is_number(given) else given, what, name)
        if value.spec.numel != math.prod(shape) or (shape and value.shape != shape[:1]):
            wanted = f"[{shape[0]}]" if shape else "one element"
            raise ShapeError(f"{what}: {name} must have {wanted}, got {value.spec}")
        beside.append(stop_gradient(value).cast(x.dtype).reshape(shape))
    step, zero = beside
    place = round(stop_gradient(x) / step) + zero
    inside = where(logical_and(place >= low, place <= high), x, 0.0)
    # The difference is 0: x takes part only for its gradient.
    return (clamp(place, low, high) - zero) * step + (inside - stop_gradient(inside))
