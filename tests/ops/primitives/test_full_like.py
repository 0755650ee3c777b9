"""One number in a tensor's shape."""

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.spec import DTypeError
from tests.helpers.functions import run


def test_values() -> None:
    x = np.full((2, 3), np.nan)
    np.testing.assert_array_equal(run(ops.full_like, x, 2.5), np.full((2, 3), 2.5))
    assert (run(ops.ones_like, x, dtype="int8").dtype, run(ops.zeros_like, x).any()) == (np.int8, False)
    assert run(ops.full_like, np.zeros((0,), bool), 3).dtype == np.bool_
    assert run(ops.full_like, np.zeros(2, np.float16), np.inf).tolist() == [np.inf, np.inf]


def test_in_a_graph() -> None:
    assert lm.jit(lambda x: ops.ones_like(x) + x)(lm.ones(2)).numpy().tolist() == [2.0, 2.0]


def test_errors() -> None:
    with pytest.raises(DTypeError, match="full_like: fill_value 300 is outside uint8"):
        ops.full_like(lm.ones(2), 300, dtype="uint8")
    with pytest.raises(TypeError, match="full_like: fill_value must be"):
        ops.full_like(lm.ones(2), "a")
