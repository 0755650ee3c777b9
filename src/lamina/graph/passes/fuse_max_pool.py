"""A batch norm and the max-pool of its result, and their gradients, as one node where nothing else reads what lies
between: that tensor, as large as the convolution's result, is then neither written nor read.
"""

from __future__ import annotations

from collections.abc import Sequence

from lamina.backends import Backend
from lamina.graph.ir.graph import Graph, Node, Value
from lamina.graph.passes.fuse_batch_norm import why_apart
from lamina.ops.primitives import BatchNorm, BatchNormGrad, MaxPool, MaxPoolGrad, NormPool, PoolNormGrad


def pools_in_norms(graph: Graph, backend: Backend, refusals: list[str]) -> Graph:
    """max_pool(batch_norm(x, …)) and batch_norm_grad(max_pool_grad(g, index), x, …) as one node each.

    The backend says by its plan's label whether it has a kernel for both, which under policy "fastest" is the faster.
    refusals: gets a line for each pair that stays apart.
    """
    forward, backward = _norms_before_pools(graph), _norms_behind_pool_grads(graph)
    cards = {norm: _pooled(norm, pool) for norm, pool in forward.items()}
    cards |= {norm: _gradient(pool, norm) for norm, pool in backward.items()}
    for norm, (card, inputs) in list(cards.items()):
        reason = why_apart(card, inputs, norm.policy, backend)
        if reason:
            refusals.append(reason)
            del cards[norm]
    taken = {pool for norm, pool in (forward | backward).items() if norm in cards}
    new: dict[Value, Value] = {}
    for node in graph.nodes:
        if node in taken:
            continue
        op, inputs = cards.get(node, (None, node.inputs))
        outputs = node.with_inputs(tuple(new.get(v, v) for v in inputs), op).outputs
        replaced = node.outputs
        if isinstance(op, NormPool):
            pooled, *index = forward[node].outputs
            replaced = (pooled, *node.outputs[1:], *index)
        new.update(zip(replaced, outputs, strict=True))
    return Graph(graph.inputs, [new.get(v, v) for v in graph.outputs], graph.name)


def _norms_before_pools(graph: Graph) -> dict[Node, Node]:
    """Norms and the max-pool that alone reads their result."""
    found, uses = {}, graph.uses()
    for node in graph.nodes:
        norm = node.inputs[0].node if isinstance(node.op, MaxPool) else None
        if norm is None or not isinstance(norm.op, BatchNorm) or norm.policy != node.policy:
            continue
        if node.inputs[0] is norm.outputs[0] and len(uses[node.inputs[0]]) == 1:
            found[norm] = node
    return found


def _norms_behind_pool_grads(graph: Graph) -> dict[Node, Node]:
    """Gradients of norms and the max-pool's gradient that they alone read."""
    found, uses = {}, graph.uses()
    for node in graph.nodes:
        pool = node.inputs[0].node if isinstance(node.op, BatchNormGrad) else None
        if pool is None or not isinstance(pool.op, MaxPoolGrad) or pool.policy != node.policy:
            continue
        if len(uses[node.inputs[0]]) == 1:
            found[node] = pool
    return found


def _pooled(norm: Node, pool: Node) -> tuple[NormPool | PoolNormGrad, Sequence[Value]]:
    """The card for a norm and the pool behind it, and its inputs."""
    assert isinstance(norm.op, BatchNorm)
    assert isinstance(pool.op, MaxPool)
    return NormPool(norm.op, pool.op), norm.inputs


def _gradient(pool: Node, norm: Node) -> tuple[NormPool | PoolNormGrad, Sequence[Value]]:
    """The card for a pool's gradient and the norm's behind it, and its inputs."""
    assert isinstance(norm.op, BatchNormGrad)
    assert isinstance(pool.op, MaxPoolGrad)
    return PoolNormGrad(pool.op, norm.op), (*pool.inputs, *norm.inputs[1:])
