"""Gathers and scatters against NumPy and PyTorch: shapes, dtypes, repeated places, gradients, errors."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.backends.reference import run_reference
from lamina.ops.core import Array, Op
from lamina.ops.primitives import Gather, GatherGrad, Scatter
from lamina.spec import DTypeError, ShapeError
from tests.helpers.functions import grad, run

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 5, 3))
INDEX = RNG.integers(0, 3, (2, 4, 3))
SOURCE = RNG.standard_normal((3, 5, 3))


def _loop(x: Array, dim: int, index: Array, source: Array, combine: Any) -> Array:
    """Element by element, in row-major order."""
    found = x.copy()
    for place in np.ndindex(*index.shape):
        there = (*place[:dim], index[place], *place[dim + 1 :])
        found[there] = combine(found[there], source[place])
    return found


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_gather_of_a_smaller_index(dim: int) -> None:
    axis = dim % 3
    wanted = [X[(*p[:axis], INDEX[p], *p[axis + 1 :])] for p in np.ndindex(*INDEX.shape)]
    np.testing.assert_array_equal(run(ops.gather, X, dim, INDEX), np.reshape(wanted, INDEX.shape))


@pytest.mark.parametrize("dim", [0, 2])
@pytest.mark.parametrize(
    ("name", "combine"),
    [("scatter", lambda a, b: b), ("scatter_add", lambda a, b: a + b)],
)
def test_scatter(name: str, combine: Any, dim: int) -> None:
    wanted = _loop(X, dim, INDEX[:, :4], SOURCE, combine)
    np.testing.assert_allclose(run(getattr(ops, name), X, dim, INDEX[:, :4], SOURCE), wanted, rtol=1e-13)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce_is_what_a_group_says(reduce: str, include_self: bool) -> None:
    x, index, source = np.array([2.0, -3.0, 5.0]), np.array([0, 2, 0, 0]), np.array([1.0, 7.0, -4.0, 2.0])
    function = {"sum": np.sum, "prod": np.prod, "mean": np.mean, "amax": np.max, "amin": np.min}[reduce]
    groups = [source[index == i] for i in range(3)]
    wanted = [
        function(np.append(g, own)) if include_self else function(g) if g.size else own
        for g, own in zip(groups, x, strict=True)
    ]
    found = run(ops.scatter_reduce, x, 0, index, source, reduce, include_self=include_self)
    np.testing.assert_allclose(found, wanted)


def test_the_gradient_of_a_product_with_zeros() -> None:
    """One zero: only it has a gradient; two: none has."""
    x, index = np.array([2.0, 3.0, 0.0]), np.array([0, 0, 1, 1, 2])
    dx, _, ds = grad(
        lambda x, i, s: ops.scatter_reduce(x, 0, i, s, "prod"), x, index, np.array([0.0, 5.0, 4.0, 6.0, 0.0])
    )
    np.testing.assert_allclose(dx, [0.0, 24.0, 0.0])
    np.testing.assert_allclose(ds, [10.0, 0.0, 18.0, 12.0, 0.0])


def test_what_is_overwritten_has_no_gradient() -> None:
    dx, _, ds = grad(lambda x, i, s: ops.scatter(x, 0, i, s), np.ones(3), np.array([1, 1, 2]), np.ones(3))
    assert (dx.tolist(), ds.tolist()) == ([1, 0, 0], [0, 1, 1])


def test_slices() -> None:
    index, source = np.array([2, 0, 2]), RNG.standard_normal((4, 3, 3))
    np.testing.assert_array_equal(run(ops.index_select, X, 1, index), X[:, index])
    wanted = X.copy()
    np.add.at(wanted, (slice(None), index), 2 * source)
    np.testing.assert_allclose(run(ops.index_add, X, 1, index, source, alpha=2), wanted)
    wanted = X.copy()
    wanted[:, index] = source
    np.testing.assert_array_equal(run(ops.index_copy, X, -2, index, source), wanted)
    wanted[:, index] = 7
    np.testing.assert_array_equal(run(ops.index_fill, X, 1, index, 7.0), wanted)
    wanted = X.copy()
    np.maximum.at(wanted, (slice(None), index), source)
    np.testing.assert_array_equal(run(ops.index_reduce, X, 1, index, source, "amax"), wanted)


def test_take() -> None:
    index = np.array([[0, -1], [7, 7]])
    np.testing.assert_array_equal(run(ops.take, X, index), X.reshape(-1)[index])
    order = np.argsort(X, 1)
    np.testing.assert_array_equal(run(ops.take_along_dim, X, order, 1), np.sort(X, 1))
    wanted = np.take_along_axis(X, order[:1, :, :1], 1)
    np.testing.assert_array_equal(run(ops.take_along_dim, X, order[:1, :, :1], 1), wanted)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_a_filling_number_beyond_the_type_is_its_lowest(dtype: str) -> None:
    """As a mask of scores in float32 has it, in half precision: a row that is hidden whole is not one of -inf."""
    x = lm.tensor([1.0, 2.0]).cast(dtype)
    (y,) = ops.masked_fill(x, lm.tensor([True, False]), float(np.finfo(np.float32).min)).numpy()[:1].tolist()
    lowest = {"bfloat16": -3.3895313892515355e38, "float16": -65504.0}.get(dtype, -3.4028234663852886e38)
    assert y == lowest
    for number in (np.inf, -np.inf):
        assert ops.masked_fill(x, lm.tensor([True, False]), number).numpy()[0] == number


def test_masks() -> None:
    x, mask = lm.tensor(X.astype(np.float32)), X > 0
    np.testing.assert_array_equal(ops.masked_fill(x, mask, -1.0).numpy(), np.where(mask, -1, x.numpy()))
    np.testing.assert_array_equal(ops.masked_select(x, mask).numpy(), x.numpy()[mask])
    wanted = x.numpy().copy()
    wanted[mask] = np.arange(mask.sum())
    source = np.arange(100, dtype=np.float32)
    np.testing.assert_array_equal(ops.masked_scatter(x, mask, source).numpy(), wanted)


def test_without_axes_and_without_elements() -> None:
    one, none = np.array(2.5), np.zeros((0,), np.int64)
    assert run(ops.gather, one, 0, np.array(0)).shape == ()
    assert run(ops.gather, one, 0, np.array([0])).shape == (1,)
    assert run(ops.scatter, one, 0, np.array(0), np.array(4.0)).tolist() == 4.0
    assert run(ops.gather, X, 1, np.zeros((4, 0, 3), np.int64)).shape == (4, 0, 3)
    assert run(ops.index_select, X, 2, none).shape == (4, 5, 0)
    np.testing.assert_array_equal(run(ops.scatter_add, X, 0, np.zeros((0, 5, 3), np.int64), X), X)


def test_integers_stay_integers() -> None:
    for dtype in (np.int64, np.int32, np.int8, np.uint8, np.bool_):
        x = np.array([1, 0, 1]).astype(dtype)
        assert run(ops.gather, x, 0, np.array([2, 1], np.int32)).dtype == dtype
        assert run(ops.scatter, x, 0, np.array([1]), x[:1]).dtype == dtype
    total = run(ops.scatter_add, np.zeros(1, np.int64), 0, np.zeros(3, np.int64), np.full(3, 2**60))
    assert total.tolist() == [3 * 2**60]


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda x: ops.gather(x, 0, lm.tensor([[3, 0]])),
            IndexError,
            r"gather: index 3 at .* is outside -\d … \d;",
        ),
        (
            lambda x: ops.gather(x, 0, lm.tensor([[0, -9]])),
            IndexError,
            r"gather: index -9 at position \(0, 1\)",
        ),
        (
            lambda x: ops.gather(x, 0, lm.tensor([0])),
            ShapeError,
            "gather: index i64.* must have as many axes",
        ),
        (lambda x: ops.gather(x, 0, lm.ones((1, 2))), DTypeError, "gather: index must be int32 or int64"),
        (lambda x: ops.gather(x, 0, lm.tensor([[0] * 9])), ShapeError, "larger than input .* along axis 1"),
        (lambda x: ops.scatter(x, 0, lm.tensor([[0, 1]]), lm.ones((1, 1))), ShapeError, "scatter: src"),
        (
            lambda x: ops.scatter_add(x, 0, lm.tensor([[0]]), lm.tensor([[1]])),
            DTypeError,
            "src must have input's",
        ),
        (lambda x: ops.scatter_reduce(x, 0, [[0]], x, "median"), ValueError, "reduce must be one of 'sum'"),
        (
            lambda x: ops.index_add(x, 0, [0, 1], x[:1]),
            ShapeError,
            r"index_add: source must be of shape \(2, 2\)",
        ),
        (lambda x: ops.masked_fill(x, x, 1.0), DTypeError, "masked_fill: mask must be bool"),
    ],
)
def test_errors(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call(lm.ones((3, 2)))


@pytest.mark.torch
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_gradients_as_torch(reduce: str, include_self: bool) -> None:
    import torch

    x, index, source = (
        RNG.integers(1, 4, (3, 4)) * 0.5,
        RNG.integers(0, 3, (5, 4)),
        RNG.integers(1, 4, (5, 4)) * 0.5,
    )
    if not include_self:
        x = (
            x + 0.25
        )  # torch counts an equal element of x, which is no candidate, among those that share the gradient
    a, b = (torch.tensor(v, requires_grad=True) for v in (x, source))
    torch.scatter_reduce(a, 0, torch.tensor(index), b, reduce, include_self=include_self).sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    found = grad(
        lambda x, i, s: ops.scatter_reduce(x, 0, i, s, reduce, include_self=include_self), x, index, source
    )
    np.testing.assert_allclose(found[0], a.grad.numpy(), rtol=1e-12)
    np.testing.assert_allclose(found[2], b.grad.numpy(), rtol=1e-12)


@pytest.mark.parametrize("index", [[[4]], [[-5]]], ids=str)
@pytest.mark.parametrize("op", [Gather(1), GatherGrad(1, 4), Scatter(1, "set"), Scatter(1, "add")], ids=str)
def test_an_index_out_of_range_is_named(op: Op, index: list[list[int]]) -> None:
    """NumPy finds it; the message is the op's. For a shared index, and for one each."""
    for at in (np.array(index), np.broadcast_to(np.array(index), (3, 1))):
        x, part = np.zeros((3, 4), np.float32), np.ones((3, 1), np.float32)
        operands = {Gather: (x, at), GatherGrad: (part, at), Scatter: (x, at, part)}[type(op)]
        with pytest.raises(
            IndexError, match=rf"{op.name}: index {index[0][0]} at position \(0, 0\) is outside -4"
        ):
            run_reference(op, operands)
