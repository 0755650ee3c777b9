"""Products of tensors against NumPy's: einsum in all its forms, batches, sums, diagonals, integers; distances."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.spec import ShapeError
from tests.helpers.functions import grad, run

RNG = np.random.default_rng(0)
SIZES = {"i": 2, "j": 3, "k": 4, "l": 5, "b": 2}


@pytest.mark.parametrize(
    "equation",
    [
        "ij,jk->ik", "ij,jk", "bij,bjk->bik", "i,i->", "i,j->ji", "ij->ji", "ij->", "ijk->jk", "ij,ij->ij",
        "ij,kl->kjli", "ij,jk,kl->il", "bij,bkj,bl->bikl", "ij,j->i", "ijk,k,j->i", "bij,kj->bk", "ij,ij,ij->j",
    ],
)  # fmt: skip
def test_einsum(equation: str) -> None:
    terms = equation.partition("->")[0].split(",")
    xs = [RNG.standard_normal([SIZES[c] for c in term]) for term in terms]
    np.testing.assert_allclose(
        run(ops.einsum, equation, *xs), np.einsum(equation, *xs), rtol=1e-12, atol=1e-13
    )


def test_einsum_of_diagonals_dots_and_sizes_of_1() -> None:
    square, x = RNG.standard_normal((4, 3, 3)), RNG.standard_normal((2, 1, 4, 3))
    for equation in ("iaa->i", "iaa->ai", "iaa->", "iaa"):
        np.testing.assert_allclose(run(ops.einsum, equation, square), np.einsum(equation, square))
    for equation in ("...ij,...kj->...ik", "...ij,...kj", "...ij,...ij->...", "...ij,...kj->ik..."):
        found = run(ops.einsum, equation, x, x[:, :, :2] if "kj" in equation else x)
        np.testing.assert_allclose(found, np.einsum(equation, x, x[:, :, :2] if "kj" in equation else x))
    wide = run(ops.einsum, "...a,...a->...a", x, RNG.standard_normal((5, 4, 3)))
    assert wide.shape == (2, 5, 4, 3)
    assert (
        run(ops.einsum, "ij,jk->ik", np.ones((2, 3), np.int64), np.ones((3, 2), np.int64)).dtype == np.int64
    )


def test_einsum_of_lists_of_labels() -> None:
    x, y, wide = (RNG.standard_normal(s) for s in ((2, 3), (3, 4), (5, 2, 3)))
    for given in (
        (x, [0, 1], y, [1, 2], [2, 0]),
        (x, (0, 1), y, (1, 2)),
        (x, [30, 2], y, [2, 7]),  # the result's labels in their order, 7 before 30
        (wide, [..., 0, 1], y, [1, 2], [..., 2, 0]),
        (x, [0, 1], []),
    ):
        operands = [lm.tensor(g) if isinstance(g, np.ndarray) else g for g in given]
        np.testing.assert_allclose(ops.einsum(*operands).numpy(), np.einsum(*given))
    with pytest.raises(ValueError, match="labels are lists of whole numbers from 0 to 51"):
        ops.einsum(lm.tensor(x), [0, 52])
    with pytest.raises(ValueError, match="begins with an equation"):
        ops.einsum(lm.tensor(x))


def test_gradients_of_einsum() -> None:
    x, y = RNG.standard_normal((2, 3)), RNG.standard_normal((3, 4))
    dx, dy = grad(lambda x, y: ops.einsum("ij,jk->ki", x, y), x, y)
    np.testing.assert_allclose(dx, np.broadcast_to(y.sum(1), (2, 3)))
    np.testing.assert_allclose(dy, np.broadcast_to(x.sum(0)[:, None], (3, 4)))


@pytest.mark.parametrize(
    ("equation", "error", "match"),
    [
        ("ij", ValueError, "names 1 operands, got 2"),
        ("ijk,jk->i", ValueError, "does not fit an operand with 2 axes"),
        ("ij,jk->iz", ValueError, "must name labels of the operands"),
        ("i1,jk->i", ValueError, "does not fit"),
        ("ij,ij->i", ShapeError, "'i' stands for axes of 2 and 3"),
    ],
)
def test_equations_that_do_not_fit(equation: str, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        ops.einsum(equation, lm.ones((2, 3)), lm.ones((3, 3)))


@pytest.mark.parametrize("dims", [0, 1, 2, ([0], [1]), ([1, 0], [0, 1])])
def test_tensordot(dims: Any) -> None:
    x, y = RNG.standard_normal((3, 3)), RNG.standard_normal((3, 3, 2))
    np.testing.assert_allclose(run(ops.tensordot, x, y, dims), np.tensordot(x, y, dims))


def test_products_with_names() -> None:
    a, b = RNG.standard_normal((4, 3)), RNG.standard_normal((5, 3))
    np.testing.assert_allclose(run(ops.inner, a, b), np.inner(a, b))
    np.testing.assert_allclose(run(ops.vdot, a[0], b[0]), np.vdot(a[0], b[0]))
    np.testing.assert_allclose(run(ops.kron, a, b[0]), np.kron(a, b[0]))
    np.testing.assert_allclose(run(ops.cross, a, b[:4]), np.cross(a, b[:4]))
    np.testing.assert_allclose(run(ops.cross, a.T, b[:1].T, 0), np.cross(a, b[:1]).T)
    np.testing.assert_allclose(run(ops.addmv, np.ones(4), a, b[0], beta=2, alpha=3), 2 + 3 * a @ b[0])
    np.testing.assert_allclose(run(ops.addr, np.ones((4, 3)), a[:, 0], b[0]), 1 + np.outer(a[:, 0], b[0]))
    np.testing.assert_allclose(run(ops.addbmm, np.full((4, 4), np.nan), a[None], a.T[None], beta=0), a @ a.T)
    np.testing.assert_allclose(run(ops.vander, a[:, 0], 3), np.vander(a[:, 0], 3))


@pytest.mark.parametrize("p", [0.0, 1.0, 1.5, 2.0, 3.0, np.inf])
def test_cdist(p: float) -> None:
    a, b = RNG.standard_normal((2, 4, 3)), RNG.standard_normal((2, 30, 3))
    b[:, 0] = a[:, 0]
    apart = np.abs(a[:, :, None] - b[:, None])
    wanted = np.linalg.norm(apart, p, -1) if p else (apart != 0).sum(-1)
    np.testing.assert_allclose(run(ops.cdist, a, b, p), wanted, rtol=1e-7, atol=1e-7)
    dx, _ = grad(lambda a, b: ops.cdist(a, b, p, "donot_use_mm_for_euclid_dist"), a, b)
    assert np.isfinite(dx).all()


def test_covariances() -> None:
    x, counts, weights = RNG.standard_normal((3, 7)), np.array([1, 2, 1, 3, 1, 1, 2]), RNG.random(7)
    np.testing.assert_allclose(run(ops.cov, x), np.cov(x))
    np.testing.assert_allclose(run(ops.cov, x[0], correction=0), np.cov(x[0], ddof=0))
    wanted = np.cov(x, fweights=counts, aweights=weights)
    np.testing.assert_allclose(run(ops.cov, x, fweights=counts, aweights=weights), wanted)
    np.testing.assert_allclose(run(ops.corrcoef, x), np.corrcoef(x))


def test_errors() -> None:
    x = lm.ones((2, 4))
    with pytest.raises(ShapeError, match="cross: axis -?1 must have 3 elements"):
        ops.cross(x, x)
    with pytest.raises(ShapeError, match="tensordot: axes"):
        ops.tensordot(x, x, 1)
    with pytest.raises(ShapeError, match="cdist: needs"):
        ops.cdist(x, x, -1.0)
    with pytest.raises(ShapeError, match="cov: fweights must be"):
        ops.cov(x, fweights=lm.tensor([1]))


@pytest.mark.parametrize("p", [2.0, 1.0, 3.0, float("inf")])
def test_distances_of_all_pairs(p: float) -> None:
    x = RNG.standard_normal((5, 3))
    whole = np.linalg.norm(x[:, None] - x, p, -1)
    np.testing.assert_allclose(run(ops.pdist, x, p), whole[np.triu_indices(5, 1)], rtol=1e-6)
    x[1] = x[0]
    assert np.isfinite(grad(lambda v: ops.pdist(v, p), x)[0]).all()
    assert run(ops.pdist, x[:1]).shape == (0,)
    with pytest.raises(ShapeError, match=r"pdist: needs \[N, M\] and p >= 0"):
        ops.pdist(x[0])


def test_covariances_of_integers_are_floats() -> None:
    x = np.array([[1, 2, 4], [3, 0, 9]])
    np.testing.assert_allclose(run(ops.cov, x), np.cov(x), 1e-6)
    np.testing.assert_allclose(run(ops.corrcoef, x), np.corrcoef(x), 1e-6)
    weights = np.array([1, 2, 1])
    np.testing.assert_allclose(run(ops.cov, x, fweights=weights), np.cov(x, fweights=weights), 1e-6)


def test_powers_of_integers_are_wide() -> None:
    found = ops.vander(lm.tensor([9, 3]).char(), 4)
    assert found.dtype == lm.int64
    np.testing.assert_array_equal(found.numpy(), np.vander([9, 3], 4))
