"""Packed sequences: while a network's graph is made they are padded, with a row for each step of each sample.

PyTorch packs a batch [T, B, *] into the rows within its lengths, whose number is not known at trace time. Here
`lamina::pack` keeps all T B rows, step by step, beside `batch_sizes` [T], the number of samples at each step;
`lamina::packed_rnn` runs over them by lengths, and `lamina::unpack` returns a padded batch of as many steps as the
one that was packed. Any other read of the rows is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from lamina import ops
from lamina._tree import flatten
from lamina.convert.torch.factory import constant
from lamina.convert.torch.node import TorchCall, TorchConversionError, converts, defined
from lamina.convert.torch.rnn import MODES, layered
from lamina.spec import int64

#: Properties of the rows that may be read without their values.
_ASKED = ("__get__", "size", "dim", "is_floating_point", "ndimension")


class PackingMode(TorchFunctionMode):
    """Within the block PyTorch's functions of packed sequences are replaced by those of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[torch.Tensor] = []
        self.sizes: list[tuple[torch.Tensor, Any]] = []
        self.numbers: list[tuple[Any, torch.Tensor]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The function, or its replacement."""
        name, options = getattr(func, "__name__", ""), kwargs or {}
        if name == "_pack_padded_sequence":
            return self._packed(*args, **options)
        if name == "_pad_packed_sequence":
            return torch.ops.lamina.unpack(*args, **options)
        if func in (torch.Tensor.item, torch.Tensor.numpy):
            return self._numbers(func, args[0])
        is_made = func is torch.as_tensor and not isinstance(args[0], torch.Tensor)
        if is_made and (found := self._tensor(args[0])) is not None:
            return found.to((args[1] if len(args) > 1 else options.get("dtype")) or found.dtype)
        if name in MODES and self._batch(args[1]) is not None:
            return self._recurrent(name, *args, **options)
        if (
            name == "__getitem__"
            and isinstance(args[1], int)
            and not args[1]
            and (batch := self._batch(args[0])) is not None
        ):
            return batch
        if name not in _ASKED and any(
            x is y for x in flatten((args, dict(options)), open_dataclasses=True)[0] for y in self.rows
        ):
            raise TorchConversionError(
                f"{name or func} reads the rows of a packed sequence, whose number is known only when the program "
                "runs: pad it first (torch.nn.utils.rnn.pad_packed_sequence)"
            )
        return func(*args, **options)

    def _numbers(self, func: Any, x: torch.Tensor) -> Any:
        """What Python gets as a tensor's numbers (lengths), of which PyTorch makes a tensor again."""
        found = func(x) if func is torch.Tensor.item else _Array(x)
        self.numbers.append((found, x))
        return found

    def _tensor(self, data: Any) -> torch.Tensor | None:
        """The tensor that Python's numbers are of, or that of a list of such and of tensors without axes; None for
        others."""
        if isinstance(data, list | tuple):
            parts = [self._tensor(x) for x in data]
            found = [x for x in parts if x is not None and not x.ndim]
            return torch.stack(found) if found and len(found) == len(data) else None
        if isinstance(data, torch.Tensor):
            return data
        return next((x for numbers, x in self.numbers if numbers is data), None)

    def _packed(self, x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
        rows, sizes = torch.ops.lamina.pack(x, lengths, batch_first)
        self.rows.append(rows)
        self.sizes.append((sizes, x.shape[0 if batch_first else 1]))
        return rows, sizes

    def _recurrent(self, mode: str, x: Any, sizes: Any, hx: Any, *rest: Any) -> Any:
        states = list(hx) if isinstance(hx, (tuple, list)) else [hx]
        found = torch.ops.lamina.packed_rnn(mode, x, sizes, states, *rest)
        self.rows.append(found[0])
        return tuple(found)

    def _batch(self, sizes: Any) -> Any:
        """The number of samples for sizes that were packed here; None for other tensors."""
        return next((batch for own, batch in self.sizes if own is sizes), None)


class _Array:
    """Stands for the NumPy array of a tensor without values; PyTorch may make a tensor of it."""

    def __init__(self, x: torch.Tensor) -> None:
        self.shape, self.ndim, self.size = tuple(x.shape), x.ndim, x.numel()

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getattr__(self, name: str) -> Any:
        raise TorchConversionError(
            f"forward computes in NumPy (.numpy(), {name}) with what depends on its inputs: a graph holds PyTorch's "
            "functions alone"
        )

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.__getattr__("__array__")


@contextmanager
def batches_of_any_size() -> Iterator[None]:
    """Within the block recurrent layers compare their states with a packed sequence's batch size directly: by `int`,
    which PyTorch applies, it would have to be known at trace time.
    """
    rnn, lstm = torch.nn.RNNBase, torch.nn.LSTM
    hidden, cell = rnn.get_expected_hidden_size, lstm.get_expected_cell_size

    def expected(own: Any) -> Any:
        def sizes(self: Any, input: Any, batch_sizes: Any) -> Any:
            if batch_sizes is None:
                return own(self, input, None)
            batch = batch_sizes[0]
            return own(self, SimpleNamespace(size=lambda axis: batch), None)

        return sizes

    rnn.get_expected_hidden_size, lstm.get_expected_cell_size = expected(hidden), expected(cell)
    try:
        yield
    finally:
        rnn.get_expected_hidden_size, lstm.get_expected_cell_size = hidden, cell


# ------------------------------------------------------------------------------------------- shapes, for the exporter


def _pack(x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    batch, steps = x.shape[:2] if batch_first else (x.shape[1], x.shape[0])
    return x.new_empty(steps * batch, *x.shape[2:]), lengths.new_empty(steps)


def _rnn(mode: str, rows: Any, sizes: Any, hx: Any, params: Any, bias: bool, layers: int, dropout: float, train: bool,
         bidirectional: bool) -> list[torch.Tensor]:  # fmt: skip
    width = hx[0].shape[-1] * (2 if bidirectional else 1)
    return [rows.new_empty(rows.shape[0], width), *map(torch.empty_like, hx)]


def _unpack(
    rows: Any, sizes: Any, batch_first: bool, padding_value: float, total_length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    batch = rows.shape[0] // sizes.shape[0]
    places = (batch, total_length) if batch_first else (total_length, batch)
    return rows.new_empty(*places, *rows.shape[1:]), sizes.new_empty(batch)


defined("pack", "(Tensor x, Tensor lengths, bool batch_first) -> (Tensor, Tensor)", _pack)
defined(
    "packed_rnn",
    "(str mode, Tensor rows, Tensor batch_sizes, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers, "
    "float dropout, bool train, bool bidirectional) -> Tensor[]",
    _rnn,
)
defined(
    "unpack",
    "(Tensor rows, Tensor batch_sizes, bool batch_first, Scalar padding_value, SymInt total_length) "
    "-> (Tensor, Tensor)",
    _unpack,
)


# ----------------------------------------------------------------------------------------------------------- handlers


@converts("lamina::pack")
def pack(call: TorchCall) -> Any:
    """(rows [T B, *], batch sizes [T])."""
    x, lengths = call["x"], call["lengths"]
    x = ops.transpose(x, 0, 1) if call["batch_first"] else x
    return ops.reshape(x, (-1, *x.shape[2:])), _count(call, x.shape[0], lengths)


def _count(call: TorchCall, places: int, numbers: Any) -> Any:
    """[places]: how many of the numbers are above 0, above 1, …. It converts lengths to sizes, and sizes
    to lengths."""
    above = constant(call, np.arange(places)[:, None], int64) < numbers[None, :]
    return ops.sum(above, 1)


@converts("lamina::packed_rnn")
def packed_rnn(call: TorchCall) -> Any:
    """[rows, h_n], and c_n for the LSTM."""
    rows, sizes, states = call["rows"], call["batch_sizes"], list(call["hx"])
    x = ops.reshape(rows, (sizes.shape[0], -1, *rows.shape[1:]))
    y, *last = layered(call, MODES[call["mode"]], x, states, _count(call, x.shape[1], sizes))
    return [ops.reshape(y, (-1, *y.shape[2:])), *last]


@converts("lamina::unpack")
def unpack(call: TorchCall) -> Any:
    """(padded [T, B, *] or [B, T, *], lengths [B])."""
    rows, sizes, total = call["rows"], call["batch_sizes"], call["total_length"]
    x = ops.reshape(rows, (sizes.shape[0], -1, *rows.shape[1:]))
    lengths = _count(call, x.shape[1], sizes)
    there = constant(call, np.arange(len(x))[:, None], int64) < lengths[None, :]
    padding = ops.full_like(x, float(call["padding_value"]))
    x = ops.where(ops.reshape(there, (*there.shape, *(1,) * (x.ndim - 2))), x, padding)
    if total > len(x):
        more = ops.broadcast_to(padding[:1], (total - len(x), *x.shape[1:]))
        x = ops.cat([x, more], 0)
    return (ops.transpose(x, 0, 1) if call["batch_first"] else x), lengths
