"""Captures: what is written over traced values and tensors, and what derivatives see of it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.spec import ShapeError, Spec, float32

X = Spec((2, 3), float32)


def _element(x: Any) -> Any:
    y = ops.sin(x)
    y[0] = 1
    return y * 2


def _through_a_view(x: Any) -> Any:
    y = ops.sin(x)
    y.view(-1)[3] = 7
    return y


def _seen_in_views(x: Any) -> Any:
    y = ops.sin(x)
    rows, columns = y[1:3], y.T
    columns[2] = 0
    rows[:, 0:2].fill_(9)
    y[3] += 1
    return y * 1, rows, columns, columns[1]


def _mask(x: Any) -> Any:
    y = ops.sin(x)
    y[y > 0.5] = 0
    return y.masked_fill_(y < -0.5, 3)


def _rows_of_zeros(x: Any) -> Any:
    y = ops.zeros_like(x)
    for i in range(4):
        y[i] = x[i] * (i + 1) + (y[i - 1] if i else 0)
    return y


def _one_of_two(x: Any) -> Any:
    y = x.clone()
    z = y.clone()
    y[0].mul_(2)
    z.zero_()
    return y, z + x


def _two_names(x: Any) -> Any:
    y = ops.sin(x)
    z = y
    z.clamp_(0, 1)
    return y


def _copied_into(x: Any) -> Any:
    y, z = x * 1, x * 2
    y.copy_(z)
    z.add_(1)  # y stays
    return y, z


def _exchanged(x: Any) -> Any:
    y = x * 1
    y[[0, 2]] = y[[1, 3]]
    return y


WRITES = [
    _element, _through_a_view, _seen_in_views, _mask, _rows_of_zeros, _one_of_two, _two_names, _copied_into,
    _exchanged,
]  # fmt: skip
SQUARE = np.random.default_rng(0).standard_normal((4, 4))


def _as_tuple(made: Any) -> tuple[Any, ...]:
    return made if isinstance(made, tuple) else (made,)


def _total(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: sum(ops.sum(y * y) for y in _as_tuple(f(x)))


def _into_new_ones(x: Any) -> Any:
    """Tensors that the function makes itself."""
    y, z = lm.zeros(4, 6, dtype=lm.float64), lm.zeros(3, dtype=lm.float64)
    column = y[:, 5]
    y[:, :4] = x
    column.fill_(2.0)
    z[1] = x.sum()
    return y, column, z


@pytest.mark.feature("F102")
@pytest.mark.parametrize("f", [*WRITES, _into_new_ones])
def test_what_is_written_over_traced_values_is_as_on_tensors(f: Callable[[Any], Any]) -> None:
    wanted = [y.numpy() for y in _as_tuple(f(lm.tensor(SQUARE)))]
    found = _as_tuple(lm.jit(f)(SQUARE))
    many = _as_tuple(lm.vmap(f)(np.stack([SQUARE, 2 * SQUARE])))
    traced = lm.trace(f, SQUARE)(SQUARE)
    for y, t, z, w in zip(found, traced, many, wanted, strict=True):
        np.testing.assert_allclose(y.numpy(), w, rtol=1e-12)
        np.testing.assert_allclose(t.numpy(), w, rtol=1e-12)
        np.testing.assert_allclose(z[0].numpy(), w, rtol=1e-12)


def test_a_part_of_a_part_may_be_taken_as_often_as_one_likes() -> None:
    def turned(x: Any) -> Any:
        for _ in range(1101):
            x = x.T
        return x.contiguous()

    (made,) = lm.trace(turned, Spec((2, 3), float32)).outputs
    assert made.shape == (3, 2)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float32"])
def test_an_empty_part_of_a_traced_value_may_be_written(dtype: str) -> None:
    def f(x: Any) -> Any:
        y = x.clone()
        y[4:].copy_(x[4:])
        y[4:].mul_(2)
        return y

    x = lm.tensor(np.arange(4)).cast(dtype)
    found = lm.jit(f)(x)
    assert found.dtype == x.dtype
    assert found.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("f", WRITES)
def test_gradients_are_those_of_the_values_that_were_read(f: Callable[[Any], Any]) -> None:
    """Central differences; with a checkpoint, and of a gradient, too."""
    total, step = _total(f), 1e-6
    wanted = np.zeros_like(SQUARE)
    for at in np.ndindex(*SQUARE.shape):
        moved = np.zeros_like(SQUARE)
        moved[at] = step
        wanted[at] = (total(lm.tensor(SQUARE + moved)) - total(lm.tensor(SQUARE - moved))).item() / (2 * step)
    for way in (lm.grad(total), lm.jit(lm.grad(total)), lm.jit(lm.grad(lm.checkpoint(total)))):
        np.testing.assert_allclose(way(lm.tensor(SQUARE)).numpy(), wanted, atol=1e-7)
    ones = np.ones_like(SQUARE)
    value, along = lm.jvp(total, (lm.tensor(SQUARE),), (ones,))
    np.testing.assert_allclose(along.item(), wanted.sum(), atol=1e-6)
    assert value.item() == pytest.approx(total(lm.tensor(SQUARE)).item(), rel=1e-12)


def test_what_is_written_past_a_derivative_leaves_it_as_it_was() -> None:
    def f(x: Any) -> Any:
        y = ops.relu(x)
        y.data.mul_(2)
        y.data[0] = 5
        return ops.sum(y * x), y

    x = lm.tensor([1.0, 2.0, 3.0])
    for way in (lm.grad(f, has_aux=True), lm.jit(lm.grad(f, has_aux=True))):
        slope, y = way(x)
        assert y.tolist() == [5, 4, 6]
        assert slope.tolist() == [5 + 1, 4 + 2, 6 + 3]  # of y itself 1, as if it had not been written


def test_data_that_is_assigned_is_written_past_a_derivative() -> None:
    net = lm.nn.Linear(2, 1, bias=False)

    def loss(net: Any, x: Any) -> Any:
        net.weight.data = ops.clamp(net.weight.data, -1.0, 1.0)
        return ops.sum(net(x))

    x = lm.tensor([[3.0, 4.0]])
    for way in (lm.grad(loss), lm.jit(lm.grad(loss))):
        net.weight.data = lm.tensor([[2.0, 0.5]])
        assert way(net, x)["weight"].tolist() == [[3, 4]]
        assert net.weight.tolist() == [[1, 0.5]]


def test_numbers_of_a_written_value_are_those_that_it_holds() -> None:
    def f(x: Any) -> Any:
        y = x * 1
        y[0] = 7
        assert (y[0].item(), float(y.sum())) == (7, 9)
        return y.sum()

    assert lm.grad(f)(lm.tensor([1.0, 2.0])).tolist() == [0, 1]


def test_compiled_functions_write_the_data_of_tensors_that_they_close_over() -> None:
    slow, fast = lm.zeros(2, 2), lm.tensor([[1.0, 2.0], [3.0, 4.0]])

    @lm.jit
    def follow() -> Any:
        row = slow[1]
        slow.data.mul_(0.5).add_(fast.data, alpha=0.5)
        row[0] = 9
        return slow[1] * 1

    assert follow().tolist() == [9, 2]
    assert slow.tolist() == [[0.5, 1], [9, 2]]
    assert follow().tolist() == [9, 3]
    assert slow.tolist() == [[0.75, 1.5], [9, 3]]


def test_arguments_and_what_lies_outside_are_not_written() -> None:
    def f(x: Any) -> Any:
        x[0] = 1
        return ops.sum(x)

    for way in (lm.jit(f), lm.grad(f), lm.vmap(f), lm.jit(lm.grad(f)), partial(lm.trace, f)):
        with pytest.raises(TypeError, match=r"argument is its caller's.*x = x\.clone\(\)"):
            way(np.ones((2, 2)))
    held = lm.zeros(3)
    with pytest.raises(TypeError, match=r"writes over a tensor f32\[3\] that it does not make itself"):
        lm.trace(lambda x: held.copy_(x[0]), X)
    assert held.tolist() == [0, 0, 0]
    left = []
    lm.trace(lambda x: left.append(x * 2) or x, X)
    with pytest.raises(TypeError, match=r"finished trace.*x = x\.at\[key\]\.set"):
        left[0].zero_()

    def outside(x: Any) -> Any:
        y = x * 2

        def inner(row: Any) -> Any:
            y.zero_()
            return row

        return lm.vmap(inner)(x)

    with pytest.raises(TypeError, match="of a surrounding trace is not written within vmap"):
        lm.jit(outside)(np.ones((2, 2)))
    with pytest.raises(ShapeError, match=r"copy_: cannot write shape \(3,\)"):
        lm.jit(lambda x: (x * 1).copy_(np.ones(3)))(np.ones(2))
    with pytest.raises(TypeError, match=r"unsqueeze_: a shape is settled.*x = x\.unsqueeze\(…\)"):
        lm.jit(lambda x: (x * 1).unsqueeze_(0))(np.ones(2))
