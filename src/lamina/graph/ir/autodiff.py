"""Reverse-mode differentiation: walk the nodes backwards and ask each op for its gradient.

Gradients are calls to ops, recorded like everything else; gradients of gradients need nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lamina import ops
from lamina._tree import leaves
from lamina.graph.ir.graph import Graph, Node, Value, constant, reachable
from lamina.ops.core import Operand, operand, recorder
from lamina.spec import Spec
from lamina.spec.policies import policy as use_policy


def gradients(
    outputs: Value | Sequence[Value], wrt: Sequence[Value], grads: Sequence[Any] | None = None
) -> list[Value]:
    """d(outputs)/d(wrt), one value of the same shape per entry of wrt.

    outputs: scalars (shape ()), or any shapes when `grads` gives the gradient that arrives at each.
    A value that outputs do not depend on has gradient zero.
    Raises ValueError for a non-scalar output without a gradient, TypeError for a non-differentiable op on
    the way or an integer input.
    """
    outs = [_value(v) for v in ([outputs] if isinstance(outputs, Operand) else outputs)]
    wrt = [_value(v) for v in wrt]
    arriving: dict[Value, Any] = {}
    for out, g in zip(outs, grads or [_one(v) for v in outs], strict=True):
        _accumulate(arriving, out, g)
    _check_floats(wrt)
    nodes = reachable(outs)
    targets = set(wrt)
    needed = _depends_on(nodes, targets)
    for node in reversed(nodes):
        if node in needed:
            _backward(node, arriving, needed, targets)
    return [_as_value(arriving.get(v), v.spec) for v in wrt]


def value_and_grad(fn: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """A function that returns (fn(*args), gradient with respect to args[argnums]).

    fn returns a scalar. On tensors the derivative is traced and run at once; where an argument or a value that fn
    closes over is traced, it is recorded, so that the result can be differentiated again.
    """
    single = isinstance(argnums, int)
    positions = [argnums] if isinstance(argnums, int) else list(argnums)

    def traced(*args: Value) -> tuple[Any, ...]:
        result = fn(*args)
        return (result, *gradients(result, [args[i] for i in positions]))

    def run(*args: Any) -> tuple[Any, Any]:
        inputs = [Value(operand(a).spec, name=f"x{i}") for i, a in enumerate(args)]
        results = [v if isinstance(v, Value) else constant(v) for v in traced(*inputs)]
        outer = _other_inputs(results, inputs)
        value, *found = Graph([*inputs, *outer], results, "grad")(*args, *outer)
        return value, found[0] if single else tuple(found)

    return run


def grad(fn: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """A function that returns the gradient of the scalar fn(*args) with respect to args[argnums]."""
    both = value_and_grad(fn, argnums)
    return lambda *args: both(*args)[1]


def _other_inputs(results: Sequence[Value], inputs: Sequence[Value]) -> list[Value]:
    """Inputs of surrounding traces that results depend on: what fn closed over."""
    read, own = [*results, *(v for n in reachable(results) for v in n.inputs)], set(inputs)
    return list(dict.fromkeys(v for v in read if v.is_input and v not in own))


def _backward(node: Node, arriving: dict[Value, Any], needed: set[Node], wrt: set[Value]) -> None:
    """Add the gradients of a node's inputs to what has arrived there."""
    grads = [arriving.get(v) for v in node.outputs]
    if all(g is None for g in grads):
        return
    if not node.op.differentiable:
        raise TypeError(f"{node.op.name} has no gradient, and the result depends on it: {node!r}")
    with use_policy(node.policy):
        found = node.op.vjp(grads, node.inputs, node.outputs)
    if len(found) != len(node.inputs):
        raise TypeError(f"{node.op.name}.vjp gave {len(found)} gradients for {len(node.inputs)} inputs")
    for value, g in zip(node.inputs, found, strict=True):
        if g is not None and (value in wrt or value.node in needed):
            _check_gradient(node, value, g)
            _accumulate(arriving, value, g)


def _depends_on(nodes: Sequence[Node], targets: set[Value]) -> set[Node]:
    """The nodes through which some output depends on one of the targets."""
    needed: set[Node] = set()
    for node in nodes:
        if any(v in targets or v.node in needed for v in node.inputs):
            needed.add(node)
    return needed


def _accumulate(arriving: dict[Value, Any], value: Value, g: Any) -> None:
    held = arriving.get(value)
    arriving[value] = g if held is None else ops.add(held, g)


def _check_gradient(node: Node, value: Value, g: Any) -> None:
    if tuple(g.shape) != value.shape or g.dtype != value.dtype:
        raise TypeError(f"{node.op.name}.vjp gave {g.spec} for an input {value.spec}")


def _check_floats(wrt: Sequence[Value]) -> None:
    for value in leaves(list(wrt)):
        if not value.dtype.is_float:
            raise TypeError(
                f"gradients: {value!r} is {value.dtype}; only floating point values have gradients"
            )


def _value(x: Any) -> Value:
    """A traced value; within `lamina.jit` also what stands for a tensor. Raises TypeError for others."""
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
