"""Stand-ins: PyTorch tensors without values, for which Lamina computes while a network's own code runs.

A stand-in has a shape, a dtype, strides, and memory that its views share, all on PyTorch's device "meta"; the value
is in its cell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from lamina.convert.torch.cells import Cell
from lamina.convert.torch.complexes import ComplexCell
from lamina.graph import Value


class StandInError(TypeError):
    """A stand-in is used outside of the run of the code that made it."""


class StandIn(torch.Tensor):
    """A tensor whose value is in a cell; made by `stand_in`.

    cell: its value. meta: the tensor without a value that it is, as a plain one.
    """

    cell: Cell
    meta: torch.Tensor

    def settle(self, numbers: Callable[[Any], Any]) -> None:
        """Keep the numbers of the value in place of the value that a record has. numbers: gives these."""
        if isinstance(self.cell, ComplexCell):
            re, im = (numbers(x) for x in self.cell.parts)
            self.cell = ComplexCell.made((re, im))
        elif isinstance(value := self.cell.read(), Value):
            self.cell = Cell(numbers(value))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Raises StandInError: only a run of the code computes."""
        raise StandInError(
            f"{getattr(func, '__name__', func)}: a tensor that a converted network's code made as it was run call by "
            "call, and kept, is not PyTorch's: return it from forward"
        )


def stand_in(cell: Cell, meta: torch.Tensor | None = None) -> StandIn:
    """The stand-in for a cell's value. meta: a tensor of its shape and dtype, to share the memory with."""
    shape, dtype = _kind(cell)
    with torch._C.DisableTorchFunction():
        if meta is None or tuple(meta.shape) != shape or meta.dtype != dtype:
            meta = torch.empty(shape, dtype=dtype, device="meta")
        made: StandIn = meta.detach().as_subclass(StandIn)
        made.cell, made.meta = cell, made.as_subclass(torch.Tensor)
    return made


def _kind(cell: Cell) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype in PyTorch."""
    if isinstance(cell, ComplexCell):
        spec = cell.re.read().spec
        return tuple(spec.shape), torch.complex128 if spec.dtype.itemsize == 8 else torch.complex64
    spec = cell.read().spec
    return tuple(spec.shape), getattr(torch, spec.dtype.name)


class CodeMode(TorchFunctionMode):
    """Within the block a network's code is run with stand-ins."""

    def apply(self, function: Any, args: Sequence[Any]) -> Any:
        """The results of a `torch.autograd.Function`, whose code is run, too."""
        raise NotImplementedError


def running_code() -> CodeMode | None:
    """What runs a network's code with stand-ins in this thread."""
    modes = _get_current_function_mode_stack()
    return next((mode for mode in modes if isinstance(mode, CodeMode)), None)


def is_valueless(x: Any) -> bool:
    """Whether x has no value of its own: while a graph is made, or its code is run."""
    return isinstance(x, FakeTensor | StandIn)
