"""The target of `to` for a tensor or a module, parsed from torch's several argument forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lamina.ops.arguments import is_dtype, shown
from lamina.ops.operators import Operators
from lamina.spec import DType, as_dtype


def destination(where: Sequence[Any], device: Any, dtype: Any) -> tuple[Any, DType | None]:
    """Device and dtype from the arguments of torch's `to`: one, both, or a tensor that has them. Raises TypeError."""
    for given in where:
        found = (given.device, given.dtype) if isinstance(given, Operators) else (given, None)
        if is_dtype(given):
            found = None, given
        elif isinstance(given, str) and not given.startswith(("cpu", "cuda", "auto")):
            raise ValueError(
                f"to: takes a device ('cpu', 'cuda:0'), a dtype ('float32') or a tensor, got {given!r}"
            )
        for what, old, new in zip(("device", "dtype"), (device, dtype), found, strict=True):
            if old is not None and new is not None:
                raise TypeError(f"to: takes one {what}, got {shown(old)} and {shown(new)}")
        device, dtype = (old if new is None else new for old, new in zip((device, dtype), found, strict=True))
    return device, None if dtype is None else as_dtype(dtype)
