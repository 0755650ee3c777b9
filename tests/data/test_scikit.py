"""The handwritten digits: a fixed, stratified cut; scaling and shifting of images."""

from typing import Any

import numpy as np
import pytest

from lamina import data
from lamina.data.image import bilinear, resample

load_digits = pytest.importorskip("sklearn.datasets").load_digits
cut = pytest.importorskip("lamina.data.scikit").cut
VALIDATION = [5, 9, 12, 14, 16, 17, 19, 23]
TEST = [0, 1, 6, 10, 11, 15, 20, 25]


COUNTS = {"train": 1079, "validation": 359, "test": 359}


def whole(split: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x, y = next(iter(data.digits(COUNTS[split], 8, split)))
    return x, y


@pytest.mark.parametrize("split", ["validation", "test"])
def test_the_cut_is_fixed_and_stratified(split: str) -> None:
    (x, y), (held_x, held_y) = whole("train"), whole(split)
    assert (x.shape, held_x.shape) == ((1079, 1, 8, 8), (359, 1, 8, 8))
    assert (x.dtype, y.dtype) == (np.float32, np.int64)
    every = np.concatenate([y, held_y, whole("test" if split == "validation" else "validation")[1]])
    assert np.abs(np.bincount(held_y) / np.bincount(every) - 0.2).max() < 0.005
    assert held_y[:12].tolist() == next(iter(data.digits(12, 8, split, seed=9)))[1].tolist()


def test_no_scan_is_in_two_splits() -> None:
    """The set itself has hardly any doubles."""
    images = [{image.tobytes() for image in whole(split)[0]} for split in COUNTS]
    assert sum(map(len, images)) - len(set().union(*images)) <= 2


def test_the_splits_are_those_of_every_version() -> None:
    """By index: what was chosen on validation stays chosen on the same scans."""
    labels = load_digits().target
    assert np.flatnonzero(cut(labels) == 1)[:8].tolist() == VALIDATION
    assert np.flatnonzero(cut(labels) == 2)[:8].tolist() == TEST


def test_normalised_by_the_training_scans() -> None:
    x, _ = whole("train")
    assert abs(x.mean()) < 1e-5
    assert x.std() == pytest.approx(1.0, abs=1e-4)


def test_defaults_of_the_splits() -> None:
    train, test = data.digits(100, 8), data.digits(100, 8, "test")
    assert (train.shuffle, train.drop_last, len(train)) == (True, True, 10)
    assert (test.shuffle, test.drop_last, len(test)) == (False, False, 4)
    assert data.digits(100, 8, split="validation").shuffle is False
    assert data.digits(100, 8, shuffle=False, drop_last=False).shuffle is False


def test_scaled_to_any_size() -> None:
    x, _ = next(iter(data.digits(4, 224)))
    assert x.shape == (4, 1, 224, 224)
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        data.digits(4, 0)
    with pytest.raises(ValueError, match="split must be one of train, validation, test, got 'dev'"):
        data.digits(4, 8, "dev")


def test_shifts_are_for_training_alone_and_repeat() -> None:
    plain = next(data.digits(8, 32, seed=1).epoch(0))[0]
    moved = [next(data.digits(8, 32, seed=1, shift=1.0).epoch(0))[0] for _ in range(2)]
    np.testing.assert_array_equal(*moved)
    assert np.abs(moved[0] - plain).max() > 0.5
    held = [next(data.digits(8, 32, "test", shift=s).epoch(0))[0] for s in (0.0, 1.0)]
    np.testing.assert_array_equal(*held)


# ---- scaling


def test_bilinear_weights() -> None:
    np.testing.assert_allclose(bilinear(4, 4), np.eye(4))
    doubled = bilinear(4, 2)  # places -0.25, 0.25, 0.75, 1.25
    np.testing.assert_allclose(doubled, [[0.75, 0.0], [0.75, 0.25], [0.25, 0.75], [0.0, 0.75]])
    np.testing.assert_allclose(bilinear(3, 3, 1.0), np.eye(3, k=-1))  # one pixel down
    assert bilinear(6, 3, np.zeros(5)).shape == (5, 6, 3)


def test_resample_keeps_constant_images_inside_and_moves_by_pixels() -> None:
    flat = resample(np.full((2, 8, 8), 3.0), 64)
    np.testing.assert_allclose(flat[:, :, 8:-8, 8:-8], 3.0, rtol=1e-6)

    class Fixed(np.random.Generator):
        def uniform(self, *_: object) -> np.ndarray:  # type: ignore[type-arg, override]
            return np.array([[1.0], [-2.0]])  # one down, two to the left

    image = np.arange(25, dtype=np.float32).reshape(1, 5, 5)
    moved = resample(image, 5, Fixed(np.random.PCG64(0)), 2.0)[0, 0]
    np.testing.assert_allclose(moved[1:, :3], image[0, :4, 2:], rtol=1e-6)
    assert not moved[0].any()
