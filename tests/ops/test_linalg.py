"""Linear algebra of small matrices against NumPy in float64; gradients of every order by what is known of them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
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
    with pytest.raises(linalg.LinAlgError, match="cholesky: the matrix is not positive definite"):
        linalg.cholesky(np.where(np.eye(2), np.nan, 0.0))
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


@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf, None])
def test_norms_and_conditions_of_matrices(order: Any) -> None:
    """A norm without axes is of a matrix where one is given, of all elements of anything else."""
    one, several = drawn(5, 5), drawn(2, 3, 4, 4)
    near(linalg.norm(one, order), np.linalg.norm(one, order))
    near(linalg.norm(one, order, keepdim=True), np.linalg.norm(one, order, keepdims=True))
    for x in (one, several):
        near(linalg.cond(x, order), np.linalg.cond(x, order), 1e-8)
    wide = drawn(4, 6)
    near(linalg.norm(wide, order), np.linalg.norm(wide, order))
    if order in (2, -2, None):
        near(linalg.cond(wide, order), np.linalg.cond(wide, order), 1e-8)
    else:
        with pytest.raises(ShapeError, match="cond"):
            linalg.cond(wide, order)


def test_types_and_compiled() -> None:
    a = drawn(5, 5).astype(np.float32)
    near(linalg.inv(a), np.linalg.inv(a.astype(np.float64)), 1e-4)
    half = linalg.inv(lm.tensor(np.eye(3, dtype=np.float16) * 2))
    assert str(half.dtype) == "float16"
    near(half, np.eye(3) / 2, 1e-3)
    run = compile(trace(lambda a, b: linalg.solve(a, b), Spec((2, 4, 4), float64), Spec((2, 4, 3), float64)))
    a, b = drawn(2, 4, 4), drawn(2, 4, 3)
    near(run(lm.tensor(a), lm.tensor(b))[0], np.linalg.solve(a, b))


def test_cholesky_of_many_rows() -> None:
    """Values, the derivative along a direction by its formula, the number of a bad pivot."""
    a, d = drawn(70, 70), drawn(70, 70)
    whole, change = a @ turned(a) + np.eye(70), d + turned(d)
    factor = np.linalg.cholesky(whole)
    found, slope = lm.jvp(linalg.cholesky, (lm.tensor(whole),), (lm.tensor(change),))
    near(found, factor)
    inverse = np.linalg.inv(factor)
    middle = inverse @ change @ turned(inverse)
    near(slope, factor @ (np.tril(middle, -1) + 0.5 * middle * np.eye(70)))
    near(linalg.cholesky(np.stack((whole, np.eye(70))), upper=True), np.stack((factor.T, np.eye(70))))
    near(linalg.cholesky(np.eye(130) * 4), np.eye(130) * 2)
    for bad in (3, 64):
        wrong = np.eye(66)
        wrong[bad, bad] = -1
        assert linalg.cholesky_ex(wrong).info.item() == bad + 1
        with pytest.raises(
            linalg.LinAlgError, match=f"is not positive definite: its pivot in row {bad} is -1"
        ):
            linalg.cholesky(wrong)


def test_systems_of_many_rows() -> None:
    a, b = drawn(90, 90) + 10 * np.eye(90)[::-1], drawn(2, 90, 3)
    near(linalg.solve(a, b), np.linalg.solve(a, b))  # one matrix for a batch
    near(linalg.inv(a), np.linalg.inv(a))
    near(linalg.det(a / 10), np.linalg.det(a / 10))
    near(linalg.slogdet(a).logabsdet, np.linalg.slogdet(a)[1])
    low, right = np.tril(a) + 20 * np.eye(90), drawn(3, 90)
    near(linalg.solve_triangular(low.T, right, upper=True, left=False), right @ np.linalg.inv(low.T))
    near(linalg.solve_triangular(low, b, upper=False), np.linalg.solve(low, b))


def test_a_triangle_with_zeros_on_its_diagonal() -> None:
    """As substitution divides by them, in both directions."""
    a = np.array([[2.0, 0, 0], [1, 0, 0], [1, 1, 4]])
    found = linalg.solve_triangular(a, np.ones((3, 1)), upper=False).numpy()[:, 0]
    assert found[0] == 0.5
    assert found[1] == np.inf
    found = linalg.solve_triangular(a.T, np.ones((3, 1)), upper=True).numpy()[:, 0]
    assert found[2] == 0.25
    assert found[1] == np.inf


@pytest.mark.parametrize("name", ["solve", "cholesky_solve", "solve_triangular", "slogdet", "cholesky"])
def test_one_matrix_and_a_batch_have_the_gradients_of_a_repeated_one(name: str) -> None:
    """Under vmap too, over the matrices, over the right-hand sides, and over both."""
    base = drawn(3, 4, 4)
    a, b = base @ turned(base) + np.eye(4), drawn(3, 4, 2)

    def f(a: Any, b: Any) -> Any:
        if name == "solve":
            return linalg.solve(a, b)
        if name == "cholesky_solve":
            return ops.cholesky_solve(b, linalg.cholesky(a))
        if name == "solve_triangular":
            return linalg.solve_triangular(a, b, upper=False)
        return (linalg.slogdet(a)[1] if name == "slogdet" else linalg.cholesky(a).sum()) * b.sum()

    def loss(a: Any, b: Any) -> Any:
        return (f(a, b) ** 2).sum()

    one, many = lm.tensor(a[0]), lm.tensor(a)
    for left, right in ((one, lm.tensor(b)), (many, lm.tensor(b[0])), (many, lm.tensor(b))):
        dims = (None if left.ndim == 2 else 0, None if right.ndim == 2 else 0)
        wanted = [
            lm.grad(loss, (0, 1))(left[i] if left.ndim > 2 else left, right[i] if right.ndim > 2 else right)
            for i in range(3)
        ]
        found = lm.jit(lm.vmap(lm.grad(loss, (0, 1)), dims))(left, right)
        for k in range(2):
            near(found[k], np.stack([g[k].numpy() for g in wanted]), 1e-8)
        if name.endswith(("solve", "triangular")):
            whole = lm.grad(loss, (0, 1))(left, right)
            for k, x in enumerate((left, right)):
                each = np.stack([g[k].numpy() for g in wanted])
                near(whole[k], each.sum(0) if x.ndim == 2 else each, 1e-8)


@pytest.mark.torch
def test_second_derivatives_of_factors_and_solutions() -> None:
    import torch

    base, b = drawn(4, 4), drawn(4, 2)
    a, d = base @ base.T + np.eye(4), drawn(4, 4)
    d = d + d.T

    def formula(lib: Any, at: Any, right: Any) -> Any:
        low = lib.cholesky(at)
        x = lib.solve_triangular(low, right, upper=False)
        return (lib.solve(at, right) ** 2).sum() + (x**3).sum() + lib.slogdet(at)[1]

    _, (found,) = lm.hvp(lambda a: formula(linalg, a, lm.tensor(b)), (lm.tensor(a),), (lm.tensor(d),))
    leaf = torch.tensor(a, requires_grad=True)
    (slope,) = torch.autograd.grad(formula(torch.linalg, leaf, torch.tensor(b)), leaf, create_graph=True)
    (wanted,) = torch.autograd.grad((slope * torch.tensor(d)).sum(), leaf)
    near(found, wanted.numpy(), 1e-8)


def test_refusals() -> None:
    with pytest.raises(ShapeError, match=r"inv: needs square matrices \[\.\.\., N, N\]"):
        linalg.inv(lm.ones(2, 3))
    with pytest.raises(ShapeError, match="lu_solve: LU .* pivots .* and B .* do not fit"):
        linalg.lu_solve(lm.ones(3, 3), lm.ones(2, dtype=lm.int32), lm.ones(3, 1))
    with pytest.raises(ShapeError, match="solve: A .* and B .* do not fit"):
        linalg.solve(lm.ones(3, 3), lm.ones(2, 1))
    with pytest.raises(ShapeError, match=r"solve: leading axes of A .* and B .*: shapes \(2,\) and \(4,\)"):
        linalg.solve(lm.ones(2, 3, 3), lm.ones(4, 3, 1))
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


SHAPES = [(5, 3), (3, 5), (4, 4), (2, 6, 4), (1, 1), (1, 3), (3, 1)]


@pytest.mark.parametrize("shape", SHAPES)
def test_orthogonal_factors(shape: tuple[int, ...]) -> None:
    x = drawn(*shape)
    for mode in ("reduced", "complete"):
        q, r = linalg.qr(x, mode)  # type: ignore[arg-type]
        wanted = np.linalg.qr(x, mode)  # type: ignore[call-overload]
        near(q, wanted.Q)
        near(r, wanted.R)
    q, r = linalg.qr(x, "r")
    assert q.shape == (0,)
    near(r, np.linalg.qr(x, "r"))
    near(linalg.svdvals(x), np.linalg.svd(x, compute_uv=False))
    for full in (True, False):
        u, s, vh = (y.numpy() for y in linalg.svd(x, full))
        wanted = np.linalg.svd(x, full)
        assert [y.shape for y in (u, s, vh)] == [y.shape for y in wanted]
        k = s.shape[-1]
        near(lm.tensor(u[..., :k] * s[..., None, :] @ vh[..., :k, :]), x)
        near(
            lm.tensor(turned(u) @ u),
            np.broadcast_to(np.eye(u.shape[-1]), (*u.shape[:-2], *[u.shape[-1]] * 2)),
        )
        near(
            lm.tensor(vh @ turned(vh)),
            np.broadcast_to(np.eye(vh.shape[-2]), (*vh.shape[:-2], *[vh.shape[-2]] * 2)),
        )


@pytest.mark.parametrize("shape", SHAPES)
def test_pseudoinverses_ranks_and_least_squares(shape: tuple[int, ...]) -> None:
    x, b = drawn(*shape), drawn(*shape[:-1], 2)
    near(linalg.pinv(x), np.linalg.pinv(x))
    assert (linalg.matrix_rank(x).numpy() == np.linalg.matrix_rank(x)).all()
    found = linalg.lstsq(x, b)
    near(found.solution, np.linalg.pinv(x) @ b)
    near(linalg.lstsq(x, b[..., 0]).solution, (np.linalg.pinv(x) @ b)[..., 0])
    left = ((x @ found.solution.numpy() - b) ** 2).sum(-2)
    near(found.residuals, left if shape[-2] > shape[-1] else np.zeros(0))
    assert (found.rank.numpy() == min(shape[-2:])).all()
    for order in (2, -2, "nuc"):
        wanted = [np.linalg.norm(a, order) for a in x.reshape(-1, *shape[-2:])]  # type: ignore[call-overload]
        near(linalg.matrix_norm(x, order), np.reshape(wanted, shape[:-2]))  # type: ignore[arg-type]
    near(linalg.matrix_norm(x, 2, keepdim=True), np.linalg.norm(x, 2, (-2, -1), keepdims=True))
    near(linalg.cond(x), np.linalg.cond(x), 1e-8)


def test_ranks_are_counted_by_tolerances() -> None:
    flat = drawn(5, 2) @ drawn(2, 4)
    assert int(linalg.matrix_rank(flat)) == 2
    assert int(linalg.matrix_rank(np.zeros((2, 2)))) == 0
    near(linalg.pinv(flat), np.linalg.pinv(flat))
    near(linalg.lstsq(flat, np.ones(5)).solution, np.linalg.pinv(flat) @ np.ones(5))
    values = np.diag([8.0, 2.0, 0.5])
    assert [int(linalg.matrix_rank(values, **by)) for by in ({"atol": 1.0}, {"rtol": 0.3}, {"atol": 4.0, "rtol":
    0.01})] == [
        2, 1, 1,
    ]  # fmt: skip
    assert int(linalg.matrix_rank(-values, hermitian=True, atol=1.0)) == 2
    near(linalg.pinv(values, hermitian=True, atol=1.0), np.diag([1 / 8, 1 / 2, 0]))


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_eigenvalues_and_exponentials(n: int) -> None:
    x = drawn(2, n, n)
    for triangle in "LU":
        w, v = linalg.eigh(x, triangle)  # type: ignore[arg-type]
        wanted = np.linalg.eigh(x, triangle)  # type: ignore[arg-type]
        near(w, wanted.eigenvalues)
        near(lm.ops.abs(v), abs(wanted.eigenvectors), 1e-8)
        near(linalg.eigvalsh(x, triangle), wanted.eigenvalues)  # type: ignore[arg-type]
    for size in (0.01, 1.0, 20.0):
        w, v = np.linalg.eig(x * size)
        near(linalg.matrix_exp(x * size), np.real(v * np.exp(w)[..., None, :] @ np.linalg.inv(v)), 1e-8)


def test_factors_of_cholesky_solve_and_invert() -> None:
    x = drawn(2, 4, 4)
    a = x @ turned(x) + np.eye(4)
    for upper in (False, True):
        factor = linalg.cholesky(a, upper=upper)
        near(
            lm.ops.cholesky_solve(drawn(2, 4, 3) * 0 + 1.0, factor, upper),
            np.linalg.inv(a) @ np.ones((2, 4, 3)),
        )
        near(lm.ops.cholesky_inverse(factor, upper), np.linalg.inv(a))
    near(lm.tensor(a).logdet(), np.log(np.linalg.det(a)))
    near(lm.tensor(a).inverse(), np.linalg.inv(a))
    assert np.isnan(float(lm.ops.logdet(np.diag([1.0, -1.0]))))


#: Functions of a matrix [5, 3] (or of its square [3, 3]) to a number, in ops' and in torch's words.
_GRADIENTS: dict[str, Any] = {
    "qr": lambda linalg, a: (linalg.qr(a).Q.sin() + linalg.qr(a).Q.cos()).sum() + linalg.qr(a).R.sin().sum(),
    "eigh": lambda linalg, a: (linalg.eigh(a.mT @ a)[1].abs().sin() * linalg.eigh(a.mT @ a)[0]).sum(),
    "svd": lambda linalg, a: (
        (linalg.svd(a, False)[0].abs().sin() * linalg.svd(a, False)[1]).sum()
        + linalg.svd(a.mT, False)[0].abs().cos().sum()
    ),
    "svdvals": lambda linalg, a: linalg.svdvals(a).sin().sum() + linalg.svdvals(a.mT).cos().sum(),
    "pinv": lambda linalg, a: linalg.pinv(a).sin().sum() + linalg.pinv(a.mT).cos().sum(),
    "lstsq": lambda linalg, a: linalg.lstsq(a, a.sin()).solution.sin().sum(),
    "matrix_exp": lambda linalg, a: linalg.matrix_exp(a.mT @ a * 0.3).sin().sum(),
    "nuc": lambda linalg, a: linalg.matrix_norm(a, "nuc") * linalg.matrix_norm(a, 2),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", _GRADIENTS)
def test_gradients_are_torchs_and_have_gradients(name: str) -> None:
    torch = pytest.importorskip("torch")
    x, towards = np.random.default_rng(0).standard_normal((2, 5, 3))  # large exponentials spoil differences
    theirs = torch.tensor(x, requires_grad=True)
    _GRADIENTS[name](torch.linalg, theirs).backward()
    first = lm.grad(lambda a: _GRADIENTS[name](linalg, a))
    near(first(x), theirs.grad.numpy(), 1e-7)
    second = lm.grad(lambda a: lm.ops.sum(first(a) * towards))(x).numpy()
    apart = (first(x + 1e-5 * towards).numpy() - first(x - 1e-5 * towards).numpy()) / 2e-5
    near(lm.tensor(second), apart, 1e-5)
    np.testing.assert_allclose(lm.jit(first)(x).numpy(), first(x).numpy(), rtol=1e-9, atol=1e-10)


def test_matrices_that_have_no_factors() -> None:
    with pytest.raises(ShapeError, match=r"lstsq: A f64\[3,2\] and B f64\[2,2\] do not fit"):
        linalg.lstsq(np.ones((3, 2)), np.ones((2, 2)))
    with pytest.raises(
        ValueError, match="matrix_norm: ord must be 'fro', 'nuc', inf, -inf, 1, -1, 2 or -2, got 3"
    ):
        linalg.matrix_norm(np.ones((3, 2)), 3)
    assert linalg.matrix_exp(np.ones((0, 3, 3))).shape == (0, 3, 3)
    assert np.isnan(linalg.svdvals(np.array([[1.0, np.nan], [0, 1]])).numpy()).all()


# ---- LU, and what tells where a matrix has no factor


@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 3), (3, 2, 6), (1, 1), (0, 0)])
def test_lu_is_the_matrix(shape: tuple[int, ...]) -> None:
    a = np.random.default_rng(1).standard_normal(shape)
    p, low, up = (x.numpy() for x in linalg.lu(a))
    np.testing.assert_allclose(p @ low @ up, a, atol=1e-13)
    assert set(np.unique(p)) <= {0.0, 1.0}
    np.testing.assert_array_equal(np.triu(low, 1), 0)
    np.testing.assert_array_equal(np.tril(up, -1), 0)
    assert np.abs(low).max(initial=0) <= 1
    factors, pivots = linalg.lu_factor(a)
    assert pivots.dtype.name == "int32"
    count = min(shape[-2:])
    assert pivots.shape == (*shape[:-2], count)
    np.testing.assert_array_equal(np.tril(factors.numpy(), -1)[..., :count], np.tril(low, -1))


@pytest.mark.torch
def test_lu_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((2, 4, 4)), rng.standard_normal((2, 4, 3))
    for found, wanted in zip(linalg.lu_factor(a), torch.linalg.lu_factor(torch.tensor(a)), strict=True):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), atol=1e-12)
    theirs = torch.linalg.lu_factor(torch.tensor(a))
    for left, adjoint in itertools.product((True, False), repeat=2):
        right = b if left else np.ascontiguousarray(np.swapaxes(b, -1, -2))
        wanted = torch.linalg.lu_solve(*theirs, torch.tensor(right), left=left, adjoint=adjoint).numpy()
        found = linalg.lu_solve(*linalg.lu_factor(a), right, left=left, adjoint=adjoint)
        np.testing.assert_allclose(found.numpy(), wanted, atol=1e-9)
    given = torch.tensor(a, requires_grad=True)
    _, low, up = torch.linalg.lu(given)
    (low.sin().sum() + up.cos().sum()).backward()

    def loss(a: Any) -> Any:
        _, low, up = linalg.lu(a)
        return ops.sin(low).sum() + ops.cos(up).sum()

    for run in (lm.grad(loss), lm.jit(lm.grad(loss))):
        np.testing.assert_allclose(run(a).numpy(), given.grad.numpy(), rtol=1e-6, atol=1e-8)


def test_where_a_matrix_has_no_factor() -> None:
    rng = np.random.default_rng(3)
    a = rng.standard_normal((2, 4, 4))
    a[1] = 0
    a[1, 0, 0] = 1
    spd = a @ np.swapaxes(a, -1, -2) + np.eye(4)
    spd[0, 2, 2] = -5
    for compiled in (False, True):
        wrap: Any = lm.jit if compiled else lambda f: f
        inverse, info = wrap(linalg.inv_ex)(a)
        assert (info.dtype.name, info.tolist()) == ("int32", [0, 2])
        np.testing.assert_allclose(inverse.numpy()[0] @ a[0], np.eye(4), atol=1e-10)
        x, info = wrap(linalg.solve_ex)(a, np.ones((2, 4, 1)))
        assert info.tolist() == [0, 2]
        np.testing.assert_allclose(a[0] @ x.numpy()[0], np.ones((4, 1)), atol=1e-10)
        factor, info = wrap(linalg.cholesky_ex)(spd)
        assert info.tolist() == [3, 0]
        np.testing.assert_allclose(factor.numpy()[1] @ factor.numpy()[1].T, spd[1], atol=1e-10)
        assert wrap(linalg.lu_factor_ex)(a).info.tolist() == [0, 2]
    assert linalg.inv_ex(np.zeros((3, 0, 0))).info.tolist() == [0, 0, 0]
    with pytest.raises(
        linalg.LinAlgError, match=r"cholesky_ex: .* is not positive definite: its pivot in row 2"
    ):
        linalg.cholesky_ex(spd, check_errors=True)
    with pytest.raises(linalg.LinAlgError, match=r"inv_ex: matrix \(1,\) of the batch is not invertible"):
        linalg.inv_ex(a, check_errors=True)


def test_tensors_as_matrices() -> None:
    rng = np.random.default_rng(4)
    a = np.eye(24).reshape(4, 6, 8, 3) + rng.standard_normal((4, 6, 8, 3)) * 0.1
    np.testing.assert_allclose(linalg.tensorinv(a).numpy(), np.linalg.tensorinv(a), atol=1e-10)
    a, b = rng.standard_normal((2, 3, 6)), rng.standard_normal((2, 3))
    np.testing.assert_allclose(linalg.tensorsolve(a, b).numpy(), np.linalg.tensorsolve(a, b), atol=1e-9)
    a, b = rng.standard_normal((2, 6, 3)), rng.standard_normal((2, 3))
    np.testing.assert_allclose(
        linalg.tensorsolve(a, b, dims=(1,)).numpy(), np.linalg.tensorsolve(a, b, axes=(1,)), atol=1e-9
    )
    x = rng.standard_normal((2, 3, 3))
    np.testing.assert_array_equal(linalg.diagonal(x).numpy(), np.diagonal(x, axis1=-2, axis2=-1))
    np.testing.assert_allclose(linalg.cross(x, x[::-1]).numpy(), np.cross(x, x[::-1]), atol=1e-15)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: linalg.lu(np.ones(3)), ShapeError, "lu_factor: needs matrices, got f64"),
        (lambda: linalg.tensorinv(np.ones((2, 3))), ShapeError, "the first 2 axes"),
        (lambda: linalg.tensorinv(np.ones((2, 2)), 0), ValueError, "ind must be at least 1, got 0"),
        (lambda: linalg.tensorsolve(np.ones((2, 3)), np.ones(2)), ShapeError, "make no square matrix"),
        (lambda: linalg.lu_solve(np.eye(2), np.ones(3, np.int32), np.eye(2)), ShapeError, "do not fit"),
        (lambda: linalg.eig, AttributeError, "eigh takes symmetric ones, numpy.linalg.eig all"),
    ],
)
def test_what_lu_and_tensors_refuse(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


def test_norms_are_computed_in_a_dtype() -> None:
    x = np.array([[3.0, 4.0], [0.0, 5.0]], np.float32)
    for order in (None, "fro", 1, -np.inf, "nuc"):
        found = ops.linalg.norm(x, order, dtype="float64")
        assert found.dtype == lm.float64
        np.testing.assert_allclose(found.numpy(), np.linalg.norm(x.astype(float), order), 1e-6)
    assert ops.linalg.matrix_norm(x, dtype=lm.float64).dtype == lm.float64
    np.testing.assert_allclose(ops.linalg.norm(x, 1, [0, 1]).numpy(), np.linalg.norm(x, 1), 1e-6)
    assert ops.linalg.norm(lm.tensor([3, 4])).item() == 5.0
