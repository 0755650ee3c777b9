"""The self-check finds what a model computes otherwise."""

from typing import Any

import numpy as np
import onnx
import pytest

from lamina import nn, ops
from lamina.convert import CheckError, to_onnx
from lamina.convert.onnx.export.check import apart, drawn
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


def test_numbers_that_may_mean_something_are_the_examples() -> None:
    example = np.array([[5, 6, 7]])
    np.testing.assert_array_equal(drawn(Spec((2, 3), int64), 0, example), [[5, 6, 7], [5, 6, 7]])
    assert set(np.unique(drawn(Spec((50,), int64)))) == {0, 1}
    assert drawn(Spec((4,), float32)).dtype == np.float32
    assert drawn(Spec((4,), float32), 0, np.zeros(2)).any()
