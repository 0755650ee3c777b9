"""Normalization as models of ONNX."""

from typing import Any

import pytest

from lamina import ops
from lamina.convert.onnx.export import norm, to_onnx
from lamina.graph import trace
from lamina.ops.core import Sample
from lamina.spec import DType, Spec, as_dtype
from tests.helpers.onnx_exports import few, verdict

pytestmark = pytest.mark.feature("B026")


@pytest.mark.parametrize(("sample", "dtype"), few(norm), ids=str)
def test_written_ops_compute_what_they_mean(sample: Sample, dtype: DType) -> None:
    assert verdict(sample, dtype) == []


@pytest.mark.parametrize(
    ("call", "operator"),
    [
        (lambda x: ops.layer_norm(x, 4), "LayerNormalization"),
        (lambda x: ops.group_norm(x, 3), "InstanceNormalization"),
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_is_computed_in_float32_is_onnxs_operator(call: Any, operator: str, dtype: str) -> None:
    """Doubles keep their digits by the formula."""
    model = to_onnx(trace(call, Spec((2, 3, 4), as_dtype(dtype))), check=False)
    assert (operator in {node.op_type for node in model.graph.node}) == (dtype != "float64")
