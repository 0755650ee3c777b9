"""Masks of torch.nn's transformers while their graph is made.

`TransformerEncoder` and `TransformerDecoder` compare a mask's values with those of a causal one, because attention
may then omit it. A graph lacks these values: torch.export fails there, and Dynamo leaves the
whole stack of layers to PyTorch. While a graph is made here, a mask is causal if the caller says so; it is applied
either way.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules import transformer

_plain = transformer._detect_is_causal_mask
_making = threading.local()


def mark_making(inside: bool) -> bool:
    """Set whether this thread is making a graph; returns the previous setting."""
    before = getattr(_making, "inside", False)
    _making.inside = inside
    return before


@contextmanager
def without_numbers() -> Iterator[None]:
    """Within the block this thread makes a graph."""
    before = mark_making(True)
    try:
        yield
    finally:
        mark_making(before)


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
def _makes() -> bool:
    """A constant to Dynamo, which would otherwise guard on it before each compiled call."""
    return getattr(_making, "inside", False)


def is_causal_mask(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    """A replacement of PyTorch's function: its own answer, except while a graph is made."""
    return bool(is_causal) if _makes() else _plain(mask, is_causal, size)


def take_masks() -> None:
    """Make PyTorch's transformers call `is_causal_mask`. Called once in a process."""
    transformer._detect_is_causal_mask = is_causal_mask


take_masks()
