"""Cumulative sums as torch's: axes from the end, numbers, integers, dtypes, gradients."""

import numpy as np
import pytest

from lamina import ops
from lamina.spec import ShapeError
from tests.helpers.functions import grad, run

X = np.random.default_rng(0).standard_normal((3, 4, 5))


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
def test_values_and_gradients(dim: int) -> None:
    np.testing.assert_allclose(run(ops.cumsum, X, dim), np.cumsum(X, dim))
    ones = np.cumsum(np.ones_like(X), dim)
    np.testing.assert_allclose(grad(lambda x: ops.cumsum(x, dim), X)[0], np.flip(ones, dim))


def test_numbers_and_nothing() -> None:
    assert run(ops.cumsum, np.array(2.5), 0).tolist() == 2.5
    assert run(ops.cumsum, np.array(3, np.int32), -1).dtype == np.int64
    assert run(ops.cumsum, np.zeros((0, 3)), 0).shape == (0, 3)


def test_integers_are_summed_in_int64() -> None:
    found = run(ops.cumsum, np.full(3, 200, np.uint8), 0)
    assert (found.dtype, found.tolist()) == (np.int64, [200, 400, 600])
    assert run(ops.cumsum, np.array([True, False, True]), 0).tolist() == [1, 1, 2]
    assert run(ops.cumsum, np.array([1, 2]), 0, dtype="float32").dtype == np.float32


def test_half_types_are_summed_in_float32() -> None:
    found = run(ops.cumsum, np.ones(4096, np.float16), 0)
    assert (found.dtype, float(found[-1])) == (np.float16, 4096)


@pytest.mark.feature("F118")
def test_errors() -> None:
    with pytest.raises(ShapeError, match="cumsum: axis 3 is outside a tensor of rank 3"):
        run(ops.cumsum, X, 3)
    with pytest.raises(TypeError, match="cumsum: dim must be an int, got None"):
        run(ops.cumsum, X, None)
