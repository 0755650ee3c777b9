"""grid_sample and affine_grid: by hand, against PyTorch in every mode, second derivatives, errors."""

import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops

MODES = [m for m in product(("nearest", "bilinear", "bicubic"), (2, 3)) if m != ("bicubic", 3)]
RNG = np.random.default_rng(0)


@pytest.mark.feature("F057")
def test_values_by_hand() -> None:
    x = np.array([[[[1.0, 2.0], [3.0, 4.0]]]])
    places = np.array([[[[0.0, 0.0], [-1, -1], [-0.5, 0.5], [3, 3]]]])
    assert ops.grid_sample(x, places).numpy().ravel().tolist() == [2.5, 0.25, 3, 0]
    assert ops.grid_sample(x, places, padding_mode="border").numpy().ravel().tolist() == [2.5, 1, 3, 4]
    assert ops.grid_sample(x, places, align_corners=True).numpy().ravel().tolist() == [2.5, 1, 2.75, 0]
    assert ops.grid_sample(x, places, "nearest").numpy().ravel().tolist() == [1, 1, 3, 0]
    mirrored = (
        ops.grid_sample(x, places + np.array([2.0, 0]), padding_mode="reflection").numpy().ravel().tolist()
    )
    assert mirrored == [2.5, 2, 4, 2]


def test_the_identity_gives_the_image_back() -> None:
    for shape in ((2, 3, 5, 7), (1, 2, 3, 4, 5)):
        x, rank = RNG.standard_normal(shape), len(shape) - 2
        theta = np.tile(np.eye(rank, rank + 1), (shape[0], 1, 1))
        for align in (True, False):
            grid = ops.affine_grid(theta, shape, align)
            assert grid.shape == (shape[0], *shape[2:], rank)
            found = ops.grid_sample(x, grid, align_corners=align, padding_mode="border")
            np.testing.assert_allclose(found.numpy(), x, rtol=1e-12, atol=1e-12)


@pytest.mark.torch
@pytest.mark.feature("F057", "F118")
@pytest.mark.parametrize(("mode", "rank"), MODES)
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [True, False])
def test_as_torch(mode: Any, rank: int, padding: Any, align: bool) -> None:
    torch = pytest.importorskip("torch")
    x = RNG.standard_normal((2, 3, 5, 6, 1)[: rank + 2])
    grid = RNG.uniform(-2.5, 2.5, (2, *(4, 5, 3)[:rank], rank))
    theirs = [torch.from_numpy(v.copy()).requires_grad_() for v in (x, grid)]
    wanted = torch.nn.functional.grid_sample(*theirs, mode, padding, align)
    weights = RNG.standard_normal(wanted.shape)
    (wanted * torch.from_numpy(weights)).sum().backward()
    found = ops.grid_sample(x, grid, mode, padding, align)
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=1e-10, atol=1e-12)

    def total(x: Any, grid: Any) -> Any:
        return (ops.grid_sample(x, grid, mode, padding, align) * weights).sum()

    grads = lm.grad(total, argnums=(0, 1))(lm.tensor(x), lm.tensor(grid))
    for mine, other in zip(grads, theirs, strict=True):
        np.testing.assert_allclose(mine.numpy(), other.grad.numpy(), rtol=1e-10, atol=1e-11)


@pytest.mark.torch
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 1, 1, 3), (2, 3, 4, 5, 2)])
@pytest.mark.parametrize("align", [True, False])
def test_affine_grid_as_torch(size: tuple[int, ...], align: bool) -> None:
    torch = pytest.importorskip("torch")
    theta = RNG.standard_normal((2, len(size) - 2, len(size) - 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = torch.nn.functional.affine_grid(torch.from_numpy(theta), size, align).numpy()
    np.testing.assert_allclose(ops.affine_grid(theta, size, align).numpy(), wanted, rtol=1e-12, atol=1e-13)


def test_second_derivative_by_the_image() -> None:
    """A penalty on the gradient by the image, differentiated by the grid: against finite differences."""
    x, grid = RNG.standard_normal((1, 2, 4, 5)), RNG.uniform(-0.8, 0.8, (1, 3, 3, 2))

    def penalty(places: Any) -> Any:
        slope = lm.grad(lambda v: (ops.grid_sample(v, places) ** 3).sum())(lm.tensor(x))
        return (slope * slope).sum()

    found, step = lm.grad(penalty)(lm.tensor(grid)).numpy(), 1e-6
    for place in [(0, 0, 0, 0), (0, 1, 2, 1), (0, 2, 1, 0)]:
        moved = [grid.copy(), grid.copy()]
        moved[0][place] += step
        moved[1][place] -= step
        low, high = (penalty(lm.tensor(m)).item() for m in reversed(moved))
        np.testing.assert_allclose(found[place], (high - low) / (2 * step), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("mode", "rank"), MODES)
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [True, False])
def test_second_derivative_by_the_grid(mode: Any, rank: int, padding: Any, align: bool) -> None:
    """The grid's gradient, differentiated by all that it is made of, at places that are mirrored up to three times:
    against finite differences.
    """
    rng = np.random.default_rng(3)
    x, g = rng.standard_normal((1, 2, *(4, 5, 2)[:rank])), rng.standard_normal((1, 2, *(3, 4, 2)[:rank]))
    grid = rng.uniform(-6.5, 6.5, (1, *(3, 4, 2)[:rank], rank))
    weights = rng.standard_normal(grid.shape)

    def slope(g: Any, x: Any, grid: Any) -> Any:
        found = lm.grad(lambda v: (ops.grid_sample(x, v, mode, padding, align) * g).sum())(grid)
        return (found * weights).sum()

    given = [lm.tensor(v) for v in (g, x, grid)]
    found, step = lm.grad(slope, argnums=(0, 1, 2))(*given), 1e-5
    for which, (gradient, values) in enumerate(zip(found, (g, x, grid), strict=True)):
        direction = rng.standard_normal(values.shape)
        moved = [list(given), list(given)]
        for side, sign in zip(moved, (1, -1), strict=True):
            side[which] = lm.tensor(values + sign * step * direction)
        high, low = (slope(*side).item() for side in moved)
        wanted = (high - low) / (2 * step)
        assert (gradient.numpy() * direction).sum() == pytest.approx(wanted, rel=1e-5, abs=1e-6)


def test_errors() -> None:
    x, grid = lm.ones((2, 3, 4, 5)), lm.ones((2, 6, 7, 2))
    for wrong in (lm.ones((2, 6, 7, 3)), lm.ones((1, 6, 7, 2)), lm.ones((2, 6, 2))):
        with pytest.raises(lm.ShapeError, match=r"grid_sample: needs images \[N, C, H, W\] and a grid"):
            ops.grid_sample(x, wrong)
    with pytest.raises(lm.ShapeError, match="grid_sample: mode bicubic takes images"):
        ops.grid_sample(lm.ones((1, 1, 2, 2, 2)), lm.ones((1, 1, 1, 1, 3)), "bicubic")
    with pytest.raises(lm.ShapeError, match="grid_sample: there is nothing to read"):
        ops.grid_sample(lm.ones((2, 3, 0, 5)), grid)
    with pytest.raises(lm.DTypeError, match="grid_sample: input 1 is float64 but input 0 is float32"):
        ops.grid_sample(x, np.ones((2, 6, 7, 2)))
    with pytest.raises(ValueError, match="grid_sample: mode must be one of 'bilinear'"):
        ops.grid_sample(x, grid, "linear")  # type: ignore[arg-type]
    with pytest.raises(lm.ShapeError, match=r"affine_grid: needs theta \[N, 2, 3\]"):
        ops.affine_grid(lm.ones((2, 2, 2)), (2, 3, 4, 5))
