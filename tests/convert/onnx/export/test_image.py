"""Maps of axes, sampling, regions and boxes as models of ONNX."""

from typing import Any

import numpy as np
import pytest

from lamina.convert.onnx.export import image
from lamina.ops.core import Sample
from lamina.spec import DType
from tests.helpers.onnx_exports import few, verdict

pytestmark = pytest.mark.feature("B026")


@pytest.mark.parametrize(("sample", "dtype"), few(image), ids=str)
def test_written_ops_compute_what_they_mean(sample: Sample, dtype: DType) -> None:
    assert verdict(sample, dtype) == []


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize(
    "dynamic", [None, {"input_0": {0: "batch", 1: "height", 2: "width"}}], ids=["fixed", "free"]
)
def test_interpolation_between_transpositions(opset: int, dynamic: dict[str, dict[int, str]] | None) -> None:
    """ONNX Runtime moves transpositions across a Resize; where it has two axes, it loses the sizes."""
    import onnxruntime

    from lamina import ops, tensor
    from lamina.convert import to_onnx

    def halved(x: Any) -> Any:
        return ops.permute(
            ops.interpolate(ops.permute(x, (0, 3, 1, 2)), (4, 3), mode="bilinear"), (0, 2, 3, 1)
        )

    x = np.random.default_rng(0).standard_normal((2, 8, 6, 3)).astype(np.float32)
    model = to_onnx(halved, x, opset=opset, dynamic=dynamic)
    (found,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"input_0": x})
    assert np.allclose(found, halved(tensor(x)).numpy(), atol=1e-6)
