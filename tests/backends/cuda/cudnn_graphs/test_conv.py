"""Graphs of convolutions: what has an address."""

import pytest

from lamina.backends.cuda.cudnn_graphs.conv import (
    Direction,
    Operands,
    conv_graph,
    places_of,
    window_arguments,
)
from lamina.backends.cuda.cudnn_graphs.epilogue import NONE, Epilogue
from lamina.backends.cuda.launch.program import target
from lamina.ops.primitives import Conv, ConvDataGrad, ConvFilterGrad, Relu, Window
from lamina.spec import Spec, channels_last, float16
from tests.helpers.cudnn.installed import needs_cudnn_919


@needs_cudnn_919
@pytest.mark.parametrize("epilogue", [NONE, Epilogue((Relu(),), (), 2)], ids=["plain", "relu"])
@pytest.mark.parametrize("direction", [Conv, ConvDataGrad, ConvFilterGrad])
def test_each_tensor_that_lies_in_memory_has_a_place(direction: Direction, epilogue: Epilogue) -> None:
    """What steps follow is in none: the last step's result is the call's."""
    win = Window((1, 1), ((1, 1), (1, 1)), (1, 1))
    shapes = (2, 16, 8, 8), (32, 16, 3, 3), (2, 32, 8, 8)
    o = Operands(win, *(Spec(s, float16, channels_last(s)) for s in shapes))
    graph, places = conv_graph(direction, o, places_of(direction), epilogue)
    assert set(places) == {t.uid for t in graph.tensors if not t.virtual}
    assert sorted(places.values(), key=str) == sorted(places_of(direction), key=str)
    (result,) = [t for t in graph.tensors if places.get(t.uid) == target()]
    assert result.dimensions == shapes[places_of(direction).index(target())]


@pytest.mark.parametrize(
    ("win", "wanted"),
    [
        (
            Window((2,), ((1, 3),), (4,), flip=True),
            {"stride": (1, 2), "pre": (0, 1), "post": (0, 3), "dilation": (1, 4), "flip": True},
        ),
        (
            Window((2, 3), ((1, 3), (4, 5)), (6, 7)),
            {"stride": (2, 3), "pre": (1, 4), "post": (3, 5), "dilation": (6, 7), "flip": False},
        ),
    ],
)
def test_a_row_is_a_plane_of_one_row(win: Window, wanted: dict[str, object]) -> None:
    assert window_arguments(win) == wanted
