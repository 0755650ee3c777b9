"""Selection of the elements at which a mask is true: a result whose size depends on the mask's numbers."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from lamina.ops.core import CallNeededError, call, operand, recorder, recording
from lamina.ops.primitives.cast import cast
from lamina.ops.primitives.gather import Gather, Scatter, checked_mask, host_values
from lamina.ops.primitives.pointwise import minimum, where
from lamina.ops.primitives.reduce import sum
from lamina.ops.primitives.scan import cumsum
from lamina.ops.primitives.shape import expand, slice_axis
from lamina.spec import Shape, int64


def positions(what: str, mask: Any, name: str) -> Any:
    """The int64 positions of a mask's true elements among all, in order: a NumPy array, or a value while a graph is
    recorded, which then serves calls whose mask has as many true elements.

    Raises TypeError where a graph is recorded for no call, or the mask depends on more than what the call tells.
    """
    try:
        return np.flatnonzero(host_values(what, mask, name))
    except TypeError as error:
        found = _positions_now(mask)
        if found is None:
            raise UnknownCountError(*error.args) from None
        return found


class UnknownCountError(CallNeededError, TypeError):
    """A mask selects as many elements as its numbers tell, which are known in a call alone."""


def _positions_now(mask: Any) -> Any:
    """The positions as a value, as many as there are in the call that is recorded; None where that is not known."""
    flags = mask.reshape((mask.spec.numel,))
    count = _count(flags)
    if count is None:
        return None
    # The k-th true element writes its position to place k, all others write to one place more, which is cut off; so
    # do those of a call with more of them, of which the numbers are asked all the same.
    places = where(flags, minimum(cumsum(cast(flags, int64), 0) - 1, count), count)
    found = call(Scatter(0, "set"), np.zeros(count + 1, np.int64), places, np.arange(flags.spec.numel))
    return slice_axis(found, 0, 0, count)


def _count(flags: Any) -> int | None:
    """How many of a vector's elements are true in the call that is recorded; None where that is not known."""
    by = recorder()
    found: Any = None if by is None else by.numbers_now(sum(cast(flags, int64)))
    with recording(None):
        return None if found is None else int(found.numpy())


def indices(what: str, mask: Any, name: str) -> list[Any]:
    """For each axis of a mask, of at least one, the indices of its true elements: as `positions`."""
    if isinstance(mask, np.ndarray):
        return list(np.nonzero(mask))
    flat = positions(what, mask, name)
    return (
        list(np.unravel_index(flat, mask.shape)) if isinstance(flat, np.ndarray) else _apart(flat, mask.shape)
    )


def _apart(flat: Any, shape: Shape) -> list[Any]:
    """The index along each axis of a shape, for positions among all its elements."""
    behind = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return [(flat // step if step > 1 else flat) % n for n, step in zip(shape, behind, strict=True)]


def masked_select(input: Any, mask: Any) -> Any:
    """The elements where the boolean mask is true, as a vector; both are broadcast. torch.masked_select.

    The shape depends on the mask's values. Within `lamina.jit` and training steps each number of elements is a
    program of its own; a TypeError in other graphs. Synchronizes with a GPU.
    """
    x, mask = operand(input, "masked_select"), checked_mask("masked_select", mask)
    shape = np.broadcast_shapes(x.shape, mask.shape)
    chosen = positions("masked_select", expand(mask, shape), "mask")
    return call(Gather(0), expand(x, shape).reshape((prod(shape),)), chosen)
