"""Operators: Python's operators and the common methods, for tensors and traced values alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lamina.ops.core import Operand
from lamina.ops.primitives import pointwise as _pointwise
from lamina.ops.primitives import shape as _shape
from lamina.ops.primitives.cast import cast as _cast
from lamina.ops.primitives.matmul import matmul as _matmul
from lamina.ops.primitives.reduce import argmax as _argmax
from lamina.ops.primitives.reduce import argmin as _argmin
from lamina.ops.primitives.reduce import max as _max
from lamina.ops.primitives.reduce import mean as _mean
from lamina.ops.primitives.reduce import min as _min
from lamina.ops.primitives.reduce import prod as _prod
from lamina.ops.primitives.reduce import sum as _sum
from lamina.ops.primitives.reduce import sum_to as _sum_to
from lamina.ops.primitives.reduce import var as _var
from lamina.ops.primitives.softmax import log_softmax as _log_softmax
from lamina.ops.primitives.softmax import softmax as _softmax
from lamina.spec import DType

Axes = int | Sequence[int] | None


class Operators(Operand):
    """An operand with operators. `==` and `!=` compare elementwise; operands are hashed by identity."""

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        return _pointwise.add(self, other)

    def __radd__(self, other: Any) -> Any:
        return _pointwise.add(other, self)

    def __sub__(self, other: Any) -> Any:
        return _pointwise.sub(self, other)

    def __rsub__(self, other: Any) -> Any:
        return _pointwise.sub(other, self)

    def __mul__(self, other: Any) -> Any:
        return _pointwise.mul(self, other)

    def __rmul__(self, other: Any) -> Any:
        return _pointwise.mul(other, self)

    def __truediv__(self, other: Any) -> Any:
        return _pointwise.div(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _pointwise.div(other, self)

    def __pow__(self, other: Any) -> Any:
        return _pointwise.power(self, other)

    def __rpow__(self, other: Any) -> Any:
        return _pointwise.power(other, self)

    def __matmul__(self, other: Any) -> Any:
        return _matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return _matmul(other, self)

    def __neg__(self) -> Any:
        return _pointwise.neg(self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return _pointwise.abs(self)

    def __eq__(self, other: object) -> Any:
        return _pointwise.eq(self, other)

    def __ne__(self, other: object) -> Any:
        return _pointwise.ne(self, other)

    def __lt__(self, other: Any) -> Any:
        return _pointwise.lt(self, other)

    def __le__(self, other: Any) -> Any:
        return _pointwise.le(self, other)

    def __gt__(self, other: Any) -> Any:
        return _pointwise.gt(self, other)

    def __ge__(self, other: Any) -> Any:
        return _pointwise.ge(self, other)

    def __and__(self, other: Any) -> Any:
        return _pointwise.logical_and(self, other)

    def __rand__(self, other: Any) -> Any:
        return _pointwise.logical_and(other, self)

    def __or__(self, other: Any) -> Any:
        return _pointwise.logical_or(self, other)

    def __ror__(self, other: Any) -> Any:
        return _pointwise.logical_or(other, self)

    def __invert__(self) -> Any:
        return _pointwise.logical_not(self)

    def __getitem__(self, key: Any) -> Any:
        return _shape.getitem(self, key)

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("a tensor of shape () has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    __hash__ = object.__hash__
    #: NumPy leaves its operators to ours: array + tensor is a tensor.
    __array_ufunc__ = None

    @property
    def T(self) -> Any:
        """The axes in reverse order."""
        return _shape.transpose(self)

    def reshape(self, *shape: Any) -> Any:
        """The elements under another shape; one size may be -1."""
        return _shape.reshape(self, _sizes(shape))

    def transpose(self, *order: Any) -> Any:
        """The axes in another order, reversed by default."""
        return _shape.transpose(self, _sizes(order) if order and order[0] is not None else None)

    def permute(self, *dims: Any) -> Any:
        """The axes in another order."""
        return _shape.permute(self, _sizes(dims))

    def swapaxes(self, axis1: int, axis2: int) -> Any:
        """Two axes exchanged."""
        return _shape.swapaxes(self, axis1, axis2)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Any:
        """Axes start_dim … end_dim as one."""
        return _shape.flatten(self, start_dim, end_dim)

    def squeeze(self, axis: int | Sequence[int] | None = None) -> Any:
        """Without axes of size 1."""
        return _shape.squeeze(self, axis)

    def unsqueeze(self, axis: int) -> Any:
        """With a new axis of size 1."""
        return _shape.unsqueeze(self, axis)

    def expand(self, *shape: Any) -> Any:
        """Repeated up to a shape by NumPy's broadcasting rule."""
        return _shape.expand(self, _sizes(shape))

    def pad(self, pairs: Sequence[tuple[int, int]], value: float = 0.0) -> Any:
        """With `value` around it: a (before, after) pair per axis."""
        return _shape.pad(self, pairs, value)

    def flip(self, axes: int | Sequence[int]) -> Any:
        """Reversed along axes."""
        return _shape.flip(self, axes)

    def split(self, sizes: int | Sequence[int], axis: int = 0) -> tuple[Any, ...]:
        """Cut into parts along an axis."""
        return _shape.split(self, sizes, axis)

    def concat(self, others: Sequence[Any], axis: int = 0) -> Any:
        """Followed by other tensors along an axis."""
        return _shape.concat([self, *others], axis)

    def cast(self, dtype: DType | str | type) -> Any:
        """In another dtype."""
        return _cast(self, dtype)

    def sum(self, axis: Axes = None, keepdims: bool = False) -> Any:
        """The sum along axes."""
        return _sum(self, axis, keepdims)

    def mean(self, axis: Axes = None, keepdims: bool = False) -> Any:
        """The mean along axes."""
        return _mean(self, axis, keepdims)

    def prod(self, axis: Axes = None, keepdims: bool = False) -> Any:
        """The product along axes."""
        return _prod(self, axis, keepdims)

    def max(self, axis: Axes = None, keepdims: bool = False) -> Any:
        """The largest element along axes."""
        return _max(self, axis, keepdims)

    def min(self, axis: Axes = None, keepdims: bool = False) -> Any:
        """The smallest element along axes."""
        return _min(self, axis, keepdims)

    def var(self, axis: Axes = None, correction: float = 1, keepdims: bool = False) -> Any:
        """The variance along axes."""
        return _var(self, axis, correction, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """The index of the first largest element."""
        return _argmax(self, axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """The index of the first smallest element."""
        return _argmin(self, axis, keepdims)

    def sum_to(self, shape: Sequence[int]) -> Any:
        """Summed down to a shape that broadcasts to this one."""
        return _sum_to(self, shape)

    def where(self, a: Any, b: Any) -> Any:
        """a where this (boolean) is true, else b."""
        return _pointwise.where(self, a, b)

    def clip(self, low: Any = None, high: Any = None) -> Any:
        """Not below low and not above high."""
        return _pointwise.clip(self, low, high)

    def logical_not(self) -> Any:
        """Not, of booleans."""
        return _pointwise.logical_not(self)

    def abs(self) -> Any:
        """The magnitude."""
        return _pointwise.abs(self)

    def sign(self) -> Any:
        """-1, 0 or 1."""
        return _pointwise.sign(self)

    def exp(self) -> Any:
        """e to the power of this."""
        return _pointwise.exp(self)

    def log(self) -> Any:
        """The natural logarithm."""
        return _pointwise.log(self)

    def sqrt(self) -> Any:
        """The square root."""
        return _pointwise.sqrt(self)

    def rsqrt(self) -> Any:
        """1 by the square root."""
        return _pointwise.rsqrt(self)

    def reciprocal(self) -> Any:
        """1 by this."""
        return _pointwise.reciprocal(self)

    def sin(self) -> Any:
        """The sine."""
        return _pointwise.sin(self)

    def cos(self) -> Any:
        """The cosine."""
        return _pointwise.cos(self)

    def tan(self) -> Any:
        """The tangent."""
        return _pointwise.tan(self)

    def erf(self) -> Any:
        """The error function."""
        return _pointwise.erf(self)

    def relu(self) -> Any:
        """max(x, 0)."""
        return _pointwise.relu(self)

    def sigmoid(self) -> Any:
        """1 / (1 + exp(-x))."""
        return _pointwise.sigmoid(self)

    def tanh(self) -> Any:
        """The hyperbolic tangent."""
        return _pointwise.tanh(self)

    def softplus(self) -> Any:
        """log(1 + exp(x))."""
        return _pointwise.softplus(self)

    def gelu(self) -> Any:
        """x * Phi(x)."""
        return _pointwise.gelu(self)

    def silu(self) -> Any:
        """x * sigmoid(x)."""
        return _pointwise.silu(self)

    def softmax(self, dim: int | Sequence[int] = -1) -> Any:
        """exp(x) by its sum over axes."""
        return _softmax(self, dim)

    def log_softmax(self, dim: int | Sequence[int] = -1) -> Any:
        """The logarithm of softmax."""
        return _log_softmax(self, dim)


def _sizes(args: tuple[Any, ...]) -> Sequence[int]:
    """Sizes given one by one or as one sequence."""
    if len(args) == 1 and not hasattr(args[0], "__index__"):
        return tuple(args[0])
    return args
