"""Casts: rounding, truncation, and gradients between float types."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lamina as lm
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


@pytest.mark.parametrize("count", [1, 5000])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_numbers_that_integers_do_not_hold(count: int, dtype: str) -> None:
    """Whatever the size is, within a compiled function as without."""
    x = np.array([np.nan, np.inf, -np.inf, 3e4, -2.9, -1, 300.5])
    values = lm.tensor(x.repeat(count)).cast(dtype)
    for to, wanted in {
        "uint8": [0, 0, 0, 48, 254, 255, 44],
        "int8": [0, 0, 0, 48, -2, -1, 44],
        "int16": [0, 0, 0, 30000, -2, -1, 300],
        "int32": [-(2**31)] * 3 + [30000, -2, -1, 300],
        "int64": [-(2**63)] * 3 + [30000, -2, -1, 300],
    }.items():

        def alone(v: Any, to: str = to) -> Any:
            return v.cast(to)

        def between(v: Any, to: str = to) -> Any:
            return (v * 1).cast(to) + 0

        for function in (alone, lm.jit(alone), lm.jit(between)):
            assert function(values).numpy()[::count].tolist() == wanted, to
