"""A constant with the shape and device of a tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.ops.arguments import DTypeLike, Number, checked, shown
from lamina.ops.core import Arg, Array, DeviceLike, Op, Sample, call, operand
from lamina.ops.primitives.cast import cast
from lamina.spec import DTYPES, DTypeError, Shape, Spec, as_dtype


@dataclass(frozen=True)
class FullLike(Op):
    """`value` everywhere, with x's shape and dtype; x's own values are not read."""

    value: Number
    dtypes = DTYPES
    elementwise = True
    inplace = {0: 0}
    reads_numbers = False

    def infer(self, x: Spec) -> tuple[Spec]:
        self.check_float(x)
        return (x.open,)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (None,)

    def reference(self, x: Array) -> tuple[Array]:
        return (np.full(x.shape, self.value, x.dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        shapes: list[Shape] = [(3, 5), (), (0, 3), (2, 3, 4, 5)]
        for shape in shapes:
            yield Sample.of(cls(3), Arg(shape, low=0, high=2, integers=True), dtypes=DTYPES[:-1])
        for shape in (*shapes, (17,)):
            yield Sample.of(cls(-0.5), shape, dtypes=DTYPES[:4])
        yield Sample.of(cls(True), Arg((4,), low=0, high=2, integers=True), dtypes=DTYPES)


@checked
def full_like(
    input: Any,
    fill_value: Number,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | str | None = None,
) -> Any:
    """fill_value everywhere, with input's shape, dtype and device; as torch.full_like.

    dtype, device: those of the result in place of input's. Raises DTypeError for a value that does not fit the dtype.
    """
    x = operand(input, "full_like")
    x = x if device is None else x.to(device)
    kind = x.dtype if dtype is None else as_dtype(dtype)
    value = fill_value.item() if isinstance(fill_value, np.generic) else fill_value
    if kind.kind in "iu":
        limits = np.iinfo(kind.numpy)
        if value != value or not limits.min <= value <= limits.max:
            raise DTypeError(f"full_like: fill_value {shown(fill_value)} is outside {kind}")
        value = int(value)
    if value == 0 and math.copysign(1, value) < 0 and kind.is_float:  # as a field it would equal 0.0
        return -call(FullLike(0.0), cast(x, kind))
    return call(FullLike(bool(value) if kind.kind == "b" else value), cast(x, kind))


@checked
def empty_like(input: Any, *, dtype: DTypeLike | None = None, device: DeviceLike | str | None = None) -> Any:
    """A tensor with input's shape, dtype and device and unspecified values (zeros). torch.empty_like."""
    return full_like(input, 0, dtype=dtype, device=device)


@checked
def zeros_like(input: Any, *, dtype: DTypeLike | None = None, device: DeviceLike | str | None = None) -> Any:
    """Zeros with input's shape, dtype (unless another is given) and device."""
    return full_like(input, 0, dtype=dtype, device=device)


@checked
def ones_like(input: Any, *, dtype: DTypeLike | None = None, device: DeviceLike | str | None = None) -> Any:
    """Ones with input's shape, dtype (unless another is given) and device."""
    return full_like(input, 1, dtype=dtype, device=device)
