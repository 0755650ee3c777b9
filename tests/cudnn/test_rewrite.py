"""Other graphs for one that is refused: in which order, and what each change makes of sizes, strides and types."""

from typing import Any

import pytest

from lamina.cudnn import Graph
from lamina.cudnn.rewrite import (
    Part,
    all_tensors,
    channels_last,
    float_compute,
    in_type,
    main_type,
    padded,
    rewrites,
    splits,
)
from tests.helpers.cudnn.installed import needs_cudnn

pytestmark = [needs_cudnn, pytest.mark.feature("B008")]


def sizes(part: Part) -> list[tuple[int, ...]]:
    return [t.dimensions for t in all_tensors(part)]


def strides(part: Part) -> list[tuple[int, ...]]:
    return [t.strides for t in all_tensors(part)]


def types(part: Part) -> list[str]:
    return [t.data_type.name.removeprefix("CUDNN_DATA_").lower() for t in all_tensors(part)]


def made(change: Any, part: Part) -> tuple[str, Part]:
    found = change(part)
    assert found is not None
    return found  # type: ignore[no-any-return]


def conv_bias(
    channels: int = 35,
    filters: int = 20,
    kind: str = "float32",
    *,
    last: bool = False,
    compute: str = "float32",
    groups: int = 1,
) -> Part:
    """A convolution, whose result stays inside, and a bias: x, w, y, bias, z."""
    g = Graph(compute)
    x, w = (
        g.packed(s, kind, channels_last=last)
        for s in ((2, channels, 8, 6), (filters, channels // groups, 3, 3))
    )
    y = g.conv(
        x,
        w,
        g.packed((2, filters, 8, 6), compute, channels_last=last, virtual=True),
        stride=(1, 1),
        pre=(1, 1),
    )
    b, z = (g.packed(s, kind, channels_last=last) for s in ((1, filters, 1, 1), (2, filters, 8, 6)))
    g.pointwise("add", y, b, out=z)
    return tuple(g.operations)


def product(m: int, k: int, n: int) -> Part:
    """a, b as the transposed view of [N, K], a @ b and relu."""
    g = Graph()
    a, b = g.packed((3, m, k), "float16"), g.tensor((3, k, n), (k * n, 1, k), "float16")
    y = g.matmul(a, b, g.packed((3, m, n), "float32", virtual=True))
    g.pointwise("relu_fwd", y, out=g.packed((3, m, n), "float16"))
    return tuple(g.operations)


def test_the_fewest_changes_come_first_and_a_split_is_the_last_of_them() -> None:
    last, wide, split = (
        "channels last (NHWC)",
        "channels padded from 20 to 24, 35 to 40",
        "split before PointwiseOperation",
    )
    casts = ("bfloat16 tensors", "float16 tensors")  # of one kind: never two of them
    one = [(last,), (wide,), *((c,) for c in casts), (split,)]
    two = [
        (last, wide), *((last, c) for c in casts), *((wide, c) for c in casts),
        (last, split), (wide, split), *((c, split) for c in casts),
    ]  # fmt: skip
    three = [
        *((last, wide, c) for c in casts), (last, wide, split), *((last, c, split) for c in casts),
        *((wide, c, split) for c in casts),
    ]  # fmt: skip
    found = list(rewrites(conv_bias()))
    assert [names for names, _ in found] == [*one, *two, *three]
    assert [len(parts) for _, parts in found] == [1 + (split in names) for names, _ in found]


def test_channels_last_is_of_images_and_changes_something() -> None:
    name, part = made(channels_last, conv_bias())
    assert (name, sizes(part)) == ("channels last (NHWC)", sizes(conv_bias()))
    assert strides(part)[:2] == [(35 * 48, 1, 35 * 6, 35), (35 * 9, 1, 35 * 3, 35)]
    assert channels_last(conv_bias(last=True)) is None
    assert channels_last(product(3, 5, 7)) is None


@pytest.mark.parametrize("last", [False, True])
def test_channels_are_padded_where_they_are_channels(last: bool) -> None:
    name, part = made(padded, conv_bias(35, 20, last=last))
    assert name == "channels padded from 20 to 24, 35 to 40"
    assert sizes(part) == [(2, 40, 8, 6), (24, 40, 3, 3), (2, 24, 8, 6), (1, 24, 1, 1), (2, 24, 8, 6)]
    assert strides(part)[0] == ((40 * 48, 1, 40 * 6, 40) if last else (40 * 48, 48, 6, 1))
    assert strides(part)[1] == ((40 * 9, 1, 40 * 3, 40) if last else (40 * 9, 9, 3, 1))
    assert padded(conv_bias(16, 24)) is None
    assert sizes(made(padded, conv_bias(1, 16))[1])[:2] == [(2, 8, 8, 6), (16, 8, 3, 3)]  # one is few, too
    assert padded(conv_bias(36, 20, groups=2)) is None  # each group would be padded


def test_what_is_one_beside_channels_stays_one() -> None:
    """A number that is added to every channel is no channel."""
    g = Graph()
    x, y = (g.packed((2, 35, 4, 4), "float16") for _ in range(2))
    g.pointwise("add", x, g.packed((1, 1, 1, 1), "float16"), out=y)
    assert sizes(made(padded, tuple(g.operations))[1]) == [(2, 40, 4, 4), (1, 1, 1, 1), (2, 40, 4, 4)]


def pointwise(*dimensions: tuple[int, ...]) -> Part:
    """The sum of two tensors of these dimensions, as large as the first."""
    g = Graph()
    a, b = (g.packed(s, "float16") for s in dimensions)
    g.pointwise("add", a, b, out=g.packed(dimensions[0], "float16"))
    return tuple(g.operations)


@pytest.mark.parametrize("side", [1, 4])
def test_channels_of_pointwise_graphs_are_padded_whatever_the_image(side: int) -> None:
    name, part = made(padded, pointwise((2, 35, side, side), (1, 35, 1, 1)))
    assert name == "channels padded from 35 to 40"
    assert sizes(part) == [(2, 40, side, side), (1, 40, 1, 1), (2, 40, side, side)]


def test_one_channel_of_a_pointwise_graph_is_not_padded() -> None:
    assert padded(pointwise((2, 1, 4, 4), (2, 1, 4, 4))) is None
    name, part = made(padded, pointwise((2, 35, 4, 4), (2, 1, 4, 4)))  # a mask for all channels
    assert (name, sizes(part)[1]) == ("channels padded from 35 to 40", (2, 1, 4, 4))


def test_matrices_are_padded_and_keep_the_order_of_their_axes() -> None:
    name, part = made(padded, product(3, 16, 7))
    assert name == "matrices padded from 3 to 8, 7 to 8"
    assert sizes(part) == [(3, 8, 16), (3, 16, 8), (3, 8, 8), (3, 8, 8)]  # three of a batch stay three
    assert strides(part)[:2] == [(128, 16, 1), (128, 1, 16)]
    assert padded(product(1, 16, 8)) is None  # a vector stays one


def test_what_mixes_channels_is_not_padded() -> None:
    for mode, pads in (("layer", False), ("batch", True), ("instance", True)):
        g = Graph()
        x, y = (g.packed((8, 35, 4, 4), "float32") for _ in range(2))
        scale, bias = (g.packed((1, 35, 1, 1), "float32") for _ in range(2))
        g.norm(mode, x, y, scale=scale, bias=bias, epsilon=g.scalar(), phase="inference")
        assert (padded(tuple(g.operations)) is not None) == pads, mode
    g = Graph()
    x = g.packed((8, 35, 4, 4), "float32")
    g.reduce("add", x, g.packed((8, 1, 1, 1), "float32"))
    assert padded(tuple(g.operations)) is None


def test_tensors_in_memory_become_another_type_and_what_is_inside_stays() -> None:
    name, part = made(in_type("bfloat16"), conv_bias())
    assert (name, types(part)) == (
        "bfloat16 tensors",
        ["bfloat16", "bfloat16", "float", "bfloat16", "bfloat16"],
    )
    assert in_type("float32")(conv_bias()) is None
    whole = made(in_type("float16"), conv_bias(kind="float64", compute="float64"))[1]
    assert types(whole) == ["half", "half", "float", "half", "half"]  # and sums in float32
    assert float_compute(whole) is None
    counts = conv_bias(kind="int32")
    assert in_type("float16")(counts) is None  # int32 has numbers that no half has


def test_arithmetic_becomes_float32() -> None:
    name, part = made(float_compute, conv_bias(kind="float16", compute="float64"))
    assert (name, types(part)) == ("float32 arithmetic", ["half", "half", "float", "half", "half"])
    assert float_compute(part) is None
    assert float_compute(conv_bias(kind="float16")) is None


def test_between_the_parts_of_a_split_tensors_are_stored() -> None:
    g = Graph()
    x, w = g.packed((2, 8, 4, 4), "float16"), g.packed((8, 8, 1, 1), "float16")
    y = g.conv(x, w, g.packed((2, 8, 4, 4), "float32", virtual=True), stride=(1, 1), pre=(0, 0))
    z = g.pointwise("relu_fwd", y)
    g.pointwise("add", z, x, out=g.packed((2, 8, 4, 4), "float16"))
    whole = tuple(g.operations)
    assert main_type(whole) == x.data_type
    (first, (conv, rest)), (second, (both, add)) = splits(whole)
    assert (first, second) == ("split before PointwiseOperation",) * 2
    assert ([t.virtual for t in all_tensors(conv)], types(conv)) == ([False] * 3, ["half"] * 3)
    assert [t.virtual for t in all_tensors(rest)] == [False, True, False, False]
    assert ([t.virtual for t in all_tensors(both)], types(both)) == (
        [False, False, True, False], ["half", "half", "float", "half"],
    )  # fmt: skip
    assert ([t.virtual for t in all_tensors(add)], len(add)) == ([False] * 3, 1)
    assert list(splits(whole[:1])) == []
