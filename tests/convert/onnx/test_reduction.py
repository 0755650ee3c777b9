"""Handlers of reductions agree with ONNX's own tests."""

import numpy as np
import pytest

from lamina.convert.onnx import reduction
from tests.helpers.onnx_models import agrees, node_tests, single


@pytest.mark.parametrize("name", node_tests(reduction))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


def test_the_last_of_equal_extremes() -> None:
    x = np.array([[1, 3, 3], [2, 2, 0]], np.float32)
    found = single("ArgMax", {"x": x.shape}, axis=1, select_last_index=1, keepdims=0)({"x": x})["y0"].numpy()
    assert found.tolist() == [2, 1]


def test_running_sums_of_small_integers_keep_their_dtype() -> None:
    x = np.array([1, 2, 3], np.int32)
    graph = single("CumSum", {"x": (3,), "a": ()}, exclusive=1, reverse=1)
    found = graph({"x": x, "a": np.array(0)})["y0"].numpy()
    assert (found.dtype, found.tolist()) == (np.int32, [5, 3, 0])
