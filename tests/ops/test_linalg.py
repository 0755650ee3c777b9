"""Linear algebra of small matrices against NumPy in float64; gradients of every order by what is known of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina.graph import compile, trace
from lamina.ops import linalg
from lamina.spec import ShapeError, Spec, float64

RNG = np.random.default_rng(5)


def near(found: Any, wanted: Any, error: float = 1e-9) -> None:
    wanted = np.asarray(wanted)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(
        found.numpy(), wanted, rtol=0, atol=error * max(abs(wanted).max(initial=0), 1e-300)
    )


def drawn(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape)


def turned(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return a.swapaxes(-1, -2)


@pytest.mark.parametrize("n", [1, 2, 3, 6, 17])
def test_systems_and_determinants(n: int) -> None:
    a, b = drawn(2, n, n), drawn(2, n, 3)
    a[0, 0, 0] = 0.0  # rows change places
    if n == 1:
        a[0] = 2.0
    near(linalg.inv(a), np.linalg.inv(a))
    near(linalg.det(a), np.linalg.det(a))
    sign, size = linalg.slogdet(a)
    near(sign, np.sign(np.linalg.det(a)))
    near(size, np.log(abs(np.linalg.det(a))))
    near(linalg.solve(a, b), np.linalg.solve(a, b))
    near(linalg.solve(a[0], b), np.linalg.solve(a[:1], b))
    near(linalg.solve(a, b[..., 0]), np.linalg.solve(a, b)[..., 0])
    near(linalg.solve(a[0], b[0, :, 0]), np.linalg.solve(a[0], b[0])[:, 0])
    near(linalg.solve(a, turned(b), left=False), turned(b) @ np.linalg.inv(a))


@pytest.mark.parametrize("n", [1, 2, 3, 6, 17])
def test_triangles(n: int) -> None:
    a, b = drawn(2, n, n), drawn(2, n, 3)
    whole = a @ turned(a) + np.eye(n)
    factor = np.linalg.cholesky(whole)
    near(linalg.cholesky(whole), factor)
    near(linalg.cholesky(np.tril(whole), upper=True), turned(factor))
    mixed = factor + np.triu(drawn(n, n), 1)  # the other triangle is not read
    near(linalg.solve_triangular(mixed, b, upper=False), np.linalg.solve(factor, b))
    near(linalg.solve_triangular(turned(mixed), b, upper=True), np.linalg.solve(turned(factor), b))
    near(
        linalg.solve_triangular(mixed, turned(b), upper=False, left=False), turned(b) @ np.linalg.inv(factor)
    )
    unit = np.tril(mixed, -1) + np.eye(n)
    near(linalg.solve_triangular(mixed, b, upper=False, unitriangular=True), np.linalg.solve(unit, b), 1e-7)


def test_what_has_no_inverse() -> None:
    flat = np.array([[1.0, 2], [2, 4]])
    assert float(linalg.det(flat)) == 0
    assert [float(v) for v in linalg.slogdet(np.zeros((2, 2)))] == [0, -np.inf]
    for function in (linalg.inv, lambda a: linalg.solve(a, np.ones(2)), lambda a: linalg.matrix_power(a, -2)):
        with pytest.raises(linalg.LinAlgError, match="the matrix is not invertible: its pivot in row 1 is 0"):
            function(flat)
    with pytest.raises(
        linalg.LinAlgError, match=r"cholesky: matrix \(1,\) of the batch is not positive definite"
    ):
        linalg.cholesky(np.stack((np.eye(2), -np.eye(2))))
    assert not np.isfinite(lm.jit(linalg.inv)(flat).numpy()).all()
    assert np.isnan(lm.jit(linalg.cholesky)(-np.eye(2)).numpy()).any()
    assert np.isnan(linalg.inv(flat * np.nan).numpy()).any()
    assert float(linalg.det(np.zeros((0, 0)))) == 1
    assert linalg.inv(np.zeros((0, 0))).shape == (0, 0)


def test_gradients() -> None:
    a = drawn(2, 4, 4)
    inverse = turned(np.linalg.inv(a))
    near(lm.grad(lambda a: linalg.slogdet(a)[1].sum())(lm.tensor(a)), inverse)
    near(lm.grad(lambda a: linalg.det(a).sum())(lm.tensor(a)), np.linalg.det(a)[:, None, None] * inverse)
    near(lm.grad(lambda a: linalg.inv(a).sum())(lm.tensor(a)), -inverse @ np.ones((4, 4)) @ inverse)
    # Second derivatives: of log |det A| along a direction, -tr((A⁻¹ D)²).
    d = drawn(2, 4, 4)
    _, (found,) = lm.hvp(lambda a: linalg.slogdet(a)[1].sum(), (lm.tensor(a),), (lm.tensor(d),))
    plain = np.linalg.inv(a)
    near(found, -turned(plain @ d @ plain))


@pytest.mark.parametrize("name", ["cholesky", "solve_triangular"])
def test_gradients_of_triangles_by_differences(name: str) -> None:
    base, step = drawn(3, 3), 1e-6
    whole, weights, b = base @ base.T + np.eye(3), drawn(3, 3), drawn(3, 3)

    def loss(a: Any) -> Any:
        even = (a + a.mT) * 0.5
        y = linalg.cholesky(even) if name == "cholesky" else linalg.solve_triangular(a, b, upper=False)
        return (y * weights).sum()

    found = lm.grad(loss)(lm.tensor(whole)).numpy()
    for i, j in np.ndindex(3, 3):
        change = np.zeros((3, 3))
        change[i, j] = step
        slope = (float(loss(lm.tensor(whole + change))) - float(loss(lm.tensor(whole - change)))) / (2 * step)
        assert abs(slope - found[i, j]) < 1e-6 * max(1, abs(slope))


def test_products_and_norms() -> None:
    a = drawn(3, 4, 4)
    for n in (-2, 0, 1, 5):
        near(linalg.matrix_power(a, n), np.linalg.matrix_power(a, n))
    chain = [drawn(3, 40), drawn(40, 2), drawn(2, 30), drawn(30)]
    near(linalg.multi_dot(chain), np.linalg.multi_dot(chain))
    near(linalg.multi_dot([drawn(3) * 0 + 1, np.ones((3, 2))]), np.full(2, 3.0))
    x = drawn(2, 3, 4)
    for order in ("fro", 1, -1, np.inf, -np.inf):
        near(linalg.matrix_norm(x, order), np.linalg.norm(x, order, (-2, -1)))
        near(linalg.norm(x, order, (0, 2), keepdim=True), np.linalg.norm(x, order, (0, 2), keepdims=True))
    near(linalg.norm(x), np.linalg.norm(x))
    near(linalg.norm(x, 3, 1), np.linalg.norm(x, 3, 1))


def test_types_and_compiled() -> None:
    a = drawn(5, 5).astype(np.float32)
    near(linalg.inv(a), np.linalg.inv(a.astype(np.float64)), 1e-4)
    half = linalg.inv(lm.tensor(np.eye(3, dtype=np.float16) * 2))
    assert str(half.dtype) == "float16"
    near(half, np.eye(3) / 2, 1e-3)
    run = compile(trace(lambda a, b: linalg.solve(a, b), Spec((2, 4, 4), float64), Spec((2, 4, 3), float64)))
    a, b = drawn(2, 4, 4), drawn(2, 4, 3)
    near(run(lm.tensor(a), lm.tensor(b))[0], np.linalg.solve(a, b))


def test_refusals() -> None:
    with pytest.raises(ShapeError, match=r"inv: needs square matrices \[\.\.\., N, N\]"):
        linalg.inv(lm.ones(2, 3))
    with pytest.raises(ShapeError, match=r"det: takes matrices of up to 64 rows.*numpy\.linalg\.det"):
        linalg.det(lm.ones(65, 65))
    with pytest.raises(ShapeError, match="solve: A .* and B .* do not fit"):
        linalg.solve(lm.ones(3, 3), lm.ones(2, 1))
    with pytest.raises(NotImplementedError, match="matrix_norm: ord='nuc' needs singular values"):
        linalg.matrix_norm(lm.ones(3, 3), "nuc")
    with pytest.raises(ValueError, match="multi_dot: takes two tensors or more, got 1"):
        linalg.multi_dot([lm.ones(2, 2)])


def test_products_of_vectors() -> None:
    a, b = drawn(2, 3, 4), drawn(3, 4)
    near(linalg.vecdot(a, b), (a * b).sum(-1))
    near(linalg.vecdot(a, a, dim=0), (a * a).sum(0))
    near(lm.grad(lambda a: linalg.vecdot(a, lm.tensor(b)).sum())(lm.tensor(a)), np.broadcast_to(b, a.shape))
    with pytest.raises(ShapeError, match="vecdot: vectors along axis -1 must be of one length, got"):
        linalg.vecdot(lm.ones(2, 3), lm.ones(2, 1))
    with pytest.raises(AttributeError, match=r"chain_matmul'; it is linalg\.multi_dot\(matrices\)"):
        _ = lm.ops.chain_matmul


def test_powers_of_elements() -> None:
    x = drawn(2, 3)
    near(linalg.vander(x), x[..., None] ** np.arange(3))
    near(linalg.vander(x, N=5), x[..., None] ** np.arange(5))
    near(lm.grad(lambda x: linalg.vander(x).sum())(lm.tensor(x)), 1 + 2 * x)
    with pytest.raises(ValueError, match="vander: N must be at least 2, got 1"):
        linalg.vander(x, N=1)
    with pytest.raises(ShapeError, match="vander: x must have an axis"):
        linalg.vander(lm.tensor(1.0))


def exponential(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    values, vectors = np.linalg.eig(a)
    found: np.ndarray[Any, Any] = ((vectors * np.exp(values)[..., None, :]) @ np.linalg.inv(vectors)).real
    return found


@pytest.mark.parametrize("size", [1e-6, 0.3, 2.0, 40.0])
def test_exponentials(size: float) -> None:
    a = drawn(3, 5, 5) * size
    whole = a - turned(a) if size > 10 else a  # of a large one the turns alone stay finite
    near(linalg.matrix_exp(whole), exponential(whole), 1e-9)
    near(linalg.matrix_exp(whole.astype(np.float32)), exponential(whole), 1e-4)
    near(linalg.matrix_exp(np.zeros((2, 2))), np.eye(2))
    with pytest.raises(ShapeError, match="matrix_exp: needs square matrices"):
        linalg.matrix_exp(drawn(2, 3))


def test_gradient_of_an_exponential() -> None:
    a, direction, weight, h = drawn(4, 4) * 3, drawn(4, 4), drawn(4, 4), 1e-6
    slope = lm.grad(lambda x: lm.ops.sum(linalg.matrix_exp(x) * weight))(a)
    difference = (exponential(a + h * direction) - exponential(a - h * direction)) / (2 * h)
    assert float((slope.numpy() * direction).sum()) == pytest.approx((difference * weight).sum(), rel=1e-5)


@pytest.mark.parametrize(("shape", "count"), [((5, 3), 3), ((4, 4), 4), ((2, 6, 3), 2), ((3, 1), 0)])
def test_products_of_reflections(shape: tuple[int, ...], count: int) -> None:
    a, tau = drawn(*shape), drawn(*shape[:-2], count)
    rows, columns = shape[-2:]
    wanted = np.broadcast_to(np.eye(rows), (*shape[:-2], rows, rows))
    for i in range(count):
        v = np.where(np.arange(rows) > i, a[..., i], 0.0) + (np.arange(rows) == i)
        wanted = wanted @ (np.eye(rows) - tau[..., i, None, None] * v[..., :, None] * v[..., None, :])
    near(linalg.householder_product(a, tau), wanted[..., :columns])
    with pytest.raises(ShapeError, match="householder_product: takes A"):
        linalg.householder_product(turned(a), np.ones(9))
