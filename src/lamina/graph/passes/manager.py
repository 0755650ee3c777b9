"""Rewrites of a graph into an equal, better one. Each is a function from graph to graph.

Dead nodes need no pass: a graph holds only what its outputs depend on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from lamina.backends import Backend, NoKernel
from lamina.backends.reference import run_reference
from lamina.graph.ir.graph import Graph, Node, Value, constant
from lamina.graph.passes.algebraic import pool_gradient_last, sum_before_spreading
from lamina.graph.passes.attention import sequence_rules
from lamina.graph.passes.fold_batch_norm import fold_batch_norm
from lamina.graph.passes.foreach import absorb_casts, group_small
from lamina.graph.passes.fuse_batch_norm import (
    activate_norms,
    mask_in_norms,
    signs_in_bits,
    statistics_behind_convolutions,
    sums_behind_data_grads,
)
from lamina.graph.passes.fuse_max_pool import pools_in_norms
from lamina.graph.passes.rewrite import rewrite
from lamina.ops.core import Op
from lamina.ops.primitives import (
    BatchNormGrad,
    Cast,
    ConvNorm,
    DataGradNorm,
    Expand,
    Fused,
    NormPool,
    Reshape,
    Transpose,
)
from lamina.spec.policies import policy as use_policy

#: Constants larger than this are not made at compile time: they would only move work into memory.
FOLD_LIMIT = 1 << 16


def optimize(
    graph: Graph, backend: Backend, refusals: list[str] | None = None, stays: Collection[Value] = ()
) -> Graph:
    """All passes in order: fold constants, drop no-ops, merge equal nodes, fold batch norms, algebra, relu into batch
    norms, pools into them, their statistics behind convolutions, prune outputs, fuse, sums behind data gradients,
    group.

    refusals: gets a line for each fusion that the backend has no plan for.
    stays: inputs that are the same from run to run: what is made of them alone is not mixed with other work.
    """
    graph = common_subexpressions(drop_identities(fold_constants(graph)))
    graph = fold_constants(fold_batch_norm(graph, stays))
    for rule in (pool_gradient_last, sum_before_spreading):
        graph = rewrite(graph, rule)
    graph = activate_norms(graph)
    if backend.supports(BatchNormGrad) == "kernel":  # libraries would compute the norm again for its signs
        graph = mask_in_norms(graph)
    reasons = [] if refusals is None else refusals
    if backend.supports(NormPool) == "kernel":
        graph = pools_in_norms(graph, backend, reasons)
    if backend.supports(ConvNorm) == "cudnn":
        graph = statistics_behind_convolutions(graph, backend, reasons)
    graph = drop_identities(sequence_rules(graph, backend))
    graph = fuse(prune_outputs(absorb_casts(graph)), backend, reasons)
    if backend.supports(DataGradNorm) == "kernel":
        graph = signs_in_bits(sums_behind_data_grads(graph, backend, reasons), backend)
    return group_small(graph, backend, stays)


def fold_constants(graph: Graph) -> Graph:
    """Compute nodes whose inputs are all small constants, on the reference backend."""

    def rule(node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        small = all(v.spec.numel <= FOLD_LIMIT for v in node.outputs)
        if not small or not inputs or any(v.constant is None for v in inputs):
            return None
        arrays = [v.constant.numpy() for v in inputs if v.constant is not None]
        return [constant(a) for a in run_reference(node.op, arrays)]

    return rewrite(graph, rule)


def drop_identities(graph: Graph) -> Graph:
    """Remove reshapes, casts, expansions and transposes that change nothing."""

    def rule(node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        op = node.op
        same = inputs[0].spec == node.outputs[0].spec if inputs else False
        if isinstance(op, Reshape | Cast | Expand) and same:
            return [inputs[0]]
        if isinstance(op, Transpose) and op.order == tuple(range(len(op.order))):
            return [inputs[0]]
        return None

    return rewrite(graph, rule)


def common_subexpressions(graph: Graph) -> Graph:
    """Merge nodes with the same op, inputs and policy, and constants with the same bytes."""
    seen: dict[Any, tuple[Value, ...]] = {}
    constants: dict[Any, Value] = {}

    def key(value: Value) -> Value:
        if value.constant is None or value.spec.numel > FOLD_LIMIT:
            return value
        bits = value.constant.numpy().tobytes()
        return constants.setdefault((value.spec, bits), value)

    def rule(node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        inputs = tuple(map(key, inputs))
        which = (node.op, tuple(map(id, inputs)), node.policy)
        if which not in seen:
            seen[which] = node.with_inputs(inputs).outputs
        return seen[which]

    return rewrite(graph, rule)


def prune_outputs(graph: Graph) -> Graph:
    """Let ops leave out outputs that nobody reads (the indices of a max-pool in inference)."""
    uses = graph.uses()

    def rule(node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        used = [bool(uses[v]) for v in node.outputs]
        slim = node.op if all(used) else node.op.prune(used)
        if slim == node.op:
            return None
        outputs = node.with_inputs(inputs, slim).outputs
        return [*outputs, *node.outputs[len(outputs) :]]

    return rewrite(graph, rule)


def fuse(graph: Graph, backend: Backend, refusals: list[str] | None = None) -> Graph:
    """Merge a node with the elementwise nodes that follow it, as far as the backend has a plan for it.

    The unfused form stays where the backend refuses. The chain's values have no other reader; the fused node
    runs where the last one of the chain ran, when all other operands exist.
    """
    uses = graph.uses()
    chains: dict[Node, _Chain] = {}
    taken: set[Node] = set()
    reasons: list[str] = [] if refusals is None else refusals
    for node in graph.nodes:
        if node not in taken:
            chain = _grow(_Chain(node), uses, taken, backend, reasons)
            if chain.steps:
                chains[chain.nodes[-1]] = chain
                taken.update(chain.nodes)
    return _merge(graph, chains, taken)


class _Chain:
    """A head node and the elementwise nodes that follow it on its only output."""

    def __init__(self, head: Node, steps: tuple[tuple[Node, Op], ...] = (), extra: tuple[Value, ...] = ()):
        self.head, self.steps, self.extra = head, steps, extra

    @property
    def nodes(self) -> list[Node]:
        return [self.head, *(n for n, _ in self.steps)]

    @property
    def op(self) -> Fused:
        return Fused((self.head.op, *(op for _, op in self.steps)))

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (*self.head.inputs, *self.extra)


_COMMUTATIVE = frozenset({"add", "mul", "minimum", "maximum"})


def _grow(
    chain: _Chain, uses: dict[Value, list[Any]], taken: set[Node], backend: Backend, refusals: list[str]
) -> _Chain:
    """Extend a chain by one step after another while the backend can plan it."""
    while len(chain.nodes[-1].outputs) == 1 and len(uses[chain.nodes[-1].outputs[0]]) == 1:
        value = chain.nodes[-1].outputs[0]
        node = uses[value][0].node
        if node is None or node in taken or not node.op.elementwise or node.outputs[0].shape != value.shape:
            break
        if (
            len(node.outputs) != 1
            or node.policy != chain.head.policy
            or sum(v is value for v in node.inputs) != 1
        ):
            break
        others = tuple(v for v in node.inputs if v is not value)
        in_place = node.inputs[node.op.chained] is value
        if not in_place and node.op.name not in _COMMUTATIVE:
            break
        longer = _Chain(chain.head, (*chain.steps, (node, node.op)), (*chain.extra, *others))
        reason = _refusal(longer, backend)
        if reason:
            refusals.append(f"{longer.op}: {reason}")
            break
        chain = longer
    return chain


def _refusal(chain: _Chain, backend: Backend) -> str:
    """Why the backend has no plan for the fused op, "" where it has one; the heuristic's word is enough."""
    try:
        with use_policy(chain.head.policy, algorithm="heuristic") as policy:
            backend.plan(chain.op, [v.spec for v in chain.inputs], policy)
    except NoKernel as error:
        return " ".join(str(error).split())
    return ""


def _merge(graph: Graph, chains: dict[Node, _Chain], taken: set[Node]) -> Graph:
    new: dict[Value, Value] = {}
    for node in graph.nodes:
        chain = chains.get(node)
        if chain is not None:
            inputs = tuple(new.get(v, v) for v in chain.inputs)
            new[node.outputs[0]] = node.with_inputs(inputs, chain.op).outputs[0]
        elif node not in taken:
            inputs = tuple(new.get(v, v) for v in node.inputs)
            new.update(zip(node.outputs, node.with_inputs(inputs).outputs, strict=True))
    return Graph(graph.inputs, [new.get(v, v) for v in graph.outputs], graph.name)
