"""Recurrent layers and cells: torch.lstm, gru, rnn_tanh and rnn_relu as single ops."""

from __future__ import annotations

from functools import partial
from typing import Any

from lamina import ops
from lamina.convert.torch.node import TorchCall, converts
from lamina.nn.dropout import by_samples
from lamina.nn.utils.rnn import pad_sequence

#: The function's name -> the op's mode.
MODES = {"lstm": "lstm", "gru": "gru", "rnn_tanh": "tanh", "rnn_relu": "relu"}


@converts(*MODES)
def recurrent(call: TorchCall) -> Any:
    """(y, h_n), and c_n for the LSTM, over x [T, B, I], or [B, T, I] with batch_first."""
    if "batch_sizes" in call:
        raise call.error("packed sequences")
    x, batch_first = call.either("input", "data"), call.get("batch_first", False)
    states = call["hx"]
    states = list(states) if isinstance(states, (tuple, list)) else [states]
    found = layered(call, MODES[call.name], ops.transpose(x, 0, 1) if batch_first else x, states)
    return (ops.transpose(found[0], 0, 1) if batch_first else found[0], *found[1:])


def layered(call: TorchCall, mode: str, x: Any, states: list[Any], lengths: Any = None) -> tuple[Any, ...]:
    """All layers over x [T, B, I] as one op; one op each if there is dropout between them."""
    both, layers, weights = bool(call["bidirectional"]), call["num_layers"], list(call["params"])
    hidden, ways = states[-1].shape[-1], 2 if both else 1
    per_layer = len(weights) // (layers * ways)
    projection = states[0].shape[-1] if mode == "lstm" and states[0].shape[-1] != hidden else 0
    options: dict[str, Any] = {
        "hidden": hidden, "bidirectional": both, "projection": projection, "bias": bool(call["has_biases"]),
        "lengths": lengths,
    }  # fmt: skip
    drop = call["dropout"] if call["train"] else 0.0
    if not drop or layers == 1:
        return ops.rnn(mode, x, states, weights, layers=layers, **options)
    last: list[list[Any]] = [[] for _ in states]
    for i in range(layers):
        first = [s[i * ways : (i + 1) * ways] for s in states]
        own = weights[i * ways * per_layer : (i + 1) * ways * per_layer]
        x, *after = ops.rnn(mode, x, first, own, layers=1, **options)
        for kept, state in zip(last, after, strict=True):
            kept.append(state)
        x = by_samples(partial(ops.dropout, p=drop), x, 1) if i + 1 < layers else x
    return (x, *(ops.cat(kept, 0) for kept in last))


@converts("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def cell(call: TorchCall) -> Any:
    """One step: h, and c for the LSTM."""
    mode = MODES[call.name.removesuffix("_cell")]
    hx = call["hx"]
    states = list(hx) if isinstance(hx, (tuple, list)) else [hx]
    weights = [call["w_ih"], call["w_hh"]]
    bias = call.get("b_ih") is not None
    weights += [call["b_ih"], call["b_hh"]] if bias else []
    _, *after = ops.rnn(
        mode, call["input"].unsqueeze(0), [s.unsqueeze(0) for s in states], weights,
        hidden=states[-1].shape[-1], bias=bias,
    )  # fmt: skip
    after = [s[0] for s in after]
    return tuple(after) if mode == "lstm" else after[0]


@converts("pad_sequence")
def padded(call: TorchCall) -> Any:
    """Sequences [T_n, *] as one batch, padded to the longest."""
    return pad_sequence(
        call["sequences"],
        call.get("batch_first", False),
        call.get("padding_value", 0.0),
        call.get("padding_side", "right"),
    )
