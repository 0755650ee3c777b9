"""Elementwise ops as models of ONNX."""

import pytest

from lamina.convert.onnx.export import pointwise
from lamina.ops.core import Arg, Sample
from lamina.ops.primitives import BinaryFunction
from lamina.spec import DType, float32
from tests.helpers.onnx_exports import few, verdict

pytestmark = pytest.mark.feature("B026")


@pytest.mark.parametrize(("sample", "dtype"), few(pointwise), ids=str)
def test_written_ops_compute_what_they_mean(sample: Sample, dtype: DType) -> None:
    assert verdict(sample, dtype) == []


@pytest.mark.parametrize("name", pointwise._OF_TWO)
def test_functions_of_two_are_formulas(name: str) -> None:
    shape = Arg((4, 50), low=-3.0, high=3.0)
    assert verdict(Sample.of(BinaryFunction(name), shape, shape), float32) == []
