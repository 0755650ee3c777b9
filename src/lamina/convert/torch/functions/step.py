"""The export of one op to PyTorch functions, and the table of the export functions.

    @writes(Conv)                    a function of a `TorchStep` and the operands' representations (tensors of
    def conv(step, x, w): ...        PyTorch or proxies of torch.fx), returns those of the results
    refuses({RoiAlign: "..."})       why PyTorch has nothing for it

An elementwise op without attributes whose name is a function of torch or of torch.nn.functional is that function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch

from lamina.convert.torch.node import TorchConversionError
from lamina.graph import Node
from lamina.ops.core import Op
from lamina.spec import DType, Spec

#: (step, *operands) -> the result, or several; None for an unread trailing one.
TorchWriter = Callable[..., Any]
Array = np.ndarray[Any, Any]
W = TypeVar("W", bound=TorchWriter)

WRITERS: dict[type[Op], TorchWriter] = {}
REFUSED: dict[type[Op], str] = {}
_UNKNOWN = "PyTorch has no function of this meaning"


def writes(*ops: type[Op]) -> Callable[[W], W]:
    """Registers the decorated function, which writes these ops with PyTorch's functions."""

    def enter(writer: W) -> W:
        WRITERS.update(dict.fromkeys(ops, writer))
        return writer

    return enter


def refuses(reasons: Mapping[type[Op], str]) -> None:
    """Register ops without a PyTorch equivalent, including all that derive from them, with the reason."""
    REFUSED.update(reasons)


def writer_of(op: Op) -> TorchWriter | None:
    """The function that writes an op; None if there is none."""
    return WRITERS.get(type(op)) or _same_name(op)


def refusal(op: Op) -> str:
    """The reason why an op without a function is not written."""
    return next((REFUSED[base] for base in type(op).__mro__ if base in REFUSED), _UNKNOWN)


def _same_name(op: Op) -> TorchWriter | None:
    if not op.elementwise or fields(op):
        return None
    found = getattr(torch, op.name, None) or getattr(torch.nn.functional, op.name, None)
    return None if found is None else lambda step, *operands: found(*operands)


def torch_dtype(dtype: DType) -> torch.dtype:
    """PyTorch's name of an element type."""
    found: torch.dtype = getattr(torch, dtype.name)
    return found


@dataclass
class TorchStep:
    """An op that is being written.

    nodes: its node in each trace, the first at the examples' sizes. wanted: which of its results are
    read. number: the representation of a number that differs between traces, None if it cannot be computed.
    call: calls a function that creates a tensor from none, where proxies would not be noticed. constant: the
    representation of an array. device: where new tensors are created.
    """

    nodes: tuple[Node, ...]
    wanted: tuple[bool, ...]
    number: Callable[[tuple[int, ...]], Any]
    call: Callable[..., Any]
    constant: Callable[[Array], Any]
    device: Any

    @cached_property
    def op(self) -> Any:
        """The op; attributes that depend on a free axis are replaced by their representations. Raises
        TorchConversionError.
        """
        return self.joined([n.op for n in self.nodes])

    @property
    def specs(self) -> tuple[Spec, ...]:
        """The operands at the examples' sizes."""
        return tuple(v.spec for v in self.nodes[0].inputs)

    @property
    def results(self) -> tuple[Spec, ...]:
        """The results at the examples' sizes."""
        return tuple(v.spec for v in self.nodes[0].outputs)

    @property
    def dtype(self) -> DType:
        """The element type of the first operand."""
        return self.specs[0].dtype

    def error(self, text: str) -> TorchConversionError:
        """The exception to raise: the text prefixed with the op, its module and its line."""
        op, origin = self.nodes[0].op, str(self.nodes[0].origin)
        return TorchConversionError(f"to_torch: {op}{f' ({origin})' if origin else ''}: {text}")

    def varies(self, get: Callable[[Any], Any]) -> bool:
        """Whether any part of the node depends on a free axis."""
        return any(get(n) != get(self.nodes[0]) for n in self.nodes[1:])

    def sizes(self, get: Callable[[Any], Any]) -> Any:
        """The node's numbers, nested in tuples, or their representations. Raises TorchConversionError."""
        return self.joined([get(n) for n in self.nodes])

    def joined(self, values: Sequence[Any]) -> Any:
        """One value for those of all traces. Raises TorchConversionError if it cannot be computed."""
        first = values[0]
        if all(v == first for v in values[1:]):
            return first
        if all(isinstance(v, int) for v in values):
            found = self.number(tuple(values))
            if found is not None:
                return found
        elif all(isinstance(v, tuple) and len(v) == len(first) for v in values):
            return tuple(self.joined(column) for column in zip(*values, strict=True))
        elif is_dataclass(first):
            return SimpleNamespace(
                **{f.name: self.joined([getattr(v, f.name) for v in values]) for f in fields(first)}
            )
        raise self.error("its attributes depend on a free axis: give the axis a fixed size")

    def written(self, operands: Sequence[Any]) -> list[Any]:
        """The representations of the results. Raises TorchConversionError for an op without a PyTorch equivalent."""
        writer = writer_of(self.nodes[0].op)
        if writer is None:
            raise self.error(refusal(self.nodes[0].op))
        found = writer(self, *operands)
        return list(found) if isinstance(found, tuple) else [found]
