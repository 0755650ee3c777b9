"""Handlers of softmax agree with ONNX's own tests."""

import numpy as np
import pytest

from lamina.convert.onnx import softmax
from tests.helpers.onnx_models import agrees, node_tests, single


@pytest.mark.parametrize("name", node_tests(softmax))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


def test_old_models_take_all_axes_from_one_on() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    found = single("Softmax", {"x": x.shape}, opset=11)({"x": x})["y0"].numpy()
    np.testing.assert_allclose(found.sum((1, 2)), [1, 1], rtol=1e-5)
