"""Softmax and its logarithm over one axis or several."""

from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.ops import primitives
from lamina.ops.core import call
from lamina.spec import ShapeError
from tests.helpers.functions import grad, run

X = np.random.default_rng(0).standard_normal((2, 3, 4, 5))


@pytest.mark.feature("F058")
@pytest.mark.parametrize("dim", [1, -1, (1, 2, 3), (0, 2)])
def test_softmax(dim: Any) -> None:
    """ "channel" mode is dim=1, "instance" mode is dim=(1, 2, 3)."""
    e = np.exp(X)
    wanted = e / e.sum(dim, keepdims=True)
    np.testing.assert_allclose(run(ops.softmax, X, dim), wanted, rtol=1e-13)
    np.testing.assert_allclose(run(ops.log_softmax, X, dim), np.log(wanted), atol=1e-13)


@pytest.mark.feature("F058")
def test_large_values_do_not_overflow() -> None:
    x = np.array([[1e4, 1e4, -1e4], [-np.inf, 0.0, 0.0]])
    np.testing.assert_allclose(run(ops.softmax, x), [[0.5, 0.5, 0], [0, 0.5, 0.5]])
    half = np.log(0.5)
    np.testing.assert_allclose(run(ops.log_softmax, x), [[half, half, half - 2e4], [-np.inf, half, half]])


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [1, -1, (0, 2), None])
def test_logsumexp(dim: Any, keepdim: bool) -> None:
    axes = tuple(range(4)) if dim is None else dim
    wanted = np.log(np.exp(X).sum(axes, keepdims=keepdim))
    np.testing.assert_allclose(run(ops.logsumexp, X, dim, keepdim), wanted, rtol=1e-13)


def test_logsumexp_of_what_exponentials_do_not_hold() -> None:
    inf = np.inf
    x = np.array([[1e4, 1e4, -1e4], [-inf, 0.0, 0.0], [-inf, -inf, -inf], [0.0, inf, 1.0]])
    np.testing.assert_allclose(run(ops.logsumexp, x, 1), [1e4 + np.log(2), np.log(2), -inf, inf], rtol=1e-13)


@pytest.mark.parametrize("keepdim", [False, True])
def test_logsumexp_of_nothing_is_the_logarithm_of_0(keepdim: bool) -> None:
    found = run(ops.logsumexp, np.zeros((3, 0, 2)), 1, keepdim)
    np.testing.assert_array_equal(found, np.full((3, 1, 2) if keepdim else (3, 2), -np.inf))
    assert run(ops.logsumexp, np.zeros((3, 0, 2)), 2, keepdim).size == 0


@pytest.mark.feature("F058")
def test_gradients() -> None:
    """The rows of a softmax sum to 1 whatever x: the gradient of their sum is 0."""
    np.testing.assert_allclose(grad(lambda x: ops.softmax(x, 1), X)[0], 0, atol=1e-15)
    p = run(ops.softmax, X, 1)
    np.testing.assert_allclose(grad(lambda x: ops.log_softmax(x, 1), X)[0], 1 - 3 * p, atol=1e-14)


@pytest.mark.feature("F118")
def test_errors() -> None:
    with pytest.raises(ShapeError, match="softmax: axis 4 is outside a tensor of rank 4"):
        run(ops.softmax, X, 4)
    with pytest.raises(ShapeError, match=r"softmax: axis must be sorted axes of .* got \(\)"):
        run(lambda x: call(primitives.Softmax(()), x), X)
    with pytest.raises(
        ShapeError, match=r"softmax_grad: shapes \(2, 3, 4, 5\) and \(2, 3, 4, 1\) must be equal"
    ):
        run(lambda x, g: call(primitives.SoftmaxGrad((1,)), x, g), X, X[..., :1])
