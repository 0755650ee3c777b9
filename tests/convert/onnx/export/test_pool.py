"""Pools as models of ONNX."""

from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.convert import to_onnx
from lamina.convert.onnx.export import pool
from lamina.convert.onnx.export.writer import ExportError
from lamina.convert.onnx.graph import OnnxGraph
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


def test_places_of_maxima_need_images_of_one_size_but_no_number_of_them() -> None:
    """ONNX counts places through the whole tensor, Lamina within the window."""

    def pooled(x: Any) -> Any:
        return ops.max_pool2d_with_indices(x, 2)

    x = np.random.default_rng(0).standard_normal((2, 3, 4, 6)).astype(np.float32)
    model = to_onnx(pooled, x, dynamic={"input_0": {0: "n"}})
    for images in (1, 2, 5):
        given = np.random.default_rng(images).standard_normal((images, 3, 4, 6)).astype(np.float32)
        found = OnnxGraph(model)({"input_0": ops.operand(given)})
        for name, wanted in zip(found, pooled(ops.operand(given)), strict=True):
            np.testing.assert_array_equal(found[name].numpy(), wanted.numpy())
    with pytest.raises(ExportError, match="the places of its maxima need image sizes that are fixed"):
        to_onnx(pooled, x, dynamic={"input_0": {2: "h"}})
