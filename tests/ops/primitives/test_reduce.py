"""Reductions against NumPy, their gradients at the awkward places, and index reductions."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.ops import primitives
from lamina.ops.core import bind, call
from lamina.ops.primitives.reduce import Reduce
from lamina.spec import ShapeError
from tests.helpers.eager import Eager
from tests.helpers.functions import grad, run

X = np.random.default_rng(0).standard_normal((3, 4, 5))


@pytest.mark.feature("F065")
@pytest.mark.parametrize("dim", [None, 1, -1, (0, 2), ()])
@pytest.mark.parametrize("keepdim", [False, True])
def test_kinds(dim: Any, keepdim: bool) -> None:
    """As torch: no axes are all axes."""
    x = X.copy()
    x[1, 2] = 0
    given = {"dim": dim, "keepdim": keepdim}
    alike = {"axis": None if dim == () else dim, "keepdims": keepdim}
    close = np.testing.assert_allclose
    close(run(ops.sum, x, **given), np.sum(x, **alike), atol=1e-12)
    close(run(ops.mean, x, **given), np.mean(x, **alike), atol=1e-12)
    close(run(ops.prod, x, **given), np.prod(x, **alike), atol=1e-12)
    close(run(ops.amax, x, **given), np.max(x, **alike))
    close(run(ops.amin, x, **given), np.min(x, **alike))
    close(run(ops.norm1, x, **given), np.sum(np.abs(x), **alike))
    close(run(ops.norm2, x, **given), np.sqrt(np.sum(x * x, **alike)))
    close(run(ops.abs_max, x, **given), np.max(np.abs(x), **alike))
    close(run(ops.mul_no_zeros, x, **given), np.prod(np.where(x == 0, 1, x), **alike))


@pytest.mark.feature("F065", "F066")
def test_half_types_are_summed_in_float32() -> None:
    """4096 times 1 in bfloat16: a sum in bfloat16 would stop at 256."""
    x = np.ones(4096, ops.cast(Eager(np.zeros(1)), "bfloat16").dtype.numpy)
    assert float(run(ops.sum, x)) == 4096
    assert float(run(ops.mean, x)) == 1
    assert run(ops.sum, x).dtype == x.dtype


def test_integers_are_summed_in_int64() -> None:
    x = np.full(5, 2_000_000_000, np.int32)
    assert run(ops.sum, x).tolist() == 10_000_000_000
    assert run(ops.sum, np.array([True, True, False])).tolist() == 2
    assert run(ops.max, x).dtype == np.int32


@pytest.mark.feature("F065")
@pytest.mark.parametrize("name", ["int8", "int32", "float32", "bool"])
def test_the_dtype_that_is_asked_for_is_the_results(name: str) -> None:
    """Numbers that do not fit wrap, as torch's do."""
    x = np.array([[100, 100], [1, 0]], np.int32)
    found = [f(ops.operand(x), 1, dtype=name) for f in (ops.sum, ops.prod)]
    assert [y.dtype.name for y in found] == [name, name]
    kept = {"int8": ([-56, 1], [16, 0]), "bool": ([1, 1], [1, 0])}.get(name, ([200, 1], [10000, 0]))
    assert [y.numpy().tolist() for y in found] == list(kept)


def test_gradient_of_products_with_zeros() -> None:
    """d prod / dx_i is the product of the others: with one zero only there, with two nowhere."""
    x = np.array([[2.0, 3.0, 4.0], [2.0, 0.0, 4.0], [0.0, 0.0, 4.0]])
    found = grad(lambda v: ops.prod(v, 1), x)[0]
    assert found.tolist() == [[12, 8, 6], [0, 8, 0], [0, 0, 0]]
    found = grad(lambda v: ops.mul_no_zeros(v, 1), x)[0]
    assert found.tolist() == [[12, 8, 6], [4, 0, 2], [0, 0, 1]]


@pytest.mark.feature("F065")
def test_gradient_of_extrema_is_shared() -> None:
    x = np.array([[1.0, 3.0, 3.0], [-4.0, 4.0, 0.0]])
    assert grad(lambda v: ops.amax(v, 1), x)[0].tolist() == [[0, 0.5, 0.5], [0, 1, 0]]
    assert grad(lambda v: ops.max(v), x[:1])[0].tolist() == [[0, 0.5, 0.5]]
    assert grad(lambda v: ops.amin(v, 1), x)[0].tolist() == [[1, 0, 0], [1, 0, 0]]
    assert grad(lambda v: ops.abs_max(v, 1), x)[0].tolist() == [[0, 0.5, 0.5], [-0.5, 0.5, 0]]


def test_gradient_of_an_extremum_goes_where_the_index_is() -> None:
    x = np.array([[1.0, 3.0, 3.0], [-4.0, -4.0, -4.0], [np.nan, 5.0, np.nan]])
    assert grad(lambda v: ops.max(v, 1).values, x)[0].tolist() == [[0, 1, 0], [1, 0, 0], [1, 0, 0]]
    assert grad(lambda v: ops.min(v, dim=-1, keepdim=True)[0], x)[0].tolist() == [
        [1, 0, 0],
        [1, 0, 0],
        [1, 0, 0],
    ]
    assert grad(lambda v: ops.max(v, 0).values, x[:2])[0].tolist() == [[1, 1, 1], [0, 0, 0]]
    assert lm.grad(lambda v: ops.max(v, 0).values)(lm.tensor(2.0)).item() == 1
    with pytest.raises(ShapeError, match="first is for max and min along one axis"):
        bind(Reduce("sum", (1,), first=True), lm.tensor(x))


def test_gradient_of_the_norm_of_nothing_is_zero() -> None:
    x = np.array([[0.0, 0.0], [3.0, 4.0]])
    assert grad(lambda v: ops.norm2(v, 1), x)[0].tolist() == [[0, 0], [0.6, 0.8]]


@pytest.mark.feature("F067")
def test_argmax_and_argmin() -> None:
    for axis in (None, 0, 1, -1):
        assert run(ops.argmax, X, axis).tolist() == np.argmax(X, axis).tolist()
        assert run(ops.argmin, X, axis).tolist() == np.argmin(X, axis).tolist()
        kept = run(ops.argmax, X, axis, keepdim=True)
        assert kept.tolist() == np.argmax(X, axis, keepdims=True).tolist()
        assert kept.dtype == np.int64
    ties = np.array([[1, 3, 3], [2, 2, 2]])
    assert run(ops.argmax, ties, 1).tolist() == [1, 0]
    assert run(ops.argmin, ties, 1).tolist() == [0, 0]


@pytest.mark.feature("F067")
def test_max_and_min_along_an_axis() -> None:
    """Named tuples; with a tensor in the axis' place the elementwise function; without either one number."""
    values, places = run(ops.max, X, 1)
    np.testing.assert_array_equal(values, X.max(1))
    np.testing.assert_array_equal(places, X.argmax(1))
    assert run(ops.max, X, 1, keepdim=True)[0].shape == (3, 1, 5)
    found = ops.min(Eager(X), 0)
    assert (found._fields, found.indices.dtype.name) == (("values", "indices"), "int64")
    np.testing.assert_array_equal(found.values.value, X.min(0))
    np.testing.assert_array_equal(run(ops.max, X, -X), np.abs(X))
    assert (float(run(ops.max, X)), float(run(ops.min, X))) == (X.max(), X.min())
    assert tuple(map(int, run(ops.max, np.array(3), 0))) == (3, 0)
    with pytest.raises(TypeError, match=r"max: dim must be an int, got \(0, 1\)"):
        run(lambda x: ops.max(x, (0, 1)), X)


def test_variance() -> None:
    for dim, correction in ((None, 1), (1, 0), ((0, 2), 1), (0, 0.5)):
        wanted = np.var(X, dim, ddof=correction)
        np.testing.assert_allclose(run(ops.var, X, dim, correction=correction), wanted)
        both = run(ops.std_mean, X, dim, correction=correction, keepdim=True)
        np.testing.assert_allclose(both[0], np.sqrt(np.var(X, dim, ddof=correction, keepdims=True)))
        np.testing.assert_allclose(both[1], X.mean(dim, keepdims=True))
    np.testing.assert_allclose(run(ops.var, X, False), X.var())
    np.testing.assert_allclose(run(ops.var, X, 1, False), X.var(1))
    assert np.isnan(run(ops.var, X[:1, :1, :1]))
    assert np.isinf(run(ops.var, X[:1, :1, :2], correction=3))
    with pytest.raises(TypeError, match="var: give unbiased or correction, not both"):
        run(ops.var, X, 0, True, correction=1)


def test_sum_to() -> None:
    assert run(ops.sum_to, X, (4, 1)).tolist() == X.sum((0, 2))[:, None].tolist()
    assert run(ops.sum_to, X, ()).shape == ()
    assert run(ops.sum_to, np.ones((2, 1)), (1, 1)).tolist() == [[2]]
    with pytest.raises(ShapeError, match=r"sum_to: \(2, 5\) does not broadcast to the shape of f64\[3,4,5\]"):
        run(ops.sum_to, X, (2, 5))


def test_empty() -> None:
    nothing = np.zeros((0, 3))
    assert run(ops.sum, nothing, 0).tolist() == [0, 0, 0]
    assert run(ops.prod, nothing, 0).tolist() == [1, 1, 1]
    assert np.isnan(run(ops.mean, nothing, 0)).all()
    with pytest.raises(ShapeError, match=r"reduce: max of no elements along axes \(0,\) of f64\[0,3\]"):
        run(ops.amax, nothing, 0)
    with pytest.raises(ShapeError, match=r"arg_max: axis 0 of f64\[0,3\] has no elements"):
        run(ops.argmax, nothing, 0)


@pytest.mark.feature("F118")
def test_errors() -> None:
    with pytest.raises(ShapeError, match="sum: axis 3 is outside a tensor of rank 3"):
        run(ops.sum, X, 3)
    with pytest.raises(ShapeError, match=r"sum: axes \(0, -3\) name an axis twice"):
        run(ops.sum, X, (0, -3))
    with pytest.raises(ShapeError, match="kind must be one of sum, mean, .*, got 'median'"):
        run(lambda x: call(primitives.Reduce("median", (0,)), x), X)
    with pytest.raises(ShapeError, match=r"axes must be sorted and counted from the front, got \(2, 0\)"):
        run(lambda x: call(primitives.Reduce("sum", (2, 0)), x), X)
    with pytest.raises(TypeError, match="reduce: mean of int64 is not defined; cast with ops.cast"):
        run(ops.mean, np.arange(3))


def test_extremes_of_booleans_are_booleans() -> None:
    x = lm.tensor([[True, False, True], [False, False, False]])
    assert (x.max().item(), x.min().item(), x.amax(1).tolist()) == (True, False, [True, False])
    values, indices = x.max(1)
    assert (values.dtype, values.tolist(), indices.tolist()) == (lm.bool_, [True, False], [0, 0])
    assert x.min(0).values.tolist() == [False, False, False]
    with pytest.raises(ShapeError, match="max"):
        lm.zeros(0, dtype="bool").max()
