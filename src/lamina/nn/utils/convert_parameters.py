"""All parameters as one vector, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from lamina import ops
from lamina.ops.arguments import checked, shown
from lamina.ops.core import operand
from lamina.spec import ShapeError
from lamina.tensors import Tensor


@checked
def parameters_to_vector(parameters: Iterable[Any]) -> Any:
    """The elements of all tensors, concatenated in row-major order. Raises ValueError for an empty list."""
    parts = [ops.reshape(p, (-1,)) for p in parameters]
    if not parts:
        raise ValueError("parameters_to_vector: no parameters")
    return ops.cat(parts, 0)


@checked
def vector_to_parameters(vec: Any, parameters: Iterable[Tensor]) -> None:
    """Copy a vector's elements into parameters, in place, in the order of `parameters_to_vector`.

    Raises ShapeError unless the number of elements matches.
    """
    given, held = operand(vec, "vector_to_parameters", "vec"), list(parameters)
    if not all(isinstance(p, Tensor) for p in held):
        raise TypeError(f"vector_to_parameters: parameters must be tensors, got {shown(held)}")
    count = sum(math.prod(p.shape) for p in held)
    if given.shape != (count,):
        raise ShapeError(f"vector_to_parameters: vec must have shape ({count},), got {given.shape}")
    first = 0
    for p in held:
        size = math.prod(p.shape)
        p.copy_(ops.reshape(given[first : first + size], p.shape))
        first += size
