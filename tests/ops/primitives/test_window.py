"""Windows: their positions by enumeration, what they are made from, the sizes that are refused."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from lamina.ops.primitives.window import LIMIT, Window, window
from lamina.spec import ShapeError

#: Window, kernel, spatial sizes.
CASES = [
    (Window((1,), ((0, 0),), (1,)), (3,), (7,)),
    (Window((2,), ((1, 2),), (3,)), (2,), (9,)),
    (Window((2, 3), ((0, 1), (2, 0)), (1, 2)), (3, 2), (6, 7)),
    (Window((3, 1), ((2, 2), (0, 0)), (2, 1)), (2, 1), (4, 5)),
    (Window((1, 2, 2), ((0, 0), (1, 0), (0, 2)), (2, 1, 1)), (2, 3, 1), (5, 4, 3)),
]


def positions(win: Window, kernel: tuple[int, ...], spatial: tuple[int, ...]) -> list[list[int]]:
    """Where the kernel begins along each padded axis: every stride, as far as its last tap is inside."""
    return [
        [at for at in range(0, n + lo + hi, step) if at + (k - 1) * d < n + lo + hi]
        for n, (lo, hi), step, k, d in zip(
            spatial, win.padding, win.stride, kernel, win.dilation, strict=True
        )
    ]


@pytest.mark.parametrize(("win", "kernel", "spatial"), CASES, ids=str)
def test_positions_by_enumeration(win: Window, kernel: Any, spatial: Any) -> None:
    begins = positions(win, kernel, spatial)
    output = tuple(map(len, begins))
    assert win.output(spatial, kernel) == output
    assert win.rank == len(spatial)
    x = np.random.default_rng(0).standard_normal((2, 3, *spatial))
    padded: Any = win.pad(x, 9.0)
    assert padded.shape[2:] == win.padded(spatial)
    assert win.unpadded(win.padded(spatial)) == spatial
    np.testing.assert_array_equal(win.crop(padded), x)
    assert np.count_nonzero(padded == 9.0) == padded.size - x.size
    patches: Any = win.patches(padded, kernel)
    taps = list(win.taps(kernel, output))
    assert patches.shape == (2, 3, *output, *kernel)
    for tap, offset in zip(taps, product(*map(range, kernel)), strict=True):
        for place in product(*map(range, output)):
            at = tuple(b[p] + o * d for b, p, o, d in zip(begins, place, offset, win.dilation, strict=True))
            wanted = padded[(..., *at)]
            np.testing.assert_array_equal(patches[(..., *place, *offset)], wanted)
            np.testing.assert_array_equal(padded[tap][(..., *place)], wanted)


@pytest.mark.parametrize(
    ("padding", "wanted"),
    [
        ("valid", ((0, 0), (0, 0))),
        ("half", ((1, 1), (4, 4))),  # of reaches of 3 and 9 elements
        ("full", ((2, 2), (8, 8))),
        ("same", ((1, 1), (4, 4))),
        (3, ((3, 3), (3, 3))),
        ([3], ((3, 3), (3, 3))),
        ((1, 2), ((1, 1), (2, 2))),
        ([(0, 1), (2, 3)], ((0, 1), (2, 3))),
        (np.array([1, 2]), ((1, 1), (2, 2))),
    ],
)
def test_paddings(padding: Any, wanted: Any) -> None:
    made = window("conv", (3, 5), padding=padding, dilation=(1, 2))
    assert (made.padding, made.stride, made.dilation, made.groups, made.flip) == (
        wanted,
        (1, 1),
        (1, 2),
        1,
        False,
    )
    assert made.span((3, 5)) == (3, 9)


def test_even_kernels_have_more_padding_behind() -> None:
    made = window("conv", (4, 2, 1), padding="same")
    assert made.padding == ((1, 2), (0, 1), (0, 0))
    assert made.output((9, 8, 7), (4, 2, 1)) == (9, 8, 7)
    assert window("conv", (4,), padding="half").padding == ((2, 2),)


def test_as_text_and_over_more_groups() -> None:
    assert str(Window((1, 2), ((0, 1), (0, 0)), (1, 1))) == "[stride=(1,2),padding=((0,1),(0,0))]"
    full = Window((1,), ((0, 0),), (2,), 3, True)
    assert str(full) == "[stride=(1,),padding=((0,0),),dilation=(2,),groups=3,flip]"
    assert full.repeated(4) == Window((1,), ((0, 0),), (2,), 12, True)


@pytest.mark.parametrize(("name", "least"), [("stride", 1), ("dilation", 1), ("padding", 0)])
def test_numbers_are_those_of_32_bits(name: str, least: int) -> None:
    for value in (least, 2**31 - 1):
        kept = getattr(window("conv", (1,), **{name: value}), name)  # type: ignore[arg-type]
        assert kept == (((value, value),) if name == "padding" else (value,))
    for value in (least - 1, 2**31):
        with pytest.raises(
            ShapeError, match=rf"conv: {name} must be ints in \[{least}, {LIMIT}\], got \({value},\)"
        ):
            window("conv", (1,), **{name: value})  # type: ignore[arg-type]
        pairs = {name: ((value, value),) if name == "padding" else (value,)}
        with pytest.raises(ShapeError, match=rf"{name} must be ints in \[{least}, 2147483647\]"):
            Window(**{"stride": (1,), "padding": ((0, 0),), "dilation": (1,)} | pairs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": (1, 2, 3)}, r"conv: stride must be one int or 2 ints, got \(1, 2, 3\)"),
        ({"stride": True}, "conv: stride must be one int or 2 ints, got True"),
        ({"dilation": 1.0}, "conv: dilation must be one int or 2 ints, got 1.0"),
        ({"dilation": "1"}, "conv: dilation must be one int or 2 ints, got '1'"),
        (
            {"padding": "some"},
            "conv: padding must be one of valid, half, full, same, ints or pairs, got 'some'",
        ),
        ({"padding": "same", "stride": (1, 2)}, r'conv: padding "same" needs stride 1, got \(1, 2\)'),
        ({"padding": [(1, 2)]}, r"conv: padding must be one of .* or 2 \(lo, hi\) pairs, got \[\(1, 2\)\]"),
        ({"padding": [(1, 2), 3]}, r"conv: padding must be one of .* or 2 \(lo, hi\) pairs"),
        ({"padding": [(1, 2), (3, 4, 5)]}, r"conv: padding must be one of .* or 2 \(lo, hi\) pairs"),
        ({"padding": [(0, 0), (0, -1)]}, r"conv: padding must be ints in \[0, 2147483647\], got \(0, -1\)"),
        ({"groups": 0}, "conv: groups must be an int >= 1, got 0"),
        ({"groups": 1.5}, "conv: groups must be an int >= 1, got 1.5"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        window("conv", (3, 3), **options)


def test_kernels_that_do_not_fit() -> None:
    win = Window((2,), ((1, 1),), (3,))
    assert win.output((5,), (3,)) == (1,)  # a reach of 7 over 7 elements
    with pytest.raises(
        ShapeError,
        match=r"pool: a kernel of 3 with dilation 3 reaches over 7 elements, but .* 0 of \(4,\) has 4",
    ):
        win.output((4,), (3,), "pool")
    with pytest.raises(ShapeError, match=r"pool: kernel size must be ints in \[1, 2147483647\], got \(0,\)"):
        win.output((4,), (0,), "pool")
    for wrong in (((), (), ()), ((1, 1), ((0, 0),), (1, 1)), ((1,) * 4, ((0, 0),) * 4, (1,) * 4)):
        with pytest.raises(ShapeError, match="must name the same 1, 2 or 3 spatial axes"):
            Window(*wrong)
