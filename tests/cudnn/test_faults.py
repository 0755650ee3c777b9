"""Engines that are known to compute wrong numbers, or not to end, are not taken from heuristics."""

from typing import Any

import pytest

from lamina.cudnn import Graph, known_wrong
from tests.helpers.cudnn.installed import needs_cudnn

pytestmark = needs_cudnn

UNEVEN, EVEN = ((0, 1), (1, 0)), ((1, 1), (1, 1))


def graph(
    direction: str,
    padding: tuple[tuple[int, ...], ...],
    *,
    stride: int = 1,
    dilation: int = 1,
    flip: bool = False,
    channels: int = 8,
    kernel: int = 3,
    dtype: str = "float32",
) -> Graph:
    """One convolution; padding: before the two axes, behind them."""
    made, reach = Graph(), (kernel - 1) * dilation + 1
    places = ((12 + before + behind - reach) // stride + 1 for before, behind in zip(*padding, strict=True))
    shapes = ((2, 8, 12, 12), (8, channels, kernel, kernel), (2, 8, *places))
    x, w, y = (made.packed(shape, dtype) for shape in shapes)
    window: dict[str, Any] = {
        "stride": (stride, stride),
        "pre": padding[0],
        "post": padding[1],
        "dilation": (dilation, dilation),
        "flip": flip,
    }
    if direction == "forward":
        made.conv(x, w, y, **window)
    elif direction == "data":
        made.conv_data_grad(y, w, x, **window)
    else:
        made.conv_filter_grad(x, y, w, **window)
    return made


def wrong(made: Graph) -> set[int]:
    return {engine for engine in range(100) if known_wrong(made.operations, engine)}


@pytest.mark.parametrize("flip", [False, True])
def test_uneven_padding(flip: bool) -> None:
    assert wrong(graph("forward", UNEVEN, flip=flip)) == set()
    assert wrong(graph("data", UNEVEN, flip=flip)) == {50, 78}
    assert wrong(graph("filter", UNEVEN, flip=flip)) == {1, 18, 20, 70}


def test_uneven_padding_of_one_channel_a_group() -> None:
    assert wrong(graph("forward", UNEVEN, channels=1)) == {5}
    assert wrong(graph("forward", EVEN, channels=1)) == set()


@pytest.mark.parametrize("direction", ["forward", "data", "filter"])
def test_even_padding(direction: str) -> None:
    assert wrong(graph(direction, EVEN)) == set()
    assert wrong(graph(direction, EVEN, stride=2)) == set()
    assert wrong(graph(direction, EVEN, dilation=2)) == set()
    both = wrong(graph(direction, EVEN, stride=2, dilation=2))
    assert both == ({70} if direction == "filter" else set())


def test_transforms_that_are_too_coarse() -> None:
    """Float32 is asked to be float32; half types have no more digits."""
    assert wrong(graph("filter", EVEN, kernel=5)) == {17}
    assert wrong(graph("filter", EVEN, kernel=5, dtype="bfloat16")) == set()
    assert wrong(graph("forward", EVEN, kernel=5)) == wrong(graph("data", EVEN, kernel=5)) == set()


def test_reasons_and_other_patterns() -> None:
    single = graph("filter", UNEVEN)
    assert known_wrong(single.operations, 20) == (
        "gives wrong filter gradients for padding (0, 1) before and (1, 0) after (found in cuDNN 9.19.0)"
    )
    (operation,) = single.operations
    assert known_wrong([operation, operation], 20) == ""  # engines of other patterns have other numbers


@pytest.mark.parametrize(("matrices", "deterministic"), [(1, True), (4, False), (4, True)])
def test_deterministic_reductions_of_several_matrices_do_not_end(matrices: int, deterministic: bool) -> None:
    made = Graph()
    product = made.packed((matrices, 64, 48), "float32", virtual=True)
    made.matmul(
        made.packed((matrices, 64, 32), "float16"), made.packed((matrices, 32, 48), "float16"), product
    )
    made.reduce("add", product, made.packed((matrices, 64, 1), "float32"), deterministic=deterministic)
    assert wrong(made) == ({1} if matrices > 1 and deterministic else set())
    if wrong(made):
        assert known_wrong(made.operations, 1) == (
            "does not end for a deterministic reduction behind a product of 4 matrices (found in cuDNN 9.19.0)"
        )


@pytest.mark.parametrize(
    ("mode", "images", "wrong"), [("instance", 4, True), ("instance", 1, False), ("layer", 4, False)]
)
def test_instance_norms_sums_are_not_left_to_engine_0(mode: str, images: int, wrong: bool) -> None:
    made = Graph()
    x, dy, dx = (made.packed((images, 8, 6, 6), "float32", channels_last=True) for _ in range(3))
    parameters = [made.packed((1, 8, 1, 1), "float32") for _ in range(3)]
    kept = [made.packed((images, 8, 1, 1), "float32") for _ in range(2)]
    made.norm_grad(
        mode,
        dy,
        x,
        dx,
        scale=parameters[0],
        dscale=parameters[1],
        dbias=parameters[2],
        mean=kept[0],
        inv_variance=kept[1],
    )
    assert bool(known_wrong(made.operations, 0)) == wrong
    assert known_wrong(made.operations, 2) == ""
