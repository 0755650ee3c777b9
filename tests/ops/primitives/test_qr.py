"""Orthogonal factors: the steps, gradients beside PyTorch's and by differences, matrices without rows, refusals."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina.ops.core import bind
from lamina.ops.primitives.qr import CompleteOrthogonalFactor, OrthogonalFactor, TriangularFactor
from lamina.spec import DTypeError, Shape, ShapeError, Spec, float16, float32

RNG = np.random.default_rng(2)
OPS = (OrthogonalFactor(), TriangularFactor(), CompleteOrthogonalFactor())
SHAPES: list[Shape] = [(4, 4), (2, 6, 3), (3, 5), (1, 1), (1, 3), (3, 1), (30, 17), (17, 30), (0, 3, 3)]


def loss(ys: Any, tensor: Any) -> Any:
    """A sum to which each element of each result adds something of its own."""
    total: Any = 0.0
    for y in ys:
        w = tensor(np.cos(1.7 * np.arange(int(np.prod(y.shape)))).reshape(tuple(y.shape)))
        total = total + (y * w).sum() + (y * y * y * w).sum()
    return total


@pytest.mark.parametrize("shape", [(4, 4), (2, 6, 3), (3, 5), (3, 1), (1, 3)])
def test_step_by_step_is_the_same(shape: Shape) -> None:
    a = RNG.standard_normal(shape)
    a[..., 0] = 0.0  # a column that is not reflected
    for op in OPS:
        for x, y in zip(op.composed(lm.tensor(a)), op.reference(a), strict=True):
            np.testing.assert_allclose(x.numpy(), y, rtol=0, atol=1e-12)


@pytest.mark.torch
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("part", ["Q", "R", "both"])
def test_derivatives_are_those_of_torch(shape: Shape, part: str) -> None:
    """Of the first and the second order, op by op and compiled, for square, tall and wide matrices."""
    import torch

    a, d = RNG.standard_normal(shape), RNG.standard_normal(shape)
    chosen = {"Q": slice(1), "R": slice(1, 2), "both": slice(2)}[part]
    leaf = torch.tensor(a, requires_grad=True)
    value = loss(torch.linalg.qr(leaf)[chosen], torch.tensor)
    (g,) = torch.autograd.grad(value, leaf, create_graph=True)
    (h,) = torch.autograd.grad((g * torch.tensor(d)).sum(), leaf)

    def own(x: Any) -> Any:
        found = bind(TriangularFactor(), x) if part == "R" else bind(OrthogonalFactor(), x)[chosen]
        return loss(found, lm.tensor)

    def both(x: Any, along: Any) -> Any:
        return lm.grad(own)(x), lm.hvp(own, (x,), (along,))[1][0]

    for run in (both, lm.jit(both)):
        for x, y in zip(run(lm.tensor(a), lm.tensor(d)), (g.detach(), h), strict=True):
            np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=0, atol=1e-9 * max(1, float(abs(y).sum())))


@pytest.mark.parametrize("shape", [(5, 3), (3, 1), (4, 4)])
def test_complete_factors_by_differences(shape: Shape) -> None:
    """PyTorch has no gradient of the columns beyond N."""
    a, d, step = RNG.standard_normal(shape), RNG.standard_normal(shape), 1e-6

    def own(x: Any) -> Any:
        return loss(bind(CompleteOrthogonalFactor(), x), lm.tensor)

    wanted = float(own(lm.tensor(a + step * d))) - float(own(lm.tensor(a - step * d)))
    for run in (lm.grad(own), lm.jit(lm.grad(own))):
        assert float((run(lm.tensor(a)).numpy() * d).sum()) == pytest.approx(wanted / (2 * step), rel=1e-6)


def test_matrices_without_rows_and_what_is_not_finite() -> None:
    for shape in ((3, 0), (0, 3), (2, 0, 0), (2, 3, 0)):
        for op, mode in zip(OPS[::2], ("reduced", "complete"), strict=True):
            q, r = op.reference(np.zeros(shape))
            assert [q.shape, r.shape] == [s.shape for s in op.infer(Spec(shape, float32))]
            np.testing.assert_array_equal(q, np.broadcast_to(np.eye(*q.shape[-2:]), q.shape), mode)
    assert np.isnan(OPS[0].reference(np.full((3, 3), np.nan))[1]).any()
    assert OPS[0].reference(np.ones((3, 2), "float32"))[0].dtype == np.float32


def test_many_matrices_at_once() -> None:
    a = lm.tensor(RNG.standard_normal((5, 4, 3)))
    for op in OPS:
        found = lm.vmap(lm.grad(lambda x, op=op: loss(bind(op, x), lm.tensor)))(a).numpy()
        for x, y in zip(a, found, strict=True):
            one = lm.grad(lambda x, op=op: loss(bind(op, x), lm.tensor))(x)
            np.testing.assert_allclose(y, one.numpy(), rtol=0, atol=1e-9 * abs(y).max())


def test_refusals() -> None:
    with pytest.raises(ShapeError, match=r"orthogonal_factor: needs matrices \[\.\.\., M, N\], got f32\[3\]"):
        OPS[0].infer(Spec((3,), float32))
    with pytest.raises(DTypeError, match="complete_orthogonal_factor: dtype float16"):
        OPS[2].infer(Spec((3, 3), float16))
