"""Normalization as models of ONNX."""

import pytest

from lamina.convert.onnx.export import norm
from lamina.ops.core import Sample
from lamina.spec import DType
from tests.helpers.onnx_exports import few, verdict

pytestmark = pytest.mark.feature("B026")


@pytest.mark.parametrize(("sample", "dtype"), few(norm), ids=str)
def test_written_ops_compute_what_they_mean(sample: Sample, dtype: DType) -> None:
    assert verdict(sample, dtype) == []
