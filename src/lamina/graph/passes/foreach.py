"""Ops on many small tensors alike, in one launch: updates, roundings of parameters, counts.

The ops themselves say which they are: `Op.effect`, `Op.foreach` and `Op.widens`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lamina.backends import Backend, NoKernel
from lamina.backends.pattern import Either, PatternNode, Results, made_by
from lamina.graph.ir.graph import Graph, Node, Value
from lamina.graph.passes.pattern import Match, Report, RewriteRule, replace, rewrite
from lamina.ops.core import Op
from lamina.ops.primitives import Cast, Foreach, Fused, FusedElementwise, Reduce, Reshape
from lamina.spec.policies import policy as use_policy

#: Tensors of at most this many elements are updated (and rounded) together with others.
SMALL = 1 << 22
#: This many elementwise ops, or sums, of one kind justify a joint launch.
MANY = 4


def absorb_casts(graph: Graph, report: Report | None = None) -> Graph:
    """Let ops that widen an input themselves read it in a half type (updates their gradient, losses their logits),
    and ops that round their result at the end return it in one.
    """
    widened = RewriteRule("cast absorbed", made_by(Op, where=_widens), _narrowed)
    return rewrite(graph, [ROUNDING_ABSORBED, widened], report)


def _widens(node: PatternNode) -> bool:
    return bool(node.op.widens)


def _narrowed(match: Match) -> Results | None:
    node, inputs = match.root, match.inputs(match.root)
    narrow = [_before_widening(match, v) if i in node.op.widens else v for i, v in enumerate(inputs)]
    if all(a is b for a, b in zip(narrow, inputs, strict=True)):
        return None
    return dict(zip(node.outputs, match.apply(node.op, *narrow, at=node), strict=True))


def _rounds_last(node: PatternNode) -> bool:
    return bool(node.op.rounds_last)


_rounded = made_by(Op, name="wide", where=_rounds_last).read_once
_seen = made_by(Reshape, _rounded, name="seen").read_once


def _rounded_by_itself(match: Match) -> Results | None:
    """cast(op(cast(x), …)) -> op(x, …), with perhaps a reshape between cast and op, where x has the type that the
    result is rounded to."""
    root, wide = match.root, match.node("wide")
    x, *rest = match.inputs(wide)
    narrow = _before_widening(match, x)
    if narrow is x or narrow.dtype != root.outputs[0].dtype:
        return None
    (made,) = match.apply(wide.op, narrow, *rest, at=wide)
    if root.inputs[0] is not wide.outputs[0]:
        (made,) = match.apply(match.node("seen").op, made, at=root)
    return {root.outputs[0]: made}


ROUNDING_ABSORBED = RewriteRule(
    "rounding absorbed", made_by(Cast, Either((_rounded, _seen))), _rounded_by_itself
)


def _before_widening(match: Match, value: Value) -> Value:
    """The value in the half type that it had before a cast to a wider float; other values unchanged."""
    node = value.node
    if node is None or not isinstance(node.op, Cast | Reshape):
        return value
    (before,) = match.inputs(node)
    if isinstance(node.op, Reshape):
        narrow = _before_widening(match, before)
        return value if narrow is before else match.apply(node.op, narrow, at=node)[0]
    is_half = before.dtype.is_float and before.dtype.itemsize == 2
    return before if is_half and value.dtype.is_float and value.dtype.itemsize > 2 else value


def group_small(
    graph: Graph, backend: Backend, stays: Collection[Value] = (), report: Report | None = None
) -> Graph:
    """Do all updates of small parameters in one launch, all roundings of small inputs, all counts, and other ops on
    many tensors alike (scaling and clipping gradients, their norms, keeping the old state on a skipped step).

    Updates wait for the last gradient, roundings run at the start; large tensors are handled one by one, so that the
    memory of their gradients is reused. The single nodes stay where the backend has no kernel for many.
    stays: inputs that do not change between runs: what is computed from them is not mixed with other work.
    """
    if not backend.has_kernel(Foreach):
        return graph
    depth = _depths(graph)
    alike = [*_alike(graph, depth, stays), *_many(graph, depth, graph.unchanging(stays))]
    launches = [nodes for many in alike for nodes in _launches(many, backend) if len(nodes) > 1]
    if report is not None:
        report.merged.update(f"{nodes[0].op.name} for each of {len(nodes)}" for nodes in launches)
    made = [
        dict(zip((v for n in nodes for v in n.outputs), _foreach(nodes), strict=True)) for nodes in launches
    ]
    return replace(graph, {old: new for results in made for old, new in results.items()})


def _depths(graph: Graph) -> dict[Node, int]:
    """The number of updates on the longest path to each node, itself included.

    Updates of equal depth do not depend on each other, so that they may become one node.
    """
    depth: dict[Node, int] = {}
    for node in graph.nodes:
        before = max((depth[v.node] for v in node.inputs if v.node is not None), default=0)
        depth[node] = before + (node.op.effect == "update")
    return depth


def _alike(graph: Graph, depth: Mapping[Node, int], stays: Collection[Value]) -> list[list[Node]]:
    """Nodes that may share a launch, by what they have in common: small updates, roundings of small inputs,
    counts."""
    found: dict[Any, list[Node]] = {}
    for node in graph.nodes:
        small = node.outputs[0].spec.numel <= SMALL
        if small and (_counts(node) or (node.op.foreach and _may_wait_or_begin(node))):
            dtypes = tuple(v.dtype for v in node.inputs)
            key = (depth[node], node.op, node.policy, dtypes, node.inputs[0] in stays)
            found.setdefault(key, []).append(node)
    return list(found.values())


def _many(graph: Graph, depth: Mapping[Node, int], unchanging: Collection[Value]) -> list[list[Node]]:
    """Elementwise nodes and full reductions of one kind that can run together: at the end if only updates, which
    wait, read them; else where the first of them runs, if all of their operands exist by then."""
    read = {v for node in graph.nodes if node.op.effect != "update" for v in node.inputs}
    found: dict[Any, list[Node]] = {}
    for node in graph.nodes:
        if _is_one_of_many(node) and not _counts(node) and node.outputs[0] not in unchanging:
            dtypes = tuple(v.dtype for v in node.inputs)
            key = (depth[node], node.op, node.policy, dtypes, node.outputs[0] in read)
            found.setdefault(key, []).append(node)
    groups: list[list[Node]] = []
    for (*_, is_read), nodes in found.items():
        groups += _together(nodes) if is_read else [nodes]
    return [nodes for nodes in groups if len(nodes) >= MANY]


def _is_one_of_many(node: Node) -> bool:
    """Whether a node's op and sizes allow it to run together with others."""
    op, small = node.op, all(v.spec.numel <= SMALL for v in (*node.inputs, *node.outputs))
    if (
        not small
        or op.effect != "pure"
        or len(node.outputs) != 1
        or (op.foreach and _may_wait_or_begin(node))
    ):
        return False
    makes_number = isinstance(op, Reduce) and node.outputs[0].spec.numel == 1
    return bool(op.elementwise) or isinstance(_applied(node), FusedElementwise) or makes_number


def _applied(node: Node) -> Op:
    """The op of a node; a chain of elementwise steps as one expression."""
    op = node.op
    if isinstance(op, Fused) and all(step.elementwise for step in op.ops):
        return FusedElementwise.of_chain(op, len(node.inputs))
    return op


def _together(nodes: Sequence[Node]) -> list[list[Node]]:
    """Nodes in graph order, in groups each of which can run where its first node does."""

    def needed(node: Node) -> float:
        """The serial of the node's last producer."""
        return max((v.node.serial for v in node.inputs if v.node is not None), default=-math.inf)

    waiting = deque(sorted(nodes, key=needed))
    groups: list[list[Node]] = []
    taken: set[Node] = set()
    for node in nodes:
        ready: list[Node] = []
        while node not in taken and waiting and needed(waiting[0]) < node.serial:
            ready.append(waiting.popleft())
        taken.update(ready)
        groups.append(sorted(ready, key=lambda n: n.serial))
    return groups


def _may_wait_or_begin(node: Node) -> bool:
    """Whether a node may run together with others at the end of a step, as an update, or at its start."""
    return node.op.effect == "update" or all(v.is_input for v in node.inputs)


def _counts(node: Node) -> bool:
    """Whether a node computes a scalar from scalars that exist from the start (how many batches a norm has seen)."""
    given = all(v.is_input or v.constant is not None for v in node.inputs)
    return given and node.op.elementwise and all(v.spec.numel == 1 for v in (*node.inputs, *node.outputs))


def _launches(nodes: list[Node], backend: Backend) -> list[list[Node]]:
    """The nodes in as few launches as the backend has plans for: split in halves where it cannot take all."""
    if len(nodes) < 2 or _has_plan(nodes, backend):
        return [nodes]
    middle = len(nodes) // 2
    return [*_launches(nodes[:middle], backend), *_launches(nodes[middle:], backend)]


def _has_plan(nodes: Sequence[Node], backend: Backend) -> bool:
    specs = [v.spec for n in nodes for v in n.inputs]
    try:
        with use_policy(nodes[0].policy) as policy:
            backend.plan(Foreach(_applied(nodes[0]), len(nodes)), specs, policy)
    except NoKernel:
        return False
    return True


def _foreach(nodes: Sequence[Node]) -> tuple[Value, ...]:
    """One node for all: updates where the last one stood, others where the first did, or behind their operands."""
    first, last = nodes[0], nodes[-1]
    where = last.serial if first.op.effect == "update" else first.serial
    inputs = [v for node in nodes for v in node.inputs]
    return Node(
        Foreach(_applied(first), len(nodes)), inputs, first.policy, where, origin=first.origin
    ).outputs
