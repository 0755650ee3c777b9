"""Pooling against its definition; ceil_mode and the divisors by hand-made examples."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.ops import primitives
from lamina.ops.core import BatchAxis, bind, call
from lamina.ops.primitives import MaxPool, MaxPoolGrad, Window
from lamina.spec import ShapeError, Spec, float32
from tests.helpers import definitions
from tests.helpers.eager import Eager
from tests.helpers.functions import grad, run

MAX = {1: ops.max_pool1d, 2: ops.max_pool2d, 3: ops.max_pool3d}
AVG = {1: ops.avg_pool1d, 2: ops.avg_pool2d, 3: ops.avg_pool3d}
SUM = {1: ops.sum_pool1d, 2: ops.sum_pool2d, 3: ops.sum_pool3d}
SPACE = {1: (9,), 2: (7, 6), 3: (5, 4, 6)}


def _draw(rank: int) -> Any:
    return np.random.default_rng(rank).standard_normal((2, 3, *SPACE[rank]))


def _window(rank: int) -> Window:
    return Window((2,) * rank, ((1, 1),) * rank, (1,) * rank)


@pytest.mark.feature("F054")
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_max(rank: int) -> None:
    x, kernel = _draw(rank), (3,) * rank
    y, index = definitions.max_pool(_window(rank), kernel, x)
    np.testing.assert_array_equal(run(MAX[rank], x, 3, 2, 1), y)
    found = grad(MAX[rank], x, 3, 2, 1)[0]
    ones = np.ones_like(y)
    np.testing.assert_array_equal(
        found, definitions.max_pool_grad(_window(rank), kernel, ones, index, SPACE[rank])
    )


@pytest.mark.feature("F054")
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("include", [True, False])
def test_average(rank: int, include: bool) -> None:
    x, kernel, mode = _draw(rank), (3,) * rank, "include" if include else "exclude"
    y = definitions.avg_pool(_window(rank), kernel, x, mode)
    np.testing.assert_allclose(run(AVG[rank], x, 3, 2, 1, count_include_pad=include), y, atol=1e-12)
    found = grad(AVG[rank], x, 3, 2, 1, count_include_pad=include)[0]
    wanted = definitions.avg_pool_grad(_window(rank), kernel, np.ones_like(y), mode, SPACE[rank])
    np.testing.assert_allclose(found, wanted, atol=1e-12)


@pytest.mark.feature("F055")
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_sum(rank: int) -> None:
    x = _draw(rank)
    y = definitions.avg_pool(_window(rank), (3,) * rank, x, "sum")
    np.testing.assert_allclose(run(SUM[rank], x, 3, 2, 1), y, atol=1e-12)
    np.testing.assert_allclose(run(SUM[rank], x, 2), run(AVG[rank], x, 2) * 2**rank, atol=1e-12)


@pytest.mark.feature("F055")
def test_ceil_mode() -> None:
    """A last incomplete window counts, but not one that would start behind the end."""
    x = np.arange(6.0).reshape(1, 1, 6)
    assert run(ops.max_pool1d, x, 3, 2).tolist() == [[[2, 4]]]
    assert run(ops.max_pool1d, x, 3, 2, ceil_mode=True).tolist() == [[[2, 4, 5]]]
    assert run(ops.max_pool1d, x, 2, 3, ceil_mode=True).tolist() == [[[1, 4]]]
    assert run(ops.max_pool1d, x, 1, 4, ceil_mode=True).tolist() == [[[0, 4]]]  # 8 would start behind the end
    assert run(ops.max_pool1d, x, 2, 2, ceil_mode=True).tolist() == [[[1, 3, 5]]]
    assert run(ops.sum_pool1d, x, 3, 2, ceil_mode=True).tolist() == [[[3, 9, 9]]]


@pytest.mark.feature("F054", "F055")
def test_divisors_with_ceil_mode() -> None:
    """The caller's padding counts, what ceil_mode adds does not."""
    x = np.arange(1.0, 7.0).reshape(1, 1, 6)
    padded = run(ops.avg_pool1d, x, 4, 3, 1, ceil_mode=True)  # windows 0 1 2 3 | 3 4 5 6 | 6 0
    np.testing.assert_allclose(padded, [[[6 / 4, 18 / 4, 6 / 2]]])
    excluded = run(ops.avg_pool1d, x, 4, 3, 1, ceil_mode=True, count_include_pad=False)
    np.testing.assert_allclose(excluded, [[[6 / 3, 18 / 4, 6 / 1]]])
    image = np.ones((1, 1, 5, 5))
    halves = run(ops.avg_pool2d, image, 2, 2, 0, ceil_mode=True)
    np.testing.assert_allclose(halves, np.ones((1, 1, 3, 3)))
    np.testing.assert_allclose(
        run(ops.avg_pool2d, image, 2, divisor_override=3), np.full((1, 1, 2, 2), 4 / 3)
    )


@pytest.mark.feature("F054")
def test_the_first_maximum_gets_the_gradient() -> None:
    x = np.zeros((1, 1, 2, 4))
    assert grad(ops.max_pool2d, x, 2)[0].tolist() == [[[[1, 0, 1, 0], [0, 0, 0, 0]]]]
    again = grad(ops.max_pool2d, x, 2)[0]
    np.testing.assert_array_equal(again, grad(ops.max_pool2d, x, 2)[0])  # and always the same one


def test_index_counts_padded_places() -> None:
    """In a 2 x 2 window whose upper row is padding, the first real element is number 2."""
    op = MaxPool((2, 2), Window((2, 2), ((1, 0), (0, 0)), (1, 1)), True)
    x = Eager(np.array([[[[1.0, 5.0]]]]))
    y, index = bind(op, x)
    assert (y.value.item(), index.value.item(), index.value.dtype) == (5.0, 3, np.uint8)
    y, index = bind(op, Eager(np.full((1, 1, 1, 2), -np.inf)))
    assert (y.value.item(), index.value.item()) == (-np.inf, 2)
    y, index = bind(op, Eager(np.array([[[[np.nan, 5.0]]]])))
    assert np.isnan(y.value.item())
    assert index.value.item() == 2


def test_unused_index_is_pruned() -> None:
    op = MaxPool((2,), Window((2,), ((0, 0),), (1,)), True)
    assert op.prune((True, False)) == MaxPool((2,), op.window, False)
    assert op.prune((True, True)) is op
    wide = MaxPool((20, 20), Window((1, 1), ((0, 0), (0, 0)), (1, 1)), True)
    assert bind(wide, Eager(np.zeros((1, 1, 20, 20))))[1].dtype.name == "int32"


def test_gradient_without_a_saved_index() -> None:
    x = _draw(2)
    op = MaxPool((3, 3), _window(2), False)
    found = grad(lambda v: call(op, v), x)[0]
    np.testing.assert_array_equal(found, grad(ops.max_pool2d, x, 3, 2, 1)[0])


@pytest.mark.feature("F054")
def test_global_and_adaptive() -> None:
    x = _draw(2)
    np.testing.assert_allclose(run(ops.global_avg_pool, x), x.mean((2, 3), keepdims=True))
    np.testing.assert_allclose(run(ops.global_max_pool, x), x.max((2, 3), keepdims=True))
    np.testing.assert_allclose(run(ops.adaptive_avg_pool2d, x, 1), x.mean((2, 3), keepdims=True))
    assert run(ops.adaptive_avg_pool2d, x, (None, 2)).shape == (2, 3, 7, 2)
    found = run(ops.adaptive_avg_pool2d, x, (3, 4))
    for i in range(3):
        for j in range(4):
            rows, columns = slice(i * 7 // 3, -(-(i + 1) * 7 // 3)), slice(j * 6 // 4, -(-(j + 1) * 6 // 4))
            np.testing.assert_allclose(found[:, :, i, j], x[:, :, rows, columns].mean((2, 3)))
    even = run(ops.adaptive_avg_pool1d, x[:, :, 0], 3)
    np.testing.assert_allclose(even, x[:, :, 0].reshape(2, 3, 3, 2).mean(-1))
    assert run(ops.adaptive_avg_pool3d, _draw(3), (2, 2, 5)).shape == (2, 3, 2, 2, 5)


@pytest.mark.feature("F118")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: ops.max_pool2d(x, 3, padding=3),
            r"padding .* must be smaller than the kernel's reach \(3, 3\)",
        ),
        (lambda x: ops.max_pool1d(x, 3), r"max_pool1d: input must be of rank 3, .* got f64\[2,3,7,6\]"),
        (lambda x: ops.max_pool2d(x, 8), "max_pool: a kernel of 8 with dilation 1 reaches over 8"),
        (lambda x: ops.avg_pool2d(x, 0), r"avg_pool2d: kernel_size must be ints in \[1, 2147483647\]"),
        (lambda x: ops.adaptive_avg_pool2d(x, (1, 2, 3)), "output_size must be one int or 2 ints"),
        (
            lambda x: call(primitives.AvgPool((2,), Window((1,), ((0, 0),), (1,))), x),
            "need a tensor of rank 3",
        ),
        (
            lambda x: call(primitives.AvgPool((2, 2), Window((1, 1), ((0, 0), (0, 0)), (1, 1), 2)), x),
            "groups and flip have no meaning",
        ),
    ],
)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        call(Eager(_draw(2)))


def test_other_errors() -> None:
    x = Eager(_draw(2))
    with pytest.raises(ValueError, match="divisor_override must not be 0"):
        ops.avg_pool2d(x, 2, divisor_override=0)
    with pytest.raises(ValueError, match="mode must be one of include, exclude, sum, got 'median'"):
        call(primitives.AvgPool((2, 2), Window((1, 1), ((0, 0), (0, 0)), (1, 1)), "median"), x)
    g, index = Eager(np.zeros((2, 3, 3, 3))), Eager(np.zeros((2, 3, 3, 3), np.uint8))
    window = Window((2, 2), ((0, 0), (0, 0)), (1, 1))
    with pytest.raises(TypeError, match=r"index must be uint8, got i32\[2,3,3,3\]"):
        call(MaxPoolGrad((2, 2), window, (7, 6)), g, Eager(index.value.astype(np.int32)))
    with pytest.raises(ShapeError, match=r"gives outputs of \(4, 3\), but the gradient is f64\[2,3,3,3\]"):
        call(MaxPoolGrad((2, 2), window, (8, 6)), g, index)
    with pytest.raises(ShapeError, match=r"must have shape \(2, 3, 3, 3\)"):
        call(MaxPoolGrad((2, 2), window, (7, 6)), g, Eager(index.value[:1]))


def test_lp_pool_by_hand() -> None:
    x = np.array([[[3.0, 4.0, 6.0, 8.0]]])
    assert ops.lp_pool1d(x, 2, 2).numpy().tolist() == [[[5, 10]]]
    assert ops.lp_pool1d(x, 1, 2, stride=1).numpy().tolist() == [[[7, 10, 14]]]
    assert ops.lp_pool1d(x[0], 2.0, 2).numpy().tolist() == [[5, 10]]
    for wrong in (0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="lp_pool1d: norm_type must be > 0 and finite"):
            ops.lp_pool1d(x, wrong, 2)


def test_gradient_of_lp_pool() -> None:
    x = np.array([[[3.0, 4.0, 6.0, 8.0]]])
    grad = lm.grad(lambda v: ops.lp_pool1d(v, 2, 2).sum())(lm.tensor(x))
    np.testing.assert_allclose(grad.numpy(), [[[0.6, 0.8, 0.6, 0.8]]], rtol=1e-12)
    for norm_type in (1.5, 2, 3.0):  # windows of zeros, as behind a relu
        total = lm.value_and_grad(lambda v, p=norm_type: ops.lp_pool1d(v, p, 2).sum())
        for way in (total, lm.jit(total)):
            value, grad = way(lm.tensor([[[0.0, 0.0, 1.0, 0.0]]]))
            assert (value.item(), grad.tolist()) == (1, [[[0, 0, 1, 0]]])


@pytest.mark.parametrize("op", [MaxPool, primitives.AvgPool, primitives.AvgPoolGrad])
def test_samples_lie_beside_images_and_channels_not_within_a_plane(op: Any) -> None:
    window = _window(2)
    made = op((3, 3), window, *(("include", (7, 6)) if op is primitives.AvgPoolGrad else ()))
    spec = Spec((2, 3, 7, 6), float32)
    found = [made.batch_axes([spec], [BatchAxis(axis)]) for axis in range(4)]
    assert found == [(BatchAxis(0),), (BatchAxis(1),), None, None]
