"""Shapes, dtypes and layouts as JSON values."""

from __future__ import annotations

from typing import Any

from lamina.replay.errors import PlanFileError
from lamina.spec import Layout, Spec, as_dtype


def encode_spec(spec: Spec) -> list[Any]:
    """Shape, dtype, and the layout's strides and blocks where it is not row-major."""
    if spec.layout is None or spec.is_contiguous:
        return [list(spec.shape), spec.dtype.name]
    return [
        list(spec.shape),
        spec.dtype.name,
        list(spec.layout.strides),
        [list(b) for b in spec.layout.blocks],
    ]


def decode_spec(data: Any) -> Spec:
    """The spec, its layout named. Raises PlanFileError, ShapeError, DTypeError."""
    shape, dtype, *layout = data
    if not isinstance(shape, list) or any(type(n) is not int or n < 0 for n in shape):
        raise PlanFileError(f"not a shape: {shape!r}")
    if not layout:
        return Spec(tuple(shape), as_dtype(dtype)).fixed
    strides, blocks = layout
    numbers = [*strides, *(n for block in blocks for n in block)]
    if any(type(n) is not int or not 0 <= n < 1 << 44 for n in numbers):
        raise PlanFileError(f"not a layout: {layout!r}")
    pairs = tuple([(int(axis), int(size)) for axis, size in blocks])
    if any(not (0 <= axis < len(shape) and size > 0) for axis, size in pairs):
        raise PlanFileError(f"not a layout: {layout!r}")
    return Spec(tuple(shape), as_dtype(dtype), Layout(tuple(strides), pairs))
