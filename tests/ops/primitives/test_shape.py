"""Ops that move elements, against NumPy's indexing."""

from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.ops import primitives
from lamina.ops.core import bind, call
from lamina.spec import ShapeError
from tests.helpers.eager import Eager
from tests.helpers.functions import grad, run

X = np.arange(2.0 * 3 * 4 * 6).reshape(2, 3, 4, 6)


def _same(found: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.feature("F075")
def test_cat_and_transpose() -> None:
    for axis in (0, 1, -1):
        _same(run(ops.cat, [X, X * 2], axis), np.concatenate([X, X * 2], axis))
        _same(run(ops.stack, [X, X * 2], axis), np.stack([X, X * 2], axis))
    for order in ((0, 2, 3, 1), (3, 2, 1, 0), (-1, 0, 1, 2)):
        _same(run(ops.permute, X, order), X.transpose(order))
    _same(run(ops.transpose, X, 1, -1), X.swapaxes(1, -1))
    assert run(ops.cat, [X, np.ones((1, 3, 4, 6), np.int32)]).dtype == X.dtype
    nothing = np.ones((0,))  # passed over, as in torch
    _same(run(ops.cat, [nothing, X, nothing, X], -2), np.concatenate([X, X], -2))
    assert run(ops.cat, [nothing, nothing]).shape == (0,)


@pytest.mark.feature("F075")
def test_resize_nearest() -> None:
    _same(run(ops.resize_nearest, X, 3), X.repeat(3, 2).repeat(3, 3))
    _same(run(ops.resize_nearest, X, (2, 1)), X.repeat(2, 2))
    assert (grad(lambda x: ops.resize_nearest(x, (2, 3)), X)[0] == 6).all()  # the gradient sums the copies


@pytest.mark.feature("F075")
def test_shape_to_batch() -> None:
    found = run(ops.space_to_batch, X, 2)
    assert found.shape == (8, 3, 2, 3)
    for n in range(2):
        for i in range(2):
            for j in range(2):
                _same(found[(n * 2 + i) * 2 + j], X[n, :, i * 2 : i * 2 + 2, j * 3 : j * 3 + 3])
    _same(run(ops.batch_to_space, found, 2), X)
    _same(run(lambda x: ops.batch_to_space(ops.space_to_batch(x, (1, 3)), (1, 3)), X), X)


@pytest.mark.feature("F075")
def test_batch_swap() -> None:
    x = np.arange(8)
    assert run(ops.swap_halves, x).tolist() == [4, 5, 6, 7, 0, 1, 2, 3]
    assert run(ops.swap_pairs, x).tolist() == [1, 0, 3, 2, 5, 4, 7, 6]
    _same(run(ops.swap_halves, X, -1), np.concatenate([X[..., 3:], X[..., :3]], -1))
    with pytest.raises(ShapeError, match=r"swap_pairs: axis 1 of f64\[2,3,4,6\] has an odd size"):
        run(ops.swap_pairs, X, 1)
    with pytest.raises(ShapeError, match="swap_halves: axis 1 of .* has no two equal halves"):
        run(ops.swap_halves, X, 1)


def test_space_to_depth() -> None:
    found = run(ops.space_to_depth, X, 2)
    assert found.shape == (2, 12, 2, 3)
    for c in range(3):
        for i in range(2):
            for j in range(2):
                _same(found[:, c * 4 + i * 2 + j], X[:, c, i::2, j::2])
    _same(run(ops.depth_to_space, found, 2), X)
    _same(run(ops.pixel_shuffle, run(ops.pixel_unshuffle, X, 2), 2), X)
    _same(
        run(ops.space_to_depth, X[:, :, 0], 3), X[:, :, 0].reshape(2, 3, 2, 3).swapaxes(2, 3).reshape(2, 9, 2)
    )


def test_reshape_and_flatten() -> None:
    _same(run(ops.reshape, X, (6, -1)), X.reshape(6, -1))
    _same(run(ops.reshape, X, 144), X.reshape(144))
    _same(run(ops.flatten, X, 1), X.reshape(2, -1))
    _same(run(ops.flatten, X, 1, 2), X.reshape(2, 12, 6))
    _same(run(ops.flatten, np.array(3.0)), [3.0])
    _same(run(ops.squeeze, X[:1, :, :1]), X[0, :, 0])
    _same(run(ops.squeeze, X[:1, :, :1], 2), X[:1, :, 0])
    _same(run(ops.unsqueeze, X, -1), X[..., None])
    x = Eager(X)
    assert ops.reshape(x, X.shape) is x


def test_slices() -> None:
    keys: list[Any] = [
        0, -1, slice(1, None), slice(None, None, -1), (slice(None), slice(0, 3, 2)), (..., 2), (0, ..., None),
        (None, 1, slice(2, 0, -1), ..., slice(5, None, -2)), (slice(5, 9), 0), (slice(None), slice(2, 1)), ..., (),
        (1, 2, 3, 5), (slice(None),) * 4, (slice(-2, None), slice(-100, 100), slice(3, 0, -2)),
    ]  # fmt: skip
    for key in keys:
        _same(run(lambda x, k=key: x[k], X), X[key])
        wanted = np.zeros_like(X)
        wanted[key] = 1
        _same(grad(lambda x, k=key: x[k], X)[0], wanted)
    x = Eager(X)
    assert x[:] is x


def test_pad_expand_flip() -> None:
    pairs = ((0, 0), (1, 2), (0, 0), (3, 0))
    _same(run(ops.pad, X, (3, 0, 0, 0, 1, 2), value=-1), np.pad(X, pairs, constant_values=-1))
    _same(run(ops.pad, X, (0, 0, -1, 2, 0, -1)), np.pad(X[:, :2, 1:], ((0, 0), (0, 0), (0, 2), (0, 0))))
    for mode, name in (("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")):
        wanted = np.pad(X, ((0, 0), (0, 0), (1, 2), (5, 0)), mode=name)
        _same(run(ops.pad, X, (5, 0, 1, 2), mode), wanted)
    _same(run(ops.expand, X[:1], (5, -1, 4, 6)), np.broadcast_to(X[:1], (5, 3, 4, 6)))
    _same(run(ops.expand, X[0, 0, 0], (2, 6)), np.broadcast_to(X[0, 0, 0], (2, 6)))
    _same(run(ops.flip, X, (0, -1)), np.flip(X, (0, -1)))


def test_split() -> None:
    for part, axis in ((2, 3), (4, 3), ([1, 5], 3), ([2], 0), ([0, 3], 1)):
        parts = run(ops.split, X, part, axis)
        _same(np.concatenate(parts, axis), X)
    assert [p.shape[3] for p in run(ops.split, X, 4, 3)] == [4, 2]
    assert [p.shape[2] for p in run(ops.chunk, X, 3, 2)] == [2, 2]
    assert [p.shape[3] for p in run(ops.chunk, X, 4, 3)] == [2, 2, 2]


@pytest.mark.feature("F118")
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: ops.reshape(x, (5, -1)), ShapeError, r"has 144 elements, \(5, -1\) takes multiples of 5"),
        (lambda x: ops.reshape(x, (-1, -1)), ShapeError, "only one size may be -1"),
        (
            lambda x: ops.reshape(x, (2, 3)),
            ShapeError,
            r"reshape: .* has 144 elements, shape \(2, 3\) holds 6",
        ),
        (lambda x: ops.permute(x, (0, 1, 2)), ShapeError, r"dims \(0, 1, 2\) must name each of the 4 axes"),
        (lambda x: ops.permute(x, (0, 1, 2, 2)), ShapeError, "must name each of the 4 axes"),
        (lambda x: ops.transpose(x, 0, 4), ShapeError, "transpose: axis 4 is outside a tensor of rank 4"),
        (lambda x: ops.flatten(x, 2, 1), ShapeError, "start_dim 2 comes after end_dim 1"),
        (lambda x: ops.squeeze(x, 4), ShapeError, "squeeze: axis 4 is outside a tensor of rank 4"),
        (lambda x: ops.cat([]), ShapeError, "cat: tensors is empty"),
        (lambda x: ops.cat(x), TypeError, "cat: tensors must be a sequence of tensors, got"),
        (lambda x: ops.cat([x], None), TypeError, "cat: dim must be an int, got None"),
        (
            lambda x: ops.cat([x, x[0]]),
            ShapeError,
            r"sizes must be equal but along axis 0: f64\[2,3,4,6\], f64\[3",
        ),
        (lambda x: ops.stack([x, x[0]]), ShapeError, "stack: needs tensors of one shape"),
        (lambda x: ops.split(x, [1, 2], 3), ShapeError, r"sizes \(1, 2\) do not sum to the 6 of axis 3"),
        (lambda x: ops.split(x, 0), ShapeError, "the size of a part must be >= 1"),
        (lambda x: ops.chunk(x, 0), ShapeError, "chunk: chunks must be >= 1, got 0"),
        (
            lambda x: ops.expand(x, (2, 3, 4, 7)),
            ShapeError,
            r"\(2, 3, 4, 6\) and \(2, 3, 4, 7\) do not broadcast",
        ),
        (lambda x: ops.expand(x, (3, 4, 6)), ShapeError, r"expand: size \(3, 4, 6\) has fewer axes than f64"),
        (
            lambda x: ops.pad(x, (1, 1, 1)),
            ShapeError,
            r"pad: pad must be .* an even number of at most 8 ints",
        ),
        (
            lambda x: ops.pad(x, ((1, 1),)),
            TypeError,
            r"pad: pad must be a sequence of ints, got \(\(1, 1\),\)",
        ),
        (lambda x: ops.pad(x, (0, 0, 0, 0, -2, -2)), ShapeError, "cuts off more than there is of f64"),
        (
            lambda x: ops.pad(x, (6, 0), "reflect"),
            ShapeError,
            r"mode 'reflect' takes -6 to 5 for axis 3 .* \(6, 0\)",
        ),
        (lambda x: ops.pad(x, (1, 0), "mirror"), ValueError, "mode must be one of 'constant', 'reflect', "),
        (lambda x: ops.pad(x, (1, 0), "reflect", 1.0), ValueError, "value belongs to mode 'constant'"),
        (lambda x: x[2], ShapeError, r"getitem: index 2 is outside axis 0 of f64\[2,3,4,6\]"),
        (lambda x: x[0, 0, 0, 0, 0], ShapeError, "too many entries"),
        (
            lambda x: x[0.5],
            TypeError,
            "an index must be an int, slice, None, Ellipsis or an array .*, got float",
        ),
        (lambda x: ops.space_to_depth(x, 5), ShapeError, r"block \(5, 5\) does not divide the spatial sizes"),
        (lambda x: ops.depth_to_space(x, 2), ShapeError, r"block \(2, 2\) does not divide the channels"),
        (lambda x: ops.batch_to_space(x, 3), ShapeError, r"block \(3, 3\) does not divide the batch"),
        (lambda x: ops.space_to_batch(x, 5), ShapeError, "does not divide the spatial sizes"),
        (lambda x: ops.resize_nearest(x, (2, 2, 2)), ShapeError, "one int >= 1 or one per spatial axis"),
        (lambda x: call(primitives.Flip((4,)), x), ShapeError, "flip: axis 4 is outside a tensor of rank 4"),
        (lambda x: call(primitives.Pad(((0, 0),) * 3), x), ShapeError, "pairs must be 4 pairs of ints >= 0"),
        (
            lambda x: call(primitives.Slice((0,), (1,), (1,)), x),
            ShapeError,
            "start, stop and step must have 4 ints",
        ),
        (lambda x: bind(primitives.Concat(0)), TypeError, "concat: takes at least one operand, got none"),
    ],
)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(Eager(X))
