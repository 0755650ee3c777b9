"""Recurrent layers: RNN, GRU and LSTM with one layer, forward, reverse or bidirectional."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.node import OnnxNode, as_tensor, converts
from lamina.spec import int64

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
#: The default activation of each gate.
FUNCTIONS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
#: The permutation from ONNX's gate order to PyTorch's: (z, r, h) -> (r, z, n); (i, o, f, c) -> (i, f, g, o).
ORDER = {"RNN": (0,), "GRU": (1, 0, 2), "LSTM": (0, 2, 3, 1)}
MODES = {"GRU": "gru", "LSTM": "lstm"}

Function = Callable[[Any], Any]


@dataclass(frozen=True)
class RecurrentNode:
    """The operands of a node, for its direction `d` if there are several, time first."""

    node: OnnxNode
    x: Any
    w: Any
    r: Any
    bias: Any
    lengths: Any
    first: tuple[Any, ...]
    peephole: Any

    @property
    def hidden(self) -> int:
        """H."""
        return int(self.r.shape[2])


@converts("RNN", "GRU", "LSTM")
def recurrent(node: OnnxNode) -> Any:
    """(y [T, D, B, H], the last states [D, B, H]); with layout 1 the batch comes first."""
    direction = node.get("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        raise node.error(f"direction must be forward, reverse or bidirectional, got {direction!r}")
    layer = _layer(node)
    if direction == "bidirectional" and _is_plain(layer):
        y, *states = _both_directions(layer)
    else:
        turned = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]
        found = [_one_direction(layer, d, back) for d, back in enumerate(turned)]
        y = ops.stack([f[0] for f in found], 1)
        states = [ops.stack([f[1 + i] for f in found], 0) for i in range(len(layer.first))]
    if node.get("layout", 0):
        return ops.permute(y, (2, 0, 1, 3)), *(ops.permute(s, (1, 0, 2)) for s in states)
    return y, *states


def _layer(node: OnnxNode) -> RecurrentNode:
    x, w, r = (node.input(i) for i in range(3))
    batch_first = node.get("layout", 0)
    x = ops.transpose(x, 0, 1) if batch_first else x
    lengths = node.optional(4)
    lengths = None if lengths is None else ops.cast(lengths, int64)
    shape = (w.shape[0], x.shape[1], r.shape[2])
    first = []
    for i in range(2 if node.operator == "LSTM" else 1):
        given = node.optional(5 + i)
        if given is None:
            given = as_tensor(np.zeros(shape), x.dtype)
        elif batch_first:
            given = ops.transpose(given, 0, 1)
        first.append(given)
    peephole = node.optional(7) if node.operator == "LSTM" else None
    return RecurrentNode(node, x, w, r, node.optional(3), lengths, tuple(first), peephole)


def _both_directions(layer: RecurrentNode) -> tuple[Any, ...]:
    """(y [T, 2, B, H], the last states [2, B, H]) of PyTorch's bidirectional layer."""
    steps, batch = layer.x.shape[:2]
    y, *states = _by_the_op(layer, (0, 1), layer.x)
    return ops.permute(ops.reshape(y, (steps, batch, 2, layer.hidden)), (0, 2, 1, 3)), *states


def _one_direction(layer: RecurrentNode, d: int, backwards: bool) -> tuple[Any, ...]:
    """(y [T, B, H], the last states [B, H]) of direction d."""
    steps, batch = layer.x.shape[:2]
    lengths = layer.lengths
    if backwards and lengths is None:
        lengths = as_tensor(np.full(batch, steps))
    x = ops.reverse_sequence(layer.x, lengths) if backwards else layer.x
    if _is_plain(layer):
        y, *states = _by_the_op(layer, (d,), x)
        states = [s.squeeze(0) for s in states]
    else:
        y, *states = _step_by_step(layer, d, x)
    return (ops.reverse_sequence(y, lengths) if backwards else y), *states


def _names(layer: RecurrentNode) -> tuple[str, ...]:
    """The gates' activations of one direction."""
    usual = FUNCTIONS[layer.node.operator]
    return tuple(layer.node.get("activations", usual))[: len(usual)]


def _is_plain(layer: RecurrentNode) -> bool:
    """Whether it matches PyTorch's layer: its activations, no peepholes, no clipping or coupling."""
    node = layer.node
    functions = _names(layer) == FUNCTIONS[node.operator] or (node.operator, _names(layer)) == (
        "RNN",
        ("Relu",),
    )
    same = tuple(node.get("activations", ())) in ((), _names(layer), _names(layer) * 2)
    reset = node.operator != "GRU" or node.get("linear_before_reset", 0)
    return bool(
        functions and same and reset and layer.peephole is None and "clip" not in node.attributes
        and not node.get("input_forget", 0)
    )  # fmt: skip


def _by_the_op(layer: RecurrentNode, directions: Sequence[int], x: Any) -> tuple[Any, ...]:
    """(y [T, B, D H], the last states [D, B, H]) of the forward direction, or of both."""
    operator, half = layer.node.operator, GATES[layer.node.operator] * layer.hidden
    mode = MODES.get(operator, _names(layer)[0].lower())
    weights = []
    for d in directions:
        weights += [_ordered(m[d], operator) for m in (layer.w, layer.r)]
        if layer.bias is not None:
            weights += [_ordered(b, operator) for b in (layer.bias[d][:half], layer.bias[d][half:])]
    first = [s[directions[0] : directions[-1] + 1] for s in layer.first]
    return tuple(
        ops.rnn(
            mode, x, first, weights, hidden=layer.hidden, bidirectional=len(directions) > 1,
            bias=layer.bias is not None, lengths=layer.lengths,
        )
    )  # fmt: skip


def _ordered(m: Any, operator: str) -> Any:
    parts = ops.chunk(m, GATES[operator], 0)
    return ops.cat([parts[i] for i in ORDER[operator]], 0)


def _step_by_step(layer: RecurrentNode, d: int, x: Any) -> tuple[Any, ...]:
    """The recurrence as written, step by step: for variants without a kernel."""
    node, w, r = layer.node, layer.w[d], layer.r[d]
    gates, hidden = GATES[node.operator], layer.hidden
    bias = layer.bias[d] if layer.bias is not None else as_tensor(np.zeros(2 * gates * hidden), x.dtype)
    step = partial(STEPS[node.operator], layer, d, _functions(layer, d), ops.transpose(r, 0, 1), bias)
    from_input = ops.matmul(x, ops.transpose(w, 0, 1))  # [T, B, G H]
    states, outputs = tuple(s[d] for s in layer.first), []
    for t in range(x.shape[0]):
        after = step(from_input[t], states)
        y = after[0]
        if layer.lengths is not None:
            inside = ops.gt(layer.lengths, t).unsqueeze(1)
            after = tuple(ops.where(inside, a, s) for a, s in zip(after, states, strict=True))
            y = ops.where(inside, y, 0.0)
        states = after
        outputs.append(y)
    return ops.stack(outputs, 0), *states


def _clipped(layer: RecurrentNode, x: Any) -> Any:
    bound = layer.node.get("clip")
    return x if bound is None else ops.clamp(x, -bound, bound)


def _rnn_step(
    layer: RecurrentNode,
    d: int,
    f: Sequence[Function],
    r: Any,
    bias: Any,
    given: Any,
    states: tuple[Any, ...],
) -> tuple[Any, ...]:
    n = layer.hidden
    total = ops.add(ops.add(given, ops.matmul(states[0], r)), ops.add(bias[:n], bias[n:]))
    return (f[0](_clipped(layer, total)),)


def _gru_step(
    layer: RecurrentNode,
    d: int,
    f: Sequence[Function],
    r: Any,
    bias: Any,
    given: Any,
    states: tuple[Any, ...],
) -> tuple[Any, ...]:
    n, h = layer.hidden, states[0]
    own, back = bias[: 3 * n], bias[3 * n :]
    given = ops.add(given, own)
    both = ops.add(ops.add(given[:, : 2 * n], ops.matmul(h, r[:, : 2 * n])), back[: 2 * n])
    both = f[0](_clipped(layer, both))
    z, reset = both[:, :n], both[:, n:]
    if layer.node.get("linear_before_reset", 0):
        inner = ops.mul(reset, ops.add(ops.matmul(h, r[:, 2 * n :]), back[2 * n :]))
    else:
        inner = ops.add(ops.matmul(ops.mul(reset, h), r[:, 2 * n :]), back[2 * n :])
    candidate = f[1](_clipped(layer, ops.add(given[:, 2 * n :], inner)))
    return (ops.add(candidate, ops.mul(z, ops.sub(h, candidate))),)


def _lstm_step(
    layer: RecurrentNode,
    d: int,
    f: Sequence[Function],
    r: Any,
    bias: Any,
    given: Any,
    states: tuple[Any, ...],
) -> tuple[Any, ...]:
    n, (h, c) = layer.hidden, states
    total = ops.add(ops.add(given, ops.matmul(h, r)), ops.add(bias[: 4 * n], bias[4 * n :]))
    i, o, forget, cell = (total[:, k * n : (k + 1) * n] for k in range(4))
    peep = None if layer.peephole is None else layer.peephole[d]
    if peep is not None:
        i = ops.add(i, ops.mul(peep[:n], c))
        forget = ops.add(forget, ops.mul(peep[2 * n :], c))
    i = f[0](_clipped(layer, i))
    coupled = layer.node.get("input_forget", 0)
    forget = ops.sub(1.0, i) if coupled else f[0](_clipped(layer, forget))
    c = ops.add(ops.mul(forget, c), ops.mul(i, f[1](_clipped(layer, cell))))
    o = o if peep is None else ops.add(o, ops.mul(peep[n : 2 * n], c))
    return ops.mul(f[0](_clipped(layer, o)), f[2](c)), c


STEPS: dict[str, Callable[..., tuple[Any, ...]]] = {"RNN": _rnn_step, "GRU": _gru_step, "LSTM": _lstm_step}

#: A gate's activation (x, alpha, beta), with the defaults of these; None if it takes none.
ACTIVATIONS: dict[str, tuple[Callable[[Any, Any, Any], Any], float | None, float | None]] = {
    "Relu": (lambda x, a, b: ops.relu(x), None, None),
    "Tanh": (lambda x, a, b: ops.tanh(x), None, None),
    "Sigmoid": (lambda x, a, b: ops.sigmoid(x), None, None),
    "Affine": (lambda x, a, b: ops.add(ops.mul(x, a), b), 1, 0),
    "LeakyRelu": (lambda x, a, b: ops.leaky_relu(x, a), 0.01, None),
    "ThresholdedRelu": (lambda x, a, b: ops.where(ops.ge(x, a), x, 0.0), 1, None),
    "ScaledTanh": (lambda x, a, b: ops.mul(ops.tanh(ops.mul(x, b)), a), 1, 1),
    "HardSigmoid": (lambda x, a, b: ops.clamp(ops.add(ops.mul(x, a), b), 0.0, 1.0), 0.2, 0.5),
    "Elu": (lambda x, a, b: ops.elu(x, a), 1, None),
    "Softsign": (lambda x, a, b: ops.softsign(x), None, None),
    "Softplus": (lambda x, a, b: ops.softplus(x), None, None),
}


def _function(f: Callable[[Any, Any, Any], Any], alpha: float | None, beta: float | None) -> Function:
    return lambda x: f(x, alpha, beta)


def _functions(layer: RecurrentNode, d: int) -> list[Function]:
    """The gates' activations of direction d. Raises OnnxError for an unknown one.

    A function that takes an alpha (or a beta) gets the next of the node's, as in ONNX Runtime.
    """
    node, count = layer.node, len(FUNCTIONS[layer.node.operator])
    names = list(node.get("activations", FUNCTIONS[node.operator] * layer.w.shape[0]))
    alphas, betas = iter(node.get("activation_alpha", ())), iter(node.get("activation_beta", ()))
    found = []
    for name in names:
        if name not in ACTIVATIONS:
            raise node.error(f"activation must be one of {', '.join(ACTIVATIONS)}, got {name!r}")
        f, alpha, beta = ACTIVATIONS[name]
        alpha = alpha if alpha is None else next(alphas, alpha)
        beta = beta if beta is None else next(betas, beta)
        found.append(_function(f, alpha, beta))
    return found[d * count : (d + 1) * count]
