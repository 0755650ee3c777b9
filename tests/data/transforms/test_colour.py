"""Colours: values by hand, by Pillow, by colorsys and by torchvision; errors."""

import colorsys
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lamina.data import transforms as t
from tests.helpers.pictures import IMAGE, SHAPES, by_pillow, by_tensors, picture, rng


def test_grey_is_pillow_s_luma() -> None:
    expected = np.asarray(Image.fromarray(IMAGE).convert("L")).astype(int)
    found = t.Grayscale()(IMAGE, rng())
    assert found.shape == (10, 14, 1)
    assert np.abs(found[..., 0] - expected).max() <= 1
    assert (t.Grayscale(3)(IMAGE, rng()) == found).all()


def test_brightness_contrast_and_saturation() -> None:
    x = IMAGE.astype(np.float32)
    grey = (x @ np.float32([0.299, 0.587, 0.114]))[..., None]
    for options, expected in (
        ({"brightness": (0.5, 0.5)}, x * 0.5),
        ({"brightness": (3, 3)}, np.clip(x * 3, 0, 255)),
        ({"contrast": (0, 0)}, np.full_like(x, grey.mean())),
        ({"saturation": (0, 0)}, np.repeat(grey, 3, 2)),
        ({"saturation": (2, 2)}, np.clip(2 * x - grey, 0, 255)),
    ):
        np.testing.assert_allclose(t.ColorJitter(**options)(x, rng()), expected, atol=1e-3)  # type: ignore[arg-type]
    np.testing.assert_array_equal(t.ColorJitter()(IMAGE, rng()), IMAGE)


@pytest.mark.parametrize("shift", [-0.5, -0.2, 0.1, 0.45])
def test_hues_are_turned_as_python_s_colorsys_does(shift: float) -> None:
    found = t.ColorJitter(hue=(shift, shift))(IMAGE.astype(np.float32), rng())
    for i, j in ((0, 0), (3, 5), (9, 13), (4, 4)):
        h, s, v = colorsys.rgb_to_hsv(*(IMAGE[i, j] / 255))
        expected = np.array(colorsys.hsv_to_rgb((h + shift) % 1, s, v)) * 255
        np.testing.assert_allclose(found[i, j], expected, atol=2e-2)


def test_jitter_is_within_its_ranges() -> None:
    level = np.full((2, 2, 3), 100, np.float32)
    factors = [t.ColorJitter(brightness=0.3)(level, rng(s))[0, 0, 0] / 100 for s in range(300)]
    assert 0.7 <= min(factors) < 0.72
    assert 1.28 < max(factors) <= 1.3001


#: Functions of torchvision's, their arguments, and transforms that do the same.
SAME = [
    ("invert", (), t.RandomInvert(1)),
    *(("posterize", (bits,), t.RandomPosterize(bits, 1)) for bits in (0, 1, 3, 7, 8)),
    *(("solarize", (level,), t.RandomSolarize(level, 1)) for level in (0, 100, 128.5, 255)),
    ("equalize", (), t.RandomEqualize(1)),
]
#: The same, which torchvision rounds down where here is rounded to the nearest.
NEAR = [
    ("autocontrast", (), t.RandomAutocontrast(1)),
    *(("adjust_sharpness", (by,), t.RandomAdjustSharpness(by, 1)) for by in (0, 0.4, 1, 2.5)),
    ("gaussian_blur", ([5, 3], [0.7]), t.GaussianBlur((5, 3), 0.7)),
    ("gaussian_blur", ([7, 7], [2.0]), t.GaussianBlur(7, (2, 2))),
    ("rgb_to_grayscale", (3,), t.RandomGrayscale(1)),
]


@pytest.mark.torch
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("name", "args", "transform"), SAME, ids=repr)
def test_levels_are_torchvisions(name: str, args: Any, transform: Any, shape: tuple[int, ...]) -> None:
    """Pillow's too, and of float32 images that hold the same levels."""
    for image in (picture(shape), rng().integers(0, 256, shape, np.uint8), np.full(shape, 7, np.uint8)):
        found = transform(image, rng())
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, by_tensors(name, image, *args))
        if args != (0,):  # Pillow takes no 0 bits
            np.testing.assert_array_equal(found, by_pillow(name, image, *args))
        wide = transform(image.astype(np.float32), rng())
        assert wide.dtype == np.float32
        np.testing.assert_array_equal(wide, found)


def _compared() -> list[Any]:
    """Each with images; torchvision's blur mirrors no more pixels than there are."""
    small = ((2, 5, 3), (3, 3, 1))
    return [(*one, shape) for one in NEAR for shape in SHAPES + (() if one[0] == "gaussian_blur" else small)]


@pytest.mark.torch
@pytest.mark.parametrize(("name", "args", "transform", "shape"), _compared(), ids=repr)
def test_images_are_torchvisions(name: str, args: Any, transform: Any, shape: tuple[int, ...]) -> None:
    if name == "rgb_to_grayscale" and shape[2] == 1:
        args = (1,)
    image = picture(shape)
    difference = transform(image, rng()).astype(int) - by_tensors(name, image, *args)
    assert 0 <= difference.min() <= difference.max() <= 1
    wide = picture(shape, np.float32)
    off = 0.03 if name == "rgb_to_grayscale" else 2e-3  # torchvision's weight of red is 0.2989
    np.testing.assert_allclose(transform(wide, rng()), by_tensors(name, wide, *args), atol=off)


@pytest.mark.torch
@pytest.mark.parametrize("shape", SHAPES)
def test_floats_between_levels(shape: tuple[int, ...]) -> None:
    wide = picture(shape, np.float32)
    for name, args, transform in (
        ("invert", (), t.RandomInvert(1)),
        ("solarize", (100 / 255,), t.RandomSolarize(100, 1)),
    ):
        np.testing.assert_allclose(transform(wide, rng()), by_tensors(name, wide, *args), atol=2e-3)
    np.testing.assert_array_equal(t.RandomPosterize(3, 1)(wide, rng()), np.floor(wide / 32) * 32)


def test_blurs_are_drawn_between_bounds() -> None:
    """The filter's peak, on an image of one light point, tells the standard deviation."""
    point = np.zeros((41, 41, 1), np.float32)
    point[20, 20] = 255
    peaks = [float(t.GaussianBlur(31, (1, 3))(point, rng(seed)).max()) / 255 for seed in range(200)]
    found = np.sqrt(1 / (2 * np.pi * np.array(peaks)))
    assert 0.99 < found.min() < 1.05
    assert 2.95 < found.max() < 3.01


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: t.Grayscale(2), "num_output_channels must be 1 or 3, got 2"),
        (lambda: t.ColorJitter(hue=0.6), "hue must be a number or a pair within"),
        (lambda: t.ColorJitter(brightness=-1), "brightness must be a number or a pair"),
        (lambda: t.RandomPosterize(9), "RandomPosterize: bits must be from 0 to 8, got 9"),
        (lambda: t.RandomSolarize(256), "RandomSolarize: threshold must be at most 255, got 256"),
        (lambda: t.RandomAdjustSharpness(-0.1), "sharpness_factor must be finite and at least 0, got -0.1"),
        (lambda: t.GaussianBlur(4), "GaussianBlur: kernel_size must be odd and at least 1, got 4"),
        (lambda: t.GaussianBlur((3, -1)), r"kernel_size must be odd and at least 1, got \(3, -1\)"),
        (lambda: t.GaussianBlur((3, 3, 3)), "kernel_size must be one or two numbers"),
        (lambda: t.GaussianBlur(3, 0), "sigma must be positive, or a pair 0 < a <= b, got 0"),
        (lambda: t.GaussianBlur(3, (2, 1)), "sigma must be positive, or a pair 0 < a <= b"),
    ],
)
def test_bad_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
