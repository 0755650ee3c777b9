"""Reverse-mode differentiation: visit the nodes backwards and call each op's `vjp`.

Gradients are op calls, recorded like any other, so higher-order gradients need nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lamina import ops
from lamina._tree import leaves
from lamina.graph.ir.capture import EagerTape, as_recorded
from lamina.graph.ir.graph import Node, Value, constant, reachable, tensor_of
from lamina.graph.ir.pullback import pulled
from lamina.ops.arguments import shown
from lamina.ops.core import Operand, bind, call, recorder, recording
from lamina.ops.origin import origin_is
from lamina.ops.primitives.marker import Alias
from lamina.ops.primitives.pointwise import Add
from lamina.spec import Spec
from lamina.spec.policies import policy as use_policy
from lamina.tensors import Tensor


def gradients(
    outputs: Value | Sequence[Value], wrt: Sequence[Value], grads: Sequence[Any] | None = None
) -> list[Value]:
    """d(outputs)/d(wrt), one value of the same shape per entry of wrt.

    outputs: scalars (shape ()), or any shapes if `grads` gives the incoming gradient of each.
    An entry that outputs do not depend on has gradient zero.
    Raises ValueError for a non-scalar output without a gradient, TypeError for a non-differentiable op on
    the way or an integer input.
    """
    found = arriving_gradients(outputs, wrt, grads)
    return [zero_gradient(v) if g is None else g for g, v in zip(found, wrt, strict=True)]


def arriving_gradients(
    outputs: Value | Sequence[Value], wrt: Sequence[Value], grads: Sequence[Any] | None = None
) -> list[Value | None]:
    """As `gradients`, but None for entries that outputs do not depend on."""
    outs = [_value(v) for v in ([outputs] if isinstance(outputs, Operand) else outputs)]
    with as_recorded():  # with the values as recorded, ignoring later overwrites
        wrt = [_value(v) for v in wrt]
    return gradients_or_none(outs, wrt, grads or [_one(v) for v in outs])


def zero_gradient(v: Value) -> Value:
    """The gradient of a value that does not contribute: zeros of its shape and dtype."""
    return _as_value(None, v.spec)


def gradients_or_none(
    outputs: Sequence[Value], wrt: Sequence[Value], grads: Sequence[Any]
) -> list[Value | None]:
    """As `gradients`, with the incoming gradient of each output: None for entries that outputs do not depend on."""
    _check_floats(wrt)
    with as_recorded():
        found = _pull(outputs, grads, wrt, _recorded)
    return [None if g is None else _as_value(g, v.spec) for g, v in zip(found, wrt, strict=True)]


def known_gradients(
    outputs: Sequence[Value], wrt: Sequence[Value], grads: Sequence[Tensor], *, last: bool
) -> list[Tensor | None]:
    """The same for values of a tape, computed and not recorded; None for entries of wrt that outputs do not depend
    on.

    last: these derivatives are not needed again: values held by the nodes are freed on the way.
    """
    return _pull(outputs, grads, wrt, _computed, last=last)


def _pull(
    outputs: Sequence[Value],
    grads: Sequence[Any],
    wrt: Sequence[Value],
    vjp: Callable[[Node, Sequence[Any], Sequence[bool]], Sequence[Any]],
    *,
    last: bool = False,
) -> list[Any]:
    arriving: dict[Value, Any] = {}
    for out, g in zip(outputs, grads, strict=True):
        _accumulate(arriving, out, g)
    nodes = reachable(outputs)
    targets = set(wrt)
    needed = _depends_on(nodes, targets)
    for node in reversed(nodes):
        if node in needed:
            _backward(node, arriving, needed, targets, vjp)
        for v in node.outputs:
            if v not in targets:
                arriving.pop(v, None)
                if last:
                    v.known = None
    return [arriving.get(v) for v in wrt]


def _recorded(node: Node, grads: Sequence[Any], asked: Sequence[bool]) -> Sequence[Any]:
    with use_policy(node.policy):
        if node.op.differentiable:
            return node.op.vjp(grads, node.inputs, node.outputs)
        ys, xs = _composed(node, node.inputs)
        return _pull(*_arrived(ys, grads), xs, _recorded)


def _computed(node: Node, grads: Sequence[Any], asked: Sequence[bool]) -> Sequence[Any]:
    if node.op.differentiable:
        return pulled(node, grads, asked)
    with use_policy(node.policy):
        with recording(EagerTape()):
            ys, xs = _composed(node, tuple(map(tensor_of, node.inputs)))
        return _pull(*_arrived(ys, grads), xs, _computed, last=True)


def _composed(node: Node, inputs: Sequence[Any]) -> tuple[Sequence[Value], list[Value]]:
    """The outputs of an op without a gradient, composed of other ops, and the values that stand for its inputs.

    Raises TypeError if the op has no such composition.
    """
    own = [bind(Alias(), x)[0] for x in inputs]
    found = node.op.composed(*own)
    if found is None:
        raise TypeError(f"{node.op.name} has no gradient, and the result depends on it: {node!r}")
    return [_value(y) for y in found], own


def _arrived(ys: Sequence[Value], grads: Sequence[Any]) -> tuple[list[Value], list[Any]]:
    """The outputs with an incoming gradient, and these gradients."""
    kept = [(y, g) for y, g in zip(ys, grads, strict=False) if g is not None]
    return [y for y, _ in kept], [g for _, g in kept]


def _backward(
    node: Node,
    arriving: dict[Value, Any],
    needed: set[Node],
    wrt: set[Value],
    vjp: Callable[[Node, Sequence[Any], Sequence[bool]], Sequence[Any]],
) -> None:
    """Accumulate the gradients of a node's inputs."""
    grads = [arriving.get(v) for v in node.outputs]
    if not any(g is not None for g in grads):
        return
    asked = [value in wrt or value.node in needed for value in node.inputs]
    with origin_is(node.origin.of_gradient):
        found = vjp(node, grads, asked)
    if not isinstance(found, tuple | list):
        raise TypeError(
            f"{node.op.name}.vjp must give a tuple with one gradient or None for each of its {len(node.inputs)} "
            f"inputs, got {shown(found)}"
        )
    if len(found) != len(node.inputs):
        raise TypeError(f"{node.op.name}.vjp gave {len(found)} gradients for {len(node.inputs)} inputs")
    for value, g, wanted in zip(node.inputs, found, asked, strict=True):
        if g is not None and wanted:
            if node.op.elementwise:
                g = _within(value, g)
            _check_gradient(node, value, g)
            _accumulate(arriving, value, g)


def _within(value: Value, g: Any) -> Any:
    """A gradient summed over the axes along which an elementwise op broadcast its input."""
    target, shape = value.shape, tuple(g.shape)
    lead = len(shape) - len(target)
    if shape == target or lead < 0 or any(t not in (1, n) for t, n in zip(target, shape[lead:], strict=True)):
        return g
    return ops.sum_to(g, target)


def _depends_on(nodes: Sequence[Node], targets: set[Value]) -> set[Node]:
    """The nodes by which some output depends on one of the targets through floats, as integers have no gradient."""
    needed: set[Node] = set()
    for node in nodes:
        for v in node.inputs:
            if (v in targets or v.node in needed) and v.dtype.is_float:
                needed.add(node)
                break
    return needed


def _accumulate(arriving: dict[Value, Any], value: Value, g: Any) -> None:
    held = arriving.get(value)
    arriving[value] = g if held is None else call(Add(), held, g)


def _check_gradient(node: Node, value: Value, g: Any) -> None:
    if g.spec.open is not value.spec and (tuple(g.shape) != value.shape or g.dtype != value.dtype):
        raise TypeError(f"{node.op.name}.vjp gave {g.spec} for an input {value.spec}")


def _check_floats(wrt: Sequence[Value]) -> None:
    for value in leaves(list(wrt)):
        if not value.dtype.is_float:
            raise TypeError(
                f"gradients: {value!r} is {value.dtype}; only floating point values have gradients"
            )


def _value(x: Any) -> Value:
    """A traced value; within `lamina.jit` also the one that stands for a tensor. Raises TypeError for others."""
    by = recorder()
    found = x if by is None else by.read(x)
    if not isinstance(found, Value):
        raise TypeError(
            f"gradients: {type(x).__name__} {getattr(x, 'spec', '')} is not traced; differentiate a function with "
            "lamina.grad or lamina.value_and_grad, or call gradients within lamina.trace or lamina.jit"
        )
    return found


def _one(value: Value) -> Value:
    if value.shape != ():
        raise ValueError(
            f"gradients: the output {value!r} has shape {value.shape}; give a scalar (ops.mean, ops.sum) or `grads`"
        )
    return constant(np.ones((), value.dtype.numpy))


def _as_value(g: Any, spec: Spec) -> Value:
    if isinstance(g, Value):
        return g
    zero = constant(np.zeros((), spec.dtype.numpy)) if g is None else constant(g)
    found: Value = zero if zero.shape == spec.shape else ops.expand(zero, spec.shape)
    return found
