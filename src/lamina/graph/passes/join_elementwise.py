"""Elementwise nodes that read each other's results become one node, a `FusedElementwise`, where that is one kernel.

Nodes are visited from the outputs on. A node all of whose readers are in one expression becomes a step of it; one
that several expressions read is recomputed in each where that moves fewer bytes than writing and reading it. A
reduction absorbs the steps before it; slices, concatenations (with a unary step on a part) and repetitions become
access patterns of the operands.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from lamina.backends import Backend
from lamina.graph.ir.graph import Graph, Node, Use, Value
from lamina.graph.passes.fusion import made_once, refusal
from lamina.graph.passes.pattern import Report, replace
from lamina.ops.core import Op
from lamina.ops.primitives.cast import Cast
from lamina.ops.primitives.diagonal import Diagonal
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.ops.primitives.reduce import Reduce
from lamina.ops.primitives.shape import Concat, Expand, Reshape, Slice
from lamina.spec import Shape

#: The most steps and operands of one expression, and the most expressions that recompute the same value.
_MOST_STEPS, _MOST_OPERANDS, _MOST_COPIES = 64, 16, 4


def join_elementwise(
    graph: Graph, backend: Backend, stays: Collection[Value] = (), report: Report | None = None
) -> Graph:
    """Join elementwise nodes as far as the backend has a plan for the result.

    stays: inputs that do not change between runs: what is computed from them alone runs once, and is left as it is.
    """
    report = Report() if report is None else report
    groups = _Groups(graph, backend, stays)
    made = {group: group.node(groups) for group in groups.found()}
    refused = {group: reason for group, node in made.items() if (reason := refusal(backend, node))}
    report.refused += [f"{made[group].op}: {reason}" for group, reason in refused.items()]
    left = groups.with_what_they_share(refused)
    results = {g.root.outputs[0]: node.outputs[0] for g, node in made.items() if g not in left}
    report.merged["expression"] += len(results)
    return replace(graph, results)


@dataclass(eq=False)
class _Group:
    """Nodes that become one: `root`, which gives the result, and its steps, the last one first.

    shape: of the loops. reads: the values read but not computed here, so far.
    """

    root: Node
    shape: Shape
    members: dict[Node, None] = field(default_factory=dict)
    reads: dict[Value, None] = field(default_factory=dict)
    steps: int = 0

    def add(self, node: Node) -> None:
        """Add a node in front of the others."""
        self.members[node] = None
        self.reads.pop(node.outputs[0], None)
        self.reads.update(dict.fromkeys(node.inputs))
        self.steps += len(_ops(node.op))

    def takes(self, node: Node) -> bool:
        """Whether a node could be a step."""
        value = node.outputs[0]
        fits = value.shape == self.shape or (value.spec.numel == 1 and value.ndim <= len(self.shape))
        small = self.steps + len(_ops(node.op)) <= _MOST_STEPS
        return fits and small and node.policy == self.root.policy and len(self.reads) < _MOST_OPERANDS

    def takes_parts(self, joined: Node) -> bool:
        """Whether the group could read the parts of a concatenation."""
        fits = joined.outputs[0].shape == self.shape and joined.policy == self.root.policy
        few = len({*self.reads, *joined.inputs}) < _MOST_OPERANDS
        return fits and few and not isinstance(self.root.op, Reduce)

    def add_parts(self, joined: Node) -> None:
        """Read the parts of a concatenation instead of it."""
        self.reads.pop(joined.outputs[0], None)
        self.reads.update(dict.fromkeys(joined.inputs))

    def node(self, groups: _Groups) -> Node:
        """The node that replaces all; slices and concatenations that it reads are folded into it.

        What other groups recompute is rounded in each: they must agree (on which element is the largest, say).
        """
        writer = _Writer()
        origin = None
        for node in sorted(self.members, key=lambda n: n.serial):
            for v in node.inputs:
                writer.move(v, groups.moved)
            for number, op in enumerate(_ops(node.op)):
                writer.step(node, number, op)
            if (
                groups.is_shared(node)
                and node.outputs[0].dtype.itemsize < node.outputs[0].dtype.compute.itemsize
            ):
                writer.apply(Cast(node.outputs[0].dtype), node.outputs, node.outputs[0])
            origin = node.origin if origin is None else origin.joined(node.origin)
        op = FusedElementwise(tuple(writer.ops), tuple(writer.reads))
        root = self.root
        specs = [root.outputs[0].spec]
        return Node(op, tuple(writer.inputs), root.policy, root.serial, specs, origin)


class _Writer:
    """An expression being built: its inputs and steps, and the number of each value."""

    def __init__(self) -> None:
        self.inputs: dict[Value, int] = {}
        self.values: dict[Value, int] = {}
        self.ops: list[Op] = []
        self.reads: list[tuple[int, ...]] = []

    def number(self, value: Value) -> int:
        """The number of a step's result, or of an input."""
        found = self.values.get(value)
        return self.inputs.setdefault(value, len(self.inputs)) if found is None else found

    def apply(self, op: Op, operands: Sequence[Value], result: Value) -> None:
        """Append a step."""
        self.ops.append(op)
        self.reads.append(tuple(map(self.number, operands)))
        self.values[result] = ~(len(self.ops) - 1)

    def move(self, value: Value, moved: Collection[Node]) -> None:
        """Fold a moved node: how its value is read, and from what."""
        node = value.node
        if node is not None and node in moved and value not in self.values:
            for v in node.inputs:
                self.move(v, moved)
            self.apply(node.op, node.inputs, value)

    def step(self, node: Node, number: int, op: Op) -> None:
        """One of a node's ops: each op of a chain takes the running value as its input `chained`."""
        result = node.outputs[0]
        if not isinstance(node.op, Fused):
            self.apply(op, node.inputs, result)
            return
        if number == 0:
            self.taken = node.op.head_arity(len(node.inputs))
            self.apply(op, node.inputs[: self.taken], result)
            return
        others = (op.arity or 1) - 1
        read = [self.number(v) for v in node.inputs[self.taken : self.taken + others]]
        read.insert(op.chained, ~(len(self.ops) - 1))
        self.taken += others
        self.ops.append(op)
        self.reads.append(tuple(read))
        self.values[result] = ~(len(self.ops) - 1)


def _ops(op: Op) -> tuple[Op, ...]:
    return op.ops if isinstance(op, Fused) else (op,)


class _Groups:
    """Which nodes are steps of which groups. moved: nodes that only groups read, and that are folded: slices,
    concatenations, and steps on a part of one."""

    def __init__(self, graph: Graph, backend: Backend, stays: Collection[Value]) -> None:
        self.graph, self.backend = graph, backend
        self.moved: dict[Node, None] = {}
        self._of: dict[Node, list[_Group]] = {}
        self._once = made_once(graph, stays)

    def found(self) -> list[_Group]:
        """The groups of several nodes, in graph order."""
        graph = self.graph
        steps = [node for node in graph.nodes if self._joins(node)]
        if not steps:
            return []
        uses, known = graph.uses(), set(steps)
        for node in reversed(graph.nodes):
            if self._is_moved(node, uses[node.outputs[0]]):
                self.moved[node] = None
            elif node in known:
                self._place(node, uses[node.outputs[0]])
        every = dict.fromkeys(group for groups in self._of.values() for group in groups)
        return [g for g in reversed(every) if len(g.members) > 1 or self._moves(g.root)]

    def _moves(self, node: Node) -> bool:
        """Whether a node becomes an access pattern."""
        return any(v.node in self.moved for v in node.inputs)

    def is_shared(self, node: Node) -> bool:
        """Whether several groups compute a node."""
        return len(self._of[node]) > 1

    def with_what_they_share(self, groups: Collection[_Group]) -> set[_Group]:
        """Some groups, and transitively those that compute a node in common with one of them: another kernel might
        round it differently."""
        found, stack = set(groups), list(groups)
        while stack:
            for node in stack.pop().members:
                more = [g for g in self._of[node] if g not in found]
                found.update(more)
                stack += more
        return found

    def _joins(self, node: Node) -> bool:
        """Whether a node may be a step, or the reduction at the end."""
        op = node.op
        if op.effect != "pure" or len(node.outputs) != 1 or node.outputs[0] in self._once:
            return False
        if isinstance(op, Expand) or (isinstance(op, Reshape) and node.outputs[0].spec.numel == 1):
            return True
        first, *steps = _ops(op)
        inner = isinstance(op, Fused) and (first.elementwise or isinstance(first, Expand))
        if not (op.elementwise or isinstance(op, Reduce) or (inner and all(s.elementwise for s in steps))):
            return False
        return self.backend.joins(op, [v.spec for v in node.inputs])

    def _all_read(self, uses: Sequence[Use]) -> bool:
        """Whether only groups read a value."""
        return bool(uses) and all(use.node is not None and use.node in self._of for use in uses)

    def _is_moved(self, node: Node, uses: Sequence[Use]) -> bool:
        """Whether a slice, a diagonal, a concatenation, or a step on a part of one becomes an access pattern of
        groups."""
        if isinstance(node.op, Concat):
            return self._all_read(uses) and self._all_take(node, uses)
        if isinstance(node.op, Slice | Diagonal):
            return bool(uses) and all(use.node in self._of or use.node in self.moved for use in uses)
        return self._is_of_part(node, uses)

    def _is_of_part(self, node: Node, uses: Sequence[Use]) -> bool:
        """Whether it computes a part of a concatenation that groups read, from one tensor of the same type."""
        joined = uses[0].node if len(uses) == 1 else None
        if joined is None or joined not in self.moved or not isinstance(joined.op, Concat):
            return False
        is_step = node.op.elementwise and len(node.inputs) == 1 and self._joins(node)
        return is_step and node.inputs[0].spec == node.outputs[0].spec and node.policy == joined.policy

    def _all_take(self, joined: Node, uses: Sequence[Use]) -> bool:
        """Whether the groups that read a concatenation now read its parts."""
        if joined.outputs[0] in self._once:
            return False
        groups = dict.fromkeys(g for use in uses if use.node for g in self._of[use.node])
        known = self.backend.joins(joined.op, [v.spec for v in joined.inputs])
        if not known or not all(g.takes_parts(joined) for g in groups):
            return False
        for group in groups:
            group.add_parts(joined)
        return True

    def _place(self, node: Node, uses: Sequence[Use]) -> None:
        """Make a node a step of the groups that read it, or the root of a group of its own."""
        groups = self._readers(node, uses)
        if not groups:
            reduces = isinstance(node.op, Reduce)
            shape = node.inputs[0].shape if reduces else node.outputs[0].shape
            groups = [_Group(node, shape)]
        for group in groups:
            group.add(node)
        self._of[node] = groups

    def _readers(self, node: Node, uses: Sequence[Use]) -> list[_Group]:
        """The groups that could all absorb the node, which has no other readers; none where it should be computed
        once."""
        if isinstance(node.op, Reduce) or not self._all_read(uses):
            return []
        groups = list(dict.fromkeys(g for use in uses if use.node for g in self._of[use.node]))
        fits = all(g.takes(node) for g in groups)
        return groups if fits and (len(groups) == 1 or self._pays(node, groups)) else []

    def _pays(self, node: Node, groups: Sequence[_Group]) -> bool:
        """Whether recomputing a value in each group moves fewer bytes than writing it and reading it each time."""
        saved = node.outputs[0].spec.nbytes * (1 + len(groups)) + sum(v.spec.nbytes for v in set(node.inputs))
        added = sum(v.spec.nbytes for g in groups for v in set(node.inputs) if v not in g.reads)
        return len(groups) <= _MOST_COPIES and added <= saved
