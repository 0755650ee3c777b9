"""Bad calls over every public function and method: a documented error, named by the value; no fault from inside."""

import math
from collections.abc import Callable

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.spec import DTypeError
from tests.helpers import bad_op_calls


@pytest.mark.feature("F118")
def test_generated_calls() -> None:
    """1,000 of them; `python -m tests.helpers.bad_op_calls --count 20000` tries more."""
    assert list(bad_op_calls.faults(1, range(1000))) == []


def test_every_public_function_and_method_is_called() -> None:
    names = set(bad_op_calls.targets())
    assert {f"ops.{n}" for n in ops.__all__} < names
    assert {"Tensor.sum", "Tensor.to", "lamina.zeros", "lamina.tensor"} < names


def test_calls_repeat() -> None:
    """Call k of a seed is the same whichever came before."""
    first, second = (bad_op_calls.make(2, 77) for _ in range(2))
    assert first[0] == second[0]
    assert repr(first[3]) == repr(second[3])


X = np.ones((2, 3, 4, 4), np.float32)


@pytest.mark.feature("F118")
@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: ops.one_hot(np.array([0]), -2), ValueError, "one_hot: num_classes must be >= 1, got -2"),
        (
            lambda: ops.random_normal(np.zeros(2, int), (3,), std=-1),
            ValueError,
            "random_normal: std must be >= 0",
        ),
        (
            lambda: ops.random_normal(np.zeros(2, int), (3,), math.nan),
            ValueError,
            "mean must be finite, got nan",
        ),
        (lambda: ops.random_uniform(np.zeros(2, int), (3,), 1, 0), ValueError, "low must be <= high"),
        (lambda: ops.cast(X, None), DTypeError, "cast: dtype must be a dtype, .* got None"),
        (lambda: ops.conv2d(X, X, stride=b"1"), TypeError, "conv2d: stride must be an int .* got b'1'"),
        (
            lambda: ops.sum(X, "1"),
            TypeError,
            "sum: dim must be an int or a sequence of ints or None, got '1'",
        ),
        (lambda: ops.sum(X, True), TypeError, "sum: dim must be .* got True"),
        (
            lambda: ops.dropout(X, math.nan, state=np.zeros(2, int)),
            ValueError,
            "dropout: p must be in .* got nan",
        ),
        (
            lambda: ops.batch_norm(X, None, None, training=True, eps=-1),
            ValueError,
            "batch_norm: eps must be >= 0",
        ),
        (lambda: ops.relu("x"), TypeError, "relu: input must be a tensor, an array or a number, got 'x'"),
        (
            lambda: ops.flatten(None),
            TypeError,
            "flatten: input must be a tensor, an array or a number, got None",
        ),
        (
            lambda: lm.tensor(X)[lm.tensor([0.0, 1.0])],
            DTypeError,
            r"getitem: an index must be of integers or booleans, got f32\[2\]",
        ),
        (lambda: f"{lm.tensor(X):.3f}", TypeError, "cannot be formatted with '.3f'"),
        (lambda: lm.tensor(X).view_as("x"), TypeError, "view_as: other must be a tensor, .* got 'x'"),
    ],
)
def test_impossible_arguments(call: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
