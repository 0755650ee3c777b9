"""Loops over joined operands: which accesses are whole, and the bounds of parts in a table or in the text."""

import pytest

from lamina.backends.cuda.elementwise.loop import (
    JoinedOperand,
    KernelOperand,
    access_width,
    elementwise,
    rows_of,
)
from lamina.backends.cuda.launch.indexing import collapse
from lamina.backends.cuda.launch.program import Table, source, target
from lamina.spec import Shape, bfloat16


def joined(shape: Shape, axis: int, sizes: tuple[int, ...]) -> JoinedOperand:
    """Parts in row-major order that make up `shape`."""
    parts = []
    for i, size in enumerate(sizes):
        own = tuple(size if a == axis else n for a, n in enumerate(shape))
        strides = [1] * len(own)
        for a in reversed(range(len(own) - 1)):
            strides[a] = strides[a + 1] * own[a + 1]
        parts.append(KernelOperand(bfloat16, tuple(strides), source(i)))
    return JoinedOperand(tuple(parts), axis, sizes)


@pytest.mark.parametrize(
    ("shape", "axis", "sizes", "width"),
    [
        ((4, 24), 1, (8, 16), 8), ((4, 24), 1, (12, 12), 4), ((4, 24), 1, (9, 15), 1),
        ((5, 8), 0, (2, 3), 8), ((5, 3), 0, (2, 3), 1), ((40,), 0, (32, 8), 8), ((41,), 0, (32, 9), 1),
    ],
)  # fmt: skip
def test_an_access_lies_in_one_part(shape: Shape, axis: int, sizes: tuple[int, ...], width: int) -> None:
    read = joined(shape, axis, sizes)
    space = collapse(shape, rows_of([read]), range(len(shape)))
    assert access_width(space, [read]) == width


def test_ends_and_begins() -> None:
    """Behind each part along the axis; what the offset is at its first element."""
    read = joined((2, 7, 4), 1, (1, 2, 4))
    assert read.ends == (1, 3, 7)
    assert read.begins == (0, 4, 12)
    assert read.rows == ((4, 4, 1), (8, 4, 1), (16, 4, 1), (0, 1, 0))


def test_one_kernel_serves_all_sizes_of_a_number_of_parts() -> None:
    """Bounds are numbers of its table."""
    texts = set()
    for shape, sizes in (((4, 24), (8, 16)), ((6, 40), (32, 8))):
        written = KernelOperand(bfloat16, (shape[1], 1), target())
        launch = elementwise(shape, (0, 1), [joined(shape, 1, sizes)], [written], [], ["a0"], raw="u16")
        assert any(isinstance(a, Table) for a in launch.arguments)
        texts.add(launch.program.text)
    assert len(texts) == 1
