"""Dropout layers."""

from __future__ import annotations

from lamina import ops
from lamina.nn.module import Module, T
from lamina.nn.parameter import read, write
from lamina.nn.random import Generator, default_generator
from lamina.ops.core import operand
from lamina.tensors import Tensor


class Dropout(Module):
    """In training, zeroes each element with probability p and multiplies the others by 1 / (1 - p).

    (Srivastava et al. 2014.) The mask depends on the generator's seed and counter alone, so it is the same on
    every device. generator: whose state is used and advanced; default: the one that `manual_seed` seeds.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False, *, generator: Generator | None = None) -> None:
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"Dropout: p must be between 0 and 1, got {p}")
        self.p = p
        self.generator = generator or default_generator

    def forward(self, x: T) -> T:
        """x of any shape in a float dtype; itself in inference."""
        if not self.training or self.p == 0.0:
            return x
        y: T
        given: T = operand(x)
        state = read(self.generator.state)
        if isinstance(given, Tensor) and isinstance(state, Tensor):
            state = state.to(given.device)
        y, _, after = ops.dropout(given, self.p, state=state)
        write(self.generator.state, after)
        return y

    def extra_repr(self) -> str:
        """The argument, as torch prints it."""
        return f"p={self.p}"
