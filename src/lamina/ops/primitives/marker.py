"""Markers: ops that compute nothing and control differentiation. They are removed before a graph runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lamina.ops.core import Array, BatchAxes, Op, bind, call, operand, recorder
from lamina.spec import DTYPES, Spec

Passed = TypeVar("Passed")


@dataclass(frozen=True)
class Marker(Op, abstract=True):
    """An op whose outputs are some of its inputs, unchanged: no backend has or needs a kernel for it."""

    dtypes = DTYPES
    remembered = False

    def passed(self, inputs: Sequence[Passed]) -> tuple[Passed, ...]:
        """The indices of the inputs that are the outputs."""
        return tuple(inputs)

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        return tuple(s.open for s in self.passed(inputs))

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return self.passed(inputs)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return self.passed(axes)


@dataclass(frozen=True)
class Alias(Marker, abstract=True):
    """x itself under a new identity: the variable of a derivative."""

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return grads


@dataclass(frozen=True)
class Clone(Marker, abstract=True):
    """x itself, as a separate tensor: writes to either are not visible in the other."""

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return grads


@dataclass(frozen=True)
class StopGradient(Marker, abstract=True):
    """x itself, blocking its gradient."""

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (None,)


@dataclass(frozen=True)
class DrawnFor(Marker, abstract=True):
    """(generator state, x) -> the state, from which numbers are drawn for x: under `vmap` each sample has its own
    numbers if x is batched."""

    arity = 2

    def passed(self, inputs: Sequence[Passed]) -> tuple[Passed, ...]:
        return tuple(inputs[:1])

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return None, None


@dataclass(frozen=True)
class CustomGradient(Marker, abstract=True):
    """(arguments, results, kept) -> results, whose gradient is computed by `rule` from the gradients of the results.

    arguments, results: the number of inputs of each kind. rule(kept, grads): one gradient or None per argument.
    """

    rule: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
    arguments: int
    results: int
    arity = None

    def passed(self, inputs: Sequence[Passed]) -> tuple[Passed, ...]:
        return tuple(inputs[self.arguments : self.arguments + self.results])

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """The results themselves get none: the rule covers all their dependencies."""
        found = self.rule(inputs[self.arguments + self.results :], grads)
        return (*found, *[None] * (len(inputs) - self.arguments))


def stop_gradient(input: Any) -> Any:
    """input unchanged, as a constant for derivatives: it blocks gradients (JAX's name; torch's `detach`).

    Accepts and returns a tensor or a traced value of any shape and dtype. Outside a derivative it returns input
    itself.
    """
    x = operand(input, "stop_gradient")
    return call(StopGradient(), x) if x.records or recorder() is not None else x


def overwritten(before: Any, after: Any) -> Any:
    """`after`, which overwrites `before` without affecting derivatives (torch's `x.data`, or within `no_grad`).

    The derivative ignores the write: the gradient of `after` goes to `before`.
    """
    if not (operand(before).records or operand(after).records or recorder() is not None):
        return after
    return bind(_OVERWRITTEN, before, after)[0]


def _unchanged(kept: Sequence[Any], grads: Sequence[Any]) -> Sequence[Any]:
    return grads


_OVERWRITTEN = CustomGradient(_unchanged, 1, 1)
