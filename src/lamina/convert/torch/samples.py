"""Values for operands that have none, for modules whose code cannot run without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def with_values() -> Iterator[None]:
    """Within the block PyTorch computes, even while a graph is made; its generators continue afterwards as if nothing
    had been drawn.
    """
    with _disable_current_modes(), torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        yield


def unknown_sizes(valueless: Sequence[torch.Tensor]) -> list[Any]:
    """The sizes that depend on values and are in no result yet, while a graph of these operands is made: PyTorch's
    own list. A call that raised leaves its own there.
    """
    environments = (x.fake_mode.shape_env for x in valueless if isinstance(x, FakeTensor))
    found: list[Any] = next((e.pending_fresh_unbacked_symbols for e in environments if e is not None), [])
    return found


def samples(valueless: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Numbers between 0 and 1, zeros for integers (an index of anything), True; shapes, dtypes and devices as given.

    Raises TypeError if a size is a symbol.
    """
    if symbol := next((n for x in valueless for n in x.shape if not isinstance(n, int)), None):
        raise TypeError(f"samples have known sizes, got {symbol}")
    with with_values():
        return [_sample(tuple(x.shape), x.dtype, x.device) for x in valueless]


def _sample(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.ones(shape, dtype=dtype, device=device)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.rand(shape, device=device).to(dtype)
    return torch.zeros(shape, dtype=dtype, device=device)
