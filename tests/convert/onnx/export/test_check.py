"""The self-check finds what a model computes otherwise."""

from typing import Any

import numpy as np
import onnx
import pytest

from lamina import nn, ops
from lamina.convert import CheckError, to_onnx
from lamina.convert.onnx.export import check
from lamina.convert.onnx.export.check import OwnRunner, RuntimeRunner, apart, drawn
from lamina.convert.onnx.export.writer import WRITERS
from lamina.ops.primitives.pointwise import Tanh
from lamina.spec import Spec, float32, int64

pytestmark = pytest.mark.feature("B026")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act = nn.Linear(3, 4), nn.Tanh()

    def forward(self, x: Any) -> Any:
        return ops.exp(self.act(self.first(x)))


def test_a_wrong_writer_is_found_and_named_with_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WRITERS, Tanh, lambda step: step.add("Sigmoid", *step.inputs))
    with pytest.raises(
        CheckError,
        match=r"output 'output' differs by .*; the first op that differs is tanh\(\) of module 'act'",
    ):
        to_onnx(Net(), Spec((2, 3), float32))
    assert to_onnx(Net(), Spec((2, 3), float32), check=False).graph.node


def test_a_model_that_is_none_is_refused_by_the_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WRITERS, Tanh, lambda step: step.add("NoOperator", *step.inputs))
    with pytest.raises(onnx.checker.ValidationError, match="NoOperator"):
        to_onnx(Net(), Spec((2, 3), float32))


def test_results_are_compared_by_the_largest() -> None:
    a = np.array([1.0, 1000.0], np.float32)
    assert apart(a, a + np.float32(0.05)) is None
    assert apart(a, a + np.float32(0.5)) == "differs by 0.5 where the largest is 1e+03"
    assert apart(a, a.astype(np.float64)) == "is float32[2], not float64[2]"
    assert apart(a, a[:1]) == "is float32[2], not float32[1]"
    bad = np.array([np.nan, 1000.0], np.float32)
    assert apart(bad, bad.copy()) is None
    assert apart(a, bad) == "is infinite or NaN at other places"


def test_small_sigmoids_are_exported_although_onnxruntime_rounds_them_coarsely() -> None:
    x = np.linspace(-16, -14, 99, dtype=np.float32)  # its results are off by a tenth
    to_onnx(ops.sigmoid, x)
    a = np.float32([1e-6, 1e-7])
    assert apart(a, a + np.float32(2e-7), RuntimeRunner.rounding) is None
    assert apart(a, a + np.float32(2e-7), OwnRunner.rounding) is not None


def test_numbers_that_may_mean_something_are_the_examples() -> None:
    example = np.array([[5, 6, 7]])
    np.testing.assert_array_equal(drawn(Spec((2, 3), int64), 0, example), [[5, 6, 7], [5, 6, 7]])
    assert set(np.unique(drawn(Spec((50,), int64)))) == {0, 1}
    assert drawn(Spec((4,), float32)).dtype == np.float32
    assert drawn(Spec((4,), float32), 0, np.zeros(2)).any()


def one_operator(kind: str, elements: int, first: list[int], second: list[int]) -> onnx.ModelProto:
    inputs = [
        onnx.helper.make_tensor_value_info(name, elements, shape)
        for name, shape in (("a", first), ("b", second))
    ]
    output = onnx.helper.make_tensor_value_info("y", elements, None)
    graph = onnx.helper.make_graph([onnx.helper.make_node(kind, ["a", "b"], ["y"])], "one", inputs, [output])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)


def test_what_onnxruntime_has_no_kernel_for_is_not_the_models_fault() -> None:
    """A type that it does not compute in is passed over; what it says is wrong is said."""
    runner = check.RuntimeRunner(one_operator("PRelu", onnx.TensorProto.INT32, [3], [3]))
    assert runner.run({"a": np.arange(-1, 2, dtype=np.int32), "b": np.full(3, 2, np.int32)}) is None
    wrong = check.RuntimeRunner(one_operator("MatMul", onnx.TensorProto.FLOAT, [2, 3], [4, 5]))
    given = {"a": np.zeros((2, 3), np.float32), "b": np.zeros((4, 5), np.float32)}
    with pytest.raises(CheckError, match="onnxruntime does not run the model: .*MatMul"):
        wrong.run(given)
    found = check.RuntimeRunner(one_operator("Add", onnx.TensorProto.FLOAT, [3], [3])).run(
        {"a": np.arange(3, dtype=np.float32), "b": np.ones(3, np.float32)}
    )
    assert found is not None
    np.testing.assert_array_equal(found[0], [1, 2, 3])


class Centred(nn.Module):
    """A norm, and the mean of what it has centred: nothing but roundings."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        return y, ops.mean(y, -1)


def test_roundings_that_are_left_of_a_sum_are_no_difference() -> None:
    """Of the mean they are as large as it is."""
    assert to_onnx(Centred(), Spec((5, 64), float32)).graph.node


def test_an_infinity_beside_a_difference_is_no_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some overflow, a wrong writer in the others."""

    class Infinite(nn.Module):
        def forward(self, x: Any) -> Any:
            return ops.tanh(x) + ops.exp(x * 1e4)

    monkeypatch.setitem(WRITERS, Tanh, lambda step: step.add("Sigmoid", *step.inputs))
    with pytest.raises(CheckError, match="output 'output'"):
        to_onnx(Infinite(), Spec((2, 3), float32))
