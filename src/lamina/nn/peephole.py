"""LSTMs with peephole connections: a cell and a layer, composed of other ops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lamina import ops
from lamina.nn import init
from lamina.nn.container import ModuleList
from lamina.nn.dropout import Dropout, by_samples
from lamina.nn.module import Module, T
from lamina.nn.parameter import Parameter
from lamina.ops.core import operand
from lamina.ops.primitives.sequence import checked_lengths, inside, reversed_within
from lamina.spec import ShapeError
from lamina.tensors import empty

_PEEPHOLES = ("weight_ci", "weight_cf", "weight_co")


class PeepholeLSTMCell(Module):
    """One step of an LSTM whose gates see the cell state (Gers & Schmidhuber 2000), which no library provides.

    i and f see the previous c, o the next one: i = sigmoid(W_ii x + W_hi h + b_i + w_ci c), and so on. Parameters as
    in `LSTMCell`, plus weight_ci, weight_cf and weight_co (H,).
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        if input_size < 1 or hidden_size < 1:
            raise ShapeError(
                f"PeepholeLSTMCell: sizes must be at least 1, got {input_size} and {hidden_size}"
            )
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bool(bias)
        bound, rows = 1 / math.sqrt(hidden_size), 4 * hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (rows, input_size),
            "weight_hh": (rows, hidden_size),
        }
        shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)} if bias else {}
        for name, shape in {**shapes, **dict.fromkeys(_PEEPHOLES, (hidden_size,))}.items():
            self.register_parameter(name, init.uniform_(Parameter(empty(shape)), -bound, bound))

    def forward(self, x: T, hx: tuple[T, T] | None = None) -> tuple[T, T]:
        """The next (h, c) from x (B, I), or (I,), and the previous (h, c) (by default zeros)."""
        x = operand(x)
        if x.ndim not in (1, 2):
            raise ShapeError(f"PeepholeLSTMCell: x must be (B, I) or (I,), got {x.spec}")
        h, c = hx if hx is not None else [np.zeros((*x.shape[:-1], self.hidden_size), x.dtype.numpy)] * 2
        return self.step(self.from_input(x), h, c)

    def from_input(self, x: Any) -> Any:
        """The input's contribution to the gates, (..., 4 H) from x (..., I): for all steps at once if known."""
        return ops.linear(x, self.weight_ih, self.bias_ih if self.bias else None)

    def step(self, arriving: Any, h: Any, c: Any) -> tuple[Any, Any]:
        """The next (h, c) from the result of `from_input` and the previous (h, c)."""
        sums = arriving + ops.linear(h, self.weight_hh, self.bias_hh if self.bias else None)
        i, f, g, o = ops.chunk(sums, 4, -1)
        seen_i, seen_f, seen_o = (getattr(self, name) for name in _PEEPHOLES)
        after = ops.sigmoid(f + seen_f * c) * c + ops.sigmoid(i + seen_i * c) * ops.tanh(g)
        return ops.sigmoid(o + seen_o * after) * ops.tanh(after), after

    def extra_repr(self) -> str:
        """The arguments."""
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class PeepholeLSTM(Module):
    """`PeepholeLSTMCell` over sequences (T, B, I), (B, T, I) with batch_first, or a single one (T, I).

    Arguments as in `LSTM`. cells: one per layer and direction, the directions of a layer adjacent. Dropout is applied
    between the layers, in training. A step is several ops: a compiled network contains all T of them.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        if num_layers < 1:
            raise ValueError(f"PeepholeLSTM: num_layers must be at least 1, got {num_layers}")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.batch_first, self.bidirectional = bool(batch_first), bool(bidirectional)
        self.directions = 2 if bidirectional else 1
        self.drop = Dropout(dropout)
        widths = [input_size, *[self.directions * hidden_size] * (num_layers - 1)]
        self.cells = ModuleList(
            PeepholeLSTMCell(width, hidden_size, bias) for width in widths for _ in range(self.directions)
        )

    def forward(self, x: T, hx: tuple[T, T] | None = None, lengths: Any = None) -> tuple[T, tuple[T, T]]:
        """(y, last (h, c)) of x (T, B, I), from the states hx (by default zeros).

        h and c (L D, B, H), y (T, B, D H); lengths (B,) of padded sequences: see `ops.rnn`.
        Raises ShapeError, DTypeError; IndexError for lengths outside 0 … T, on a CPU.
        """
        x, _first = operand(x), None if hx is None else list(hx)
        if x.ndim not in (2, 3) or not x.shape[0 if x.ndim == 2 else int(self.batch_first)]:
            raise ShapeError(f"PeepholeLSTM: x must be (T, B, I) or (T, I) of one step or more, got {x.spec}")
        if single := x.ndim == 2:
            x, _first = ops.unsqueeze(x, 1), None if hx is None else [ops.unsqueeze(s, 1) for s in hx]
            lengths = None if lengths is None else ops.unsqueeze(lengths, 0)
        elif self.batch_first:
            x = ops.transpose(x, 0, 1)
        y, h, c = self._layers(
            x, hx, None if lengths is None else checked_lengths("PeepholeLSTM", lengths, x)
        )
        if single:
            return ops.squeeze(y, 1), (ops.squeeze(h, 1), ops.squeeze(c, 1))
        return ops.transpose(y, 0, 1) if self.batch_first else y, (h, c)

    def _layers(self, x: Any, given: Any, lengths: Any) -> tuple[Any, Any, Any]:
        steps, batch = x.shape[:2]
        zero = np.zeros((len(self.cells), batch, self.hidden_size), x.dtype.numpy)
        first = [operand(s) for s in ((zero, zero) if given is None else given)]
        within = None if lengths is None else inside(lengths, steps).unsqueeze(2)
        last: list[tuple[Any, Any]] = []
        for layer in range(self.num_layers):
            sides, x = [], by_samples(self.drop, x, 1) if layer else x
            for direction in range(self.directions):
                place = len(last)
                turned = _turned(x, lengths) if direction else x
                y, *state = _scan(self.cells[place], turned, first[0][place], first[1][place], within)
                last.append((state[0], state[1]))
                sides.append(_turned(y, lengths) if direction else y)
            x = ops.cat(sides, 2) if self.bidirectional else sides[0]
        h, c = (ops.stack(states, 0) for states in zip(*last, strict=True))
        return x, h, c


def _turned(x: Any, lengths: Any) -> Any:
    return ops.flip(x, 0) if lengths is None else reversed_within(x, lengths)


def _scan(cell: PeepholeLSTMCell, x: Any, h: Any, c: Any, within: Any) -> tuple[Any, Any, Any]:
    """(y [T, B, H], last h, last c) of x [T, B, I]; within: bool [T, B, 1], True before a sequence's end."""
    arriving, outputs = cell.from_input(x), []
    for t in range(x.shape[0]):
        after, kept = cell.step(arriving[t], h, c)
        if within is None:
            outputs.append(after)
            h, c = after, kept
        else:
            outputs.append(ops.where(within[t], after, 0.0))
            h, c = ops.where(within[t], after, h), ops.where(within[t], kept, c)
    return ops.stack(outputs, 0), h, c
