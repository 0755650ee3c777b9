"""The loops over operands in any layout."""

import numpy as np
import pytest

from lamina.backends import NoKernel
from lamina.backends.cpu.loops.space import common_layout, operand, space
from lamina.spec import Layout, Spec, contiguous, float32


def spec(shape: tuple[int, ...], tag: str = "") -> Spec:
    found = Spec(shape, float32)
    return found.with_tag(tag) if tag else found.fixed


def test_dense_operands_are_one_loop() -> None:
    x = spec((2, 3, 4, 5), "acdb")
    found = space(x.shape, x.physical, [x, x, spec(())])
    assert (found.sizes, found.strides, found.count) == ((120,), ((1,), (1,), (0,)), 120)


def test_broadcast_operands_keep_their_axes_apart() -> None:
    x, bias = spec((2, 3, 4, 5)), spec((3, 1, 1))
    found = space(x.shape, x.physical, [x, bias])
    assert (found.sizes, found.strides) == ((2, 3, 20), ((60, 20, 1), (0, 1, 0)))
    last = spec(x.shape, "acdb")
    assert space(x.shape, last.physical, [last, bias]).sizes == (40, 3)


def test_blocks_are_axes() -> None:
    x = spec((2, 32, 3, 3), "aBcd16b")
    found = space(x.shape, x.physical, [x, spec((32, 1, 1)), spec(x.shape)])
    assert (found.sizes[-1], found.strides[0][-1], found.strides[1][-1]) == (16, 1, 1)
    assert found.strides[2][-1] == 9  # a row-major operand is stepped through
    assert found.count == 576
    with pytest.raises(NoKernel, match="is not in blocks"):
        space((2, 32, 3, 3), contiguous((2, 32, 3, 3)), [x])


def test_every_element_is_met_once() -> None:
    """The offsets of all steps are those of all elements, gaps and blocks included."""
    shape = (2, 32, 3, 5)
    gaps = Spec(shape, float32, Layout((1000, 20, 6, 1)))
    for out in (spec(shape, "aBcd8b"), spec(shape, "aBcd4b2b"), spec(shape), spec(shape, "acdb")):
        found = space(shape, out.physical, [out, gaps])
        for row, given in zip(found.strides, (out, gaps), strict=True):
            index = np.indices(found.sizes).reshape(len(found.sizes), -1)
            at = np.sort(row @ index)
            if given is out:
                assert np.array_equal(at, np.arange(out.numel))
            assert len(np.unique(at)) == out.numel


def test_the_common_layout_is_dense_and_without_padding() -> None:
    last, padded = spec((2, 20, 3, 3), "acdb"), spec((2, 20, 3, 3), "aBcd16b")
    assert common_layout(last.shape, [spec((20, 1, 1)), last]) == last.layout
    assert common_layout(last.shape, [padded]) == contiguous(last.shape)
    assert operand(padded, last.shape, contiguous(last.shape)) == spec(last.shape)
    assert operand(last.open, last.shape, contiguous(last.shape)) == spec(last.shape)


def test_operands_in_another_order_are_read_where_their_runs_are_the_same() -> None:
    shape = (3, 4, 5, 16)
    for tag, layout in (("bacd", "abcd"), ("abcd", "acbd")):
        assert operand(spec(shape, tag), shape, spec(shape, layout).physical) == spec(shape, tag)
    for tag, layout in (("acdb", "abcd"), ("abcd", "acdb")):
        assert operand(spec(shape, tag), shape, spec(shape, layout).physical) == spec(shape, layout)
    short = (3, 4, 5, 7)
    assert operand(spec(short, "acbd"), short, contiguous(short)) == spec(short)
