"""The first op with finite operands and a non-finite result: the check behind `policy(check_finite=True)`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lamina.ops.core import Array, Op
from lamina.ops.origin import Origin
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.fused_elementwise import FusedElementwise


class NonFiniteError(ArithmeticError):
    """An op produced NaN or an infinity; the message names the op and its location in the network and the program."""


def is_finite(x: Array) -> bool:
    """Whether an array contains neither NaN nor infinities; True for non-float dtypes."""
    return not _is_float(x) or bool(np.isfinite(x.astype(np.float64)).all())


def has_nan(x: Array) -> bool:
    """Whether an array contains NaN."""
    return _is_float(x) and bool(np.isnan(x.astype(np.float64)).any())


def check_fused(op: Fused | FusedElementwise, origin: Origin, inputs: Sequence[Array]) -> None:
    """Raise NonFiniteError for the first step of a fused op whose NumPy result is not finite."""
    origins = origin.parts if len(origin.parts) == len(op.ops) else (origin,) * len(op.ops)
    with np.errstate(all="ignore"):
        values = op.running_values(*(x.astype(np.float32) if _is_float(x) else x for x in inputs))
    for step, where, y in zip(op.ops, origins, values, strict=True):
        check_results(step, where, [y])


def check_results(op: Op, origin: Origin, outputs: Sequence[Array]) -> None:
    """Raise NonFiniteError for the first output that is not finite."""
    for i, y in enumerate(outputs):
        if not is_finite(y):
            wide = y.astype(np.float64)
            bad = ~np.isfinite(wide)
            place = tuple(int(k) for k in np.argwhere(bad)[0])
            where = f" in {origin}" if str(origin) else ""
            raise NonFiniteError(
                f"{op.name}{where}: output {i} of shape {y.shape} has {int(bad.sum())} values that are not finite, "
                f"the first is {wide[place]} at {list(place)}; all its operands are finite. The op is {op}"
            )


def check_given(name: str, x: Array) -> None:
    """Raise NonFiniteError for an input with NaN; infinities may be intended, as in masks."""
    if has_nan(x):
        raise NonFiniteError(f"the input {name} of shape {x.shape} holds NaN before anything is computed")


def _is_float(x: Array) -> bool:
    return x.dtype.kind in "fV" or x.dtype.name in ("bfloat16", "float8_e4m3fn")
