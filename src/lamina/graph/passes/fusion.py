"""Operator fusion: the backend's own fusions, and elementwise epilogues."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial

from lamina.backends import Backend, Fusion, NoKernel, OpenChoice, Plan
from lamina.backends.pattern import PatternNode, Results, made_by
from lamina.graph.ir.graph import Graph, Node, Value, is_made_once
from lamina.graph.passes.pattern import Match, Report, RewriteRule, rewrite
from lamina.ops.core import Op
from lamina.ops.primitives.fused import Fused
from lamina.spec import Policy, Spec
from lamina.spec.policies import policy as use_policy
from lamina.tensors import plan_of

#: The most steps of one node: longer chains become several nodes.
_MOST_STEPS = 64


# ----------------------------------------------------------------------------------------------- a backend's fusions


def fuse_patterns(graph: Graph, fusions: Sequence[Fusion], backend: Backend, report: Report) -> Graph:
    """Replace matches of the fusions' patterns, where the backend has a plan that pays."""
    for fusion in fusions:
        rule = RewriteRule(fusion.name, fusion.pattern, partial(_fused, fusion, backend, report))
        graph = rewrite(graph, [rule], report)
    return graph


def _fused(fusion: Fusion, backend: Backend, report: Report, match: Match) -> Results | None:
    """The replacement of a match; None where it stays, with the reason in the report."""
    reason = fusion.check(match)
    if reason:
        report.refused.append(f"{fusion.name}: {match.root.op}{_where(match.root)}: {reason}")
        return None
    results = fusion.make(match)
    if not results or not match.rewriting.in_time(results):
        return None
    for node in _made(results, match):
        reason = _why_not(fusion.profit, node, backend) if isinstance(node.op, fusion.op or ()) else ""
        if reason:
            report.refused.append(f"{node.op}{_where(node)}: {reason}")
            return None
    return results


def _where(node: Node) -> str:
    """The module that a node belongs to, for reports."""
    return f" in {node.origin.module}" if node.origin.module else ""


def _made(results: Results, match: Match) -> Iterator[Node]:
    """The nodes that a replacement would add to the graph."""
    seen: set[Node] = set()
    stack = [v.node for v in results.values()]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen and not match.rewriting.knows(node):
            seen.add(node)
            yield node
            stack += [v.node for v in node.inputs]


def _why_not(profit: Callable[[Plan], str], node: Node, backend: Backend) -> str:
    """Why a fused node does not pay, "" where it does."""
    specs = tuple([v.spec for v in node.inputs])
    return _unprofitable(profit, backend, node.op, specs, node.policy, OpenChoice.settled)


@lru_cache(maxsize=4096)
def _unprofitable(
    profit: Callable[[Plan], str],
    backend: Backend,
    op: Op,
    specs: tuple[Spec, ...],
    policy: Policy,
    settled: int,
) -> str:
    """The same, cached for all layers and programs that ask for the same, until more plans are measured
    (`settled`)."""
    try:
        with use_policy(policy) as used:
            return profit(backend.plan(op, specs, used))
    except NoKernel as error:
        return " ".join(str(error).split())


# ------------------------------------------------------------------------------------------------- elementwise steps


def fuse_elementwise(
    graph: Graph, backend: Backend, report: Report | None = None, stays: Collection[Value] = ()
) -> Graph:
    """Merge a node with the elementwise nodes that follow it, as far as the backend has a plan for it.

    The unfused form stays where the backend refuses. The chain's values have no other reader; the fused node runs
    where the chain's last node ran, when all other operands exist.
    stays: inputs that do not change between runs: what is computed from them alone runs once, and is left as it is.
    """
    report = Report() if report is None else report
    once = made_once(graph, stays)
    chains = _Chains(backend, report, once)

    def varies(node: PatternNode) -> bool:
        return _is_step(node) and node.outputs[0] not in once

    return rewrite(graph, [RewriteRule("step", made_by(Op, where=varies), chains.extended)], report)


def made_once(graph: Graph, stays: Collection[Value]) -> set[Value]:
    """The values that are computed once, when weights are loaded: from unchanging values alone."""
    found = {*graph.constants, *stays}
    for node in graph.nodes:
        if node.inputs and found.issuperset(node.inputs):
            given, made = ([v.spec for v in values] for values in (node.inputs, node.outputs))
            found.update(node.outputs if is_made_once(node.op, given, made) else ())
    return found


def _is_step(node: PatternNode) -> bool:
    return bool(node.op.elementwise) and len(node.outputs) == 1


class _Chains:
    """The chains so far: by the fused node, where the head of the chain ran."""

    def __init__(self, backend: Backend, report: Report, once: Collection[Value]) -> None:
        self.backend, self.report, self.once = backend, report, once
        self.heads: dict[Node, float] = {}

    def extended(self, match: Match) -> Results | None:
        """A step absorbed by one of the chains that end in its operands; those with the earliest head come first.

        Following steps are absorbed at once where the backend has a plan for all of it, so that intermediate chains
        are not planned.
        """
        steps = [match.root, *_following(match.root, match)]
        changing = [v for v in match.inputs(match.root) if v not in self.once]
        ends = [node for v in changing if (node := _end(v, match.root, match)) is not None]
        for end in sorted(ends, key=self._head):
            made, taken = _with_steps(end, steps, match), steps
            if len(steps) > 1 and refusal(self.backend, made):
                made, taken = _with_steps(end, steps[:1], match), steps[:1]
            if reason := refusal(self.backend, made):
                self.report.refused.append(f"{made.op}{_where(made)}: {reason}")
                continue
            self.heads[made] = self._head(end)
            self.report.merged["step"] += len(taken) - 1
            return {taken[-1].outputs[0]: made.outputs[0]}
        return None

    def _head(self, node: Node) -> float:
        return self.heads.get(node, node.serial)


def refusal(backend: Backend, node: Node) -> str:
    """Why a backend has no plan for a fused op, "" where it has one; the answer of the heuristics suffices."""
    specs = tuple([v.spec for v in node.inputs])
    return _why_unplanned(backend, node.op, specs, _unmeasured(node.policy))


@lru_cache(maxsize=64)
def _unmeasured(policy: Policy) -> Policy:
    return replace(policy, algorithm="heuristic", once=False)


@lru_cache(maxsize=4096)
def _why_unplanned(backend: Backend, op: Op, specs: tuple[Spec, ...], policy: Policy) -> str:
    """The same, cached for all layers and programs that ask for the same."""
    try:
        with use_policy(policy):
            plan_of(backend, op, specs, policy)
    except NoKernel as error:
        return " ".join(str(error).split())
    return ""


def _with_steps(end: Node, steps: Sequence[Node], match: Match) -> Node:
    """The chain that ends in a node, with steps each of which reads the one before it."""
    ops = end.op.ops if isinstance(end.op, Fused) else (end.op,)
    inputs, value, origin = list(match.inputs(end)), end.outputs[0], end.origin
    for step in steps:
        inputs += [v for v in match.inputs(step) if v is not value]
        value, origin = step.outputs[0], origin.joined(step.origin)
    op = Fused((*ops, *(step.op for step in steps)))
    return Node(op, tuple(inputs), steps[-1].policy, steps[-1].serial, [value.spec], origin)


def _following(step: Node, match: Match) -> list[Node]:
    """The steps behind one that only its chain could absorb: their other operands end no chain."""
    found: list[Node] = []
    while len(found) + 1 < _MOST_STEPS:
        value = step.outputs[0]
        readers = match.rewriting.readers(value)
        behind = readers[0].node if len(readers) == 1 else None
        if behind is None or not _is_step(behind) or _end(value, behind, match) is None:
            return found
        if any(v is not value and v.node and v.shape == value.shape for v in match.inputs(behind)):
            return found
        found.append(behind)
        step = behind
    return found


def _end(value: Value, step: Node, match: Match) -> Node | None:
    """The node whose only output the value is, if the step may be absorbed by it."""
    node = value.node
    if node is None or len(node.outputs) != 1 or node.policy != step.policy:
        return None
    if isinstance(node.op, Fused) and len(node.op.ops) > _MOST_STEPS:
        return None
    inputs = match.inputs(step)
    places = [i for i, v in enumerate(inputs) if v is value]
    fits = places == [step.op.chained] or (len(places) == 1 and step.op.commutative)
    alike = value.shape == step.outputs[0].shape
    return node if fits and alike and len(match.rewriting.readers(value)) == 1 else None
