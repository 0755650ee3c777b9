"""Handlers of normalizations agree with ONNX's own tests."""

import numpy as np
import pytest

from lamina.convert.onnx import OnnxError, norm
from tests.helpers.onnx_models import agrees, node_tests, single


@pytest.mark.parametrize("name", node_tests(norm))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


def test_a_norm_of_another_order_is_refused() -> None:
    with pytest.raises(OnnxError, match="p must be 1 or 2, got 3"):
        single("LpNormalization", {"x": (2, 3)}, p=3)({"x": np.ones((2, 3), np.float32)})
