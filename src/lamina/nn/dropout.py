"""Dropout layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from lamina import ops
from lamina.nn.module import Module, T
from lamina.nn.parameter import read, write
from lamina.nn.random import Generator, default_generator
from lamina.ops.core import operand
from lamina.ops.in_place import written_over
from lamina.tensors import Tensor


def by_samples(drop: Callable[[Any], Any], x: Any, axis: int) -> Any:
    """The result of `drop` on x, whose samples are along a given axis: it gets them along axis 0, so that a rank
    draws its part of the numbers that a single rank would draw for the whole batch."""
    return ops.transpose(drop(ops.transpose(x, 0, axis)), 0, axis) if axis else drop(x)


class _Dropout(Module):
    """generator: the generator whose state is used and advanced; by default the one seeded by `manual_seed`."""

    function: ClassVar[Callable[..., Any]]
    inplace = False

    def __init__(self, p: float = 0.5, inplace: bool = False, *, generator: Generator | None = None) -> None:
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"{type(self).__name__}: p must be between 0 and 1, got {p}")
        self.p, self.inplace = p, inplace
        self.generator = generator or default_generator

    def forward(self, x: T) -> T:
        """x with dropped elements; x itself in inference."""
        if not self.training or self.p == 0.0:
            return x
        y: T
        given: T = operand(x)
        state = read(self.generator.state)
        if isinstance(given, Tensor) and isinstance(state, Tensor):
            state = state.to(given.device)
        y, after = self._dropped(given, state)
        write(self.generator.state, after)
        return written_over(x, y, type(self).__name__) if self.inplace else y

    def _dropped(self, x: Any, state: Any) -> tuple[Any, Any]:
        """x with dropped elements, and the generator's next state."""
        y, _, after = type(self).function(x, self.p, state=state)
        return y, after

    def extra_repr(self) -> str:
        """The argument, as torch prints it."""
        return f"p={self.p}" + (", inplace=True" if self.inplace else "")


class Dropout(_Dropout):
    """In training, zeroes each element with probability p and scales the others by 1 / (1 - p).

    (Srivastava et al. 2014.) The mask depends only on the generator's seed and counter, so it is the same on every
    device.
    """

    function = staticmethod(ops.dropout)


class Dropout1d(_Dropout):
    """`Dropout` of whole channels of (N, C, L) or (C, L)."""

    function = staticmethod(ops.dropout1d)


class Dropout2d(_Dropout):
    """`Dropout` of whole channels of (N, C, H, W); as in torch, three axes are taken as (N, C, L)."""

    function = staticmethod(ops.dropout2d)


class Dropout3d(_Dropout):
    """`Dropout` of whole channels of (N, C, D, H, W) or (C, D, H, W)."""

    function = staticmethod(ops.dropout3d)


class AlphaDropout(_Dropout):
    """Dropout for SELU networks, which keeps mean 0 and variance 1 (Klambauer et al. 2017)."""

    function = staticmethod(ops.alpha_dropout)


class FeatureAlphaDropout(_Dropout):
    """`AlphaDropout` of whole channels of (N, C, *S)."""

    function = staticmethod(ops.feature_alpha_dropout)
