"""Handlers of matrix products agree with ONNX's own tests."""

import numpy as np
import pytest

from lamina.convert.onnx import matmul
from tests.helpers.onnx_models import agrees, node_tests, single


@pytest.mark.parametrize("name", node_tests(matmul))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


def test_products_of_integers_are_exact_beyond_float32() -> None:
    a = np.array([[2**20 + 1, 3]], np.int32)
    graph = single("MatMul", {"a": (1, 2), "b": (2, 1)})
    found = graph({"a": a, "b": np.array([[2**9], [1]], np.int32)})["y0"].numpy()
    assert (found.dtype, found.tolist()) == (np.int32, [[(2**20 + 1) * 2**9 + 3]])


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_determinants_pivot(n: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.normal(size=(4, n, n))
    x[0, 0, 0] = 0.0
    x[1] = 0.0
    found = single("Det", {"x": x.shape})({"x": x})["y0"].numpy()
    np.testing.assert_allclose(found, np.linalg.det(x), rtol=1e-9, atol=1e-12)
