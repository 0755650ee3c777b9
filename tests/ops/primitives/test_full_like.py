"""One number in a tensor's shape."""

from typing import Any

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


def test_zeros_of_both_signs_are_told_apart() -> None:
    """In whatever order they are asked for, op by op and in one program."""
    x = lm.ones(2)
    for pad in (False, True):
        for value in (0.0, -0.0, 0.0):

            def f(x: Any, pad: bool = pad, value: float = value) -> Any:
                return ops.pad(x, (2, 2), value=value)[:2] if pad else ops.full_like(x, value)

            for function in (f, lm.jit(f), lm.jit(lambda x, f=f: (f(x) + 0.0, f(x))[1])):
                given = function(x).numpy()
                assert not given.any()
                assert np.signbit(given).all() == (str(value) == "-0.0")
    assert ops.full_like(x, -0.0, dtype="int32").tolist() == [0, 0]


def test_errors() -> None:
    with pytest.raises(DTypeError, match="full_like: fill_value 300 is outside uint8"):
        ops.full_like(lm.ones(2), 300, dtype="uint8")
    with pytest.raises(TypeError, match="full_like: fill_value must be"):
        ops.full_like(lm.ones(2), "a")


def test_on_a_device() -> None:
    x = lm.ones(2)
    for made in (
        ops.zeros_like,
        ops.ones_like,
        ops.empty_like,
        lambda x, device: ops.full_like(x, 3, device=device),
    ):
        assert made(x, device="cpu").shape == (2,)
    assert ops.full_like(x, 3, device="cpu").tolist() == [3.0, 3.0]
