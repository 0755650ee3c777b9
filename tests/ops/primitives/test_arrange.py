"""Elements in another order or place against NumPy, with gradients by the ops that move them, and what is refused."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.spec import ShapeError
from tests.helpers.functions import grad, run

X = np.arange(24.0).reshape(2, 3, 4)
M = np.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize("offset", [-3, -1, 0, 2, 4])
def test_triangles_and_diagonals(offset: int) -> None:
    np.testing.assert_array_equal(run(ops.tril, X, offset), np.tril(X, offset))
    np.testing.assert_array_equal(run(ops.triu, X, offset), np.triu(X, offset))
    np.testing.assert_array_equal(run(ops.diagonal, M, offset), np.diagonal(M, offset))
    np.testing.assert_array_equal(run(ops.diagonal, X, offset, 2, 0), np.diagonal(X, offset, 2, 0))
    np.testing.assert_array_equal(run(ops.diag, M[0], offset), np.diag(M[0], offset))
    np.testing.assert_array_equal(run(ops.diagonal, run(ops.diag_embed, X, offset, 0, 2), offset, 0, 2), X)
    source = -run(ops.diagonal, X, offset, 1, 2)
    found = run(ops.diagonal_scatter, X, source, offset, 1, 2)
    np.testing.assert_array_equal(run(ops.diagonal, found, offset, 1, 2), source)
    assert found.sum() == X.sum() + 2 * source.sum()


def test_gradients() -> None:
    (found,) = grad(lambda x: ops.tril(x, -1), M)
    np.testing.assert_array_equal(found, np.tril(np.ones_like(M), -1))
    (found,) = grad(lambda x: ops.tile(x, (2, 3)) * 2.0, M)
    np.testing.assert_array_equal(found, np.full_like(M, 12))
    (found,) = grad(lambda x: ops.repeat_interleave(x, 3, 1), M)
    np.testing.assert_array_equal(found, np.full_like(M, 3))
    (found,) = grad(lambda x: ops.diagonal(x, 1), M)
    np.testing.assert_array_equal(found, np.eye(3, 4, 1))


@pytest.mark.parametrize(
    ("shift", "axis"), [(1, 0), (-5, 2), ((1, 2), (0, 2)), (7, None), (0, 1), ((1, 1), (2, 2))]
)
def test_roll(shift: Any, axis: Any) -> None:
    np.testing.assert_array_equal(run(ops.roll, X, shift, axis), np.roll(X, shift, axis))


@pytest.mark.parametrize("k", [-1, 0, 1, 2, 3, 5])
def test_rot90(k: int) -> None:
    np.testing.assert_array_equal(run(ops.rot90, X, k, (2, 0)), np.rot90(X, k, (2, 0)))


def test_axes() -> None:
    np.testing.assert_array_equal(run(ops.movedim, X, (0, 2), (1, 0)), np.moveaxis(X, (0, 2), (1, 0)))
    np.testing.assert_array_equal(run(ops.movedim, X, -1, 0), np.moveaxis(X, -1, 0))
    np.testing.assert_array_equal(run(ops.swapaxes, X, 0, 2), np.swapaxes(X, 0, 2))
    np.testing.assert_array_equal(run(ops.t, M), M.T)
    np.testing.assert_array_equal(run(ops.fliplr, X), np.fliplr(X))
    np.testing.assert_array_equal(run(ops.flipud, X), np.flipud(X))
    assert run(ops.ravel, X).shape == (24,)
    assert [y.shape for y in run(ops.broadcast_tensors, X, M, np.array(1.0))] == [X.shape] * 3
    assert run(ops.broadcast_to, M, (2, 3, 4)).shape == (2, 3, 4)


def test_parts() -> None:
    np.testing.assert_array_equal(run(ops.narrow, X, 1, -2, 2), X[:, 1:])
    np.testing.assert_array_equal(run(ops.select, X, 2, -1), X[:, :, -1])
    for found, wanted in zip(run(ops.unbind, X, 1), np.moveaxis(X, 1, 0), strict=True):
        np.testing.assert_array_equal(found, wanted)
    for sections in (3, 5, (1, 3), (2, 1, 9)):
        for found, wanted in zip(
            run(ops.tensor_split, X, sections, 2), np.array_split(X, sections, 2), strict=True
        ):
            np.testing.assert_array_equal(found, wanted)
    assert [y.shape for y in run(ops.hsplit, X, 3)] == [(2, 1, 4)] * 3
    assert [y.shape for y in run(ops.vsplit, X, 2)] == [(1, 3, 4)] * 2
    assert [y.shape for y in run(ops.dsplit, X, (1,))] == [(2, 3, 1), (2, 3, 3)]
    wanted = X.copy()
    wanted[:, 0::2] = 0
    np.testing.assert_array_equal(run(ops.slice_scatter, X, np.zeros((2, 2, 4)), 1, step=2), wanted)
    wanted = X.copy()
    wanted[:, :, 1] = 7
    np.testing.assert_array_equal(run(ops.select_scatter, X, np.full((2, 3), 7.0), 2, 1), wanted)


def test_joined() -> None:
    rows = [M[0], M[1]]
    np.testing.assert_array_equal(run(ops.hstack, rows), np.hstack(rows))
    np.testing.assert_array_equal(run(ops.vstack, rows), np.vstack(rows))
    np.testing.assert_array_equal(run(ops.dstack, rows), np.dstack(rows))
    np.testing.assert_array_equal(run(ops.column_stack, rows), np.column_stack(rows))
    found = run(ops.block_diag, M, M[0], np.array(5.0))
    assert (found.shape, found.sum(), found[4, 8]) == ((5, 9), M.sum() + M[0].sum() + 5, 5)
    for indexing in ("ij", "xy"):
        grids = run(ops.meshgrid, M[0], M[:, 0], np.array([9.0]), indexing=indexing)
        for found, wanted in zip(grids, np.meshgrid(M[0], M[:, 0], [9.0], indexing=indexing), strict=True):
            np.testing.assert_array_equal(found, wanted)
    assert run(ops.cartesian_prod, M[0], M[1]).shape == (16, 2)
    assert run(ops.combinations, np.array([1, 2, 3])).tolist() == [[1, 2], [1, 3], [2, 3]]
    assert run(ops.combinations, np.array([1, 2]), 2, with_replacement=True).tolist() == [
        [1, 1],
        [1, 2],
        [2, 2],
    ]
    for name, shapes in {"1d": [(1,), (4,)], "2d": [(1, 1), (1, 4)], "3d": [(1, 1, 1), (1, 4, 1)]}.items():
        assert [y.shape for y in run(getattr(ops, f"atleast_{name}"), np.array(1.0), M[0])] == shapes


def test_repeats() -> None:
    np.testing.assert_array_equal(run(ops.tile, M, (2, 1, 3)), np.tile(M, (2, 1, 3)))
    np.testing.assert_array_equal(run(ops.tile, M, (2,)), np.tile(M, 2))
    np.testing.assert_array_equal(run(ops.repeat_interleave, M, 2), np.repeat(M, 2))
    x = lm.tensor(M)
    found = ops.repeat_interleave(x, lm.tensor([2, 0, 1]), 0)
    np.testing.assert_array_equal(found.numpy(), np.repeat(M, [2, 0, 1], 0))
    repeated = lm.jit(lambda x, n: ops.repeat_interleave(x, n, 0, output_size=4))
    for counts in ([2, 0, 2], [0, 1, 3], [4, 0, 0]):
        np.testing.assert_array_equal(repeated(x, lm.tensor(counts)).numpy(), np.repeat(M, counts, 0))
    np.testing.assert_array_equal(repeated(x[:2], lm.tensor([2])).numpy(), np.repeat(M[:2], 2, 0))
    np.testing.assert_array_equal(repeated(x, lm.tensor([1, 1, 1])).numpy(), M[[0, 1, 2, 2]])
    assert x.repeat(2, 1, 1).shape == (2, 3, 4)
    windows = np.lib.stride_tricks.sliding_window_view(X, 2, 2)[:, :, ::2]
    np.testing.assert_array_equal(lm.tensor(X).unfold(2, 2, 2).numpy(), windows)
    assert run(ops.trace, M) == np.trace(M)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda x: ops.narrow(x, 0, 1, 2), "narrow: start 1 and length 2 are outside axis 0"),
        (lambda x: ops.select(x, 1, 3), "select: index 3 is outside axis 1"),
        (lambda x: ops.diagonal(x, 0, 1, -2), "dim1 and dim2 must be different"),
        (lambda x: ops.roll(x, (1, 2), 0), "roll: shifts"),
        (lambda x: ops.rot90(x, 1, (0, 0)), "two different axes"),
        (lambda x: ops.movedim(x, (0, 1), 0), "as many different axes"),
        (lambda x: ops.hsplit(x, 2), "2 does not divide the 3"),
        (lambda x: ops.t(x), "t: takes at most two axes"),
        (lambda x: ops.tril(x[0, 0]), "tril: needs two axes"),
        (lambda x: x.repeat(2), "repeat: needs 3 numbers or more"),
        (lambda x: ops.repeat_interleave(x, lm.tensor([1, 2]), 1), "repeats must be 3 numbers"),
        (
            lambda x: ops.repeat_interleave(x, lm.tensor([1, 2, 1]), 1, output_size=5),
            "repeats make 4 elements, and output_size is 5",
        ),
    ],
)
def test_errors(call: Any, match: str) -> None:
    with pytest.raises(ShapeError, match=match):
        call(lm.tensor(X))


def test_negative_repeats_are_named() -> None:
    with pytest.raises(ValueError, match="repeat_interleave: repeats must be >= 0, got -1 among them"):
        ops.repeat_interleave(lm.ones(2), lm.tensor([1, -1]))


def test_shapes_are_broadcast() -> None:
    assert ops.broadcast_shapes((3, 1), 4, (2, 1, 1)) == np.broadcast_shapes((3, 1), (4,), (2, 1, 1))
    assert ops.broadcast_shapes() == ()
    with pytest.raises(ShapeError, match="broadcast_shapes"):
        ops.broadcast_shapes((2,), (3,))
