"""Norms against NumPy's, their gradients at 0, and what is refused."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.spec import DTypeError, ShapeError
from tests.helpers.functions import grad, run

X = np.random.default_rng(0).standard_normal((3, 4, 5))
X[0, 0, 0] = 0


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.5, np.inf, -np.inf, -1.0])
def test_vector_norm(p: float) -> None:
    rows = X[1:]
    np.testing.assert_allclose(run(ops.vector_norm, rows, p, 1), np.linalg.norm(rows, p, 1))
    np.testing.assert_allclose(run(ops.norm, rows, p), np.linalg.norm(rows.reshape(-1), p))
    both = run(ops.vector_norm, rows, p, (0, 2), True)
    np.testing.assert_allclose(both[0, :, 0], [np.linalg.norm(rows[:, i].reshape(-1), p) for i in range(4)])


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, np.inf])
def test_no_gradient_where_the_norm_is_0(p: float) -> None:
    (found,) = grad(lambda x: ops.vector_norm(x, p, -1), np.array([[0.0, 0.0], [3.0, 4.0]]))
    assert found[0].tolist() == [0, 0]
    assert np.isfinite(found).all()


def test_others() -> None:
    np.testing.assert_allclose(run(ops.dist, X[0], X[1], 3.0), np.linalg.norm((X[0] - X[1]).reshape(-1), 3))
    found = run(ops.renorm, X, 2.0, 1, 1.5)
    sizes = np.sqrt((found**2).sum((0, 2)))
    assert (sizes <= 1.5 + 1e-6).all()
    np.testing.assert_allclose(run(ops.renorm, X, 2.0, 0, 1e9), X)
    assert run(ops.vector_norm, np.zeros((0,))) == 0


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x: ops.norm(x, "nuc"), NotImplementedError, r"linalg\.matrix_norm\(input, .nuc., dim\)"),
        (lambda x: ops.vector_norm(x.long()), DTypeError, "vector_norm: takes floats"),
        (lambda x: ops.renorm(x[0], 2.0, 0, 1.0), ShapeError, "renorm: needs two axes"),
    ],
)
def test_errors(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call(lm.ones((2, 3)))


@pytest.mark.parametrize(
    ("norm", "wanted"),
    [
        (lambda x: ops.norm(x, p=4, dim=1), 8 * 1024**0.25),
        (lambda x: ops.dist(x[0], x[0] * 0, p=4), 8 * 1024**0.25),
        (lambda x: ops.pairwise_distance(x, x * 0, p=3.0), 8 * 1024 ** (1 / 3)),
        (lambda x: ops.cosine_similarity(x, x, 1), 1.0),
        (lambda x: ops.cosine_similarity(x * 0, x, 1), 0.0),
        (lambda x: ops.normalize(x, p=4.0), 1024**-0.25),
    ],
)
@pytest.mark.parametrize("way", [lambda f: f, lm.jit], ids=["eager", "jit"])
def test_powers_of_half_types_do_not_overflow(norm: Any, wanted: float, way: Any) -> None:
    """1,024 squares of 8 are 65,536, which float16 does not hold."""
    x = lm.tensor(np.full((2, 1024), 8.0, np.float16))
    found = way(norm)(x)
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found.numpy().astype(np.float64), wanted, rtol=2e-3)
