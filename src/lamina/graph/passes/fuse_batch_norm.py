"""What stands around a batch norm taken into it: the sum at a residual join, relu, and relu's gradient.

A norm's last pass writes each element once; the sum and relu behind it then cost only the residual's bytes. Backwards
the norm's passes tell from x where relu let through, so that no mask and no output is read (cuDNN's BnAddRelu; Jung
et al. 2019, "Restructuring batch normalization to accelerate CNN training").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lamina.backends import Backend, NoKernel
from lamina.graph.ir.graph import Graph, Node, Use, Value
from lamina.graph.passes.rewrite import rewrite
from lamina.ops.core import Op
from lamina.ops.primitives import (
    Add,
    BatchNorm,
    BatchNormGrad,
    BatchNormInfer,
    ClippedRelu,
    ClippedReluGrad,
    Conv,
    ConvDataGrad,
    ConvNorm,
    DataGradNorm,
    Fused,
    Relu,
    ReluGrad,
)
from lamina.spec import Policy
from lamina.spec.policies import policy as use_policy

Uses = dict[Value, list[Use]]


@dataclass(frozen=True)
class _Tail:
    """The nodes behind a norm that it takes in, its card then, and what is added before relu."""

    nodes: tuple[Node, ...]
    card: BatchNorm | BatchNormInfer
    residual: tuple[Value, ...] = ()


def activate_norms(graph: Graph) -> Graph:
    """relu(batch_norm(x)) and relu(batch_norm(x) + z) as one node each, where nothing else reads what lies between.

    relu may be clipped. z, like x in shape and dtype, must be there when the norm runs.
    """
    uses, place = graph.uses(), {node: i for i, node in enumerate(graph.nodes)}
    tails = {node: tail for node in graph.nodes if (tail := _tail(node, uses, place)) is not None}
    taken = {node for tail in tails.values() for node in tail.nodes}
    new: dict[Value, Value] = {}
    for node in graph.nodes:
        if node in taken:
            continue
        inputs = tuple(new.get(v, v) for v in node.inputs)
        tail = tails.get(node)
        if tail is None:
            made = node.with_inputs(inputs)
        else:
            made = node.with_inputs((*inputs, *(new.get(v, v) for v in tail.residual)), tail.card)
            new[tail.nodes[-1].outputs[0]] = made.outputs[0]
        new.update(zip(node.outputs, made.outputs, strict=True))
    return Graph(graph.inputs, [new.get(v, v) for v in graph.outputs], graph.name)


def _tail(norm: Node, uses: Uses, place: dict[Node, int]) -> _Tail | None:
    """What the norm can take in; None where it is nothing."""
    op, y = norm.op, norm.outputs[0]
    if not isinstance(op, BatchNorm | BatchNormInfer) or op.relu:
        return None
    first = _reader(y, norm, uses)
    if first is None:
        return None
    if isinstance(first.op, Relu | ClippedRelu):
        return _Tail((first,), _activated(op, first.op))
    others = [v for v in first.inputs if v is not y]
    if not isinstance(first.op, Add) or len(others) != 1 or op.residual:
        return None
    (z,) = others
    last = _reader(first.outputs[0], norm, uses)
    if last is None or not isinstance(last.op, Relu | ClippedRelu) or z.spec.shape != y.shape:
        return None
    if z.dtype != y.dtype or (z.node is not None and place[z.node] > place[norm]):
        return None
    return _Tail((first, last), replace(_activated(op, last.op), residual=True), (z,))


def _reader(value: Value, norm: Node, uses: Uses) -> Node | None:
    """The only reader of a value, if it runs under the norm's policy."""
    if len(uses[value]) != 1:
        return None
    node = uses[value][0].node
    return node if node is not None and node.policy == norm.policy else None


def _activated(op: BatchNorm | BatchNormInfer, relu: Relu | ClippedRelu) -> BatchNorm | BatchNormInfer:
    """The norm with relu behind it."""
    return replace(op, relu=True, hi=relu.hi if isinstance(relu, ClippedRelu) else None)


def statistics_behind_convolutions(graph: Graph, backend: Backend, refusals: list[str]) -> Graph:
    """conv, then batch norm of its result, as one node where the backend's convolution takes the statistics along.

    Only policy "fastest" measures that. The backend says by its plan's label whether a library's graph does both, or
    its kernels apart are as fast.
    """
    uses, place = graph.uses(), {node: i for i, node in enumerate(graph.nodes)}
    new: dict[Value, Value] = {}
    pairs: dict[Node, Node] = {}
    for node in graph.nodes:
        conv = node.inputs[0].node if isinstance(node.op, BatchNorm) else None
        if conv is None or not isinstance(conv.op, Conv) or conv.policy != node.policy:
            continue
        if node.policy.algorithm != "fastest":
            continue
        readers = [use.node for use in uses[conv.outputs[0]]]
        if all(r is node or (r is not None and place[r] > place[node]) for r in readers):
            reason = why_apart(_conv_norm(conv, node), (*conv.inputs, *node.inputs[1:]), node.policy, backend)
            if reason:
                refusals.append(reason)
            else:
                pairs[node] = conv
    merged = set(pairs.values())
    for node in graph.nodes:
        if node in merged:
            continue
        if node in pairs:
            conv = pairs[node]
            inputs = tuple(new.get(v, v) for v in (*conv.inputs, *node.inputs[1:]))
            made = node.with_inputs(inputs, _conv_norm(conv, node))
            new.update(zip((*node.outputs, *conv.outputs), made.outputs, strict=True))
        else:
            inputs = tuple(new.get(v, v) for v in node.inputs)
            new.update(zip(node.outputs, node.with_inputs(inputs).outputs, strict=True))
    return Graph(graph.inputs, [new.get(v, v) for v in graph.outputs], graph.name)


def _conv_norm(conv: Node, norm: Node) -> ConvNorm:
    assert isinstance(conv.op, Conv)
    assert isinstance(norm.op, BatchNorm)
    return ConvNorm(conv.op, norm.op)


def why_apart(card: Op, inputs: Sequence[Value], policy: Policy, backend: Backend) -> str:
    """Why the two ops of a card stay apart; "" where the backend is faster with both in one."""
    try:
        with use_policy(policy) as active:
            plan = backend.plan(card, [v.spec for v in inputs], active)
    except NoKernel as error:
        return f"{card}: {' '.join(str(error).split())}"
    return f"{card}: {plan.label} is as fast" if plan.label.endswith(" apart") else ""


def sums_behind_data_grads(graph: Graph, backend: Backend, refusals: list[str]) -> Graph:
    """A convolution's data gradient (with a sum and relu's gradient), then the gradient of the batch norm before it,
    as one node where the backend's kernel for the first takes the sums of the second along.

    Only policy "fastest" measures that. The norm's other operands must be there when the convolution runs.
    """
    place = {node: i for i, node in enumerate(graph.nodes)}
    found: dict[Node, tuple[Node, DataGradNorm]] = {}
    for node in graph.nodes:
        grad = node.inputs[0].node if node.inputs else None
        card = None if grad is None or grad in found else _data_grad_norm(grad, node)
        if grad is None or card is None:
            continue
        if any(v.node is not None and place[v.node] >= place[grad] for v in node.inputs[1:]):
            continue
        reason = why_apart(card, (*grad.inputs, *node.inputs[1:]), node.policy, backend)
        if reason:
            refusals.append(reason)
        else:
            found[grad] = node, card
    merged = {norm for norm, _ in found.values()}
    new: dict[Value, Value] = {}
    for node in graph.nodes:
        if node in merged:
            continue
        inputs, outputs, op = node.inputs, node.outputs, node.op
        if node in found:
            norm, op = found[node]
            inputs, outputs = (*inputs, *norm.inputs[1:]), (*norm.outputs, *outputs)
        made = node.with_inputs(tuple(new.get(v, v) for v in inputs), op)
        new.update(zip(outputs, made.outputs, strict=True))
    return Graph(graph.inputs, [new.get(v, v) for v in graph.outputs], graph.name)


def signs_in_bits(graph: Graph, backend: Backend) -> Graph:
    """Let data gradients that are masked by relu's output read a bit for each of its elements, not the element.

    The norm that makes relu's output then writes the bits too; both must be nodes that take sums along.
    """
    masks = {y for node in graph.nodes if (y := _mask_of(node)) is not None and _writes_bits(y, backend)}
    if not masks:
        return graph
    signs: dict[Value, Value] = {}
    new: dict[Value, Value] = {}
    for node in graph.nodes:
        inputs, op, y = [new.get(v, v) for v in node.inputs], node.op, _mask_of(node)
        if isinstance(op, ConvNorm) and node.outputs[0] in masks:
            op = replace(op, bits=True)
        elif isinstance(op, DataGradNorm) and y in masks:
            op = replace(op, bits=True)
            inputs[-op.rest - 1] = signs[y]
        made = node.with_inputs(tuple(inputs), op)
        if node.outputs[0] in masks:
            signs[node.outputs[0]] = made.outputs[-1]
        new.update(zip(node.outputs, made.outputs, strict=False))
    return Graph(graph.inputs, [new.get(v, v) for v in graph.outputs], graph.name)


def _writes_bits(y: Value, backend: Backend) -> bool:
    """Whether the backend has a kernel that writes the bits with y."""
    norm = y.node
    assert norm is not None
    assert isinstance(norm.op, ConvNorm)
    return not why_apart(replace(norm.op, bits=True), norm.inputs, norm.policy, backend)


def _mask_of(node: Node) -> Value | None:
    """The output of a convolution's norm with plain relu that masks a data gradient."""
    op = node.op
    if not isinstance(op, DataGradNorm) or op.bits or not isinstance(op.grad, Fused):
        return None
    y = node.inputs[-op.rest - 1]
    norm = y.node.op if y.node is not None else None
    if not isinstance(op.grad.ops[-1], ReluGrad) or not isinstance(norm, ConvNorm) or norm.bits:
        return None
    whole = norm.norm.relu and norm.norm.hi is None and y.shape[1] % 8 == 0 and y.dtype.itemsize == 2
    return y if whole and y.node is not None and y is y.node.outputs[0] else None


def _data_grad_norm(grad: Node, norm: Node) -> DataGradNorm | None:
    """Both as one card, if they are what it takes, under a policy that measures."""
    if not isinstance(norm.op, BatchNormGrad) or norm.op.residual or grad.policy != norm.policy:
        return None
    head = grad.op.ops[0] if isinstance(grad.op, Fused) else grad.op
    if not isinstance(head, ConvDataGrad) or norm.policy.algorithm != "fastest":
        return None
    return DataGradNorm(grad.op if isinstance(grad.op, Fused) else head, norm.op)


def mask_in_norms(graph: Graph) -> Graph:
    """batch_norm_grad(relu_grad(y, g), x, …) -> batch_norm_grad(relu=True)(g, x, …, bias), y being the norm's output.

    For backends whose kernel computes y's sign from x on the way. Where a residual was added x does not tell, and
    where others read the masked gradient it has to be written anyway: both stay.
    """
    uses = graph.uses()

    def rule(node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        op, mask = node.op, inputs[0].node if inputs else None
        if not isinstance(op, BatchNormGrad) or op.relu or len(uses[node.inputs[0]]) != 1:
            return None
        if mask is None or not isinstance(mask.op, ReluGrad | ClippedReluGrad):
            return None
        y, g = mask.inputs
        norm = y.node
        if norm is None or not isinstance(norm.op, BatchNorm) or y is not norm.outputs[0]:
            return None
        alike = (*norm.inputs[:2], *norm.outputs[1:3])  # x, scale, mean, r
        if (
            not norm.op.relu
            or norm.op.residual
            or any(a is not b for a, b in zip(inputs[1:], alike, strict=True))
        ):
            return None
        card = replace(op, relu=True, hi=norm.op.hi)
        return node.with_inputs((g, *inputs[1:], norm.inputs[2]), card).outputs

    return rewrite(graph, rule)
