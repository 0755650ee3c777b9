"""Layouts: tags, strides and blocks; packing and unpacking are inverse whatever the layout."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.spec import Layout, ShapeError, channels_last, contiguous, dense, from_tag, pack, unpack
from lamina.spec.layout import (
    outer_shape,
    overlaps,
    physical_elements,
    plainest,
    refined,
    reshaped,
    reshaped_strides,
    same_memory,
    tag,
    view,
)

Blocks = tuple[tuple[int, int], ...]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], Blocks]:
    """A shape, an order of its axes, and blocks on some of them (one axis may be blocked twice)."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    order = tuple(draw(st.permutations(range(len(shape)))))
    axes = st.tuples(st.integers(0, len(shape) - 1), st.sampled_from([2, 4, 8]))
    return shape, order, tuple(draw(st.lists(axes, max_size=3)))


@given(layouts())
def test_pack_and_unpack_are_inverse(case: tuple[tuple[int, ...], tuple[int, ...], Blocks]) -> None:
    shape, order, blocks = case
    layout = dense(shape, order, blocks)
    x = np.arange(1, np.prod(shape) + 1).reshape(shape)
    flat = pack(x, layout)
    assert flat.shape == (physical_elements(layout, shape),)
    np.testing.assert_array_equal(unpack(flat, layout, shape), x)
    assert np.count_nonzero(flat) == x.size  # each element once, padding zero


@given(layouts())
def test_elements_lie_where_the_strides_say(case: tuple[tuple[int, ...], tuple[int, ...], Blocks]) -> None:
    shape, order, blocks = case
    layout = dense(shape, order, blocks)
    x = np.arange(1, np.prod(shape) + 1).reshape(shape)
    flat = pack(x, layout)
    for place in np.ndindex(*shape):
        assert flat[_offset(place, layout)] == x[place]


@given(layouts(), st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_what_does_not_overlap_has_one_element_at_each_address(
    case: tuple[tuple[int, ...], tuple[int, ...], Blocks], factors: list[int]
) -> None:
    """Dense layouts do not, nor do those with gaps; axes of size 1 may have any stride."""
    shape, order, blocks = case
    found = dense(shape, order, blocks)
    assert not overlaps(found, shape)
    wide = Layout(tuple(s * f for s, f in zip(found.strides, factors, strict=False)), blocks)
    places = [_offset(place, wide) for place in np.ndindex(*shape)]
    if not overlaps(wide, shape):
        assert len(set(places)) == len(places)
    alone = Layout(tuple(0 if n == 1 else s for n, s in zip(shape, found.strides, strict=True)), blocks)
    assert not overlaps(alone, shape)
    assert not overlaps(Layout((0,) * len(shape), blocks), (0, *shape[1:]))


def test_repeated_and_sliding_elements_overlap() -> None:
    assert overlaps(Layout((0, 1)), (2, 3))
    for strides in product(
        range(8), repeat=3
    ):  # by the addresses of all elements, where strides do not interleave
        for shape in ((2, 3, 2), (1, 2, 4), (3, 1, 2)):
            places = sum(np.ogrid[tuple(map(slice, shape))][axis] * s for axis, s in enumerate(strides))
            several = len(np.unique(places)) < np.prod(shape)
            assert overlaps(Layout(strides), shape) or not several, (strides, shape)
    assert overlaps(Layout((1, 1)), (4, 3))
    assert overlaps(Layout((2, 1)), (4, 3))
    assert not overlaps(Layout((3, 1)), (4, 3))
    assert overlaps(Layout((7,), ((0, 8),)), (16,))
    assert not overlaps(Layout((8,), ((0, 8),)), (16,))


def _offset(place: tuple[int, ...], layout: Layout) -> int:
    """Where an element lies, by the definition: whole blocks by stride, then the position inside the blocks."""
    inner = 1
    within = []
    for axis, size in reversed(layout.blocks):
        within.append((axis, size, inner))
        inner *= size
    rest, offset = list(place), 0
    for axis, size, step in within:  # innermost block of an axis first
        offset += rest[axis] % size * step
        rest[axis] //= size
    return offset + sum(i * s for i, s in zip(rest, layout.strides, strict=True))


@given(layouts())
def test_tags_name_layouts(case: tuple[tuple[int, ...], tuple[int, ...], Blocks]) -> None:
    """A dense layout has a tag, and the tag gives the same memory."""
    shape, order, blocks = case
    layout = dense(shape, order, blocks)
    text = tag(layout, shape)
    assert text is not None
    again = from_tag(text, shape)
    x = np.arange(1, np.prod(shape) + 1).reshape(shape)
    np.testing.assert_array_equal(pack(x, again), pack(x, layout))


def test_known_layouts() -> None:
    shape = (8, 20, 5, 7)
    assert contiguous(shape).strides == (700, 35, 7, 1)
    assert channels_last(shape).strides == (700, 1, 140, 20)
    assert from_tag("acdb", shape) == channels_last(shape)
    assert channels_last((3, 4)) == contiguous((3, 4))
    blocked = from_tag("aBcd16b", shape)
    assert (blocked.strides, blocked.blocks) == ((1120, 560, 112, 16), ((1, 16),))
    assert outer_shape(shape, blocked.blocks) == (8, 2, 5, 7)
    assert physical_elements(blocked, shape) == 8 * 32 * 35
    double = from_tag("ABcd4a16b4a", shape)  # an axis blocked twice, another between
    assert double.blocks == ((0, 4), (1, 16), (0, 4))
    assert blocked.is_blocked
    assert not contiguous(shape).is_blocked


def test_tags_of_axes_of_size_one() -> None:
    """Where an axis has size 1 its stride does not matter: the plainest tag is given."""
    assert tag(channels_last((2, 1, 3, 3)), (2, 1, 3, 3)) == "abcd"
    assert tag(channels_last((2, 5, 1, 1)), (2, 5, 1, 1)) == "abcd"
    assert tag(Layout((99, 1)), (1, 4)) == "ab"


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """A shape, an order of its axes, and another shape of as many elements: factors are joined anew."""
    factors = draw(st.lists(st.sampled_from([1, 1, 2, 2, 3, 4]), max_size=6))
    shapes = [_joined(factors, draw(st.sets(st.integers(0, len(factors))))) for _ in range(2)]
    return shapes[0], tuple(draw(st.permutations(range(len(shapes[0]))))), shapes[1]


def _joined(factors: list[int], cuts: set[int]) -> tuple[int, ...]:
    """The product of each run of factors between two cuts."""
    edges = sorted({0, len(factors), *cuts})
    return tuple(int(np.prod(factors[a:b])) for a, b in pairwise(edges))


@given(reshapes())
def test_a_reshape_is_a_view_of_the_same_memory(
    case: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
) -> None:
    """Of the layout that is there, wherever NumPy has a view, too; elsewhere of one that both shapes have."""
    shape, order, new = case
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    layout = dense(shape, order)
    given, made = reshaped(layout, shape, new)
    np.testing.assert_array_equal(unpack(pack(x, given), made, new), x.reshape(new))
    lying = unpack(pack(x, layout), layout, shape)
    assert np.shares_memory(lying, lying.reshape(new)) == same_memory(given, layout, shape)
    assert tag(given, shape) is not None
    assert tag(made, new) is not None
    assert made == plainest(made, new)


@pytest.mark.parametrize(
    ("shape", "tag_", "new", "read", "written"),
    [
        ((64, 512, 196), "acb", (64, 512, 14, 14), "acb", "acdb"),  # tokens as an image, and back
        ((64, 512, 14, 14), "acdb", (64, 512, 196), "acdb", "acb"),
        ((4, 6, 8, 10), "abdc", (4, 6, 80), "abcd", "abc"),  # what is joined lies the other way round
        ((4, 6, 8, 10), "adcb", (4, 6, 80), "acdb", "acb"),
        ((4, 6, 8, 10), "cabd", (24, 8, 10), "cabd", "bac"),
        ((4, 6, 8), "bac", (24, 8), "abc", "ab"),
        ((16, 24, 8, 10), "aBcd16b", (16, 24, 80), "abcd", "abc"),  # blocks are undone
        ((2, 0, 3), "cba", (0, 4), "abc", "ab"),
    ],
)
def test_layouts_of_reshapes(
    shape: tuple[int, ...], tag_: str, new: tuple[int, ...], read: str, written: str
) -> None:
    given, made = reshaped(from_tag(tag_, shape), shape, new)
    assert (tag(given, shape), tag(made, new)) == (read, written)


def test_reshapes_of_gaps_and_repeats() -> None:
    """Rows of a wider array split and join as they lie; what is repeated is repeated under another shape."""
    assert reshaped(Layout((32, 1)), (6, 8), (2, 3, 4, 2)) == (Layout((32, 1)), Layout((96, 32, 2, 1)))
    assert reshaped(Layout((0, 0)), (6, 8), (48,)) == (Layout((0, 0)), Layout((0,)))
    assert reshaped(Layout((32, 1)), (6, 8), (48,)) == (Layout((8, 1)), Layout((1,)))
    assert reshaped_strides((6, 8), (32, 1), (3, 16)) is None


@given(layouts(), st.data())
def test_layouts_of_the_same_memory_have_one_tag(
    case: tuple[tuple[int, ...], tuple[int, ...], Blocks], data: st.DataObject
) -> None:
    """Whatever the strides of axes of size 1 are."""
    shape, order, blocks = case
    layout = dense(shape, order, blocks)
    outer = outer_shape(shape, blocks)
    moved = [
        data.draw(st.integers(0, 99)) if n == 1 else s for n, s in zip(outer, layout.strides, strict=True)
    ]
    other = Layout(tuple(moved), blocks)
    assert same_memory(layout, other, shape)
    assert tag(layout, shape) == tag(other, shape)
    assert plainest(layout, shape) == plainest(other, shape)
    if any(n > 1 for n in outer):
        longest = outer.index(max(outer))
        apart = tuple(s + (axis == longest) for axis, s in enumerate(layout.strides))
        assert not same_memory(layout, Layout(apart, blocks), shape)


def test_layouts_without_a_tag() -> None:
    assert tag(Layout((8, 1)), (2, 4)) is None  # gaps
    assert tag(Layout((0, 1)), (2, 4)) is None  # repeats
    assert physical_elements(Layout((8, 1)), (2, 4)) == 12
    assert physical_elements(Layout((8, 1)), (0, 4)) == 0


def test_views_share_memory() -> None:
    flat = np.zeros(12)
    view(flat, Layout((1, 3)), (3, 4))[2, 3] = 5
    assert flat[11] == 5
    unpack(flat, Layout((4, 1)), (3, 4))[0, 0] = 7
    assert flat[0] == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("abc", "layout tag 'abc' does not name the 4 axes"),
        ("abcc", "does not name the 4 axes"),
        ("abcd16b", "the capital letters must be the blocked axes"),
        ("aBcd", "the capital letters must be the blocked axes"),
        ("aBcd16", "does not name"),
        ("", "does not name"),
    ],
)
def test_wrong_tags(text: str, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        from_tag(text, (1, 2, 3, 4))


@pytest.mark.parametrize("shape", [(2, 48, 3, 5), (1, 16, 1, 1), (0, 32, 2, 2)])
@pytest.mark.parametrize("given", ["abcd", "acdb", "aBcd16b", "aBcd8b", "aBcd2b8b"])
@pytest.mark.parametrize("wanted", ["abcd", "cdba", "aBcd16b", "aBcd8b4b"])
def test_blocks_that_are_full_are_axes(shape: tuple[int, ...], given: str, wanted: str) -> None:
    """Between layouts that both see one shape of more axes a copy has strides alone."""
    if shape[1] % 32 and wanted == "aBcd8b4b":
        assert refined(shape, (from_tag(given, shape), from_tag(wanted, shape))) is None
        return
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    source, target = from_tag(given, shape), from_tag(wanted, shape)
    found = refined(shape, (source, target))
    assert found is not None
    sizes, rows = found
    old, new = pack(x, source), np.full_like(pack(x, target), np.nan)
    views = [
        np.lib.stride_tricks.as_strided(flat, sizes, [4 * s for s in row])
        for flat, row in zip((old, new), rows, strict=True)
    ]
    views[1][...] = views[0]
    np.testing.assert_array_equal(unpack(new, target, shape), x)


def test_blocks_of_two_axes_within_each_other() -> None:
    """Each stride by hand: blocks of 2 b in 16 a in 4 b, beside rows."""
    shape = (32, 24, 3)
    found = refined(shape, (from_tag("ABc4b16a2b", shape), contiguous(shape)))
    assert found == ((2, 16, 3, 4, 2, 3), ((1152, 2, 384, 32, 1, 128), (1152, 72, 24, 6, 3, 1)))


@pytest.mark.parametrize(
    ("shape", "tags"),
    [
        ((2, 20, 3), ("abc", "aBc8b")),  # the last block is not full
        ((2, 48, 3), ("aBc16b", "aBc24b")),  # 16 and 24 begin together at every 48th alone
    ],
)
def test_what_is_no_shape_of_full_blocks(shape: tuple[int, ...], tags: tuple[str, str]) -> None:
    assert refined(shape, (from_tag(tags[0], shape), from_tag(tags[1], shape))) is None
