"""The transforms that Pillow computes: types and layouts of images, and what is said where it is missing."""

import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lamina._lazy import lazy
from lamina.data.transforms import pillow
from tests.helpers.pictures import IMAGE


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_a_shift_by_whole_pixels(dtype: Any, channels: int) -> None:
    image = IMAGE[..., :channels].astype(dtype)
    fill = np.arange(7, 7 + channels).astype(dtype)
    found = pillow.warped(image, "affine", (1, 0, 2, 0, 1, -3), "nearest", fill)
    assert (found.dtype, found.shape) == (image.dtype, image.shape)
    np.testing.assert_array_equal(found[3:, :-2], image[:-3, 2:])
    np.testing.assert_array_equal(found[:3], np.broadcast_to(fill, found[:3].shape))


def test_rotations_are_pillows() -> None:
    expected = Image.fromarray(IMAGE).rotate(31, Image.Resampling.BICUBIC, True, (2, 3), None, (1, 2, 3))
    found = pillow.rotated(IMAGE, 31, "bicubic", np.uint8([1, 2, 3]), True, (2, 3))
    np.testing.assert_array_equal(found, np.asarray(expected))


def test_missing_pillow_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "lamina.data.transforms.pillow", raising=False)
    load = lazy("lamina.data.transforms", {"found": "lamina.data.transforms.pillow"})
    with pytest.raises(ImportError, match=r"geometric transforms need Pillow: pip install 'lamina\[image\]'"):
        load("found")
