"""Automatic augmentation: magnitudes and operations by torchvision, what is drawn, errors."""

from typing import Any

import numpy as np
import pytest

from lamina.data import transforms as t
from lamina.data.transforms import automatic
from tests.helpers.pictures import IMAGE, SHAPES, picture, rng


def theirs(name: str, *args: Any, **options: Any) -> Any:
    from tests.helpers import vision

    return getattr(vision.module("transforms.v2"), name)(*args, **options)


def spaces(height: int, width: int) -> Any:
    """Our spaces beside torchvision's functions of bins, height and width."""
    found = automatic._found_space(10, height, width) | {"Invert": automatic._Choice()}
    rand = {"Identity": automatic._Choice()} | automatic._found_space(31, height, width)
    mix = theirs("AugMix")
    return (
        (found, theirs("AutoAugment")._AUGMENTATION_SPACE, 10),
        (rand, theirs("RandAugment")._AUGMENTATION_SPACE, 31),
        (automatic._wide_space(31), theirs("TrivialAugmentWide")._AUGMENTATION_SPACE, 31),
        (automatic._mixed_space(height, width, True), mix._AUGMENTATION_SPACE, 10),
        (automatic._mixed_space(height, width, False), mix._PARTIAL_AUGMENTATION_SPACE, 10),
    )


@pytest.mark.torch
def test_magnitudes_are_torchvisions() -> None:
    for found, expected, bins in spaces(33, 47):
        assert set(found) == set(expected)
        for name, (magnitudes, signed) in expected.items():
            steps = magnitudes(bins, 33, 47)
            assert found[name].signed == signed
            assert (found[name].magnitudes is None) == (steps is None)
            if steps is not None:
                np.testing.assert_allclose(found[name].magnitudes, steps.numpy(), rtol=1e-6, atol=1e-6)


#: Operations whose levels torchvision rounds down, at one or two steps, where here is rounded to the nearest.
ROUNDED = {"Brightness", "Color", "Contrast", "Sharpness", "AutoContrast"}


@pytest.mark.torch
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("operation", sorted(automatic._OPERATIONS))
def test_operations_are_torchvisions(operation: str, mode: Any, shape: tuple[int, ...]) -> None:
    """On Pillow's images."""
    from PIL import Image

    image = picture(shape)
    for magnitude in (0.0, 0.3, 0.9, 5.0, -0.7) if operation != "Posterize" else (1, 4, 8):
        if operation in {"Solarize", *ROUNDED} and not -1 <= magnitude <= 1:
            continue
        fill = None if magnitude < 0.5 else 7 if shape[2] == 1 else [7, 8, 9]
        given = Image.fromarray(image if shape[2] == 3 else image[..., 0])
        policy = theirs("AutoAugment", interpolation=mode, fill=fill)
        expected = policy._apply_image_or_video_transform(given, operation, magnitude, mode, policy._fill)
        found = t.AutoAugment(interpolation=mode, fill=fill)._apply(image, operation, magnitude)
        apart = np.abs(found.reshape(np.shape(expected)).astype(int) - np.asarray(expected))
        # Between two levels the last bit of a slope decides.
        assert apart.max() <= (2 if operation in ROUNDED else mode == "bilinear")
        assert operation in ROUNDED or (apart > 0).mean() < 0.01


def applied(
    transform: Any, monkeypatch: pytest.MonkeyPatch, seeds: int, image: Any = IMAGE
) -> list[list[Any]]:
    """The operations and magnitudes of one call after another."""
    calls: list[list[Any]] = []

    def note(self: Any, image: Any, operation: str, magnitude: float) -> Any:
        calls[-1].append((operation, magnitude))
        return image

    monkeypatch.setattr(automatic._Automatic, "_apply", note)
    for seed in range(seeds):
        calls.append([])
        transform(image, rng(seed))
    return calls


def test_pairs_are_drawn_with_their_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = applied(t.AutoAugment("svhn"), monkeypatch, 3000)
    names = [name for call in calls for name, _ in call]
    steps = [step for pair in automatic.POLICIES["svhn"] for step in pair]
    for operation in {name for name, _, _ in steps}:
        expected = sum(p for name, p, _ in steps if name == operation) / 25
        assert abs(names.count(operation) / 3000 - expected) < 0.05
    slopes = {m for call in calls for name, m in call if name == "ShearX"}
    levels = np.linspace(0, 0.3, 10)[sorted({which for name, _, which in steps if name == "ShearX"})]
    np.testing.assert_allclose(sorted(slopes), np.sort([*levels, *-levels]))


def test_operations_of_one_magnitude(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = applied(t.RandAugment(3, 15), monkeypatch, 1000)
    assert all(len(call) == 3 for call in calls)
    names = [name for call in calls for name, _ in call]
    assert len(set(names)) == 14
    assert all(150 < names.count(name) < 290 for name in set(names))
    assert {m for call in calls for name, m in call if name == "Rotate"} == {-15.0, 15.0}
    assert applied(t.RandAugment(0), monkeypatch, 1) == [[]]


def test_operations_of_any_magnitude(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = applied(t.TrivialAugmentWide(), monkeypatch, 4000)
    assert all(len(call) == 1 for call in calls)
    assert {m for ((name, m),) in calls if name == "Posterize"} == {2, 3, 4, 5, 6, 7, 8}
    angles = sorted({abs(m) for ((name, m),) in calls if name == "Rotate"})
    np.testing.assert_allclose(angles, np.linspace(0, 135, 31))
    one = t.TrivialAugmentWide(num_magnitude_bins=1)
    assert np.isfinite([m for call in applied(one, monkeypatch, 50) for _, m in call]).all()


def test_chains_are_as_many_and_as_deep_as_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {len(call) for call in applied(t.AugMix(chain_depth=2), monkeypatch, 5)} == {6}
    calls = applied(t.AugMix(mixture_width=1, severity=4), monkeypatch, 400)
    assert {len(call) for call in calls} == {1, 2, 3}
    angles = sorted({abs(m) for call in calls for name, m in call if name == "Rotate"})
    np.testing.assert_allclose(angles, np.linspace(0, 30, 10)[:4])
    some = applied(t.AugMix(all_ops=False), monkeypatch, 100)
    assert not {name for call in some for name, _ in call} & {"Brightness", "Color", "Contrast", "Sharpness"}


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_weights_of_a_mixture_sum_to_one(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic._Automatic, "_apply", lambda self, image, *_: image)
    image = picture(SHAPES[0], dtype)
    for seed in range(5):
        found = t.AugMix(alpha=0.5)(image, rng(seed))
        assert found.dtype == dtype
        np.testing.assert_allclose(found, image, atol=1e-3)


def test_a_mixture_is_the_weighted_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the image and of one chain, which darkens it to nothing."""
    monkeypatch.setattr(automatic._Automatic, "_apply", lambda self, image, *_: image * 0)
    image = picture(SHAPES[0], np.float32)
    shares = [t.AugMix(mixture_width=1)(image, rng(seed))[3, 4, 0] / image[3, 4, 0] for seed in range(300)]
    assert 0 <= min(shares) < 0.02  # alpha = 1: any share is as likely as another
    assert 0.98 < max(shares) <= 1
    assert abs(np.mean(shares) - 0.5) < 0.05


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: t.AutoAugment("mnist"), "policy must be .*'svhn'.*, got 'mnist'"),  # type: ignore[arg-type]
        (lambda: t.RandAugment(-1), "RandAugment: num_ops must be at least 0, got -1"),
        (
            lambda: t.RandAugment(2, 31),
            "magnitude must be at least 0 and less than num_magnitude_bins, got 31 and 31",
        ),
        (lambda: t.TrivialAugmentWide(0), "num_magnitude_bins must be at least 1, got 0"),
        (lambda: t.AugMix(11), "AugMix: severity must be from 1 to 10, got 11"),
        (lambda: t.AugMix(mixture_width=0), "mixture_width >= 1 and a finite alpha > 0, got 0 and 1.0"),
        (lambda: t.AugMix(alpha=0), "mixture_width >= 1 and a finite alpha > 0, got 3 and 0"),
    ],
)
def test_bad_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
