"""Graphs of convolutions: what has an address."""

import pytest

from lamina.backends.cuda.cudnn_graphs.conv import Direction, Operands, conv_graph, places_of
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
