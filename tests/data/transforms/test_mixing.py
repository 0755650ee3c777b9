"""Mixing of batches: values by hand, errors."""

from typing import Any

import numpy as np
import pytest

from lamina.data import transforms as t
from tests.helpers.pictures import rng

RNG = rng()
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
        (lambda: t.MixUp(1), "MixUp: needs num_classes >= 2 and alpha > 0, got 1 and 1.0"),
        (lambda: t.CutMix(3, alpha=0), "CutMix: needs num_classes >= 2 and alpha > 0, got 3 and 0"),
    ],
)
def test_bad_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
