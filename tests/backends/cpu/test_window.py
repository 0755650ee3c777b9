"""How filters of groups lie, told by the strides and blocks of one that has an axis of groups."""

import itertools

import numpy as np
import pytest

from lamina.backends.cpu.window import ungrouped
from lamina.spec import Shape

Blocks = tuple[tuple[int, int], ...]


def offsets(dims: Shape, strides: Shape, blocks: Blocks) -> np.ndarray:
    """Where each element lies: blocks are innermost, the last one first; strides are of what is left of the axes."""
    found = np.zeros(dims, np.int64)
    for index in itertools.product(*map(range, dims)):
        left, at, size = list(index), 0, 1
        for axis, block in reversed(blocks):
            at += left[axis] % block * size
            left[axis] //= block
            size *= block
        found[index] = at + sum(i * s for i, s in zip(left, strides, strict=True))
    return found


@pytest.mark.parametrize(
    ("dims", "strides", "blocks", "same"),
    [
        ((2, 3, 4, 5), (60, 20, 5, 1), (), True),  # row-major
        ((2, 3, 4, 5), (60, 1, 15, 3), (), False),  # rows of a group are together
        ((1, 3, 4, 5), (99, 1, 15, 3), (), True),  # one group lies as it is
        ((2, 3, 4, 5), (3, 1, 30, 6), (), True),  # rows of all groups are innermost
        ((2, 16, 4, 3), (192, 96, 24, 8), ((1, 8),), True),
        ((2, 16, 8, 3), (384, 192, 192, 64), ((1, 8), (2, 8)), True),
        ((2, 12, 4, 3), (192, 96, 24, 8), ((1, 8),), False),  # a block is not full
        ((16, 1, 1, 9), (9, 9, 9, 1), (), True),  # depthwise
        ((16, 1, 1, 9), (72, 72, 72, 8), ((0, 8),), True),
        ((16, 2, 1, 9), (144, 72, 72, 8), ((0, 8),), False),  # groups are interleaved
    ],
)
def test_groups_and_rows_are_one_axis_where_strides_and_blocks_say_so(
    dims: Shape, strides: Shape, blocks: Blocks, same: bool
) -> None:
    found = ungrouped(strides, blocks, dims)
    assert (found is not None) == same
    if found is not None:
        joined = (dims[0] * dims[1], *dims[2:])
        np.testing.assert_array_equal(
            offsets(joined, found.strides, found.blocks), offsets(dims, strides, blocks).reshape(joined)
        )
