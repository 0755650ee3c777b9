"""Training operators in a model (domain ai.onnx.preview.training): gradients, and optimizer updates of any number of
tensors, each with gradient and state.
"""

from __future__ import annotations

from typing import Any

from lamina import ops
from lamina.convert.onnx.node import OnnxNode, converts
from lamina.graph import Value, gradients

DOMAIN = "ai.onnx.preview.training"


def _grouped(node: OnnxNode, kinds: int) -> list[tuple[Any, ...]]:
    """(tensor, gradient, states …) of each tensor: after the rate and the count come all of each kind."""
    rest = node.inputs[2:]
    count = len(rest) // kinds
    return [tuple(rest[k * count + i] for k in range(kinds)) for i in range(count)]


def _listed(results: list[tuple[Any, ...]]) -> list[Any]:
    """All of the first kind, then all of the second, …"""
    return [x for kind in zip(*results, strict=True) for x in kind]


def _regularized(node: OnnxNode, x: Any, g: Any) -> Any:
    return ops.add(g, ops.mul(x, node.get("norm_coefficient", 0.0)))


@converts("Momentum", domain=DOMAIN)
def momentum(node: OnnxNode) -> Any:
    """Gradient descent with momentum, standard or Nesterov's."""
    rate, count, keep, damp = node.input(0), node.input(1), node.needed("alpha"), node.needed("beta")
    found = []
    for x, g, v in _grouped(node, 3):
        g = _regularized(node, x, g)
        share = ops.where(ops.gt(count, 0), damp, 1.0)
        v = ops.add(ops.mul(v, keep), ops.mul(g, ops.cast(share, g.dtype)))
        step = ops.add(g, ops.mul(v, keep)) if node.needed("mode") == "nesterov" else v
        found.append((ops.sub(x, ops.mul(step, rate)), v))
    return _listed(found)


@converts("Adagrad", domain=DOMAIN)
def adagrad(node: OnnxNode) -> Any:
    """Steps divided by the root of the sum of squared gradients (Adagrad)."""
    rate, count = node.input(0), node.input(1)
    decayed = ops.div(rate, ops.add(ops.mul(ops.cast(count, rate.dtype), node.get("decay_factor", 0.0)), 1.0))
    found = []
    for x, g, h in _grouped(node, 3):
        g = _regularized(node, x, g)
        h = ops.add(h, ops.square(g))
        step = ops.div(ops.mul(g, decayed), ops.add(ops.sqrt(h), node.get("epsilon", 1e-6)))
        found.append((ops.sub(x, step), h))
    return _listed(found)


@converts("Adam", domain=DOMAIN)
def adam(node: OnnxNode) -> Any:
    """Steps by running means of gradients and of their squares, with bias correction (Adam)."""
    rate, count = node.input(0), node.input(1)
    a, b = node.get("alpha", 0.9), node.get("beta", 0.999)
    time = ops.cast(count, rate.dtype)
    corrected = ops.div(
        ops.mul(rate, ops.sqrt(ops.sub(1.0, ops.pow(b, time)))), ops.sub(1.0, ops.pow(a, time))
    )
    corrected = ops.where(ops.gt(count, 0), corrected, rate)
    found = []
    for x, g, v, h in _grouped(node, 4):
        g = _regularized(node, x, g)
        v = ops.add(ops.mul(v, a), ops.mul(g, 1 - a))
        h = ops.add(ops.mul(h, b), ops.mul(ops.square(g), 1 - b))
        step = ops.div(ops.mul(v, corrected), ops.add(ops.sqrt(h), node.get("epsilon", 1e-6)))
        x = ops.sub(x, step)
        found.append((ops.mul(x, 1 - node.get("norm_coefficient_post", 0.0)), v, h))
    return _listed(found)


@converts("Gradient", domain=DOMAIN)
def gradient(node: OnnxNode) -> Any:
    """The gradients of (the sum of) the value y with respect to the values xs, where they are.

    Only in a recorded graph (`OnnxGraph.trace`, `Predictor`, `lamina.jit`): eager computations keep no history.
    """
    xs, y, at = list(node.needed("xs")), node.needed("y"), [*node.needed("xs"), *node.get("zs", ())]
    if list(node.input_names) != at:
        raise node.error(f"is taken where {at} are, not at {list(node.input_names)}")
    if not isinstance(node.values.get(y), Value) or not all(
        isinstance(x, Value) for x in node.inputs[: len(xs)]
    ):
        raise node.error("gradients are of recorded graphs; trace or compile the model")
    return gradients(ops.sum(node.values[y]), list(node.inputs[: len(xs)]))
