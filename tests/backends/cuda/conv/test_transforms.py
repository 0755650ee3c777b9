"""Which convolutions are computed as others: few channels, strides, filters of one tap; and what the others are."""

from typing import Any

import pytest

from lamina.backends.cuda.conv.transforms import (
    SpaceToDepth,
    can_swap,
    multiplies,
    padded,
    pads,
    space_to_depth,
    swapped,
    takes_space_to_depth,
)
from lamina.backends.cuda.cudnn_graphs.conv import Operands
from lamina.ops.primitives import Conv, Window
from lamina.spec import DType, Spec, bfloat16, channels_last, contiguous, float16, float32


def conv(channels: int = 3, taps: tuple[int, ...] = (7, 7), **settings: Any) -> Operands:
    """Images of 24 places per axis, 16 filters. settings: of the window, per axis; dtype; last: the channels."""
    rank = len(taps)
    stride, pad = settings.get("stride", (2,) * rank), settings.get("pad", ((0, 0),) * rank)
    dilation, groups = settings.get("dilation", (1,) * rank), settings.get("groups", 1)
    window = Window(stride, pad, dilation, groups, settings.get("flip", False))
    dtype: DType = settings.get("dtype", bfloat16)
    x, w = Spec((2, channels, *(24,) * rank), dtype), Spec((16, channels // groups, *taps), dtype)
    arrange = channels_last if settings.get("last", True) else contiguous
    (y,) = Conv(window).infer(x, w)
    return Operands(window, *(Spec(s.shape, dtype, arrange(s.shape)) for s in (x, w, y)))


@pytest.mark.parametrize(
    ("settings", "taken"),
    [
        ({}, True),
        ({"stride": (1, 2)}, True),
        ({"dtype": float32}, True),
        ({"stride": (1, 1)}, False),
        ({"dilation": (1, 2)}, False),
        ({"channels": 4, "groups": 2}, False),
        ({"flip": True}, False),
        ({"taps": (3,)}, False),
        ({"taps": (3, 3, 3)}, False),
    ],
    ids=str,
)
def test_space_to_depth_is_for_plain_strided_windows_of_two_axes(
    settings: dict[str, Any], taken: bool
) -> None:
    assert takes_space_to_depth(conv(**settings)) == taken


@pytest.mark.parametrize(
    ("channels", "stride", "taken"),
    [(16, (2, 2), True), (17, (2, 2), False), (1, (8, 8), True), (1, (5, 13), False), (32, (2, 1), True)],
)
def test_space_to_depth_is_for_64_channels_at_most(
    channels: int, stride: tuple[int, int], taken: bool
) -> None:
    assert takes_space_to_depth(conv(channels, stride=stride)) == taken


@pytest.mark.parametrize(
    ("settings", "taken"),
    [
        ({}, True),
        ({"dtype": float16}, True),
        ({"channels": 12}, True),
        ({"channels": 8}, False),
        ({"channels": 64}, False),
        ({"dtype": float32}, False),
        ({"channels": 6, "groups": 2}, False),
        ({"taps": (3,)}, False),
        ({"taps": (3, 3, 3)}, False),
    ],
    ids=str,
)
def test_channels_are_padded_where_a_half_type_has_no_multiple_of_8(
    settings: dict[str, Any], taken: bool
) -> None:
    assert pads(conv(**settings)) == taken


@pytest.mark.parametrize(
    ("channels", "stride", "deep"), [(3, (2, 2), 16), (1, (2, 1), 8), (4, (4, 4), 64), (2, (2, 2), 8)]
)
@pytest.mark.parametrize("taps", [(7, 7), (4, 6), (1, 3)])
def test_a_block_of_places_becomes_channels(
    channels: int, stride: tuple[int, int], deep: int, taps: tuple[int, int]
) -> None:
    """The result is as it was; no place is read that there is not, and none of the filter's taps is lost."""
    o = conv(channels, taps, stride=stride, pad=((3, 2), (1, 0)))
    made = space_to_depth(o)
    assert (made.block, made.original, made.deep.y) == (stride, o, o.y)
    assert made.deep.x.shape[:2] == (2, deep)
    assert made.deep.w.shape[:2] == (16, deep)
    assert Conv(made.deep.window).infer(made.deep.x, made.deep.w)[0].shape == o.y.shape
    for k, b, t, n, u in zip(
        taps, stride, made.deep.w.shape[2:], o.y.shape[2:], made.deep.x.shape[2:], strict=True
    ):
        assert (t - 1) * b < k <= t * b
        assert u == n + t - 1
    assert all(s.physical == channels_last(s.shape) for s in (made.deep.x, made.deep.w, made.deep.y))


@pytest.mark.parametrize(("channels", "more"), [(3, 8), (12, 16), (63, 64)])
def test_padded_channels_are_the_next_multiple_of_8(channels: int, more: int) -> None:
    o = conv(channels, pad=((1, 0), (2, 2)))
    made = padded(o)
    assert made.block == (1, 1)
    assert made.deep.window == o.window
    assert made.deep.x.shape == (2, more, 24, 24)
    assert made.deep.w.shape == (16, more, 7, 7)
    assert made.deep.y == o.y


def constants(made: SpaceToDepth) -> dict[str, int]:
    """The numbers that the kernels are compiled with."""
    lines = (line.split() for line in made.text.splitlines() if line.startswith("#define"))
    return {name: int(value) for _, name, value in lines}


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("dtype", [bfloat16, float32])
def test_what_the_kernels_are_told(dtype: DType, last: bool) -> None:
    o = conv(3, (7, 5), stride=(2, 4), pad=((3, 2), (1, 0)), dtype=dtype, last=last)
    blocked = constants(space_to_depth(o))
    deep = space_to_depth(o).deep
    sizes = {"N": 2, "C": 3, "H": 24, "W": 24, "K": 16, "KH": 7, "KW": 5}
    strides = {f"X_{n}": s for n, s in zip("NCHW", o.x.physical.strides, strict=True)}
    strides |= {f"W_{n}": s for n, s in zip("KCHW", o.w.physical.strides, strict=True)}
    places = {"U": deep.x.shape[2], "V_": deep.x.shape[3], "DEEP": 24, "DH": 4, "DW": 2}
    width = 16 // dtype.itemsize
    assert blocked == sizes | strides | places | {"V": width, "PH": 3, "PW": 1, "BH": 2, "BW": 4}
    alone = constants(padded(o))  # the convolution pads places itself
    places = {"U": 24, "V_": 24, "DEEP": 8, "DH": 7, "DW": 5}
    assert alone == sizes | strides | places | {"V": width, "PH": 0, "PW": 0, "BH": 1, "BW": 1}


@pytest.mark.parametrize(
    ("settings", "taken"),
    [
        ({"pad": ((3, 3), (3, 3))}, True),
        ({"pad": ((6, 0), (0, 6))}, True),
        ({"pad": ((7, 0), (0, 0))}, False),
        ({"pad": ((0, 0), (0, 7))}, False),
        ({"dilation": (2, 1), "pad": ((12, 0), (0, 0))}, True),
        ({"dilation": (2, 1), "pad": ((13, 0), (0, 0))}, False),
        ({"stride": (1, 2)}, False),
        ({"channels": 4, "groups": 2}, False),
        ({"taps": (1, 1)}, False),
        ({"taps": (1, 3)}, True),
    ],
    ids=str,
)
def test_directions_are_swapped_where_padding_stays_within_the_filter(
    settings: dict[str, Any], taken: bool
) -> None:
    o = conv(**({"stride": (1, 1)} | settings))
    assert can_swap(o) == taken
    if taken:
        other = swapped(o)
        assert (other.x, other.y) == (o.y, o.x)
        assert Conv(other.window).infer(other.x, other.w)[0].shape == o.x.shape
        assert swapped(other) == o


@pytest.mark.parametrize(
    ("settings", "taken"),
    [
        ({}, True),
        ({"stride": (1, 1)}, True),
        ({"taps": (1, 1, 1)}, True),
        ({"taps": (1, 3)}, False),
        ({"pad": ((0, 0), (0, 1))}, False),
        ({"pad": ((1, 0), (0, 0))}, False),
        ({"channels": 4, "groups": 2}, False),
        ({"last": False}, False),
    ],
    ids=str,
)
def test_filters_of_one_tap_are_products(settings: dict[str, Any], taken: bool) -> None:
    o = conv(**({"taps": (1, 1)} | settings))
    assert multiplies(o) == taken
