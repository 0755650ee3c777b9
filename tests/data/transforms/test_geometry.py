"""Geometry: values by hand and by torchvision, what is drawn, errors."""

from typing import Any

import numpy as np
import pytest

from lamina.data import transforms as t
from lamina.data.transforms import geometry
from tests.helpers.pictures import IMAGE, SHAPES, by_pillow, by_tensors, picture, rng


def test_flips() -> None:
    np.testing.assert_array_equal(t.RandomHorizontalFlip(1)(IMAGE, rng()), IMAGE[:, ::-1])
    np.testing.assert_array_equal(t.RandomVerticalFlip(1)(IMAGE, rng()), IMAGE[::-1])
    np.testing.assert_array_equal(t.RandomHorizontalFlip(0)(IMAGE, rng()), IMAGE)
    flipped = sum((t.RandomHorizontalFlip()(IMAGE, rng(s)) != IMAGE).any() for s in range(200))
    assert 70 < flipped < 130


MODES = ["nearest", "bilinear", "bicubic"]


def fill_for(image: Any) -> Any:
    """A fill, and what torchvision takes for it: of a channel alone if the image is float32."""
    return ((9, 100, 200), [9, 100, 200]) if image.shape[2] == 3 and image.dtype == np.uint8 else (9, 9)


def same(found: Any, expected: Any, image: Any) -> None:
    """Between two levels the last bit of a coefficient decides which it is rounded to."""
    assert (found.dtype, found.shape) == (image.dtype, expected.shape)
    apart = np.abs(found.astype(np.float32) - expected)
    assert apart.max() <= (1 if image.dtype == np.uint8 else 2e-3)
    assert (apart <= 2e-3).mean() > 0.99


@pytest.mark.torch
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", MODES)
def test_rotations_are_torchvisions(mode: Any, shape: tuple[int, ...], dtype: Any) -> None:
    from tests.helpers import vision

    image = picture(shape, dtype)
    fill, theirs = fill_for(image)
    how = vision.module("transforms.v2").InterpolationMode(mode)
    for angle in (0, 90, -33.3, 200):
        for options in ({}, {"expand": True}, {"center": (3, 10.5)}):
            found = t.RandomRotation((angle, angle), mode, fill=fill, **options)(image, rng())
            expected = by_pillow("rotate", image, angle, how, fill=theirs, **options)
            same(found, expected, image)


@pytest.mark.torch
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", MODES)
def test_affine_transforms_are_torchvisions(mode: Any, shape: tuple[int, ...], dtype: Any) -> None:
    from tests.helpers import vision

    image = picture(shape, dtype)
    fill, theirs = fill_for(image)
    how = vision.module("transforms.v2").InterpolationMode(mode)
    for angle, shift, scale, shear in (
        (0, (0, 0), 1, (0, 0)),
        (25.5, (3, -4), 1.3, (10, 0)),
        (-140, (-2, 0), 0.6, (5, -20)),
    ):
        for center in (None, (5, 2)):
            found = geometry.affine(image, angle, shift, scale, shear, mode, fill, center)
            options = {"interpolation": how, "fill": theirs, "center": center and list(center)}
            expected = by_pillow("affine", image, angle, list(shift), scale, list(shear), **options)
            same(found, expected, image)


@pytest.mark.torch
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", MODES)
def test_perspectives_are_torchvisions(mode: Any, shape: tuple[int, ...], dtype: Any) -> None:
    from tests.helpers import vision

    image = picture(shape, dtype)
    fill, theirs = fill_for(image)
    how = vision.module("transforms.v2").InterpolationMode(mode)
    height, width = shape[:2]
    starts = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    for seed in range(3):
        corners = t.RandomPerspective(0.7)._corners(height, width, rng(seed))
        found = geometry.projected(image, corners, mode, fill)
        expected = by_pillow("perspective", image, starts, corners.tolist(), how, theirs)
        # torchvision rounds the coefficients to float32, so that a few pixels come from the place beside.
        apart = np.abs(found.astype(np.float32) - expected)
        assert (apart <= (1 if dtype == np.uint8 else 0.05)).mean() > 0.995


@pytest.mark.torch
@pytest.mark.parametrize("shape", SHAPES)
def test_within_the_image_torchvisions_tensors_agree(shape: tuple[int, ...]) -> None:
    """At the border Pillow repeats the last pixel, where tensors fade into the fill."""
    from tests.helpers import vision

    image = picture(shape, np.float32)
    how = vision.module("transforms.v2").InterpolationMode.BILINEAR
    middle = np.s_[12:-12, 6:-6]
    found = geometry.affine(image, 12, (2, -1), 1.2, (4, -3), "bilinear", 0)
    expected = by_tensors("affine", image, 12, [2, -1], 1.2, [4, -3], interpolation=how)
    np.testing.assert_allclose(found[middle], expected[middle], atol=0.02)
    found = geometry.rotated(image, 12, "bilinear", 0)
    expected = by_tensors("rotate", image, 12, interpolation=how)
    np.testing.assert_allclose(found[middle], expected[middle], atol=0.02)


def test_a_quarter_turn_is_numpys() -> None:
    square = IMAGE[:, :10]
    np.testing.assert_array_equal(t.RandomRotation((90, 90))(square, rng()), np.rot90(square))
    found = t.RandomRotation((90, 90), expand=True)(IMAGE, rng())
    np.testing.assert_array_equal(found, np.rot90(IMAGE))


def test_what_is_drawn_is_within_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []

    def note(image: Any, *numbers: Any) -> Any:
        drawn.append(numbers)
        return image

    monkeypatch.setattr(geometry, "affine", note)
    transform = t.RandomAffine((-5, 20), (0.5, 0.2), (0.5, 2), (-10, 10, 30, 40))
    for seed in range(300):
        transform(IMAGE, rng(seed))
    angles, shifts, scales, shears = (np.array([numbers[i] for numbers in drawn]) for i in range(4))
    columns = (angles, *shifts.T, scales, *shears.T)
    for found, (low, high) in zip(
        columns, ((-5, 20), (-7, 7), (-2, 2), (0.5, 2), (-10, 10), (30, 40)), strict=True
    ):
        assert low <= found.min() < low + (high - low) / 20
        assert high - (high - low) / 20 < found.max() <= high
    drawn.clear()
    t.RandomAffine(0)(IMAGE, rng())
    assert drawn[0][:4] == (0, [0, 0], 1, [0, 0])


def test_corners_move_inwards() -> None:
    found = np.array([t.RandomPerspective(0.5)._corners(10, 14, rng(seed)) for seed in range(200)])
    np.testing.assert_array_equal(found.min(0), [[0, 0], [10, 0], [10, 7], [0, 7]])
    np.testing.assert_array_equal(found.max(0), [[3, 2], [13, 2], [13, 9], [3, 9]])
    np.testing.assert_array_equal(t.RandomPerspective(0, 1, "nearest")(IMAGE, rng()), IMAGE)
    assert t.RandomPerspective(1, 1)(IMAGE[:1, :1], rng()).shape == (1, 1, 3)  # whose corners coincide


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: t.RandomHorizontalFlip(1.5), "RandomHorizontalFlip: p must be from 0 to 1, got 1.5"),
        (
            lambda: t.RandomRotation(-3),
            "RandomRotation: degrees must be a finite number of at least 0, got -3",
        ),
        (lambda: t.RandomRotation((1, 2, 3)), "degrees must be one number, or 2 of them, got"),
        (lambda: t.RandomRotation(float("inf")), "degrees must be a finite number of at least 0, got inf"),
        (lambda: t.RandomAffine(3, shear=(0, float("nan"))), "shear must be finite numbers"),
        (lambda: t.RandomRotation((3, 1)), "degrees must be bounds a <= b"),
        (lambda: t.RandomRotation(3, center=(1,)), "center must be two numbers"),
        (lambda: t.RandomAffine(3, translate=(0.1, 1.5)), "translate must be fractions from 0 to 1"),
        (lambda: t.RandomAffine(3, scale=(0, 1)), "scale must be a pair 0 < a <= b"),
        (lambda: t.RandomAffine(3, shear=(1, 2, 3)), "shear must be one number, or 2 or 4 of them"),
        (lambda: t.RandomPerspective(1.1), "distortion_scale must be from 0 to 1, got 1.1"),
    ],
)
def test_bad_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
