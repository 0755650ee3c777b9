"""Handlers of indexing agree with ONNX's own tests."""

import numpy as np
import pytest

from lamina.convert.onnx import OnnxError, indexing
from tests.helpers.onnx_models import agrees, node_tests, single


@pytest.mark.parametrize("name", node_tests(indexing))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


def test_negative_positions_count_from_the_end() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    graph = single("Gather", {"x": x.shape, "i": (2, 2)}, axis=1)
    index = np.array([[0, -1], [-4, 2]])
    np.testing.assert_array_equal(graph({"x": x, "i": index})["y0"].numpy(), x[:, index])


def test_a_reduction_that_is_unknown_is_refused() -> None:
    given = {"x": np.ones((2, 2), np.float32), "i": np.array([[0]]), "u": np.ones((1, 1), np.float32)}
    graph = single("ScatterElements", {n: a.shape for n, a in given.items()}, reduction="median")
    with pytest.raises(OnnxError, match="reduction must be one of none, add, mul, max, min, got 'median'"):
        graph(given)
