"""Adaptive and fractional max pools and max-unpooling: by hand, against PyTorch with gradients, errors."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops

RNG = np.random.default_rng(0)


def _agree(mine: Any, theirs: Any, *inputs: Any) -> None:
    """Outputs, indices, and the gradient of a weighted sum of the first output by the first input."""
    torch = pytest.importorskip("torch")
    x = inputs[0]
    given = [torch.from_numpy(v.copy()) for v in inputs]
    given[0].requires_grad_()
    wanted = theirs(*given)
    found = mine(*inputs)
    several = isinstance(wanted, tuple)
    for a, b in zip(found if several else (found,), wanted if several else (wanted,), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.detach().numpy())
    first = wanted[0] if several else wanted
    weights = RNG.standard_normal(first.shape)
    (first * torch.from_numpy(weights)).sum().backward()

    def total(v: Any) -> Any:
        y = mine(v, *inputs[1:])
        return ((y[0] if several else y) * weights).sum()

    np.testing.assert_allclose(lm.grad(total)(lm.tensor(x)).numpy(), given[0].grad.numpy(), rtol=1e-12)


@pytest.mark.torch
@pytest.mark.feature("F057")
@pytest.mark.parametrize(
    ("rank", "shape", "size"),
    [
        (1, (2, 3, 7), 3), (1, (3, 8), 4), (2, (2, 3, 7, 5), (3, 4)), (2, (3, 7, 6), (None, 4)),
        (2, (2, 3, 8, 6), (4, 3)), (3, (2, 3, 5, 4, 7), (2, 3, 4)), (3, (2, 4, 5, 6), 1), (2, (2, 3, 3, 4), (5, 6)),
        (2, (0, 3, 7, 5), (3, 4)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("indices", [False, True])
def test_adaptive_as_torch(rank: int, shape: tuple[int, ...], size: Any, indices: bool) -> None:
    torch = pytest.importorskip("torch")
    name, x = f"adaptive_max_pool{rank}d", RNG.standard_normal(shape)
    function, theirs = getattr(ops, name), getattr(torch.nn.functional, name)
    _agree(lambda v: function(v, size, indices), lambda v: theirs(v, size, indices), x)
    layer = getattr(nn, f"AdaptiveMaxPool{rank}d")(size, indices)
    found = layer(x)
    np.testing.assert_array_equal((found[0] if indices else found).numpy(), function(x, size).numpy())
    assert repr(layer) == repr(getattr(torch.nn, f"AdaptiveMaxPool{rank}d")(size, indices))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("rank", "shape", "options"),
    [
        (2, (2, 3, 9, 7), {"kernel_size": 2, "output_size": (4, 3)}),
        (2, (2, 3, 9, 7), {"kernel_size": (3, 2), "output_ratio": (0.6, 0.6)}),
        (2, (3, 9, 7), {"kernel_size": 2, "output_size": 1}),
        (3, (2, 3, 6, 7, 9), {"kernel_size": 2, "output_size": (3, 4, 5)}),
        (3, (2, 6, 7, 9), {"kernel_size": (1, 2, 3), "output_ratio": (0.5, 0.6, 0.7)}),
    ],
)
def test_fractional_as_torch(rank: int, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    name = f"fractional_max_pool{rank}d"
    planes = shape[:2] if len(shape) == rank + 2 else (1, shape[0])
    x, samples = RNG.standard_normal(shape), RNG.random((*planes, rank))
    function, theirs = getattr(ops, name), getattr(torch.nn.functional, name)
    _agree(
        lambda v, s: function(v, **options, return_indices=True, _random_samples=s),
        lambda v, s: theirs(v, **options, return_indices=True, _random_samples=s),
        x,
        samples,
    )
    layer = getattr(nn, f"FractionalMaxPool{rank}d")(**options, _random_samples=samples)
    np.testing.assert_array_equal(layer(x).numpy(), function(x, **options, _random_samples=samples).numpy())


def test_fractional_modules_draw_anew() -> None:
    x = lm.tensor(RNG.standard_normal((2, 3, 20, 20)).astype(np.float32))
    generator = nn.Generator(3)
    layer = nn.FractionalMaxPool2d(2, output_ratio=0.7, generator=generator)
    first, second = layer(x), layer(x)
    assert first.shape == (2, 3, 14, 14)
    assert not np.array_equal(first.numpy(), second.numpy())
    drawn, _ = ops.random_uniform(nn.Generator(3).state, (2, 3, 2))
    wanted = ops.fractional_max_pool2d(x, 2, output_ratio=0.7, _random_samples=drawn)
    np.testing.assert_array_equal(first.numpy(), wanted.numpy())
    assert nn.FractionalMaxPool3d(1, 2)(x).shape == (2, 2, 2, 2)  # three axes and channels, without a batch


@pytest.mark.torch
@pytest.mark.parametrize(
    ("rank", "shape", "kernel", "stride", "padding"),
    [
        (1, (2, 3, 9), 2, 2, 0), (1, (3, 9), 3, None, 1), (2, (2, 3, 8, 7), (2, 3), None, 0),
        (3, (2, 4, 4, 6), 2, 2, 0), (2, (2, 8, 6), 2, 2, 0),
    ],
)  # fmt: skip
def test_unpool_as_torch(rank: int, shape: tuple[int, ...], kernel: Any, stride: Any, padding: int) -> None:
    torch = pytest.importorskip("torch")
    x = RNG.standard_normal(shape)
    y, index = getattr(ops, f"max_pool{rank}d_with_indices")(x, kernel, stride, padding)
    mine, theirs = getattr(ops, f"max_unpool{rank}d"), getattr(torch.nn.functional, f"max_unpool{rank}d")
    usual = mine(y, index, kernel, stride, padding, shape[-rank:]).shape[-rank:]
    default = mine(y * 0, index * 0, kernel, stride, padding).shape[-rank:]
    for size in (shape[-rank:], None) if default == usual else (shape[-rank:],):

        def run(function: Any, size: Any = size) -> Any:
            return lambda v, i: function(v, i, kernel, stride, padding, size)

        _agree(run(mine), run(theirs), y.numpy(), index.numpy())
    layer = getattr(nn, f"MaxUnpool{rank}d")(kernel, stride, padding)
    np.testing.assert_array_equal(layer(y, index, shape[-rank:]).numpy(), run(mine)(y, index).numpy())


def test_indices_by_hand() -> None:
    x = np.array([[[1.0, 5.0, 2.0, 5.0, 0.0]]])
    y, index = ops.adaptive_max_pool1d(x, 2, True)
    assert (y.numpy().tolist(), index.numpy().tolist()) == ([[[5, 5]]], [[[1, 3]]])
    assert index.dtype == lm.int64
    back = ops.max_unpool1d(y, index, 2, output_size=[5])
    assert back.numpy().tolist() == [[[0, 5, 0, 5, 0]]]
    last = ops.max_unpool1d(np.array([[[7.0, 8.0]]]), np.array([[[1, 1]]]), 2)
    assert last.numpy().tolist() == [[[0, 8, 0, 0]]]
    for name in ("max_pool1d_with_indices",):
        found = getattr(ops, name)(x, 2)
        assert [v.numpy().tolist() for v in found] == [[[[5, 5]]], [[[1, 3]]]]


def test_second_derivative_of_an_adaptive_pool() -> None:
    x = lm.tensor(RNG.standard_normal((1, 2, 7)))

    def penalty(v: Any) -> Any:
        slope = lm.grad(lambda u: (ops.adaptive_max_pool1d(u, 3) ** 3).sum())(v)
        return (slope * slope).sum()

    y, index = ops.adaptive_max_pool1d(x, 3, True)
    found = lm.grad(penalty)(x).numpy()
    slope = np.zeros((2, 7))
    np.add.at(slope, (np.arange(2)[:, None], index.numpy()[0]), 3 * y.numpy()[0] ** 2)
    wanted = np.zeros((2, 7))
    for c in range(2):
        for at, value in zip(index.numpy()[0, c], y.numpy()[0, c], strict=True):
            wanted[c, at] += 2 * slope[c, at] * 6 * value
    np.testing.assert_allclose(found[0], wanted, rtol=1e-12)


def test_errors() -> None:
    x = lm.ones((2, 3, 5, 4))
    with pytest.raises(lm.ShapeError, match="adaptive_max_pool2d: output_size"):
        ops.adaptive_max_pool2d(x, (1, 2, 3))
    with pytest.raises(lm.ShapeError, match="adaptive_max_pool1d: input must be of rank 3"):
        ops.adaptive_max_pool1d(x, 2)
    with pytest.raises(lm.ShapeError, match="there is nothing to take the largest of"):
        ops.adaptive_max_pool2d(lm.ones((2, 3, 0, 4)), 1)
    samples = lm.ones((2, 3, 2)) * 0.5
    with pytest.raises(ValueError, match="give output_size or output_ratio, got None and None"):
        ops.fractional_max_pool2d(x, 2, _random_samples=samples)
    with pytest.raises(ValueError, match=r"output_ratio must be one number in \(0, 1\) or 2, got 1.5"):
        nn.FractionalMaxPool2d(2, output_ratio=1.5)
    with pytest.raises(lm.ShapeError, match=r"windows of \(2, 2\) do not fit \(5, 4\) times"):
        ops.fractional_max_pool2d(x, 2, (5, 4), _random_samples=samples)
    with pytest.raises(ValueError, match="draw it with ops.random_uniform"):
        ops.fractional_max_pool2d(x, 2, 2)
    with pytest.raises(lm.ShapeError, match=r"_random_samples must be \(2, 3, 2\)"):
        ops.fractional_max_pool2d(x, 2, 2, _random_samples=samples[:1])
    index = np.zeros((2, 3, 5, 4), np.int64)
    with pytest.raises(lm.ShapeError, match="max_unpool2d: indices"):
        ops.max_unpool2d(x, index[:1], 2)
    with pytest.raises(lm.DTypeError, match="indices must be int32 or int64"):
        ops.max_unpool2d(x, x, 2)
    with pytest.raises(
        lm.ShapeError, match=r"output_size \(12, 8\) must lie within stride \(2, 2\) of \(10, 8\)"
    ):
        ops.max_unpool2d(x, index, 2, output_size=(12, 8))
    with pytest.raises(IndexError):
        ops.max_unpool2d(x, index + 80, 2)


@pytest.mark.feature("F057")
@pytest.mark.parametrize(("size", "extent"), [((2, 3), (4, 6)), ((3, 2), (7, 5))], ids=["even", "uneven"])
def test_adaptive_max_pools_by_their_definition(size: tuple[int, int], extent: tuple[int, int]) -> None:
    """Window i of o on n: from floor(i n / o) to ceil((i + 1) n / o); indices count within a plane."""
    x = RNG.standard_normal((2, 3, *extent))
    y, index = (v.numpy() for v in ops.adaptive_max_pool2d(lm.tensor(x), size, True))
    np.testing.assert_array_equal(ops.adaptive_max_pool2d(lm.tensor(x), size).numpy(), y)
    assert y.shape == index.shape == (2, 3, *size)
    for n, c, *place in np.ndindex(*y.shape):
        window = tuple(
            slice(i * e // o, -(-(i + 1) * e // o)) for i, e, o in zip(place, extent, size, strict=True)
        )
        assert y[(n, c, *place)] == x[(n, c, *window)].max()
        assert x[n, c].reshape(-1)[index[(n, c, *place)]] == y[(n, c, *place)]


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_with_indices(rank: int) -> None:
    x = lm.tensor(np.random.default_rng(0).standard_normal((2, 3, *(5,) * rank)).astype(np.float32))
    pairs = [(f"adaptive_max_pool{rank}d", (3,), {})]
    if rank > 1:
        draws = lm.tensor(np.full((2, 3, rank), 0.4, np.float32))
        pairs.append((f"fractional_max_pool{rank}d", (2, 3), {"_random_samples": draws}))
    for name, args, options in pairs:
        function, given = getattr(ops, name), getattr(ops, f"{name}_with_indices")
        wanted = function(x, *args, return_indices=True, **options)
        for found in (given(x, *args, **options), given(x, *args, return_indices=False, **options)):
            assert all((a == b).all() for a, b in zip(found, wanted, strict=True))
