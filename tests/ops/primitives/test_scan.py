"""Running sums, products and extrema as torch's: axes from the end, numbers, integers, dtypes, gradients."""

import numpy as np
import pytest

import lamina as lm
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


def test_the_dtype_that_is_asked_for_is_the_results() -> None:
    x = ops.operand(np.array([100, 100, -1], np.int32))
    for function, wanted in ((ops.cumsum, [100, -56, -57]), (ops.cumprod, [100, 16, -16])):
        found = function(x, 0, dtype="int8")
        assert (found.dtype.name, found.numpy().tolist()) == ("int8", wanted)


def test_half_types_are_summed_in_float32() -> None:
    found = run(ops.cumsum, np.ones(4096, np.float16), 0)
    assert (found.dtype, float(found[-1])) == (np.float16, 4096)


@pytest.mark.feature("F118")
def test_errors() -> None:
    with pytest.raises(ShapeError, match="cumsum: axis 3 is outside a tensor of rank 3"):
        run(ops.cumsum, X, 3)
    with pytest.raises(TypeError, match="cumsum: dim must be an int, got None"):
        run(ops.cumsum, X, None)


@pytest.mark.parametrize(("name", "function"), [("cummax", np.maximum), ("cummin", np.minimum)])
def test_extrema_and_the_last_of_equal_ones(name: str, function: np.ufunc) -> None:
    x = np.array([[1.0, 3.0, 3.0, 2.0, np.nan, 5.0], [0.0, -1.0, -1.0, 4.0, 4.0, 0.0]])
    values, indices = run(getattr(ops, name), x, 1)
    np.testing.assert_array_equal(values, function.accumulate(x, 1))
    wanted = {
        "cummax": [[0, 1, 2, 2, 4, 4], [0, 0, 0, 3, 4, 4]],
        "cummin": [[0, 0, 0, 0, 4, 4], [0, 1, 2, 2, 2, 2]],
    }
    assert indices.tolist() == wanted[name]
    (found,) = grad(lambda x: getattr(ops, name)(x, 0)[0], np.array([2.0, 2.0, 2.0]))
    assert found.tolist() == [1, 1, 1]


def test_products_with_zeros() -> None:
    """The gradient of the first zero of a line is made of what follows it, that of the others is 0."""
    (found,) = grad(lambda x: ops.cumprod(x, 0), np.array([2.0, 0.0, 3.0, 0.0, 5.0]))
    np.testing.assert_allclose(found, [1.0, 2 * (1 + 3), 0.0, 0.0, 0.0])
    assert run(ops.cumprod, np.array([2, 3, 4], np.int8), 0).tolist() == [2, 6, 24]


def test_logarithms_of_sums_do_not_overflow() -> None:
    x = np.array([1000.0, -np.inf, 1000.0, 0.0])
    np.testing.assert_allclose(run(ops.logcumsumexp, x, 0), [1000, 1000, 1000 + np.log(2), 1000 + np.log(2)])
    (found,) = grad(lambda x: ops.logcumsumexp(x, 0), x)
    np.testing.assert_allclose(found, [3.0, 0.0, 1.0, 0.0], atol=1e-12)


def test_differences_and_areas() -> None:
    x = np.array([[1.0, 4.0, 9.0], [0.0, 1.0, 0.0]])
    np.testing.assert_array_equal(run(ops.diff, x, 2), np.diff(x, 2))
    np.testing.assert_array_equal(run(ops.diff, x, 1, 0, x[:1], x[1:]), np.diff(x, 1, 0, x[:1], x[1:]))
    assert run(ops.diff, np.array([True, False, False])).tolist() == [True, False]
    place = np.array([0.0, 1.0, 3.0])
    np.testing.assert_allclose(run(ops.trapezoid, x, place), np.trapezoid(x, place))
    np.testing.assert_allclose(run(ops.cumulative_trapezoid, x, dx=0.5), [[1.25, 4.5], [0.25, 0.5]])


@pytest.mark.parametrize("edge_order", [1, 2])
def test_slopes_by_differences(edge_order: int) -> None:
    x = X[..., :4]
    for found, expected in zip(
        ops.gradient(x, spacing=[0.5, 2.0, 1.0], edge_order=edge_order),
        np.gradient(x, 0.5, 2.0, 1.0, edge_order=edge_order),
        strict=True,
    ):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)
    (along,) = ops.gradient(x[0], spacing=0.5, dim=-1, edge_order=edge_order)
    np.testing.assert_allclose(along.numpy(), np.gradient(x[0], 0.5, axis=-1, edge_order=edge_order))
    with pytest.raises(ShapeError, match="gradient: needs"):
        ops.gradient(np.ones((1, 4)), edge_order=edge_order)
    with pytest.raises(ValueError, match="edge_order 1 or 2 and a spacing for each axis"):
        ops.gradient(x, spacing=[1.0])


def test_rounding_does_not_grow_with_the_length_of_the_axis() -> None:
    """Float32 is added and multiplied in float64: an oscillator's phase after 40,000 samples is right."""
    x = np.random.default_rng(0).random((2, 40_000), np.float32)
    np.testing.assert_allclose(ops.cumsum(x, 1).numpy(), x.astype(np.float64).cumsum(1), rtol=1e-7)
    near = 1 + (x - 0.5) / 100
    np.testing.assert_allclose(ops.cumprod(near, 1).numpy(), near.astype(np.float64).cumprod(1), rtol=1e-7)
    rows = np.ascontiguousarray(x.T)
    np.testing.assert_allclose(ops.cumsum(rows, 0).numpy(), rows.astype(np.float64).cumsum(0), rtol=1e-7)


def test_areas_under_nothing() -> None:
    for x in (None, np.zeros(0, np.float32)):
        assert run(ops.trapezoid, np.zeros(0, np.float32), x) == 0
        assert run(ops.cumulative_trapezoid, np.zeros(0, np.float32), x).shape == (0,)
    np.testing.assert_array_equal(
        run(ops.trapezoid, np.zeros((2, 0, 3), np.float32), dim=1), np.zeros((2, 3))
    )


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_the_gradient_of_logcumsumexp_is_linear(dtype: str) -> None:
    """Also at cotangents of zero, where forward derivatives are taken, and for those that are NaN."""
    x, t = lm.tensor(X).to(dtype=dtype), lm.tensor(X[::-1].copy()).to(dtype=dtype)
    weights = np.exp(x.double().numpy())
    wanted = np.cumsum(weights * t.double().numpy(), 1) / np.cumsum(weights, 1)
    along = lm.jvp(lambda x: ops.logcumsumexp(x, 1), (x,), (t,))[1]
    assert along.dtype == x.dtype
    precise = {"float64": 1e-12, "float32": 2e-5, "bfloat16": 2e-2}[dtype]
    np.testing.assert_allclose(along.double().numpy(), wanted, rtol=precise, atol=precise)
    _, pull = lm.vjp(lambda x: ops.logcumsumexp(x, 0), lm.ones(3))
    np.testing.assert_array_equal(
        np.isnan(pull(lm.tensor([0.0, np.nan, 0.0]))[0].numpy()), [True, True, False]
    )
    assert pull(lm.tensor([1.0, 0.0, 0.0]))[0].tolist() == [1.0, 0.0, 0.0]
