"""Local response normalization across channels, and divisive normalization within them.

Sources: Krizhevsky et al. 2012; Jarrett et al. 2009. Counterparts: cudnnLRNCrossChannelForward and
cudnnDivisiveNormalizationForward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.ops.arguments import checked
from lamina.ops.core import Array, BatchAxes, Op, Sample, call, first_axis, operand
from lamina.ops.primitives.pool import sum_pool2d
from lamina.ops.primitives.shape import pad_axes
from lamina.spec import Shape, ShapeError, Spec


class _LocalResponse(Op):
    size: int
    alpha: float
    beta: float
    k: float

    def infer(self, *inputs: Spec) -> tuple[Spec]:
        self.check_float(*inputs)
        x = inputs[0]
        if self.size < 1:
            raise ValueError(f"{self.name}: size must be at least 1, got {self.size}")
        if x.ndim < 2 or any(other.shape != x.shape for other in inputs):
            raise ShapeError(f"{self.name}: operands must be [N, C, *spatial] and alike, got {inputs}")
        return (x.open,)

    @property
    def reach(self) -> tuple[int, int]:
        """The number of channels before and after its own in a window."""
        return self.size // 2, (self.size - 1) // 2


def _window(v: Array, before: int, behind: int) -> Array:
    """Sums over channels c - before … c + after."""
    pads = [(0, 0)] * v.ndim
    pads[1] = (before, behind)
    padded, n = np.pad(v, pads), v.shape[1]
    return np.asarray(np.sum([padded[:, i : i + n] for i in range(before + behind + 1)], 0))


def _traced_window(v: Any, before: int, behind: int) -> Any:
    """The same in ops."""
    pads = [(0, 0)] * v.ndim
    pads[1] = (before, behind)
    padded, n = pad_axes(v, pads), v.shape[1]
    total = padded[:, :n]
    for i in range(1, before + behind + 1):
        total = total + padded[:, i : i + n]
    return total


@dataclass(frozen=True)
class LocalResponseNorm(_LocalResponse):
    """x [N, C, *S] -> x / (k + alpha / size * sum of x² over `size` channels around) ** beta.

    The window of channel c is c - size // 2 … c + (size - 1) // 2, clipped to the existing channels.
    """

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return first_axis(axes)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        op = LocalResponseNormGrad(self.size, self.alpha, self.beta, self.k)
        return (call(op, grads[0], inputs[0]),)

    def reference(self, x: Array) -> tuple[Array]:
        base = self.k + self.alpha / self.size * _window(x * x, *self.reach)
        return (x * base**-self.beta,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape, options in _CASES:
            yield Sample.of(cls(*options), shape)


@dataclass(frozen=True)
class LocalResponseNormGrad(_LocalResponse):
    """(g, x) -> dx, the gradient of LocalResponseNorm."""

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0
    arity = 2

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        # dx = g p - f x W'(u) with p = base^-beta, u = g x base^(-beta-1), f = 2 alpha beta / size; W' is W mirrored.
        (t,), (g, x) = grads, inputs
        before, behind = self.reach
        slope, factor = self.alpha / self.size, 2 * self.alpha * self.beta / self.size
        base = _traced_window(x * x, before, behind) * slope + self.k
        power, steep = base**-self.beta, base ** (-self.beta - 1)
        to_u = _traced_window(t * x, before, behind) * -factor  # the mirror of W' is W
        by_g = t * power + to_u * x * steep
        spread = _traced_window(g * x * steep, behind, before)
        by_base = t * g * steep * -self.beta + to_u * g * x * base ** (-self.beta - 2) * (-self.beta - 1)
        by_x = t * spread * -factor + to_u * g * steep
        return by_g, by_x + x * _traced_window(by_base, behind, before) * (2 * slope)

    def reference(self, g: Array, x: Array) -> tuple[Array]:
        before, behind = self.reach
        base = self.k + self.alpha / self.size * _window(x * x, before, behind)
        spread = _window(g * x * base ** (-self.beta - 1), behind, before)
        return (g * base**-self.beta - 2 * self.alpha * self.beta / self.size * x * spread,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape, options in _CASES:
            yield Sample.of(cls(*options), shape, shape)


_CASES: tuple[tuple[Shape, tuple[int, float, float, float]], ...] = (
    ((2, 7, 3, 2), (5, 1e-1, 0.75, 2.0)),
    ((3, 4), (3, 1.0, 0.5, 1.0)),
    ((2, 6, 5), (2, 0.5, 1.0, 1.0)),  # an even window
    ((1, 3, 4, 4), (9, 1e-2, 0.75, 1.0)),  # wider than the channels
    ((2, 33, 5, 7), (5, 1e-1, 0.6, 1.5)),
    ((0, 3, 2), (1, 1.0, 0.75, 1.0)),
)


@checked
def local_response_norm(
    input: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Any:
    """input [N, C, *S] normalized by neighboring channels; torch.nn.functional.local_response_norm.

    y = x / (k + alpha / size * sum of x² over `size` channels) ** beta. Raises ShapeError, ValueError for size < 1.
    """
    op = LocalResponseNorm(int(size), float(alpha), float(beta), float(k))
    return call(op, operand(input, "local_response_norm"))


@checked
def divisive_norm(
    input: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 2.0, means: Any = None
) -> Any:
    """x[i] / (k + alpha / size² * sum over j of (x[j] - means[i])²) ** beta of input [N, C, H, W].

    j runs over the size × size window around i in the same channel, clipped to the image, with (size - 1) // 2
    positions before i. means: shaped like input, such as window averages; zeros by default. Differentiable in both.
    Counterpart: cudnnDivisiveNormalizationForward.
    Raises ShapeError, ValueError for size < 1.
    """
    x = operand(input, "divisive_norm")
    if size < 1:
        raise ValueError(f"divisive_norm: size must be at least 1, got {size}")
    if x.ndim != 4:
        raise ShapeError(f"divisive_norm: input must be [N, C, H, W], got {x.spec}")
    before = (size - 1) // 2
    pads = ((before, size - 1 - before),) * 2

    def around(v: Any) -> Any:
        return sum_pool2d(pad_axes(v, ((0, 0), (0, 0), *pads)), size, 1)

    squares = around(x * x)
    if means is not None:
        mean = operand(means, "divisive_norm", "means")
        rows, columns = (_counts(n, before, size - 1 - before) for n in x.shape[2:])
        inside = np.outer(rows, columns).astype(x.dtype.numpy)  # [H, W], an array: it goes where the mean is
        squares = squares - mean * around(x) * 2.0 + mean * mean * inside
    return x * (squares * (alpha / size**2) + k) ** -beta


def _counts(n: int, before: int, behind: int) -> Array:
    """The number of the n positions in the window around each: [n]."""
    i = np.arange(n)
    return np.minimum(n, i + behind + 1) - np.maximum(0, i - before)
