"""Markers: ops that compute nothing and say how to differentiate. Whoever runs a graph drops them first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lamina.ops.core import Array, BatchAxes, Op, bind, call, operand, recorder
from lamina.spec import DTYPES, Spec

Passed = TypeVar("Passed")


@dataclass(frozen=True)
class Marker(Op, abstract=True):
    """An op whose outputs are some of its inputs, as they are: no backend has a kernel for it, and none is needed."""

    dtypes = DTYPES
    remembered = False

    def passed(self, inputs: Sequence[Passed]) -> tuple[Passed, ...]:
        """The inputs that are the outputs."""
        return tuple(inputs)

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        return tuple(s.open for s in self.passed(inputs))

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return self.passed(inputs)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return self.passed(axes)


@dataclass(frozen=True)
class Alias(Marker, abstract=True):
    """x itself under another identity: what a derivative is taken with respect to."""

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return grads


@dataclass(frozen=True)
class Clone(Marker, abstract=True):
    """x itself, as a tensor of its own: what is written over either is not seen in the other."""

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return grads


@dataclass(frozen=True)
class StopGradient(Marker, abstract=True):
    """x itself, through which no gradient goes."""

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (None,)


@dataclass(frozen=True)
class DrawnFor(Marker, abstract=True):
    """(state of a generator, x) -> the state, from which numbers are drawn for x: of many samples (`vmap`) each has
    numbers of its own where x is theirs."""

    arity = 2

    def passed(self, inputs: Sequence[Passed]) -> tuple[Passed, ...]:
        return tuple(inputs[:1])

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return None, None


@dataclass(frozen=True)
class CustomGradient(Marker, abstract=True):
    """(arguments, results, kept) -> results, whose gradient is what `rule` makes of the gradients of the results.

    arguments, results: how many of the inputs are these. rule(kept, grads): one gradient or None per argument.
    """

    rule: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
    arguments: int
    results: int
    arity = None

    def passed(self, inputs: Sequence[Passed]) -> tuple[Passed, ...]:
        return tuple(inputs[self.arguments : self.arguments + self.results])

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """The results themselves get none: all that they depend on is told by the rule."""
        found = self.rule(inputs[self.arguments + self.results :], grads)
        return (*found, *[None] * (len(inputs) - self.arguments))


def stop_gradient(input: Any) -> Any:
    """input as it is, as a constant for derivatives: no gradient goes through it (JAX's name; torch's `detach`).

    Takes and gives a tensor or a traced value of any shape and dtype. Outside of a derivative it is input itself.
    """
    x = operand(input, "stop_gradient")
    return call(StopGradient(), x) if x.records or recorder() is not None else x


def overwritten(before: Any, after: Any) -> Any:
    """`after`, which is written over `before` past a derivative (torch's `x.data`, or within `no_grad`).

    The derivative takes nothing to have been written: the gradient of `after` goes to `before`.
    """
    if not (operand(before).records or operand(after).records or recorder() is not None):
        return after
    return bind(_OVERWRITTEN, before, after)[0]


def _unchanged(kept: Sequence[Any], grads: Sequence[Any]) -> Sequence[Any]:
    return grads


_OVERWRITTEN = CustomGradient(_unchanged, 1, 1)
