"""Handlers of random numbers agree with ONNX's own tests."""

import numpy as np
import pytest

from lamina.convert.onnx import random
from tests.helpers.onnx_models import agrees, node_tests, single


@pytest.mark.parametrize("name", node_tests(random))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


def test_the_same_seed_gives_the_same_numbers() -> None:
    a, b, c = (
        single("RandomNormal", {}, shape=[1000], seed=s, scale=2.0)({})["y0"].numpy() for s in (1.0, 1.0, 2.0)
    )
    np.testing.assert_array_equal(a, b)
    assert (a != c).all()
    assert abs(a.mean()) < 0.3
    assert abs(a.std() - 2) < 0.2
    low = single("RandomUniform", {}, shape=[1000], low=3.0, high=4.0)({})["y0"].numpy()
    assert (low.min() >= 3, low.max() <= 4) == (True, True)
