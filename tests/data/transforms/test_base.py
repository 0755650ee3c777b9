"""What holds for every transform: draws from the generator alone, shapes and types, errors, names, pickling."""

import inspect
import pickle
from typing import Any

import numpy as np
import pytest

from lamina import data
from lamina.data import transforms as t
from lamina.spec import ShapeError
from tests.helpers.pictures import IMAGE, rng

FIXED = [
    t.Resize(7),
    t.Resize((5, 9)),
    t.CenterCrop(6),
    t.Pad((1, 2)),
    t.Pad(1, fill=(3,), padding_mode="reflect"),
    t.Grayscale(),
]
DRAWN = [
    t.RandomCrop((8, 5), padding=2),
    t.RandomResizedCrop(6),
    t.RandomHorizontalFlip(),
    t.RandomVerticalFlip(),
    t.RandomApply(t.Grayscale(3), 0.5),
    t.ColorJitter(0.4, 0.4, 0.4, 0.2),
    t.RandomChoice([t.RandomHorizontalFlip(1), t.RandomInvert(1)], [1, 3]),
    t.RandomOrder([t.Pad((1, 2, 3, 4)), t.CenterCrop(9)]),
    t.RandomRotation(30, "bilinear"),
    t.RandomAffine(10, (0.1, 0.2), (0.5, 2), (-10, 10, -5, 5)),
    t.RandomPerspective(),
    t.RandomGrayscale(0.5),
    t.RandomInvert(),
    t.RandomPosterize(3),
    t.RandomSolarize(128),
    t.RandomAdjustSharpness(2),
    t.RandomAutocontrast(),
    t.RandomEqualize(),
    t.GaussianBlur((3, 5)),
    t.AutoAugment(),
    t.AutoAugment("svhn"),
    t.RandAugment(),
    t.TrivialAugmentWide(),
    t.AugMix(),
]
EVERY = [*FIXED, *DRAWN]


@pytest.mark.parametrize("transform", EVERY, ids=repr)
def test_the_generator_alone_decides(transform: Any) -> None:
    image = np.tile(IMAGE, (2, 2, 1))  # a histogram of fewer pixels is not equalized
    before = image.copy()
    results = [transform(image, rng(seed)) for seed in (1, 1, *range(2, 30))]
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(image, before)
    assert all(r.dtype == np.uint8 for r in results)
    drawn = any(r.shape != results[0].shape or (r != results[0]).any() for r in results)
    assert drawn == any(transform is other for other in DRAWN)


@pytest.mark.parametrize("transform", EVERY, ids=repr)
def test_floats_and_one_channel(transform: Any) -> None:
    """Levels that are rounded in between, or that a threshold separates, may differ by more."""
    for seed in range(3):
        wide = transform(IMAGE.astype(np.float32), rng(seed))
        assert wide.dtype == np.float32
        narrow = transform(IMAGE, rng(seed)).astype(np.float32)
        assert (np.abs(wide - narrow) <= 2.5).mean() > (0.97 if "Aug" in repr(transform) else 0.9999)
        grey = transform(IMAGE[:, :, :1], rng(seed))
        assert (grey.ndim, grey.dtype) == (3, np.uint8)
    with pytest.raises(ShapeError, match=r"needs an image \(H, W, 3\) or \(H, W, 1\), got \(10, 14\)"):
        t.Compose([t.RandomApply(transform, 1.0)])(IMAGE[:, :, 0], rng())


@pytest.mark.parametrize("transform", EVERY, ids=repr)
def test_worker_processes_get_the_same_transform(transform: Any) -> None:
    sent = pickle.loads(pickle.dumps(transform))
    assert repr(sent) == repr(transform)
    np.testing.assert_array_equal(sent(IMAGE, rng(3)), transform(IMAGE, rng(3)))


@pytest.mark.parametrize("transform", EVERY, ids=repr)
def test_results_may_be_written_to_and_views_may_be_read(transform: Any) -> None:
    found = transform(IMAGE[::-1, ::-1], rng(1))
    np.testing.assert_array_equal(found, transform(IMAGE[::-1, ::-1].copy(), rng(1)))
    assert found.flags.writeable


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 5, 1), (7, 1, 1), (2, 2, 3)])
def test_tiny_images(shape: tuple[int, ...], dtype: Any) -> None:
    image = rng().integers(0, 256, shape).astype(dtype)
    image.flags.writeable = False
    for transform in EVERY:
        for seed in range(4):
            found = transform(image, rng(seed))
            assert found.dtype == dtype
            assert np.isfinite(found).all()


class Pictures:
    """A data set of 8 images, each augmented by the generator of its place."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.sample(index, rng(index))

    def sample(self, index: int, generator: np.random.Generator) -> Any:
        return self.transform(np.roll(IMAGE, index, 0), generator), index


def test_batches_do_not_depend_on_the_workers() -> None:
    transform = t.Compose(
        [
            t.RandomAffine(20, (0.1, 0.1)),
            t.RandAugment(),
            t.AugMix(),
            t.GaussianBlur(3),
            t.Normalize(0.5, 0.5),
        ]
    )
    kinds: list[dict[str, Any]] = [{}, {"num_workers": 2}, {"num_workers": 2, "processes": True}]
    batches = [
        [images for images, _ in data.DataLoader(Pictures(transform), batch_size=4, shuffle=True, **kind)]
        for kind in kinds
    ]
    for other in batches[1:]:
        np.testing.assert_array_equal(np.stack(batches[0]), np.stack(other))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: t.RandomInvert(1.5), "RandomInvert: p must be from 0 to 1, got 1.5"),
        (lambda: t.RandomGrayscale(-1), "RandomGrayscale: p must be from 0 to 1, got -1"),
        (lambda: t.RandomEqualize(float("nan")), "RandomEqualize: p must be from 0 to 1, got nan"),
        (lambda: t.Pad(1, fill=(1, 2)), "Pad: fill must be one number, or one for each channel"),
        (lambda: t.RandomRotation(1, fill=()), "RandomRotation: fill must be one number, or one for each"),
        (lambda: t.AugMix(fill=(1, 2, 3, 4)), "AugMix: fill must be one number, or one for each channel"),
    ],
)
def test_bad_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_fill_for_other_channels_is_named() -> None:
    for transform in (
        t.Pad(1, (1, 2, 3)),
        t.RandomRotation(9, fill=(1, 2, 3)),
        t.RandomAffine(9, fill=(1, 2, 3)),
    ):
        with pytest.raises(ShapeError, match=f"{type(transform).__name__}: 3 numbers in fill for 1 channels"):
            transform(IMAGE[..., :1], rng())


def test_an_old_name_says_the_new_one() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Border'; it is Pad now"):
        _ = t.Border
    with pytest.raises(
        AttributeError, match=r"no attribute 'ToDtype'; images are arrays .* and ToTensor makes"
    ):
        _ = t.ToDtype


def test_modes_are_strings() -> None:
    mode = t.InterpolationMode.BILINEAR
    assert repr(t.RandomRotation(3, mode)) == repr(t.RandomRotation(3, "bilinear"))
    assert repr(t.AutoAugment(t.AutoAugmentPolicy.SVHN)) == repr(t.AutoAugment("svhn"))
    with pytest.raises(ValueError, match="interpolation must be .*, got 'area'"):
        t.RandomRotation(3, "area")  # type: ignore[arg-type]


#: Arguments of torchvision's that are not taken, or taken differently; the defaults of the others are the same.
OURS = {
    "CutMix": "num_classes is needed",
    "Grayscale": "",
    "Lambda": "types of tensors",
    "MixUp": "num_classes is needed",
    "Normalize": "inplace",
    "RandomErasing": "inplace",
    "RandomCrop": "a smaller image is padded in any case",
    "RandomResizedCrop": "bilinear with antialiasing",
    "Resize": "bilinear with antialiasing",
}


@pytest.mark.torch
@pytest.mark.parametrize("name", [n for n in t.__all__ if n not in OURS and inspect.isclass(getattr(t, n))])
def test_arguments_and_defaults_are_torchvisions(name: str) -> None:
    from tests.helpers import vision

    theirs = getattr(vision.module("transforms.v2"), name)
    if issubclass(theirs, t.InterpolationMode.__mro__[-2]) or name in (
        "AutoAugmentPolicy",
        "InterpolationMode",
    ):
        known = {member.name: member.value for member in theirs}
        assert all(known[member.name] == member.value for member in getattr(t, name))
        return
    expected, found = (
        {p.name: p.default for p in inspect.signature(of).parameters.values()}
        for of in (theirs, getattr(t, name))
    )
    expected |= {k: v.value for k, v in expected.items() if k == "policy"}
    assert found == expected
