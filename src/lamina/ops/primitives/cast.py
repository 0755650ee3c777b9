"""Element type conversion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lamina.ops.arguments import DTypeLike, checked
from lamina.ops.core import Arg, Array, Op, Sample, call, operand
from lamina.spec import (
    DTYPES,
    FLOATS,
    DType,
    Spec,
    as_dtype,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint8,
)


@dataclass(frozen=True)
class Cast(Op):
    """The nearest value in another dtype (ties to even); floats to integers truncate.

    Integers of 8 and 16 bits are the low bits of a 32-bit one, as in NumPy and PyTorch: -1.0 is 255 as uint8. Values
    out of its range (or int64's, for 64 bits), and NaN, are device-defined: on a CPU its smallest number.

    Differentiable between floats: the gradient is cast back.
    """

    dtype: DType
    dtypes = DTYPES
    elementwise = True
    odd = True
    foreach = True

    def infer(self, x: Spec) -> tuple[Spec]:
        self.check_float(x)
        return (Spec(x.shape, self.dtype),)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        x = inputs[0]
        if not (x.dtype.is_float and self.dtype.is_float):
            return (None,)
        return (cast(grads[0], x.dtype),)

    def reference(self, x: Array) -> tuple[Array]:
        return (x.astype(self.dtype.numpy),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for to, shape in (
            (float64, (3, 5)),
            (float32, (2, 7, 1)),
            (float32, ()),
            (float64, (0, 3)),
            (float32, (33,)),
        ):
            yield Sample.of(cls(to), shape, dtypes=FLOATS)
        for half in (float16, bfloat16):
            yield Sample.of(cls(half), (4, 9), dtypes=FLOATS[1:])
        for whole in (int64, int32):
            yield Sample.of(
                cls(whole), Arg((3, 5), low=-20.0, high=20.0, differentiable=False), dtypes=FLOATS
            )
        yield Sample.of(
            cls(float32), Arg((3, 5), low=0, high=100, integers=True), dtypes=(int64, int32, uint8)
        )
        yield Sample.of(cls(float32), Arg((3, 5), bool_, low=0, high=2, integers=True), dtypes=(bool_,))
        yield Sample.of(cls(uint8), Arg((7,), bool_, low=0, high=2, integers=True), dtypes=(bool_,))


@checked
def cast(input: Any, dtype: DTypeLike) -> Any:
    """input in another dtype; input itself if it has it. Raises DTypeError for an unknown name."""
    x, to = operand(input, "cast"), as_dtype(dtype)
    return x if x.dtype == to else call(Cast(to), x)
