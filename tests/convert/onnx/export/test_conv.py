"""Convolutions as models of ONNX."""

import pytest

from lamina.convert.onnx.export import conv, to_onnx
from lamina.graph import trace
from lamina.ops.core import Sample, call
from lamina.ops.primitives import QuantizedConv, Window
from lamina.spec import DType, Spec, float8_e4m3fn, float32, int8
from tests.helpers.onnx_exports import few, verdict

pytestmark = pytest.mark.feature("B026")


@pytest.mark.parametrize(("sample", "dtype"), few(conv), ids=str)
def test_written_ops_compute_what_they_mean(sample: Sample, dtype: DType) -> None:
    assert verdict(sample, dtype) == []


@pytest.mark.parametrize(("dtype", "operator"), [(int8, "ConvInteger"), (float8_e4m3fn, "Conv")], ids=str)
def test_integers_are_summed_as_integers(dtype: DType, operator: str) -> None:
    """Exactly, however many; float8 in float32."""
    specs = Spec((2, 3, 5, 5), dtype), Spec((4, 3, 2, 2), dtype), Spec((4,), float32)
    op = QuantizedConv(Window((1, 1), ((0, 0), (0, 0)), (1, 1)))
    model = to_onnx(trace(lambda *xs: call(op, *xs), *specs), check=False)
    assert {"ConvInteger", "Conv"} & {node.op_type for node in model.graph.node} == {operator}
