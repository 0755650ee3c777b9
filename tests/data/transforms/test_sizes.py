"""Sizes: values by hand, by Pillow and by torchvision; where crops lie; errors."""

from typing import Any

import numpy as np
import pytest
from PIL import Image

from lamina.data import transforms as t
from tests.helpers.pictures import IMAGE, SHAPES, by_tensors, picture, rng


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


@pytest.mark.torch
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("interpolation", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_scaling_is_torchvision_s(interpolation: str, antialias: bool, dtype: Any, shape: Any) -> None:
    from tests.helpers.pictures import functional

    mode: Any = getattr(functional().InterpolationMode, interpolation.upper().replace("-", "_"))
    image = picture(shape, dtype)
    for size in ((20, 61), (70, 15)):
        wanted = by_tensors("resize", image, size, mode, antialias=antialias)
        found = t.Resize(size, interpolation, antialias=antialias)(image, rng())  # type: ignore[arg-type]
        assert found.dtype == dtype
        apart = np.abs(found.astype(float) - wanted.astype(float))
        assert apart.max() <= (1 if dtype == np.uint8 else 1e-3)


@pytest.mark.torch
@pytest.mark.parametrize("shape", [(33, 47, 3), (47, 20, 1), (10, 90, 3)])
def test_one_number_and_the_largest_side(shape: Any) -> None:
    image = picture(shape)
    for size, most in ((16, None), (16, 20), (40, 41), (7, 100)):
        wanted = by_tensors("resize", image, [size], max_size=most).shape
        assert t.Resize(size, max_size=most)(image, rng()).shape == wanted


def test_a_crop_of_a_padded_image() -> None:
    image = picture((5, 6, 3))
    part = t.RandomCrop(8, pad_if_needed=True, fill=(7, 8, 9))(image, rng())
    assert part.shape == (8, 8, 3)
    assert (part == (7, 8, 9)).all(2).sum() == 64 - 30  # the image is whole
    mirrored = t.RandomCrop(8, pad_if_needed=True, padding_mode="symmetric")(image, rng())
    assert set(map(tuple, mirrored.reshape(-1, 3))) <= set(map(tuple, image.reshape(-1, 3)))
    small = t.RandomResizedCrop(9, interpolation="nearest")(image, rng())
    assert set(map(tuple, small.reshape(-1, 3))) <= set(map(tuple, image.reshape(-1, 3)))


def test_padding() -> None:
    np.testing.assert_array_equal(
        t.Pad((1, 2, 3, 4), fill=7)(IMAGE, rng()),
        np.pad(IMAGE, ((2, 4), (1, 3), (0, 0)), constant_values=7),
    )
    for mode in ("edge", "reflect", "symmetric"):
        np.testing.assert_array_equal(
            t.Pad(2, padding_mode=mode)(IMAGE, rng()),
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


@pytest.mark.torch
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_padding_is_torchvisions(mode: Any, shape: tuple[int, ...], dtype: Any) -> None:
    image = picture(shape, dtype)
    fill = [9.0] if shape[2] == 1 else [9.0, 0.0, 255.0]
    for padding in (3, [2], [1, 4], [1, 2, 3, 4]):
        options = {"fill": fill} if mode == "constant" else {}
        scaled = {"fill": [f / 255 for f in fill]} if options and dtype == np.float32 else options
        expected = by_tensors("pad", image, padding, padding_mode=mode, **scaled)
        found = t.Pad(padding, padding_mode=mode, **options)(image, rng())
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        assert found.dtype == dtype


@pytest.mark.torch
@pytest.mark.parametrize("shape", SHAPES)
def test_five_and_ten_crops_are_torchvisions(shape: tuple[int, ...]) -> None:
    from tests.helpers import pictures

    image = picture(shape)
    for name, transform, options in (
        ("five_crop", t.FiveCrop((11, 16)), {}),
        ("ten_crop", t.TenCrop((11, 16)), {}),
        ("ten_crop", t.TenCrop((11, 16), vertical_flip=True), {"vertical_flip": True}),
    ):
        expected = pictures.several_by_tensors(name, image, [11, 16], **options)
        found = transform(image, rng())
        assert isinstance(found, tuple)
        np.testing.assert_array_equal(np.stack(found), np.stack(expected))


def test_crops_become_one_array() -> None:
    """As in torchvision's example: the network sees the ten crops as a batch."""
    whole = t.Compose([t.TenCrop(6), t.Lambda(np.stack)])
    assert whole(IMAGE, rng()).shape == (10, 6, 6, 3)


def test_crops_larger_than_the_image_are_named() -> None:
    for transform in (t.FiveCrop((11, 5)), t.TenCrop((11, 5))):
        with pytest.raises(
            ValueError, match=r"size \(11, 5\) is larger than the image's \(10, 14\); pad it first"
        ):
            transform(IMAGE, rng())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: t.Resize(0), "Resize: size must be one or two numbers of at least 1, got 0"),
        (lambda: t.Resize(9, max_size=9), "Resize: max_size must exceed a size of one number, got 9 and 9"),
        (lambda: t.Resize((9, 8), max_size=10), "max_size must exceed a size of one number, got 10 and"),
        (lambda: t.CenterCrop((1, 2, 3)), "CenterCrop: size must be one or two numbers"),
        (lambda: t.FiveCrop(-1), "FiveCrop: size must be one or two numbers of at least 1, got -1"),
        (lambda: t.TenCrop((0, 3)), "TenCrop: size must be one or two numbers of at least 1"),
        (lambda: t.Pad((1, 2, 3)), "Pad: padding must be 1, 2 or 4 numbers"),
        (lambda: t.Pad(-1), "Pad: padding must be 1, 2 or 4 numbers of at least 0, got -1"),
        (lambda: t.Pad(1, padding_mode="wrap"), "padding_mode must be one of 'constant', 'edge'"),  # type: ignore[arg-type]
        (lambda: t.RandomResizedCrop(3, scale=(0.5, 0.1)), "scale must be a pair 0 < a <= b"),
    ],
)
def test_bad_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
