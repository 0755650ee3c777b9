"""Reductions, scans and orders as models of ONNX."""

import pytest

from lamina.convert.onnx.export import reduction
from lamina.ops.core import Arg, Sample
from lamina.ops.primitives import Reduce
from lamina.spec import DType, float32
from tests.helpers.onnx_exports import few, verdict

pytestmark = pytest.mark.feature("B026")


@pytest.mark.parametrize(("sample", "dtype"), few(reduction), ids=str)
def test_written_ops_compute_what_they_mean(sample: Sample, dtype: DType) -> None:
    assert verdict(sample, dtype) == []


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("axes", [(), (1,)])
@pytest.mark.parametrize(
    "kind", ["sum", "mean", "max", "min", "prod", "norm1", "norm2", "amax", "mul_no_zeros"]
)
def test_every_kind_of_reduction_over_some_axes_and_none(
    kind: str, axes: tuple[int, ...], opset: int
) -> None:
    assert verdict(Sample(Reduce(kind, axes, False), (Arg((3, 4)),)), float32, opset) == []
