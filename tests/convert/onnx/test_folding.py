"""What is known is computed at once, and is bounded."""

import numpy as np
import pytest
from onnx import helper

import lamina as lm
from lamina.convert.onnx import OnnxError, OnnxGraph, node
from lamina.convert.onnx.folding import Folding
from lamina.ops.core import recording
from lamina.spec import Spec, float32
from tests.helpers.onnx_models import model


def test_ops_compute_while_a_function_is_recorded() -> None:
    with recording(Folding()):
        y = lm.ops.add(lm.tensor([1.0]), 2.0)
        first, second = lm.ops.split(lm.tensor([1, 2, 3]), [1, 2])
    assert (y.tolist(), first.tolist(), second.tolist()) == ([3], [1], [2, 3])
    by = Folding()
    assert by.knows(y)
    assert by.feed(Spec((), float32), lambda: 3.0).item() == 3
    by.guard(lambda: True)
    by.write(y, np.array([5.0]))
    assert y.tolist() == [5]
    with pytest.raises(OnnxError, match="after each call"):
        by.finally_(lambda: None)


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes"),
    [
        ("ConstantOfShape", [np.array([1 << 40])], {}),
        ("ConstantOfShape", [np.array([1 << 20, 1 << 20, 1 << 20])], {}),
        ("Expand", [np.ones(1, np.float32), np.array([1 << 40])], {}),
        ("Tile", [np.ones(2, np.float32), np.array([1 << 33])], {}),
        ("Range", [np.array(0), np.array(1 << 50), np.array(1)], {}),
        ("Pad", [np.ones(2, np.float32), np.array([1 << 40, 1 << 40])], {}),
        ("HannWindow", [np.array(1 << 50)], {}),
        ("OneHot", [np.array([0]), np.array(1 << 50), np.array([0.0, 1.0])], {}),
        ("Resize", [np.ones((1, 1), "f"), np.zeros(0, "f"), np.array([1.0, 1e12], "f")], {}),
        ("Upsample", [np.ones((1, 1), "f"), np.array([1.0, 1e12], "f")], {}),
        ("EyeLike", [np.ones((1 << 15, 1), "f")], {}),
    ],
)  # fmt: skip
def test_a_few_bytes_do_not_become_gigabytes(
    operator: str, inputs: list[np.ndarray], attributes: dict
) -> None:
    names = [f"w{i}" for i in range(len(inputs))]
    called = helper.make_node(operator, names, ["c"], **attributes)
    proto = model([called], {"x": (2,)}, {"c": (2,)}, opset=20, **dict(zip(names, inputs, strict=True)))
    if operator == "Upsample":
        proto.opset_import[0].version = 9
    graph = OnnxGraph(proto)
    if operator == "EyeLike":
        graph({"x": np.ones(2, "f")})  # as large as its input asks, no more
        return
    with pytest.raises((OnnxError, ValueError, OverflowError)):
        graph({"x": np.ones(2, "f")})


@pytest.mark.parametrize(
    ("operator", "most", "inputs"),
    [
        ("OneHot", 12, [np.array([0]), np.array(12), np.array([0.0, 1.0])]),
        ("HannWindow", 12, [np.array(12)]),
        ("Range", 12, [np.array(0), np.array(12), np.array(1)]),
        ("Tile", 12, [np.ones(3), np.array([4])]),
    ],
)
def test_constants_may_have_as_many_bytes_as_are_allowed(
    operator: str, most: int, inputs: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """most: elements, of 8 bytes each."""
    names = [f"w{i}" for i in range(len(inputs))]
    nodes = [helper.make_node(operator, names, ["c"])]
    proto = model(nodes, {"x": (2,)}, {"c": (2,)}, opset=20, **dict(zip(names, inputs, strict=True)))
    monkeypatch.setattr(node, "MOST_BYTES", 8 * most)
    assert OnnxGraph(proto)({"x": np.ones(2, "f")})["c"].spec.numel == most
    monkeypatch.setattr(node, "MOST_BYTES", 8 * most - 1)
    with pytest.raises(OnnxError, match=rf"a constant of {8 * most} bytes is refused"):
        OnnxGraph(proto)({"x": np.ones(2, "f")})
