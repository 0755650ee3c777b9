"""Recurrent layers: RNN, LSTM, GRU over sequences, and their cells for single steps."""

from __future__ import annotations

import math
from typing import Any, overload

from lamina import ops
from lamina.nn import init
from lamina.nn.dropout import Dropout, by_samples
from lamina.nn.module import Module, T
from lamina.nn.parameter import Parameter
from lamina.nn.utils.rnn import PackedSequence, packing_of, padded_data, with_data
from lamina.ops.arguments import DTypeLike
from lamina.ops.core import operand
from lamina.ops.primitives.rnn import Rnn
from lamina.runtime import Device
from lamina.spec import ShapeError
from lamina.tensors import empty, zeros


class _RecurrentLayer(Module):
    """Sequences (T, B, I), or (B, T, I) with batch_first, or a single one (T, I).

    Parameters as in torch: weight_ih_l0 (G H, I), weight_hh_l0 (G H, P), bias_ih_l0, bias_hh_l0 (G H,), weight_hr_l0
    (P, H) with a projection, the same with "_reverse" for the second direction, then l1, …; all uniform within 1 /
    √H. Dropout is applied between the layers, in training.

    `remember(batch)` keeps the last states in buffers and starts the next call from them; `reset()` zeroes them,
    `forget()` makes every call start from zeros again. In a compiled step they are ordinary state.
    """

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        proj_size: int = 0,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        if input_size < 1:
            raise ShapeError(f"{type(self).__name__}: input_size must be at least 1, got {input_size}")
        self.op = Rnn(mode, hidden_size, num_layers, bool(bidirectional), proj_size, bool(bias))
        self.op.check()
        self.mode, self.input_size, self.hidden_size, self.num_layers = (
            mode,
            input_size,
            hidden_size,
            num_layers,
        )
        self.bias, self.batch_first, self.bidirectional = bool(bias), bool(batch_first), bool(bidirectional)
        self.dropout, self.proj_size = dropout, proj_size
        self.drop = Dropout(dropout)
        self.names = _names(self.op)
        self.remembers = False
        for name, shape in zip(self.names, self.op.weight_shapes(input_size), strict=True):
            self.register_parameter(name, Parameter(empty(shape)))
        self.reset_parameters()
        self.to(device, dtype)

    def reset_parameters(self) -> None:
        """Reinitialize: uniform within 1 / √hidden_size."""
        bound = 1 / math.sqrt(self.hidden_size)
        for held in self.parameters():
            init.uniform_(held, -bound, bound)

    def _run(self, x: Any, hx: Any, lengths: Any) -> tuple[Any, Any]:
        """(y, last states) of x, from the states hx: h, or (h, c) for the LSTM, [L D, B, P] and [L D, B, H]."""
        if isinstance(x, PackedSequence):
            return self._packed(x, hx, lengths)
        x = operand(x)
        if x.ndim not in (2, 3):
            raise ShapeError(f"{type(self).__name__}: x must be (T, B, I) or (T, I), got {x.spec}")
        single = x.ndim == 2
        states = self._first(hx, single)
        x = ops.unsqueeze(x, 1) if single else ops.transpose(x, 0, 1) if self.batch_first else x
        y, *last = self._layers(
            x, states, ops.unsqueeze(lengths, 0) if single and lengths is not None else lengths
        )
        self._keep(hx, last)
        if single:
            y, last = ops.squeeze(y, 1), [ops.squeeze(s, 1) for s in last]
        elif self.batch_first:
            y = ops.transpose(y, 0, 1)
        return y, tuple(last) if self.op.states == 2 else last[0]

    def _packed(self, x: PackedSequence, hx: Any, lengths: Any) -> tuple[PackedSequence, Any]:
        """`_run` of a packed batch."""
        if lengths is not None:
            raise ValueError(
                f"{type(self).__name__}: a packed sequence has its lengths, got others beside it"
            )
        packing = packing_of(x)
        y, *last = self._layers(padded_data(x, packing), self._first(hx, False), packing.lengths)
        self._keep(hx, last)
        return with_data(x, packing, y), tuple(last) if self.op.states == 2 else last[0]

    def _keep(self, hx: Any, last: list[Any]) -> None:
        """Store the last states, unless the initial ones were given."""
        if hx is None and self.remembers:
            for name, value in zip(self._kept, last, strict=True):
                setattr(self, name, value)

    def _first(self, hx: Any, single: bool) -> list[Any] | None:
        """The initial states as a list; None for zeros."""
        if hx is None:
            return [getattr(self, name) for name in self._kept] if self.remembers else None
        states = list(hx) if self.op.states == 2 else [hx]
        return [ops.unsqueeze(s, 1) for s in states] if single else states

    def _layers(self, x: Any, states: list[Any] | None, lengths: Any) -> tuple[Any, ...]:
        _check_features(self, x)
        weights = [getattr(self, name) for name in self.names]
        op = self.op
        if not (self.training and self.dropout and op.layers > 1):
            return _call(op, op.layers, x, states, weights, lengths)
        per, each = op.directions, len(weights) // op.layers
        last: list[tuple[Any, ...]] = []
        for layer in range(op.layers):
            own = None if states is None else [s[layer * per : (layer + 1) * per] for s in states]
            part = weights[layer * each : (layer + 1) * each]
            x, *after = _call(op, 1, by_samples(self.drop, x, 1) if layer else x, own, part, lengths)
            last.append(tuple(after))
        return (x, *(ops.cat(parts, 0) for parts in zip(*last, strict=True)))

    # ---- remembered states
    def flatten_parameters(self) -> None:
        """Does nothing: plans choose the layout of weights. For programs that call torch.nn.RNNBase's."""

    @property
    def _kept(self) -> tuple[str, ...]:
        return ("hidden_state", "cell_state")[: self.op.states]

    def remember(self, batch: int) -> None:
        """Start from zeros, and then from the last states of the previous call with `batch` sequences."""
        parameter = self._parameters[self.names[0]]
        assert parameter is not None
        for name, shape in zip(self._kept, self.op.state_shapes(batch), strict=True):
            self._buffers.pop(name, None)
            self.register_buffer(
                name, zeros(shape, dtype=parameter.dtype, device=parameter.device), persistent=False
            )
        self.remembers = True

    def reset(self) -> None:
        """Zero the remembered states."""
        for name in self._kept:
            if name in self._buffers:
                init.zeros_(self.get_buffer(name))

    def forget(self) -> None:
        """Stop remembering: every call starts from zeros unless it is given states."""
        for name in self._kept:
            self._buffers.pop(name, None)
        self.remembers = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        parts = [str(self.input_size), str(self.hidden_size)]
        shown = {"proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0}
        for name, default in {**shown, "bidirectional": False}.items():
            if getattr(self, name) != default:
                parts.append(f"{name}={getattr(self, name)}")
        return ", ".join(parts)


def _names(op: Rnn) -> list[str]:
    """torch's names of the parameters, in the order of `Rnn.weight_shapes`."""
    kinds = ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if op.bias else [])]
    kinds += ["weight_hr"] if op.projection else []
    sides = ("", "_reverse")[: op.directions]
    return [f"{kind}_l{layer}{side}" for layer in range(op.layers) for side in sides for kind in kinds]


def _call(op: Rnn, layers: int, x: Any, states: Any, weights: Any, lengths: Any = None) -> tuple[Any, ...]:
    return ops.rnn(
        op.mode, x, states, weights, hidden=op.hidden, layers=layers, bidirectional=op.bidirectional,
        projection=op.projection, bias=op.bias, lengths=lengths,
    )  # fmt: skip


class RNN(_RecurrentLayer):
    """h = tanh or relu of W_ih x + b_ih + W_hh h + b_hh, in layers."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"RNN: nonlinearity must be 'tanh' or 'relu', got {nonlinearity!r}")
        self.nonlinearity = nonlinearity
        super().__init__(
            nonlinearity,
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device=device,
            dtype=dtype,
        )

    @overload
    def forward(self, x: T, hx: T | None = None, lengths: Any = None) -> tuple[T, T]: ...
    @overload
    def forward(
        self, x: PackedSequence, hx: Any = None, lengths: None = None
    ) -> tuple[PackedSequence, Any]: ...
    def forward(self, x: Any, hx: Any = None, lengths: Any = None) -> tuple[Any, Any]:
        """(y, last h) of x (T, B, I), from the state hx (L D, B, H): by default zeros, or the remembered one.

        y (T, B, D H); with batch_first x is (B, T, I) and y (B, T, D H); x may also be one sequence (T, I), or packed
        (`nn.utils.rnn`), as is y then. lengths (B,): of padded sequences, see `ops.rnn`. Raises ShapeError,
        DTypeError; IndexError for lengths outside 0 … T, on a CPU.
        """
        return self._run(x, hx, lengths)


class LSTM(_RecurrentLayer):
    """Long short-term memory (Hochreiter & Schmidhuber 1997); with proj_size its output is projected (Sak 2014)."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(
            "lstm",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
            device=device,
            dtype=dtype,
        )

    @overload
    def forward(self, x: T, hx: tuple[T, T] | None = None, lengths: Any = None) -> tuple[T, tuple[T, T]]: ...
    @overload
    def forward(
        self, x: PackedSequence, hx: Any = None, lengths: None = None
    ) -> tuple[PackedSequence, tuple[Any, Any]]: ...
    def forward(self, x: Any, hx: Any = None, lengths: Any = None) -> tuple[Any, Any]:
        """(y, last (h, c)) of x (T, B, I), from the states hx: by default zeros, or the remembered ones.

        h (L D, B, P), c (L D, B, H), y (T, B, D P); P is proj_size, or H without a projection. With batch_first x is
        (B, T, I) and y (B, T, D P); x may also be one sequence (T, I), or packed. lengths, errors: as in
        `RNN.forward`.
        """
        return self._run(x, hx, lengths)


class GRU(_RecurrentLayer):
    """Gated recurrent units (Cho et al. 2014), with the reset gate after the matrix product."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(
            "gru",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device=device,
            dtype=dtype,
        )

    @overload
    def forward(self, x: T, hx: T | None = None, lengths: Any = None) -> tuple[T, T]: ...
    @overload
    def forward(
        self, x: PackedSequence, hx: Any = None, lengths: None = None
    ) -> tuple[PackedSequence, Any]: ...
    def forward(self, x: Any, hx: Any = None, lengths: Any = None) -> tuple[Any, Any]:
        """(y, last h) of x, as in `RNN.forward`."""
        return self._run(x, hx, lengths)


def _check_features(module: Any, x: Any) -> None:
    """Raises ShapeError where the last axis of x (…, I) is not input_size."""
    if x.shape[-1] != module.input_size:
        raise ShapeError(
            f"{type(module).__name__}: input_size is {module.input_size}, but the last axis of x has {x.shape[-1]}: "
            f"{x.spec}"
        )


class _Cell(Module):
    """One step: parameters weight_ih (G H, I), weight_hh (G H, H), bias_ih and bias_hh (G H,)."""

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        bias: bool,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        if input_size < 1:
            raise ShapeError(f"{type(self).__name__}: input_size must be at least 1, got {input_size}")
        self.op = Rnn(mode, hidden_size, bias=bool(bias))
        self.op.check()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bool(bias)
        self.names = [name.removesuffix("_l0") for name in _names(self.op)]
        for name, shape in zip(self.names, self.op.weight_shapes(input_size), strict=True):
            self.register_parameter(name, Parameter(empty(shape)))
        self.reset_parameters()
        self.to(device, dtype)

    def reset_parameters(self) -> None:
        """Reinitialize: uniform within 1 / √hidden_size."""
        bound = 1 / math.sqrt(self.hidden_size)
        for held in self.parameters():
            init.uniform_(held, -bound, bound)

    def _run(self, x: Any, hx: Any) -> Any:
        """The next state, h (B, H) or (h, c), from x (B, I) and the state hx."""
        x = operand(x)
        if x.ndim not in (1, 2):
            raise ShapeError(f"{type(self).__name__}: x must be (B, I) or (I,), got {x.spec}")
        _check_features(self, x)
        states = None if hx is None else list(hx) if self.op.states == 2 else [hx]
        if single := x.ndim == 1:
            x, states = ops.unsqueeze(x, 0), None if states is None else [ops.unsqueeze(s, 0) for s in states]
        first = None if states is None else [ops.unsqueeze(s, 0) for s in states]
        weights = [getattr(self, name) for name in self.names]
        _, *last = _call(self.op, 1, ops.unsqueeze(x, 0), first, weights)
        after = tuple(ops.squeeze(s, (0, 1) if single else 0) for s in last)
        return after if self.op.states == 2 else after[0]

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class RNNCell(_Cell):
    """One step of `RNN`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"RNNCell: nonlinearity must be 'tanh' or 'relu', got {nonlinearity!r}")
        super().__init__(nonlinearity, input_size, hidden_size, bias, device=device, dtype=dtype)

    def forward(self, x: T, hx: T | None = None) -> T:
        """The next h (B, H) from x (B, I) and the previous h (by default zeros). Raises ShapeError, DTypeError."""
        h: T = self._run(x, hx)
        return h


class LSTMCell(_Cell):
    """One step of `LSTM`: (h, c)."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__("lstm", input_size, hidden_size, bias, device=device, dtype=dtype)

    def forward(self, x: T, hx: tuple[T, T] | None = None) -> tuple[T, T]:
        """The next (h, c) from x (B, I) and the previous (h, c) (by default zeros). Raises ShapeError, DTypeError."""
        h, c = self._run(x, hx)
        return h, c


class GRUCell(_Cell):
    """One step of `GRU`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__("gru", input_size, hidden_size, bias, device=device, dtype=dtype)

    def forward(self, x: T, hx: T | None = None) -> T:
        """The next h, as in `RNNCell.forward`."""
        h: T = self._run(x, hx)
        return h
