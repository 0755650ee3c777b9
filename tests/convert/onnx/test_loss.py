"""Handlers of losses agree with ONNX's own tests."""

import numpy as np
import pytest

from lamina.convert.onnx import OnnxError, loss
from tests.helpers.onnx_models import agrees, node_tests, single


@pytest.mark.parametrize("name", node_tests(loss))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


def test_an_unknown_reduction_is_refused() -> None:
    graph = single("NegativeLogLikelihoodLoss", {"x": (2, 3), "t": (2,)}, reduction="max")
    with pytest.raises(OnnxError, match="reduction must be none, sum or mean, got 'max'"):
        graph({"x": np.ones((2, 3), np.float32), "t": np.array([0, 2])})
