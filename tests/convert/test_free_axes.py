"""Free axes of a program's inputs, and its traces at several sizes."""

from collections.abc import Sequence
from typing import Any

import pytest

from lamina import ops
from lamina.convert.free_axes import FreeAxes
from lamina.graph import Graph, trace
from lamina.spec import Spec, float32

pytestmark = pytest.mark.feature("B026")
SPECS = {"x": Spec((2, 5), float32), "y": Spec((2, 3), float32), "z": Spec((), float32)}


def test_one_name_is_the_first_axis_of_every_input() -> None:
    axes = FreeAxes.of("here", SPECS, "batch")
    assert [dict(axes.of_input(n)) for n in SPECS] == [{0: "batch"}, {0: "batch"}, {}]
    assert axes.sizes() == {"batch": 2}
    assert [s.shape for s in axes.resized({"batch": 7})] == [(7, 5), (7, 3), ()]
    assert [d.sizes for d in axes.dims("y", "y", [(2, 3), (4, 3)])] == [(2, 4)]


@pytest.mark.parametrize(
    ("dynamic", "text"),
    [
        ({"w": {0: "n"}}, r"here: dynamic names \['w'\], the inputs are \['x', 'y', 'z'\]"),
        ({"x": {2: "n"}}, r"here: dynamic has axes \[2\] of x"),
        (
            {"x": {0: "n", 1: "n"}},
            "here: the free axis 'n' has size 2 and, in x, 5: axes of one name have one size",
        ),
    ],
)
def test_what_is_not_there_is_refused(dynamic: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        FreeAxes.of("here", SPECS, dynamic)


def test_another_program_at_another_size_is_refused() -> None:
    axes = FreeAxes.of("here", {"x": Spec((3, 2), float32)}, "batch")

    def looped(specs: Sequence[Spec]) -> Graph:
        def steps(x: Any) -> Any:
            total = x[0]
            for i in range(1, x.shape[0]):
                total = ops.relu(total + x[i])
            return total

        return trace(steps, *specs)

    with pytest.raises(
        KeyError, match="net is another program for other sizes of its free axes batch: .* ops"
    ):
        axes.traces("net", looped, list, KeyError)
    graphs = axes.traces("net", lambda specs: trace(lambda x: x + 1.0, *specs), list, KeyError)
    assert [g.inputs[0].shape[0] for g in graphs] == [3, 5, 8]
