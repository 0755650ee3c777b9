"""interpolate: PyTorch's values and gradients in every mode and corner convention, and errors."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops

MODES = [
    ("nearest", 1),
    ("nearest-exact", 2),
    ("area", 3),
    ("linear", 1),
    ("bilinear", 2),
    ("bicubic", 2),
    ("trilinear", 3),
]
X = np.random.default_rng(0).standard_normal((2, 3, 5, 6, 7)).astype(np.float32)


def test_values_by_hand() -> None:
    x = np.array([[[1.0, 3.0, 7.0]]])
    assert ops.interpolate(x, 6, mode="linear").numpy().tolist() == [[[1, 1.5, 2.5, 4, 6, 7]]]
    assert ops.interpolate(x, 5, mode="linear", align_corners=True).numpy().tolist() == [[[1, 2, 3, 5, 7]]]
    assert ops.interpolate(x, scale_factor=1.7).numpy().tolist() == [[[1, 1, 3, 3, 7]]]
    assert ops.interpolate(x, 2, mode="area").numpy().tolist() == [[[2, 5]]]
    assert ops.interpolate(x.astype(np.uint8), scale_factor=2.0).dtype == lm.uint8
    assert ops.interpolate(x, 3, mode="linear").numpy().tolist() == x.tolist()


OPTIONS: list[dict[str, Any]] = [
    {"size": 9},
    {"size": 3},
    {"scale_factor": 1.6},
    {"scale_factor": 0.55},
    {"scale_factor": 1.6, "recompute_scale_factor": True},
    {"size": 9, "align_corners": True},
    {"scale_factor": 0.55, "align_corners": True},
    {"size": 3, "antialias": True},
    {"scale_factor": 1.6, "antialias": True},
    {"size": 3, "antialias": True, "align_corners": True},
]


def _takes(mode: str, options: dict[str, Any]) -> bool:
    """Whether a mode has these options."""
    if "align_corners" in options and mode in ("nearest", "nearest-exact", "area"):
        return False
    return "antialias" not in options or mode in ("bilinear", "bicubic")


@pytest.mark.torch
@pytest.mark.parametrize(
    ("mode", "rank", "options"),
    [(mode, rank, options) for mode, rank in MODES for options in OPTIONS if _takes(mode, options)],
    ids=str,
)
def test_as_torch(mode: str, rank: int, options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    x = X[(..., *[0] * (3 - rank), *[slice(None)] * rank)].copy()
    theirs = torch.from_numpy(x).requires_grad_()
    wanted = torch.nn.functional.interpolate(theirs, mode=mode, **options)
    weights = np.random.default_rng(1).standard_normal(wanted.shape).astype(np.float32)
    (wanted * torch.from_numpy(weights)).sum().backward()

    def weighted(x: Any) -> Any:
        return (ops.interpolate(x, mode=mode, **options) * weights).sum()

    np.testing.assert_allclose(
        ops.interpolate(x, mode=mode, **options).numpy(), wanted.detach().numpy(), atol=3e-6
    )
    _, slope = lm.value_and_grad(weighted)(x)
    np.testing.assert_allclose(slope.numpy(), theirs.grad.numpy(), atol=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_images_of_levels_as_torch(mode: str, antialias: bool) -> None:
    """torch rounds the weights to integers, so that a level may be its neighbour; nearest levels are the same."""
    torch = pytest.importorskip("torch")
    options: dict[str, Any] = {"mode": mode, "antialias": antialias and mode.startswith("bi")}
    images = np.random.default_rng(3).integers(0, 256, (2, 3, 9, 7), np.uint8)
    for size in ((5, 4), (18, 15), (9, 3)):
        wanted = torch.nn.functional.interpolate(torch.from_numpy(images), size, **options).numpy()
        found = ops.interpolate(images, size, **options).numpy()
        assert found.dtype == np.uint8
        apart = np.abs(wanted.astype(int) - found.astype(int))
        assert apart.max() <= (0 if mode.startswith("nearest") else 2)
        assert (apart > 0).mean() < 0.03


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ValueError, "give size or scale_factor, got None and None"),
        ({"size": 3, "scale_factor": 2.0}, ValueError, "give size or scale_factor, got 3 and 2.0"),
        ({"size": (3, 3, 3)}, lm.ShapeError, "size must be one int or 2 ints"),
        ({"size": 0}, lm.ShapeError, r"sizes must be >= 1, got \(0, 0\)"),
        ({"scale_factor": -1.0}, lm.ShapeError, "scale_factor must be one number > 0 or 2"),
        ({"scale_factor": float("nan")}, lm.ShapeError, "scale_factor must be one number > 0 or 2"),
        ({"size": 3, "mode": "trilinear"}, lm.ShapeError, "mode 'trilinear' takes inputs of rank 5"),
        ({"size": 3, "mode": "cubic"}, ValueError, "mode must be one of 'nearest', 'linear'"),
        (
            {"size": 3, "align_corners": True},
            ValueError,
            "align_corners belongs to the linear and cubic modes",
        ),
        ({"size": 3, "antialias": True}, ValueError, "antialias belongs to bilinear and bicubic"),
        (
            {"size": 3, "recompute_scale_factor": True},
            ValueError,
            "recompute_scale_factor belongs to scale_factor",
        ),
    ],
)
def test_errors(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"interpolate: {message}"):
        ops.interpolate(lm.zeros((1, 2, 4, 4)), **options)


def test_upsample_functions() -> None:
    x = X[:, :, 0]
    np.testing.assert_array_equal(ops.upsample_nearest(x, 9).numpy(), ops.interpolate(x, 9).numpy())
    wanted = ops.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=True)
    np.testing.assert_array_equal(ops.upsample_bilinear(x, scale_factor=2.0).numpy(), wanted.numpy())
