"""Sampling of images that blocks hold in shared memory, on a GPU, as many as fill it."""

from typing import Any

import numpy as np
import pytest

from lamina import backends
from lamina.backends.reference import run_reference
from lamina.ops.primitives import GridSample
from lamina.runtime import Device
from lamina.spec import DType, Shape, as_dtype, bfloat16, float32, float64
from tests.helpers.eager import mismatch, run_on

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("options", "shape", "places", "dtype"),
    [
        (("bilinear", "zeros", False), (16, 34, 56, 56), (16, 56, 57, 2), float32),
        (("bicubic", "reflection", True), (9, 64, 33, 31), (9, 40, 40, 2), bfloat16),
        (("nearest", "border", False), (200, 1, 100, 130), (200, 70, 99, 2), float64),
        (("bilinear", "zeros", False), (20, 8, 20, 20, 20), (20, 9, 20, 11, 3), float32),
    ],
)
def test_values(options: Any, shape: Shape, places: Shape, dtype: DType) -> None:
    rng = np.random.default_rng(0)
    x = (rng.integers(-16, 17, shape) / 8).astype(dtype.numpy)
    grid = (rng.integers(-83, 84, places) / 64).astype(dtype.numpy)  # weights of two taps are exact
    (found,) = run_on(backends.get(Device("cuda:0")), GridSample(*options), [x, grid])
    (wanted,) = run_reference(GridSample(*options), [x, grid], float64)
    assert not mismatch(found, wanted, as_dtype(found.dtype))
