"""Matrix products against NumPy's, with its rules for vectors and batches."""

import numpy as np
import pytest

from lamina import ops
from lamina.ops import primitives
from lamina.ops.core import call
from lamina.spec import DTypeError, Shape, ShapeError
from tests.helpers.functions import grad, run


@pytest.mark.feature("F066")
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 4), (4, 5)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((6, 1, 3, 4), (2, 4, 5)),
        ((3, 4), (2, 4, 5)),
        ((2, 3, 4), (4,)),
        ((4,), (2, 4, 5)),
        ((0, 4), (4, 5)),
    ],
)
def test_matmul(left: Shape, right: Shape) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(left), rng.standard_normal(right)
    np.testing.assert_allclose(run(ops.matmul, a, b), a @ b, atol=1e-12)
    da, db = grad(ops.matmul, a, b)
    assert (da.shape, db.shape) == (a.shape, b.shape)


def test_linear() -> None:
    rng = np.random.default_rng(1)
    w, bias = rng.standard_normal((5, 4)), rng.standard_normal(5)
    for lead in ((), (3,), (2, 3), (0,)):
        x = rng.standard_normal((*lead, 4))
        np.testing.assert_allclose(run(ops.linear, x, w, bias), x @ w.T + bias, atol=1e-12)
        np.testing.assert_allclose(run(ops.linear, x, w), x @ w.T, atol=1e-12)
    x = rng.standard_normal((2, 3, 4))
    dx, dw, db = grad(ops.linear, x, w, bias)
    np.testing.assert_allclose(dx, np.broadcast_to(w.sum(0), x.shape), atol=1e-12)
    np.testing.assert_allclose(dw, np.broadcast_to(x.sum((0, 1)), w.shape), atol=1e-12)
    assert db.tolist() == [6] * 5


@pytest.mark.feature("F118")
def test_errors() -> None:
    a, b = np.zeros((2, 3)), np.zeros((4, 5))
    with pytest.raises(ShapeError, match=r"matmul: inner sizes 3 and 4 differ: f64\[2,3\] times f64\[4,5\]"):
        run(ops.matmul, a, b)
    with pytest.raises(ShapeError, match=r"inner sizes 3 and 4 differ: f64\[2,2,3\] times"):
        run(ops.matmul, np.zeros((2, 2, 3)), b)
    with pytest.raises(ShapeError, match=r"inner sizes 2 and 5 differ: f64\[2,3\]\^T times f64\[4,5\]\^T"):
        run(lambda x, y: call(primitives.Matmul(True, True), x, y), a, b)
    with pytest.raises(ShapeError, match=r"matmul: shapes \(2,\) and \(3,\) do not broadcast"):
        run(ops.matmul, np.zeros((2, 3, 4)), np.zeros((3, 4, 5)))
    with pytest.raises(ShapeError, match="matmul: needs vectors or matrices, .* use mul for numbers"):
        run(ops.matmul, a, np.array(2.0))
    with pytest.raises(ShapeError, match="needs matrices with equal batch sizes"):
        run(lambda x, y: call(primitives.Matmul(), x, y), np.zeros((2, 3, 4)), np.zeros((4, 5)))
    with pytest.raises(ShapeError, match=r"linear: input \[..., I\] and weight \[O, I\] do not fit"):
        run(ops.linear, a, b)
    with pytest.raises(ShapeError, match=r"linear: bias must be of shape \(4,\), got f64\[3\]"):
        run(ops.linear, np.zeros((2, 5)), b, np.zeros(3))


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_integers_are_multiplied_exactly(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond what float64 holds, and where the dtype overflows, as NumPy and torch; in parts where it is large."""
    rng = np.random.default_rng(0)
    high = min(2**31, int(np.iinfo(dtype).max))
    for left, right in [
        ((3, 4), (4, 5)),
        ((4,), (4, 5)),
        ((2, 1, 3, 4), (6, 4, 2)),
        ((3, 0), (0, 2)),
        ((4,), (4,)),
    ]:
        a, b = rng.integers(0, high, left).astype(dtype), rng.integers(0, high, right).astype(dtype)
        found = run(ops.matmul, a, b)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, np.matmul(a, b))
        monkeypatch.setattr("lamina.ops.primitives.matmul._HELD", 1)
        np.testing.assert_array_equal(run(ops.matmul, a, b), np.matmul(a, b))
        monkeypatch.undo()
    x, w = (rng.integers(0, high, (3, 4)).astype(dtype) for _ in range(2))
    np.testing.assert_array_equal(run(ops.linear, x, w), x @ w.T)
    with pytest.raises(DTypeError, match="matmul: integers must be of one dtype"):
        ops.matmul(np.ones((2, 2), np.int64), np.ones((2, 2), np.int8))
    with pytest.raises(ShapeError, match="matmul: inner sizes 2 and 3 differ"):
        ops.matmul(np.ones((2, 2), np.int64), np.ones((3, 2), np.int64))
