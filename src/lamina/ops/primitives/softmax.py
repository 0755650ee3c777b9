"""Softmax and its logarithm, over one axis or several, with gradients from the outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.ops.core import Array, BatchAxes, Op, Sample, call, operand
from lamina.spec import Shape, ShapeError, Spec, normalize_axes

_CASES: tuple[tuple[Shape, tuple[int, ...]], ...] = (
    ((3, 10), (1,)),
    ((2, 5, 3, 3), (1,)),  # "channel": over the channels at each place
    ((2, 5, 3, 3), (1, 2, 3)),  # "instance": over all elements of an image
    ((4, 1), (1,)),
    ((0, 7), (1,)),
    ((3, 130), (0,)),
    ((17,), (0,)),
)


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


@dataclass(frozen=True)
class Softmax(_Softmax):
    """exp(x) / sum over the axes of exp(x), without overflow (cudnnSoftmaxForward, ACCURATE)."""

    axis: tuple[int, ...]
    inplace = {0: 0}

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (call(SoftmaxGrad(self.axis), outputs[0], grads[0]),)

    def reference(self, x: Array) -> tuple[Array]:  # type: ignore[override]
        e = np.exp(x - np.max(x, self.axis, keepdims=True, initial=-np.inf))
        return (e / np.sum(e, self.axis, keepdims=True),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape, axis in _CASES:
            yield Sample.of(cls(axis), shape)


@dataclass(frozen=True)
class LogSoftmax(_Softmax):
    """x - log(sum over the axes of exp(x)), without overflow (cudnnSoftmaxForward, LOG)."""

    axis: tuple[int, ...]
    inplace = {0: 0}

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (call(LogSoftmaxGrad(self.axis), outputs[0], grads[0]),)

    def reference(self, x: Array) -> tuple[Array]:  # type: ignore[override]
        apart = x - np.max(x, self.axis, keepdims=True, initial=-np.inf)
        return (apart - np.log(np.sum(np.exp(apart), self.axis, keepdims=True)),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape, axis in _CASES:
            yield Sample.of(cls(axis), shape)


@dataclass(frozen=True)
class SoftmaxGrad(_Softmax):
    """(y, g) -> y * (g - sum over the axes of y * g)."""

    axis: tuple[int, ...]
    arity = 2
    inplace = {0: 1}

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (t,), (y, g) = grads, inputs
        inner = (y * g).sum(self.axis, keepdims=True)
        weight = (t * y).sum(self.axis, keepdims=True)
        return t * (g - inner) - weight * g, y * (t - weight)

    def reference(self, y: Array, g: Array) -> tuple[Array]:  # type: ignore[override]
        return (y * (g - np.sum(y * g, self.axis, keepdims=True)),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape, axis in _CASES:
            yield Sample.of(cls(axis), shape, shape)


@dataclass(frozen=True)
class LogSoftmaxGrad(_Softmax):
    """(y, g) -> g - exp(y) * sum over the axes of g."""

    axis: tuple[int, ...]
    arity = 2
    inplace = {0: 1}

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (t,), (y, g) = grads, inputs
        p = y.exp()
        weighted = t * p
        total = weighted.sum(self.axis, keepdims=True)
        return -(weighted * g.sum(self.axis, keepdims=True)), t - total

    def reference(self, y: Array, g: Array) -> tuple[Array]:  # type: ignore[override]
        return (g - np.exp(y) * np.sum(g, self.axis, keepdims=True),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape, axis in _CASES:
            yield Sample.of(cls(axis), shape, shape)


def softmax(input: Any, dim: int | Sequence[int] = -1) -> Any:
    """exp(x) / sum of exp(x) over `dim`, which may name several axes."""
    x = operand(input)
    return call(Softmax(normalize_axes(dim, x.ndim, "softmax")), x)


def log_softmax(input: Any, dim: int | Sequence[int] = -1) -> Any:
    """The logarithm of softmax over `dim`, which may name several axes."""
    x = operand(input)
    return call(LogSoftmax(normalize_axes(dim, x.ndim, "log_softmax")), x)
