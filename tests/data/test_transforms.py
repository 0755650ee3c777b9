"""Augmentation: values by hand and by Pillow, the same draws from the same generator, shapes and types, errors."""

import colorsys
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lamina.data import transforms as t
from lamina.spec import ShapeError

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(0, 256, (10, 14, 3), np.uint8)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


EVERY = [
    t.Resize(7),
    t.Resize((5, 9)),
    t.CenterCrop(6),
    t.Border((1, 2)),
    t.RandomCrop((8, 5), padding=2),
    t.RandomResizedCrop(6),
    t.RandomHorizontalFlip(),
    t.RandomVerticalFlip(),
    t.RandomApply(t.Grayscale(3), 0.5),
    t.Grayscale(),
    t.ColorJitter(0.4, 0.4, 0.4, 0.2),
]


@pytest.mark.parametrize("transform", EVERY, ids=repr)
def test_the_generator_alone_decides(transform: Any) -> None:
    before = IMAGE.copy()
    results = [transform(IMAGE, rng(seed)) for seed in (1, 1, *range(2, 30))]
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(IMAGE, before)
    assert all(r.dtype == np.uint8 for r in results)
    drawn = any(r.shape != results[0].shape or (r != results[0]).any() for r in results)
    assert drawn == (
        type(transform).__name__ in ("RandomApply", "ColorJitter") or "Random" in repr(transform)
    )


@pytest.mark.parametrize("transform", EVERY, ids=repr)
def test_floats_and_one_channel(transform: Any) -> None:
    wide = transform(IMAGE.astype(np.float32), rng())
    assert wide.dtype == np.float32
    np.testing.assert_allclose(wide, transform(IMAGE, rng()).astype(np.float32), atol=2.5)
    assert transform(IMAGE[:, :, :1], rng()).ndim == 3
    with pytest.raises(ShapeError, match=r"needs an image \(H, W, 3\) or \(H, W, 1\), got \(10, 14\)"):
        t.Compose([t.RandomApply(transform, 1.0)])(IMAGE[:, :, 0], rng())


def test_sizes_are_those_of_torchvision() -> None:
    """A number is the smaller side; the other one keeps the ratio, rounded down."""
    assert t.Resize(5)(IMAGE, rng()).shape == (5, 7, 3)
    assert t.Resize(5)(IMAGE.swapaxes(0, 1), rng()).shape == (7, 5, 3)
    assert t.Resize((5, 9))(IMAGE, rng()).shape == (5, 9, 3)
    assert t.CenterCrop((4, 6))(IMAGE, rng()).shape == (4, 6, 3)
    np.testing.assert_array_equal(t.CenterCrop((4, 6))(IMAGE, rng()), IMAGE[3:7, 4:10])
    odd = rng().integers(0, 256, (37, 53, 3), np.uint8)  # 13.5 rows above are 14, as torchvision rounds them
    np.testing.assert_array_equal(t.CenterCrop((10, 21))(odd, rng()), odd[14:24, 16:37])
    large = t.CenterCrop((12, 14))(IMAGE, rng())
    np.testing.assert_array_equal(large[1:11], IMAGE)
    assert not large[[0, 11]].any()


@pytest.mark.parametrize("size", [(5, 7), (10, 6), (23, 31)])
def test_scaling_is_pillow_s(size: tuple[int, int]) -> None:
    expected = np.asarray(Image.fromarray(IMAGE).resize(size[::-1], Image.Resampling.BILINEAR))
    assert np.abs(t.Resize(size)(IMAGE, rng()).astype(int) - expected).max() <= 1


def test_padding() -> None:
    np.testing.assert_array_equal(
        t.Border((1, 2, 3, 4), fill=7)(IMAGE, rng()),
        np.pad(IMAGE, ((2, 4), (1, 3), (0, 0)), constant_values=7),
    )
    for mode in ("edge", "reflect", "symmetric"):
        np.testing.assert_array_equal(
            t.Border(2, padding_mode=mode)(IMAGE, rng()),
            np.pad(IMAGE, ((2, 2), (2, 2), (0, 0)), mode),  # type: ignore[call-overload]
        )


def test_crops_are_everywhere_and_within() -> None:
    places = set()
    for seed in range(200):
        part = t.RandomCrop(9)(IMAGE, rng(seed))
        (place,) = [(i, j) for i in range(2) for j in range(6) if (IMAGE[i : i + 9, j : j + 9] == part).all()]
        places.add(place)
    assert len(places) == 12
    assert t.RandomCrop((16, 20))(IMAGE, rng()).shape == (16, 20, 3)  # padded with zeros


def test_resized_crops_have_the_area_and_the_ratio() -> None:
    """On a picture of its own coordinates."""
    rows, columns = np.mgrid[:64, :64].astype(np.float32)
    picture = np.stack([rows, columns, rows], 2)
    for seed in range(50):
        crop = t.RandomResizedCrop(32, (0.25, 0.5), (0.5, 2.0))(picture, rng(seed))
        height = (crop[-1, 0, 0] - crop[0, 0, 0]) * 32 / 31
        width = (crop[0, -1, 1] - crop[0, 0, 1]) * 32 / 31
        assert 0.2 < height * width / 64**2 < 0.56
        assert 0.45 < width / height < 2.2
    # Where nothing fits, the middle.
    assert t.RandomResizedCrop(4, (0.9, 1.0), (20.0, 30.0))(IMAGE, rng()).shape == (4, 4, 3)


@pytest.mark.parametrize(
    ("height", "width", "part"),
    [(1000, 9, (494, 0, 12, 9)), (9, 1000, (0, 494, 9, 12)), (1000, 10, (493, 0, 13, 10))],
)
def test_where_no_crop_fits_it_is_as_large_as_the_ratios_allow(
    height: int, width: int, part: tuple[int, int, int, int]
) -> None:
    """Widths over heights from 3/4 to 4/3, in the middle."""
    assert t.RandomResizedCrop(4, (0.9, 1.0), (0.75, 4 / 3))._part(height, width, rng()) == part


def test_flips() -> None:
    np.testing.assert_array_equal(t.RandomHorizontalFlip(1)(IMAGE, rng()), IMAGE[:, ::-1])
    np.testing.assert_array_equal(t.RandomVerticalFlip(1)(IMAGE, rng()), IMAGE[::-1])
    np.testing.assert_array_equal(t.RandomHorizontalFlip(0)(IMAGE, rng()), IMAGE)
    flipped = sum((t.RandomHorizontalFlip()(IMAGE, rng(s)) != IMAGE).any() for s in range(200))
    assert 70 < flipped < 130


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


def test_tensors() -> None:
    made = t.ToTensor()(IMAGE, rng())
    assert (made.dtype, made.shape) == (np.float32, (3, 10, 14))
    np.testing.assert_allclose(made, IMAGE.transpose(2, 0, 1) / 255, rtol=1e-6)
    normal = t.Normalize([0.5, 0.4, 0.3], (0.2, 0.1, 0.5))
    expected = (made - np.float32([0.5, 0.4, 0.3])[:, None, None]) / np.float32([0.2, 0.1, 0.5])[
        :, None, None
    ]
    for given in (IMAGE, made):
        np.testing.assert_allclose(normal(given, rng()), expected, rtol=1e-5)
    assert t.Normalize(0.5, 0.5)(IMAGE, rng()).shape == (3, 10, 14)
    with pytest.raises(ShapeError, match="Normalize: 2 numbers in mean for 3 channels"):
        t.Normalize([0, 1], 1.0)(IMAGE, rng())
    with pytest.raises(ValueError, match="std must not be 0"):
        t.Normalize(0.0, [1, 0, 1])


def test_erasing() -> None:
    made = t.ToTensor()(IMAGE, rng()) + 1
    np.testing.assert_array_equal(t.RandomErasing(0)(made, rng()), made)
    for seed in range(20):
        erased = t.RandomErasing(1, (0.1, 0.3))(made, rng(seed))
        hole = erased[0] == 0
        assert 0.05 < hole.mean() < 0.4
        rows, columns = np.flatnonzero(hole.any(1)), np.flatnonzero(hole.any(0))
        assert hole[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
        np.testing.assert_array_equal(erased[:, ~hole], made[:, ~hole])


# ---- batches

IMAGES, LABELS = RNG.standard_normal((8, 3, 6, 7)).astype(np.float32), np.arange(8) % 4


def test_mixup_is_the_weighted_sum() -> None:
    mixed, shares = t.MixUp(4, alpha=0.4)((IMAGES, LABELS), rng(3))
    again = rng(3)
    other, weight = again.permutation(8), again.beta(0.4, 0.4)
    np.testing.assert_allclose(mixed, IMAGES * weight + IMAGES[other] * (1 - weight), atol=1e-6)
    one = np.eye(4)
    np.testing.assert_allclose(shares, one[LABELS] * weight + one[LABELS[other]] * (1 - weight), atol=1e-6)
    assert (mixed.dtype, shares.dtype) == (np.float32, np.float32)
    again_mixed, again_shares = t.MixUp(4)((mixed, shares), rng(1))  # of probabilities
    np.testing.assert_allclose(again_shares.sum(1), 1, rtol=1e-6)
    assert again_mixed.shape == IMAGES.shape


def test_cutmix_takes_a_rectangle_of_another() -> None:
    for seed in range(20):
        mixed, shares = t.CutMix(4)((IMAGES, LABELS), rng(seed))
        other = rng(seed).permutation(8)
        from_own = (mixed == IMAGES).all(1)
        from_other = (mixed == IMAGES[other]).all(1)
        assert (from_own | from_other).all()
        moved = [i for i in range(8) if other[i] != i]
        share = from_own[moved].mean()
        assert (from_own[moved] == from_own[moved[0]]).all()
        expected = np.eye(4)[LABELS] * share + np.eye(4)[LABELS[other]] * (1 - share)
        np.testing.assert_allclose(shares[moved], expected[moved], atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: t.Resize(0), "Resize: size must be one or two numbers of at least 1, got 0"),
        (lambda: t.CenterCrop((1, 2, 3)), "CenterCrop: size must be one or two numbers"),  # type: ignore[arg-type]
        (lambda: t.Border((1, 2, 3)), "Border: padding must be 1, 2 or 4 numbers"),
        (lambda: t.Border(1, padding_mode="wrap"), "padding_mode must be constant, edge"),
        (lambda: t.RandomHorizontalFlip(1.5), "RandomHorizontalFlip: p must be from 0 to 1, got 1.5"),
        (lambda: t.RandomResizedCrop(3, scale=(0.5, 0.1)), "scale must be a pair 0 < a <= b"),
        (lambda: t.Grayscale(2), "num_output_channels must be 1 or 3, got 2"),
        (lambda: t.ColorJitter(hue=0.6), "hue must be a number or a pair within"),
        (lambda: t.ColorJitter(brightness=-1), "brightness must be a number or a pair"),
        (lambda: t.MixUp(1), "MixUp: needs num_classes >= 2 and alpha > 0, got 1 and 1.0"),
        (lambda: t.CutMix(3, alpha=0), "CutMix: needs num_classes >= 2 and alpha > 0, got 3 and 0"),
    ],
)
def test_bad_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_compose_takes_functions() -> None:
    found = t.Compose([t.Resize(5), lambda image, rng: image + 1])
    np.testing.assert_array_equal(found(IMAGE, rng()), t.Resize(5)(IMAGE, rng()) + 1)
    assert repr(found).startswith("Compose([Resize(size=5)")
    with pytest.raises(TypeError, match="transforms must be functions"):
        t.Compose([t.ToTensor])
