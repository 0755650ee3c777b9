"""Determinants and cofactors: of singular matrices by minors, derivatives by differences, what is not finite."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina.ops.core import bind
from lamina.ops.primitives.determinant import Cofactors, Determinant
from lamina.spec import DTypeError, ShapeError, Spec, bfloat16, float32

RNG = np.random.default_rng(2)


def minors(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The cofactors of one matrix by their definition."""
    n = len(a)
    return np.array([
        [(-1) ** (i + j) * np.linalg.det(np.delete(np.delete(a, i, 0), j, 1)) for j in range(n)]
        for i in range(n)
    ])  # fmt: skip


def of_rank(rank: int, n: int = 5) -> np.ndarray[Any, Any]:
    left, right = RNG.standard_normal((2, n, n))
    return np.asarray(left[:, :rank] @ right[:rank])


def slope(x: Any) -> Any:
    return lm.grad(lambda y: bind(Determinant(), y)[0].sum())(x)


@pytest.mark.parametrize("rank", [5, 4, 3, 2, 0])
def test_gradients_of_any_rank(rank: int) -> None:
    """Of the first and the second order, where A^-1 does not exist, too; det is linear in each row."""
    a, d, step = of_rank(rank), RNG.standard_normal((5, 5)), 1e-4
    found = slope(lm.tensor(a)).numpy()
    np.testing.assert_allclose(found, minors(a), rtol=0, atol=1e-12 * max(1, abs(found).max()))
    _, (second,) = lm.hvp(lambda x: bind(Determinant(), x)[0], (lm.tensor(a),), (lm.tensor(d),))
    wanted = (minors(a + step * d) - minors(a - step * d)) / (2 * step)
    np.testing.assert_allclose(second.numpy(), wanted, rtol=0, atol=1e-6 * max(1, abs(wanted).max()))


@pytest.mark.parametrize(
    "a", [np.diag([1.0, 2, 0]), np.ones((3, 3)), np.zeros((3, 3)), np.eye(3), -np.eye(1)]
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_exact_zeros_and_repeated_singular_values(a: Any, dtype: str) -> None:
    several = np.stack((a, 2 * np.eye(len(a)))).astype(dtype)  # one that is not singular beside it
    wanted = [minors(x) for x in several.astype("float64")]
    np.testing.assert_allclose(slope(lm.tensor(several)).numpy(), wanted, atol=1e-6)
    np.testing.assert_allclose(bind(Cofactors(), several)[0].numpy(), wanted, atol=1e-6)


def test_third_derivatives() -> None:
    a, d, step = RNG.standard_normal((4, 4)), RNG.standard_normal((4, 4)), 1e-4

    def second(x: Any) -> Any:
        return lm.hvp(lambda y: bind(Determinant(), y)[0], (x,), (lm.tensor(d),))[1][0]

    found = lm.grad(lambda x: (second(x) * lm.tensor(d)).sum())(lm.tensor(a)).numpy()
    wanted = second(lm.tensor(a + step * d)).numpy() - second(lm.tensor(a - step * d)).numpy()
    np.testing.assert_allclose(found, wanted / (2 * step), rtol=0, atol=1e-5 * abs(found).max())


def test_what_is_not_finite_and_matrices_without_rows() -> None:
    a = np.stack((np.eye(2), np.full((2, 2), np.nan)))
    found = slope(lm.tensor(a)).numpy()
    np.testing.assert_array_equal(found[0], np.eye(2))
    assert np.isnan(found[1]).all()
    assert np.isinf(bind(Determinant(), 1e30 * np.eye(2, dtype="float32"))[0].numpy())
    assert bind(Determinant(), np.zeros((2, 0, 0)))[0].numpy().tolist() == [1, 1]
    assert slope(lm.zeros(2, 0, 0)).shape == (2, 0, 0)


def test_refusals() -> None:
    with pytest.raises(
        ShapeError, match=r"determinant: needs square matrices \[\.\.\., N, N\], got f32\[2,3\]"
    ):
        Determinant().infer(Spec((2, 3), float32))
    with pytest.raises(DTypeError, match="cofactors: dtype bfloat16"):
        Cofactors().infer(Spec((3, 3), bfloat16))
