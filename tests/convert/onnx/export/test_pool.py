"""Pools as models of ONNX."""

import pytest

from lamina.convert.onnx.export import pool
from lamina.ops.core import Sample
from lamina.ops.primitives import AvgPool, Window
from lamina.spec import DType, float32
from tests.helpers.onnx_exports import few, verdict

pytestmark = pytest.mark.feature("B026")


@pytest.mark.parametrize(("sample", "dtype"), few(pool), ids=str)
def test_written_ops_compute_what_they_mean(sample: Sample, dtype: DType) -> None:
    assert verdict(sample, dtype) == []


@pytest.mark.parametrize("mode", ["include", "exclude", "sum"])
def test_dilated_averages_are_sums_of_slices_before_opset_19(mode: str) -> None:
    op = AvgPool((2, 3), Window((2, 1), ((1, 0), (1, 1)), (2, 2)), mode)
    sample = Sample.of(op, (2, 3, 8, 9))
    for opset in (18, 19):
        assert verdict(sample, float32, opset) == []
