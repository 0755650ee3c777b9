"""Casts: rounding, truncation, and gradients between float types."""

import ml_dtypes
import numpy as np
import pytest

from lamina import ops
from lamina.spec import DTypeError
from tests.helpers.eager import Eager
from tests.helpers.functions import grad, run


def test_rounding() -> None:
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 / 3, -2.7, 65520.0], np.float32)
    assert run(ops.cast, x, "bfloat16").tolist() == x.astype(ml_dtypes.bfloat16).tolist()
    assert run(ops.cast, x[:2], "bfloat16").tolist() == [1.0, 1.015625]  # ties to even
    assert run(ops.cast, x[3:], "float16").tolist() == [float(np.float16(-2.7)), np.inf]
    assert run(ops.cast, x[3:4], "int32").tolist() == [-2]
    assert run(ops.cast, np.array([True, False]), "float32").tolist() == [1, 0]
    assert run(ops.cast, np.array([0.0, 0.5, -1.0]), "bool").tolist() == [False, True, True]


def test_nothing_to_do() -> None:
    x = Eager(np.ones(3))
    assert ops.cast(x, "float64") is x
    assert ops.cast(x, np.float32).dtype.name == "float32"


def test_gradient_is_cast_back() -> None:
    for dtype in ("float64", "float16", "bfloat16"):
        found = grad(ops.cast, np.ones(3, np.float32), dtype)[0]
        assert found.dtype == np.float32
        assert found.tolist() == [1, 1, 1]
    assert grad(lambda x: ops.cast(ops.cast(x, "int32"), "float64"), np.ones(3))[0].tolist() == [0, 0, 0]


def test_unknown_dtype() -> None:
    with pytest.raises(
        DTypeError, match="cast: dtype must be a dtype, such as lamina.float32 or 'float32', got 'float8'"
    ):
        run(ops.cast, np.ones(3), "float8")
