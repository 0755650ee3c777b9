"""Softmax and its logarithm, over one or several axes, with gradients from the outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lamina.ops.arguments import Dims, DTypeLike, checked
from lamina.ops.core import Array, BatchAxes, Op, Sample, call, floating, operand
from lamina.ops.primitives.cast import cast
from lamina.ops.primitives.pointwise import where
from lamina.ops.primitives.reduce import amax, dims, reduce
from lamina.spec import Shape, ShapeError, Spec, normalize_axes

_CASES: tuple[tuple[Shape, tuple[int, ...]], ...] = (
    ((3, 10), (1,)),
    ((2, 5, 3, 3), (1,)),  # "channel": over the channels at each position
    ((2, 5, 3, 3), (1, 2, 3)),  # "instance": over all elements of an image
    ((4, 1), (1,)),
    ((0, 7), (1,)),
    ((3, 130), (0,)),
    ((17,), (0,)),
)


@dataclass(frozen=True)
class _Softmax(Op):
    axis: tuple[int, ...]

    def infer(self, *inputs: Spec) -> tuple[Spec]:
        self.check_float(*inputs)
        first = inputs[0]
        if not self.axis or normalize_axes(self.axis, first.ndim, self.name) != self.axis:
            raise ShapeError(
                f"{self.name}: axis must be sorted axes of {first} counted from the front, got {self.axis}"
            )
        if any(x.shape != first.shape for x in inputs):
            raise ShapeError(
                f"{self.name}: shapes {' and '.join(str(x.shape) for x in inputs)} must be equal"
            )
        return (first.open,)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        b = axes[0]
        return (b,) if b and b.axis not in self.axis and all(other == b for other in axes) else None

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op | None:
        return replace(self, axis=tuple(a + 1 for a in self.axis)) if all(batched) else None


@dataclass(frozen=True)
class Softmax(_Softmax):
    """exp(x) / sum over the axes of exp(x), without overflow (cudnnSoftmaxForward, ACCURATE)."""

    inplace = {0: 0}

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (call(SoftmaxGrad(self.axis), outputs[0], grads[0]),)

    def reference(self, x: Array) -> tuple[Array]:
        e = np.exp(x - np.max(x, self.axis, keepdims=True, initial=-np.inf))
        return (e / np.sum(e, self.axis, keepdims=True),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape, axis in _CASES:
            yield Sample.of(cls(axis), shape)


@dataclass(frozen=True)
class LogSoftmax(_Softmax):
    """x - log(sum over the axes of exp(x)), without overflow (cudnnSoftmaxForward, LOG)."""

    inplace = {0: 0}

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (call(LogSoftmaxGrad(self.axis), outputs[0], grads[0]),)

    def reference(self, x: Array) -> tuple[Array]:
        apart = x - np.max(x, self.axis, keepdims=True, initial=-np.inf)
        return (apart - np.log(np.sum(np.exp(apart), self.axis, keepdims=True)),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape, axis in _CASES:
            yield Sample.of(cls(axis), shape)


@dataclass(frozen=True)
class SoftmaxGrad(_Softmax):
    """(y, g) -> y * (g - sum over the axes of y * g)."""

    arity = 2
    inplace = {0: 1}

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (t,), (y, g) = grads, inputs
        inner = (y * g).sum(self.axis, keepdim=True)
        weight = (t * y).sum(self.axis, keepdim=True)
        return t * (g - inner) - weight * g, y * (t - weight)

    def reference(self, y: Array, g: Array) -> tuple[Array]:
        return (y * (g - np.sum(y * g, self.axis, keepdims=True)),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape, axis in _CASES:
            yield Sample.of(cls(axis), shape, shape)


@dataclass(frozen=True)
class LogSoftmaxGrad(_Softmax):
    """(y, g) -> g - exp(y) * sum over the axes of g."""

    arity = 2
    inplace = {0: 1}

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (t,), (y, g) = grads, inputs
        p = y.exp()
        weighted = t * p
        total = weighted.sum(self.axis, keepdim=True)
        return -(weighted * g.sum(self.axis, keepdim=True)), t - total

    def reference(self, y: Array, g: Array) -> tuple[Array]:
        return (g - np.exp(y) * np.sum(g, self.axis, keepdims=True),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape, axis in _CASES:
            yield Sample.of(cls(axis), shape, shape)


@checked
def softmax(input: Any, dim: int | Sequence[int] = -1, *, dtype: DTypeLike | None = None) -> Any:
    """exp(x) / sum of exp(x) over `dim`, one or several axes. dtype: input is cast to it first."""
    x = _given("softmax", input, dtype)
    return _over(Softmax, x, dims(dim, x.ndim, "softmax"))


@checked
def log_softmax(input: Any, dim: int | Sequence[int] = -1, *, dtype: DTypeLike | None = None) -> Any:
    """The logarithm of softmax over `dim`, one or several axes. dtype: input is cast to it first."""
    x = _given("log_softmax", input, dtype)
    return _over(LogSoftmax, x, dims(dim, x.ndim, "log_softmax"))


@checked
def softmin(input: Any, dim: int | Sequence[int] = -1, *, dtype: DTypeLike | None = None) -> Any:
    """softmax of -input."""
    return softmax(-_given("softmin", input, dtype), dim)


@checked
def logsumexp(input: Any, dim: Dims = None, keepdim: bool = False) -> Any:
    """log(sum of exp(x)) along dim, overflow-free: -inf if all elements are -inf, inf if any is inf."""
    x = floating(input, "logsumexp")
    axes = dims(dim, x.ndim, "logsumexp")
    if not x.spec.numel:
        return reduce("sum", x.exp(), axes, keepdim).log()
    top = amax(x, axes, True)
    top = where((top == top) & (top.abs() < float("inf")), top, 0.0)
    found = (x - top).exp().sum(axes, True).log() + top
    return found if keepdim else found.reshape([n for a, n in enumerate(x.shape) if a not in axes])


def _over(op_class: type[Softmax] | type[LogSoftmax], x: Any, axes: tuple[int, ...]) -> Any:
    """The op over axes; a 0-d tensor counts as a vector of one element."""
    return call(op_class(axes), x) if x.ndim else call(op_class((0,)), x.reshape((1,))).reshape(())


def _given(what: str, input: Any, dtype: DTypeLike | None) -> Any:
    x = operand(input, what)
    return x if dtype is None else cast(x, dtype)
