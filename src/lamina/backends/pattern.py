"""The language of op patterns: which ops compute a value, from which operands, under which conditions.

A pattern is data. It describes one value by the expression that makes it, as `ops` would compute it:

    x, g = operand("x"), operand("g")
    pool = made_by(MaxPool, x, name="pool")
    made_by(ReluGrad, x, made_by(MaxPoolGrad, g, pool.output(-1)))

A name stands for the same value (or node) wherever it occurs. The matcher is `lamina.graph.passes.pattern`; the
rules of the graph and the fusions of the backends are written in this one language. (tinygrad's UPat and TVM Relax's
dataflow patterns are of this kind.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from lamina.ops.core import Op
from lamina.spec import DType, Policy, Shape, Spec


class PatternValue(Protocol):
    """A value of a graph, as seen by patterns."""

    @property
    def spec(self) -> Spec:
        """Shape and dtype."""
        ...

    @property
    def shape(self) -> Shape:
        """Sizes, one per axis."""
        ...

    @property
    def dtype(self) -> DType:
        """The element type."""
        ...

    @property
    def ndim(self) -> int:
        """The number of axes."""
        ...


class PatternNode(Protocol):
    """An op applied to values: a node of a graph."""

    @property
    def op(self) -> Any:
        """The op."""
        ...

    @property
    def inputs(self) -> Sequence[PatternValue]:
        """Its operands."""
        ...

    @property
    def outputs(self) -> Sequence[PatternValue]:
        """Its results."""
        ...

    @property
    def policy(self) -> Policy:
        """The policy it was recorded under."""
        ...


# ------------------------------------------------------------------------------------------------------- patterns


class Pattern:
    """A description of a value."""


@dataclass(frozen=True)
class AnyValue(Pattern):
    """Any value. name: the same value wherever the name occurs; "" is not recorded."""

    name: str = ""
    where: Callable[[PatternValue], bool] | None = None


@dataclass(frozen=True)
class MadeBy(Pattern):
    """A value that an op computes.

    kinds: classes of the op. inputs: patterns of its first inputs, in either order where the op is commutative.
    where: a further condition on the node. index: which of the node's outputs the value is (-1: the last).
    only_reader: the value has no other reader, and is no output of the graph.
    other_readers: the value has another reader, or is an output of the graph: it is needed by itself.
    same_policy: the node was recorded under the policy of the root; False for nodes that are only inspected.
    """

    kinds: tuple[type[Op], ...]
    inputs: tuple[Pattern, ...] = ()
    name: str = ""
    where: Callable[[PatternNode], bool] | None = None
    index: int = 0
    only_reader: bool = False
    other_readers: bool = False
    same_policy: bool = True

    def output(self, index: int) -> MadeBy:
        """Another output of the same node. The pattern needs a name, so that it is the same one."""
        if not self.name:
            raise ValueError("output: a node that is met twice needs a name")
        return replace(self, index=index)

    @property
    def read_once(self) -> MadeBy:
        """The same, for a value without other readers."""
        return replace(self, only_reader=True)

    @property
    def read_elsewhere(self) -> MadeBy:
        """The same, for a value with another reader."""
        return replace(self, other_readers=True)


@dataclass(frozen=True)
class Either(Pattern):
    """A value that matches one of several patterns, the first that fits: this expresses optional parts."""

    options: tuple[Pattern, ...]


def operand(name: str = "", where: Callable[[Any], bool] | None = None) -> AnyValue:
    """Any value, remembered under a name."""
    return AnyValue(name, where)


def made_by(
    kinds: Any,
    *inputs: Pattern,
    name: str = "",
    where: Callable[[Any], bool] | None = None,
    same_policy: bool = True,
) -> MadeBy:
    """The first output of an op; kinds: a class, or several as `Conv | Matmul`."""
    found = getattr(kinds, "__args__", None) or (kinds,)
    return MadeBy(tuple(found), inputs, name, where, same_policy=same_policy)


def either(*options: Pattern) -> Either:
    """One of several patterns, tried in this order."""
    return Either(options)


# -------------------------------------------------------------------------------------------------------- matches

V = TypeVar("V", bound=PatternValue)


class PatternMatch(Protocol):
    """A match of a pattern: its named values, and the means to write a replacement."""

    @property
    def root(self) -> Any:
        """The node whose output the whole pattern describes."""
        ...

    def __getitem__(self, name: str) -> Any:
        """The value of a named operand; of a named node its matched output."""
        ...

    def __contains__(self, name: object) -> bool:
        """Whether a name is bound (those in optional parts may not be)."""
        ...

    def node(self, name: str) -> Any:
        """The node with a name."""
        ...

    def inputs(self, node: Any) -> tuple[Any, ...]:
        """A node's current inputs."""
        ...

    def exists(self, value: Any, at: Any) -> bool:
        """Whether a value is made before the node `at` runs."""
        ...

    def readers(self, value: Any) -> Sequence[Any]:
        """The current readers of a value, one entry per read; None stands for the graph's outputs."""
        ...

    def apply(self, op: Op, *inputs: Any, at: Any) -> tuple[Any, ...]:
        """The outputs of a new node, under the policy and at the place of the node `at`."""
        ...


#: value of the graph -> its replacement.
Results = Mapping[Any, Any]
