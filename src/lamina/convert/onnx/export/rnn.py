"""Recurrent layers: one operator for each layer, unidirectional or bidirectional."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lamina import ops
from lamina.convert.onnx.export.writer import OpExport, Written, exports
from lamina.ops.primitives.rnn import Rnn, Weights, grouped

#: The permutation from PyTorch's gate order to ONNX's: (i, f, g, o) -> (i, o, f, c); (r, z, n) -> (z, r, h).
ORDER = {"relu": (0,), "tanh": (0,), "lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}
OPERATORS = {"relu": "RNN", "tanh": "RNN", "lstm": "LSTM", "gru": "GRU"}


@exports(Rnn)
def rnn(step: OpExport) -> Written:
    """LSTM, GRU or RNN for each layer, on the output of the layer before; an LSTM with projections step by step."""
    op = step.op
    if op.projection:
        return step.composed(_projected)
    states, groups = op.states, grouped(op, list(step.inputs[1 + op.states :]))
    x, last = step.inputs[0], []
    for layer in range(op.layers):
        first = [_rows(step, name, layer) for name in step.inputs[1 : 1 + states]]
        weights = groups[layer * op.directions : (layer + 1) * op.directions]
        x, *ends = _layer(step, x, weights, first)
        last.append(ends)
    joined = [n[0] if op.layers == 1 else step.add("Concat", *n, axis=0) for n in zip(*last, strict=True)]
    return x, *joined


def _rows(step: OpExport, name: str, layer: int) -> str:
    """The states of a layer's directions: [D, B, H] of [L D, B, H]."""
    if step.op.layers == 1:
        return name
    d = step.op.directions
    return step.add("Slice", name, step.ints(layer * d), step.ints((layer + 1) * d), step.ints(0))


def _layer(step: OpExport, x: str, weights: Sequence[Weights], first: Sequence[str]) -> tuple[str, ...]:
    """(y [T, B, D H], the last states [D, B, H])."""
    op = step.op
    w, r = (_stacked(step, [_ordered(step, getattr(g, n)) for g in weights]) for n in ("ih", "hh"))
    bias = None
    if op.bias:
        both = [step.add("Concat", *(_ordered(step, b) for b in (g.b_ih, g.b_hh)), axis=0) for g in weights]
        bias = _stacked(step, both)
    given: dict[str, Any] = {
        "hidden_size": op.hidden,
        "direction": "bidirectional" if op.bidirectional else "forward",
    }
    if op.mode == "gru":
        given["linear_before_reset"] = 1
    if op.mode in ("relu", "tanh"):
        given["activations"] = [op.mode.capitalize()] * op.directions
    y, *last = step.add_several(OPERATORS[op.mode], 1 + op.states, x, w, r, bias, None, *first, **given)
    turned = step.add("Transpose", y, perm=[0, 2, 1, 3])  # [T, D, B, H] -> [T, B, D, H]
    return step.reshaped(turned, 0, 0, -1), *last


def _ordered(step: OpExport, name: str) -> str:
    """A weight or bias, its gates in ONNX's order."""
    order = ORDER[step.op.mode]
    if len(order) == 1:
        return name
    count = {"num_outputs": len(order)} if step.opset >= 18 else {}
    parts = step.add_several("Split", len(order), name, axis=0, **count)
    return step.add("Concat", *(parts[i] for i in order), axis=0)


def _stacked(step: OpExport, names: Sequence[str]) -> str:
    """The directions' weights stacked along a new leading axis."""
    parts = [step.add("Unsqueeze", n, step.ints(0)) for n in names]
    return parts[0] if len(parts) == 1 else step.add("Concat", *parts, axis=0)


def _projected(op: Rnn, *inputs: Any) -> Any:
    """The recurrence of an LSTM with projections, which ONNX's operator lacks, step by step."""
    x, h0, c0, *weights = inputs
    groups, last = grouped(op, weights), []
    for layer in range(op.layers):
        sides = []
        for d in range(op.directions):
            place = layer * op.directions + d
            y, h, c = _one_direction(x, h0[place], c0[place], groups[place], backwards=bool(d))
            sides.append(y)
            last.append((h, c))
        x = ops.cat(sides, 2)
    return x, ops.stack([h for h, _ in last], 0), ops.stack([c for _, c in last], 0)


def _one_direction(x: Any, h: Any, c: Any, w: Weights, *, backwards: bool) -> tuple[Any, Any, Any]:
    """(y [T, B, P], the last h and c)."""
    steps = range(x.shape[0])
    found: dict[int, Any] = {}
    for t in reversed(steps) if backwards else steps:
        gates = ops.linear(x[t], w.ih, w.b_ih) + ops.linear(h, w.hh, w.b_hh)
        i, f, g, o = ops.chunk(gates, 4, 1)
        c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
        h = ops.linear(ops.sigmoid(o) * ops.tanh(c), w.hr)
        found[t] = h
    return ops.stack([found[t] for t in steps], 0), h, c
