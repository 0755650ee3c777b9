"""Sequence layers in both Lamina and PyTorch, by the same names and arguments."""

from typing import Any, NamedTuple

import numpy as np


class SequenceCase(NamedTuple):
    """A layer, the shapes of its float inputs, and further arguments of its forward."""

    layer: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[tuple[int, ...], ...]
    options: dict[str, Any] = {}  # noqa: RUF012

    @property
    def id(self) -> str:
        named = "".join(f"-{k}={v}" for k, v in self.kwargs.items()) + "".join(f"-{k}" for k in self.options)
        return f"{self.layer}{self.args}{named}".replace(" ", "")


def case(
    layer: str, *args: Any, shapes: Any, options: dict[str, Any] | None = None, **kw: Any
) -> SequenceCase:
    return SequenceCase(layer, args, kw, tuple(shapes), options or {})


BEHIND = np.triu(np.ones((5, 5), np.bool_), 1)
PADDED = np.array([[0, 0, 0, 0, 1], [0, 0, 0, 0, 0], [0, 0, 1, 1, 1]], np.bool_)
NUMBERS = np.random.default_rng(0).standard_normal((5, 5)).astype(np.float32)
ENCODER: dict[str, Any] = {"dim_feedforward": 24, "dropout": 0.0}

CASES = [
    case("RNN", 5, 7, shapes=[(6, 3, 5)]),
    case("RNN", 4, 6, 2, shapes=[(5, 2, 4)], nonlinearity="relu", bidirectional=True),
    case("LSTM", 5, 7, shapes=[(6, 3, 5)]),
    case("LSTM", 8, 8, 3, shapes=[(4, 2, 8)], bias=False),
    case("LSTM", 5, 6, 2, shapes=[(3, 4, 5)], batch_first=True, bidirectional=True),
    case("LSTM", 5, 8, 2, shapes=[(6, 2, 5)], proj_size=3, bidirectional=True),
    case("LSTM", 5, 7, shapes=[(9, 5)]),
    case("GRU", 5, 7, shapes=[(6, 3, 5)]),
    case("GRU", 3, 9, 2, shapes=[(7, 1, 3)], bidirectional=True),
    case("GRU", 3, 4, 3, shapes=[(2, 6, 3)], batch_first=True, bias=False),
    case("RNNCell", 5, 7, shapes=[(3, 5)]),
    case("LSTMCell", 5, 7, shapes=[(3, 5)]),
    case("GRUCell", 5, 7, shapes=[(3, 5)], bias=False),
    case("MultiheadAttention", 8, 2, shapes=[(5, 3, 8), (4, 3, 8), (4, 3, 8)]),
    case("MultiheadAttention", 8, 4, shapes=[(5, 3, 8)] * 3, options={"attn_mask": BEHIND}, bias=False),
    case("MultiheadAttention", 8, 2, shapes=[(5, 3, 8)] * 3, options={"attn_mask": NUMBERS}),
    case("MultiheadAttention", 8, 2, shapes=[(2, 3, 8), (2, 5, 6), (2, 5, 4)], kdim=6, vdim=4, batch_first=True,
         options={"need_weights": False}),
    case("MultiheadAttention", 6, 3, shapes=[(5, 3, 6)] * 3,
         options={"key_padding_mask": PADDED, "attn_mask": BEHIND}),
    case("MultiheadAttention", 6, 3, shapes=[(5, 3, 6)] * 3, options={"average_attn_weights": False}),
    case("TransformerEncoderLayer", 16, 4, shapes=[(5, 3, 16)], **ENCODER),
    case("TransformerEncoderLayer", 16, 2, shapes=[(3, 5, 16)], norm_first=True, batch_first=True, activation="gelu",
         options={"src_key_padding_mask": PADDED}, **ENCODER),
    case("TransformerEncoderLayer", 8, 2, shapes=[(5, 3, 8)], bias=False, options={"src_mask": BEHIND}, **ENCODER),
    case("TransformerDecoderLayer", 16, 4, shapes=[(5, 3, 16), (4, 3, 16)], **ENCODER),
    case("TransformerDecoderLayer", 8, 2, shapes=[(5, 3, 8), (4, 3, 8)], norm_first=True,
         options={"tgt_mask": BEHIND}, **ENCODER),
    case("Transformer", 8, 2, 2, 1, shapes=[(4, 3, 8), (5, 3, 8)], options={"tgt_mask": BEHIND}, **ENCODER),
]  # fmt: skip
