"""Recurrent layers: PyTorch's, for all layers and directions at once."""

from __future__ import annotations

from typing import Any

import torch

from lamina.convert.torch.functions.step import TorchStep, writes
from lamina.ops.primitives.rnn import Rnn

FUNCTIONS = {"lstm": torch.lstm, "gru": torch.gru, "tanh": torch.rnn_tanh, "relu": torch.rnn_relu}


@writes(Rnn)
def rnn(step: TorchStep, x: Any, *others: Any) -> Any:
    """torch.lstm, torch.gru or torch.rnn_tanh: the outputs, then the last states."""
    op = step.op
    lstm = op.mode == "lstm"
    states = others[: 1 + lstm]
    first = list(states) if lstm else states[0]
    found = FUNCTIONS[op.mode](
        x, first, list(others[1 + lstm :]), op.bias, op.layers, 0.0, False, op.bidirectional, False
    )
    return tuple(found[i] for i in range(2 + lstm))
