"""One call of a PyTorch function as its handler sees it, and the table of handlers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from lamina.convert.torch.cells import Cell
from lamina.convert.torch.targets import full_name, name_of
from lamina.graph import Value
from lamina.graph.ir.graph import numbers_of
from lamina.ops.core import Operand, recording
from lamina.runtime import Device
from lamina.spec import DType, as_dtype
from lamina.tensors import Tensor

#: A handler returns the results as PyTorch nests them: operands, cells (of tensors that exist already), numbers.
Handler = Callable[["TorchCall"], Any]

#: A function's name, as `targets.name_of` has it -> its handler.
HANDLERS: dict[str, Handler] = {}

#: Handlers that return cells themselves, of tensors that exist already.
ALIASES: set[Handler] = set()


class TorchConversionError(ValueError):
    """A part of a PyTorch network that Lamina does not support; names the function and the line that calls it."""


def converts(*names: str) -> Callable[[Handler], Handler]:
    """Registers the decorated function as the handler of PyTorch's functions and methods of these names."""

    def enter(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return enter


def aliases(handler: Handler) -> Handler:
    """The decorated handler returns cells: its results may be its arguments."""
    ALIASES.add(handler)
    return handler


def defined(name: str, schema: str, shapes: Callable[..., Any]) -> None:
    """A function `torch.ops.lamina.<name>` that represents in a graph what the exporter cannot trace.

    shapes: returns results of the right shapes for its arguments. Its handler is that of `lamina::<name>`.
    """
    torch.library.define(f"lamina::{name}", schema)
    torch.library.impl(f"lamina::{name}", "CompositeExplicitAutograd", _only_shapes)
    torch.library.register_fake(f"lamina::{name}", shapes)


def _only_shapes(*_: Any) -> Any:
    raise NotImplementedError("stands in a graph, and is never run by PyTorch")


@dataclass
class TorchCall:
    """A call: its arguments by PyTorch's names ("self" is "input"), tensors as their current operands.

    cells: the same arguments with tensors as cells, for writing. device: that of the program's tensors.
    run: runs a subgraph (a GraphModule's program) on arguments. modes: `with_gradient` and `autocast` of the run.
    """

    node: Node
    cells: Mapping[str, Any]
    device: Device | None
    run: Callable[..., Any] = field(repr=False)
    modes: Any = field(repr=False)

    def error(self, text: str) -> TorchConversionError:
        """The exception to raise: the text prefixed with the function."""
        return TorchConversionError(f"{full_name(self.node)}: {text}")

    @property
    def name(self) -> str:
        """The function's name, without the trailing underscore of its in-place form."""
        name = name_of(self.node)
        return name[:-1] if name.endswith("_") and not name.endswith("__") else name

    def __contains__(self, name: str) -> bool:
        return name in self.cells

    def __getitem__(self, name: str) -> Any:
        if name not in self.cells:
            raise self.error(f"needs the argument {name}, has {', '.join(self.cells)}")
        return read(self.cells[name])

    def get(self, name: str, default: Any = None) -> Any:
        """An argument, or its default."""
        return self[name] if name in self.cells else default

    def either(self, *names: str) -> Any:
        """The argument under the first of these names that exists: they differ between PyTorch's API layers."""
        return self[next((n for n in names if n in self.cells), names[0])]

    def write(self, name: str, value: Any) -> None:
        """Overwrite a tensor that was passed as an argument."""
        cell = self.cells.get(name)
        if isinstance(cell, Cell):
            cell.write(value)

    def dtype(self, default: Any) -> DType:
        """The argument dtype, else the default."""
        given = self.get("dtype")
        return as_dtype(default) if given is None else dtype_of(given)


def read(value: Any) -> Any:
    """Cells replaced by their operands, in nested sequences."""
    if isinstance(value, Cell):
        return value.read()
    if isinstance(value, slice):
        return slice(read(value.start), read(value.stop), read(value.step))
    if isinstance(value, dict):
        return {k: read(v) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(read, value))
    if isinstance(value, (tuple, list)):
        return type(value)(map(read, value)) if type(value) in (tuple, list) else list(map(read, value))
    return value


def dtype_of(dtype: Any) -> DType:
    """Lamina's dtype of a torch.dtype, or of a tensor type (torch.FloatTensor, or its name, as returned by
    `x.type()`). Raises DTypeError for unsupported ones (complex, quantized).
    """
    if isinstance(dtype, str) and dtype.startswith("torch.") and dtype.endswith("Tensor"):
        dtype = functools.reduce(getattr, dtype.split(".")[1:], torch)
    if isinstance(dtype, type(torch.FloatTensor)):
        dtype = dtype.dtype
    if isinstance(dtype, torch.dtype):
        return as_dtype(str(dtype).removeprefix("torch."))
    return as_dtype(dtype)


def known(value: Any) -> Any:
    """The values of a tensor or a constant as a NumPy array; None for a value known only at run time."""
    found = numbers_of(value) if isinstance(value, Value) else value
    with recording(None):  # a constant remains one: reading it does not make it an input
        return found.numpy() if isinstance(found, Tensor) else None


def is_operand(value: Any) -> bool:
    """Whether a value is a tensor or a traced value."""
    return isinstance(value, Operand)
