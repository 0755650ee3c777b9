"""Reductions, cumulative ops, sorting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lamina.convert.torch.functions.step import TorchStep, torch_dtype, writes
from lamina.ops.primitives.reduce import ArgMax, ArgMin, Reduce
from lamina.ops.primitives.scan import Scan
from lamina.ops.primitives.search import SearchSorted
from lamina.ops.primitives.sort import Sort


def _product(x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    for axis in sorted(axes, reverse=True):  # torch.prod takes one axis
        x = torch.prod(x, axis, keepdim=keep)
    return x


_KINDS: dict[str, Callable[[Any, tuple[int, ...], bool], Any]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "prod": _product,
    "max": torch.amax,
    "min": torch.amin,
    "norm1": lambda x, axes, keep: torch.sum(torch.abs(x), axes, keep),
    "norm2": lambda x, axes, keep: torch.linalg.vector_norm(x, 2, axes, keep),
    "amax": lambda x, axes, keep: torch.amax(torch.abs(x), axes, keep),
    "mul_no_zeros": lambda x, axes, keep: _product(torch.where(x == 0, 1, x), axes, keep),
}

#: Reductions in which only one of equal elements gets the gradient.
_EXTREMA: dict[str, Callable[..., Any]] = {"max": torch.max, "min": torch.min}


@writes(Reduce)
def reduce(step: TorchStep, x: Any) -> Any:
    """The function of the kind."""
    kind = step.op.kind
    if step.op.first:
        return _EXTREMA[kind](x, step.op.axes[0], step.op.keepdims)[0]
    if step.op.axes:
        return _KINDS[kind](x, step.op.axes, step.op.keepdims)
    if kind in ("norm1", "norm2", "amax"):
        return torch.abs(x)
    if kind == "mul_no_zeros":
        x = torch.where(x == 0, 1, x)
    return x.to(torch_dtype(step.results[0].dtype)) if step.results[0].dtype != step.dtype else x


@writes(ArgMax)
def argmax(step: TorchStep, x: Any) -> Any:
    """The index of the first maximum."""
    return torch.argmax(x, step.op.axis)


@writes(ArgMin)
def argmin(step: TorchStep, x: Any) -> Any:
    """The index of the first minimum."""
    return torch.argmin(x, step.op.axis)


@writes(Sort)
def sort(step: TorchStep, x: Any) -> Any:
    """Sorted values and indices; stable."""
    values, places = _two(torch.sort(x, dim=-1, descending=step.op.descending, stable=True))
    if step.op.first is None:
        return values, places
    return values[..., : step.op.first], places[..., : step.op.first]


def _two(pair: Any) -> tuple[Any, Any]:
    """Both of a pair, which may be a proxy."""
    return pair[0], pair[1]


_SCANS: dict[str, Callable[[Any, int], Any]] = {
    "sum": torch.cumsum,
    "prod": torch.cumprod,
    "max": lambda x, axis: torch.cummax(x, axis)[0],
    "min": lambda x, axis: torch.cummin(x, axis)[0],
    "logsumexp": torch.logcumsumexp,
}


@writes(Scan)
def scan(step: TorchStep, x: Any) -> Any:
    """Cumulative sums and their variants, in the operand's type."""
    found = _SCANS[step.op.kind](x, step.op.axis)
    return found.to(torch_dtype(step.results[0].dtype)) if not step.dtype.is_float else found


@writes(SearchSorted)
def search_sorted(step: TorchStep, rows: Any, values: Any) -> Any:
    """The insertion points of values."""
    return torch.searchsorted(rows, values, right=step.op.right)
