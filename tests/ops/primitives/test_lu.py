"""LU factors in blocks, exchanges of rows as orders, gradients beside PyTorch's, refusals."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina.graph import trace
from lamina.ops.core import bind
from lamina.ops.primitives.lu import PivotedFactor, RowOrder, exchanged
from lamina.spec import DTypeError, Shape, ShapeError, Spec, float16, float32, int32

RNG = np.random.default_rng(2)
SHAPES: list[Shape] = [
    (4, 4),
    (2, 6, 3),
    (3, 5),
    (1, 1),
    (16, 16),
    (17, 17),
    (2, 50, 40),
    (40, 70),
    (0, 3, 3),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_in_order_are_the_product(shape: Shape) -> None:
    a = RNG.standard_normal(shape)
    factors, pivots = (y.numpy() for y in bind(PivotedFactor(), a))
    k = min(shape[-2:])
    low, high = np.tril(factors[..., :k], -1) + np.eye(shape[-2], k), np.triu(factors[..., :k, :])
    wanted = exchanged(lm.tensor(a), lm.tensor(pivots), False).numpy()
    np.testing.assert_allclose(low @ high, wanted, rtol=0, atol=1e-12)
    assert abs(low).max(initial=0) <= 1
    back = exchanged(lm.tensor(wanted), lm.tensor(pivots), True)
    np.testing.assert_array_equal(back.numpy(), a)


@pytest.mark.parametrize("shape", [(4, 4), (2, 6, 3), (3, 5), (2, 3, 0)])
def test_step_by_step_is_the_same(shape: Shape) -> None:
    a = RNG.standard_normal(shape)
    for x, y in zip(PivotedFactor().composed(lm.tensor(a)), PivotedFactor().reference(a), strict=True):
        np.testing.assert_allclose(x.numpy(), y, rtol=0, atol=1e-12)
    pivots = RNG.integers(1, 6, (20, 4)).astype("int32")
    for inverse in (False, True):
        op = RowOrder(6, inverse)
        np.testing.assert_array_equal(op.composed(lm.tensor(pivots))[0].numpy(), op.reference(pivots)[0])


def test_of_equal_elements_the_first_and_zeros() -> None:
    factors, pivots = PivotedFactor().reference(np.array([[0.0, 1, 2], [0, -3, 1], [0, 3, 4]]))
    assert pivots.tolist() == [1, 2, 3]
    np.testing.assert_allclose(factors, [[0, 1, 2], [0, -3, 1], [0, -1, 5]])
    assert np.isnan(PivotedFactor().reference(np.full((2, 2), np.nan))[0]).all()


def test_a_pivot_that_names_no_row_exchanges_nothing() -> None:
    order = RowOrder(3).reference(np.array([[0, 9, -1], [3, 2, 3]], np.int32))[0]
    assert order.tolist() == [[0, 1, 2], [2, 1, 0]]


@pytest.mark.torch
@pytest.mark.parametrize("shape", SHAPES)
def test_derivatives_are_those_of_torch(shape: Shape) -> None:
    """Of the first and the second order, op by op and compiled, for square, tall and wide matrices."""
    import torch

    a, d, w = (RNG.standard_normal(shape) for _ in range(3))

    def loss(factors: Any, weights: Any) -> Any:
        return (factors * weights).sum() + (factors * factors * weights).sum()

    leaf = torch.tensor(a, requires_grad=True)
    (g,) = torch.autograd.grad(
        loss(torch.linalg.lu_factor(leaf)[0], torch.tensor(w)), leaf, create_graph=True
    )
    (h,) = torch.autograd.grad((g * torch.tensor(d)).sum(), leaf)

    def own(x: Any) -> Any:
        return loss(bind(PivotedFactor(), x)[0], lm.tensor(w))

    def both(x: Any, along: Any) -> Any:
        return lm.grad(own)(x), lm.hvp(own, (x,), (along,))[1][0]

    for run in (both, lm.jit(both)):
        for x, y in zip(run(lm.tensor(a), lm.tensor(d)), (g.detach(), h), strict=True):
            np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=0, atol=1e-9 * max(1, float(abs(y).sum())))


def test_many_matrices_at_once() -> None:
    a = lm.tensor(RNG.standard_normal((5, 4, 4)))
    found = lm.vmap(lm.grad(lambda x: (bind(PivotedFactor(), x)[0] ** 2).sum()))(a)
    wanted = lm.grad(lambda x: (bind(PivotedFactor(), x)[0] ** 2).sum())(a)
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=0, atol=1e-9)
    graph = trace(lm.vmap(lambda x: bind(PivotedFactor(), x)[0]), a.spec)
    assert [node.op.name for node in graph.nodes].count("pivoted_factor") == 1


def test_refusals() -> None:
    with pytest.raises(ShapeError, match=r"pivoted_factor: needs matrices \[\.\.\., M, N\], got f32\[3\]"):
        PivotedFactor().infer(Spec((3,), float32))
    with pytest.raises(DTypeError, match="pivoted_factor: dtype float16"):
        PivotedFactor().infer(Spec((3, 3), float16))
    with pytest.raises(
        ShapeError, match=r"row_order: needs pivots \[\.\.\., K\], K at most 3 rows, got i32\[4\]"
    ):
        RowOrder(3).infer(Spec((4,), int32))
