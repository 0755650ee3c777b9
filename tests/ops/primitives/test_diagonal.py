import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.ops.core import call
from lamina.ops.primitives import Diagonal
from lamina.spec import ShapeError
from tests.helpers.functions import grad, run

X = np.arange(2.0 * 3 * 5).reshape(2, 3, 5)


@pytest.mark.parametrize("offset", range(-4, 7))
def test_diagonals_of_matrices(offset: int) -> None:
    wanted = np.diagonal(X, offset, 1, 2)
    np.testing.assert_array_equal(run(lambda x: call(Diagonal(offset), x), X), wanted)
    np.testing.assert_array_equal(run(lambda x: Diagonal(offset).composed(x)[0], X), wanted)
    (found,) = grad(lambda x: call(Diagonal(offset), x), X)
    np.testing.assert_array_equal(found, np.broadcast_to(np.eye(3, 5, offset), X.shape))


def test_where_a_diagonal_lies() -> None:
    assert Diagonal(1).first_within((15, 1, 3)) == 3
    assert Diagonal(-2).first_within((15, 1, 3)) == 2
    assert Diagonal().strides_within((2, 3, 5), (15, 1, 3)) == (15, 4)


def test_many_samples_diagonals() -> None:
    found = lm.vmap(lambda x: ops.diagonal(x.T, 1))(lm.tensor(X))
    np.testing.assert_array_equal(found.numpy(), np.diagonal(X, 1, 2, 1))


def test_it_needs_two_axes() -> None:
    with pytest.raises(ShapeError, match=r"diagonal: needs two axes, got f64\[3\]"):
        call(Diagonal(), np.ones(3))
