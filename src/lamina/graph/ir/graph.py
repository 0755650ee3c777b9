"""Values, nodes and graphs: what a program records when it runs on traced values.

A value knows the node that makes it, a node knows its inputs; a graph is a list of inputs, a list of
outputs and everything between them. Nothing is recorded in a global place, so traces nest freely, and what
no output needs is never in the graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf, nextafter
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lamina._tree import leaves
from lamina.ops.core import Op, Operand, bind, operand
from lamina.ops.operators import Operators
from lamina.ops.primitives.cast import Cast
from lamina.spec import Policy, ShapeError, Spec, current_policy
from lamina.spec.policies import policy as use_policy
from lamina.tensors import Tensor, as_constant

_serial = itertools.count()


class Value(Operators["Value"]):
    """A traced value: an input of a graph, a constant, or one output of a node.

    spec: shape and dtype (the layout is chosen when the graph is compiled).
    node, index: the producer and which of its outputs this is; node is None for inputs and constants.
    constant: the tensor, for constants.
    """

    __slots__ = ("_spec", "constant", "index", "name", "node")
    bind_priority: ClassVar[int] = 2

    def __init__(
        self,
        spec: Spec,
        *,
        node: Node | None = None,
        index: int = 0,
        constant: Tensor | None = None,
        name: str = "",
    ) -> None:
        self._spec = spec.open
        self.node = node
        self.index = index
        self.constant = constant
        self.name = name

    @property
    def spec(self) -> Spec:
        """Shape and dtype, layout open."""
        return self._spec

    @property
    def is_input(self) -> bool:
        """Whether the value is an input of a graph."""
        return self.node is None and self.constant is None

    @classmethod
    def bind_op(cls, op: Op, operands: Sequence[Any]) -> tuple[Value, ...]:
        """Record op as a node; tensors, arrays and numbers among the operands become constants."""
        inputs = tuple(x if isinstance(x, Value) else constant(x) for x in operands)
        return Node(op, inputs, current_policy()).outputs

    def __bool__(self) -> bool:
        raise TypeError(
            "a traced value has no truth value: the program's branches must not depend on data; "
            "use ops.where, or compute the condition outside of the trace"
        )

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"a traced value {self.spec} has no numbers yet; use lamina.ops inside a trace, not NumPy"
        )

    def item(self) -> Any:
        """Raises TypeError: there is no number before the graph runs."""
        raise TypeError(
            f"a traced value {self.spec} has no numbers yet: a Python number (item, float, int, an index, a format) "
            "cannot be made of it; go on with ops, or return it and convert the result"
        )

    tolist = numpy = __float__ = __int__ = __index__ = item

    def __format__(self, text: str) -> str:
        return repr(self) if not text else str(self.item())

    def __repr__(self) -> str:
        origin = self.name or (self.node.op.name if self.node else "constant")
        return f"Value({origin}: {self.spec})"


class Node:
    """One application of an op: inputs, outputs, and the policy that was in force.

    serial: nodes run in the order of their serials; a node that replaces another takes over its serial, or the next
    possible one where it reads what stands there.
    """

    __slots__ = ("inputs", "op", "outputs", "policy", "serial")

    def __init__(self, op: Op, inputs: Sequence[Value], policy: Policy, serial: float | None = None) -> None:
        self.op = op
        self.inputs = tuple(inputs)
        self.policy = policy
        self.serial: float = next(_serial) if serial is None else _behind(self.inputs, serial)
        specs = op.infer(*(v.spec for v in self.inputs))
        self.outputs = tuple(Value(s, node=self, index=i) for i, s in enumerate(specs))

    def with_inputs(self, inputs: tuple[Value, ...], op: Op | None = None) -> Node:
        """This node on other inputs (itself when nothing changes), at the same place in the order."""
        if op is None and all(a is b for a, b in zip(inputs, self.inputs, strict=True)):
            return self
        return Node(op or self.op, inputs, self.policy, self.serial)

    def __repr__(self) -> str:
        return f"Node({self.op}, {', '.join(str(v.spec) for v in self.inputs)})"


def _behind(inputs: Iterable[Value], serial: float) -> float:
    """The serial, or right behind the producers of `inputs` if that is later."""
    last = max((v.node.serial for v in inputs if v.node), default=-inf)
    return serial if last < serial else nextafter(last, inf)


def constant(x: Any) -> Value:
    """A constant of the graph from a tensor, an array or a number."""
    held = as_constant(x)
    return Value(held.spec, constant=held)


class Capture:
    """Records a function whole: tensors that it closes over become inputs, what it writes to them outputs.

    tensors: those that were read or written, in order of first use, by id; inputs: what stands for each.
    written: id -> its value after the function. guards: what the record depends on beside its arguments.
    """

    def __init__(self) -> None:
        self.tensors: dict[int, Tensor] = {}
        self.inputs: dict[int, Value] = {}
        self.written: dict[int, Value] = {}
        self.guards: list[Callable[[], bool]] = []

    def read(self, x: Any) -> Value:
        """What stands for an operand now."""
        if isinstance(x, Value):
            return x
        if not isinstance(x, Tensor):
            return constant(x)
        if id(x) in self.written:
            return self.written[id(x)]
        if id(x) not in self.inputs:
            self.tensors[id(x)] = x
            self.inputs[id(x)] = Value(x.spec, name=f"held{len(self.inputs)}")
        return self.inputs[id(x)]

    def write(self, target: Operand, values: Any) -> None:
        """Let a tensor hold other values from now on, converted to its dtype. Raises ShapeError."""
        before, after = self.read(target), self.read(values)
        if after.shape != before.shape:
            raise ShapeError(f"copy_: cannot write shape {after.shape} into a tensor of shape {before.shape}")
        made = after if after.dtype == before.dtype else bind(Cast(before.dtype), after)[0]
        self.written[id(target)] = made

    def guard(self, holds: Callable[[], bool]) -> None:
        """What is recorded is right only as long as this gives True."""
        self.guards.append(holds)

    def bind_op(self, op: Op, operands: Sequence[Any]) -> tuple[Value, ...]:
        """Record op as a node."""
        return Value.bind_op(op, [self.read(x) for x in operands])

    def call_op(self, op: Op, operands: Sequence[Any]) -> Value:
        """Record op as a node; its first output."""
        return self.bind_op(op, operands)[0]


class Use(NamedTuple):
    """Where a value is read: the node (None for a graph output) and the position."""

    node: Node | None
    position: int


class Graph:
    """Inputs, outputs, and the nodes that lie between them in the order they were recorded.

    `str(graph)` is its readable form; `graph(*operands)` runs it on tensors or records it into another trace.
    """

    def __init__(self, inputs: Sequence[Value], outputs: Sequence[Value], name: str = "graph") -> None:
        self.name = name
        self.inputs = list(inputs)
        self.outputs = list(outputs)
        self.nodes = _between(self.inputs, self.outputs, name)

    @property
    def constants(self) -> list[Value]:
        """The constants that nodes or outputs read, each once, in order of first use."""
        seen: dict[int, Value] = {}
        for value in itertools.chain((v for n in self.nodes for v in n.inputs), self.outputs):
            if value.constant is not None:
                seen.setdefault(id(value), value)
        return list(seen.values())

    def uses(self) -> dict[Value, list[Use]]:
        """Where each value is read."""
        found: dict[Value, list[Use]] = {v: [] for v in self.values()}
        for node in self.nodes:
            for i, value in enumerate(node.inputs):
                found[value].append(Use(node, i))
        for i, value in enumerate(self.outputs):
            found[value].append(Use(None, i))
        return found

    def values(self) -> Iterator[Value]:
        """Inputs, constants, then the outputs of the nodes in order."""
        yield from self.inputs
        yield from self.constants
        for node in self.nodes:
            yield from node.outputs

    def names(self) -> dict[Value, str]:
        """A name for each value: its own when it has one, else %0, %1, …"""
        count = itertools.count()
        taken: set[str] = set()
        names: dict[Value, str] = {}
        for value in self.values():
            name = value.name if value.name and value.name not in taken else str(next(count))
            taken.add(name)
            names[value] = "%" + name
        return names

    def __call__(self, *operands: Any) -> tuple[Any, ...]:
        """Apply the graph to operands: tensors compute at once, traced values record its nodes."""
        if len(operands) != len(self.inputs):
            raise TypeError(f"{self.name} takes {len(self.inputs)} operands, got {len(operands)}")
        for value, x in zip(self.inputs, operands, strict=True):
            _check_operand(self.name, value, x)
        given = [operand(x) for x in operands]
        where = next((x.device for x in given if isinstance(x, Tensor)), None)
        found: dict[Value, Any] = dict(zip(self.inputs, given, strict=True))
        for value in self.constants:
            found[value] = value.constant.to(where) if value.constant is not None else None
        for node in self.nodes:
            with use_policy(node.policy):
                results = bind(node.op, *(found[v] for v in node.inputs))
            found.update(zip(node.outputs, results, strict=True))
        return tuple(found[v] for v in self.outputs)

    def __str__(self) -> str:
        names = self.names()
        lines = [f"{self.name}("]
        lines += [f"    {names[v]}: {v.spec}," for v in self.inputs]
        lines += ["):"]
        lines += [f"    {names[v]}: {v.spec} = {_constant_text(v)}" for v in self.constants]
        for node in self.nodes:
            made = ", ".join(f"{names[v]}: {v.spec}" for v in node.outputs)
            read = ", ".join(names[v] for v in node.inputs)
            lines.append(f"    {made} = {node.op.name}({read}){_attributes(node.op)}")
        lines.append(f"    return {', '.join(names[v] for v in self.outputs)}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Graph({self.name}: {len(self.inputs)} inputs, {len(self.nodes)} nodes, {len(self.outputs)} outputs)"


def trace(fn: Callable[..., Any], *examples: Any, names: Sequence[str] | None = None) -> Graph:
    """Run fn on traced values and return the graph of what it did.

    examples: one Spec, tensor or array per argument; only shapes and dtypes are used.
    fn may return a value or a (nested) tuple, list or dict of values; the graph's outputs are the flat list.
    Raises TypeError when fn returns something that is neither an operand nor an array.
    """
    specs = [x if isinstance(x, Spec) else as_constant(x).spec for x in examples]
    labels = names or [f"x{i}" for i in range(len(specs))]
    inputs = [Value(s, name=n) for s, n in zip(specs, labels, strict=True)]
    result = fn(*inputs)
    outputs = [x if isinstance(x, Value) else constant(x) for x in leaves(result)]
    return Graph(inputs, outputs, getattr(fn, "__name__", "graph").strip("<>"))


def reachable(outputs: Iterable[Value]) -> list[Node]:
    """The nodes that outputs depend on, producers before consumers, in the order they were recorded."""
    found: dict[Node, None] = {}
    stack = [v.node for v in outputs if v.node]
    while stack:
        node = stack.pop()
        if node not in found:
            found[node] = None
            stack += [v.node for v in node.inputs if v.node]
    return sorted(found, key=lambda n: n.serial)


def _between(inputs: Sequence[Value], outputs: Sequence[Value], name: str) -> list[Node]:
    nodes = reachable(outputs)
    known = set(inputs)
    for value in itertools.chain((v for n in nodes for v in n.inputs), outputs):
        if value.is_input and value not in known:
            raise ValueError(
                f"{name} reads {value!r}, which is an input of another trace; pass it as an argument"
            )
    return nodes


def _check_operand(name: str, value: Value, x: Any) -> None:
    shape, dtype = (
        tuple(np.shape(x)) if not hasattr(x, "shape") else tuple(x.shape),
        getattr(x, "dtype", None),
    )
    if shape != value.shape:
        raise ValueError(f"{name}: input {value.name} has shape {value.shape}, got {shape}")
    if isinstance(x, Operators) and dtype != value.dtype:
        raise TypeError(f"{name}: input {value.name} is {value.dtype}, got {dtype}")


def _constant_text(value: Value) -> str:
    assert value.constant is not None
    if value.spec.numel > 8:
        return f"constant <{value.spec.numel} elements>"
    return f"constant {value.constant.numpy().tolist()}"


def _attributes(op: Op) -> str:
    text = str(op)[len(op.name) + 1 : -1]
    return f" {{{text}}}" if text else ""
