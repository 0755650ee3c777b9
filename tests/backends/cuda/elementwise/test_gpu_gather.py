"""Scatters whose lines blocks hold, on a GPU: as many lines as fill it, entries that collide, the order of sums."""

import numpy as np
import pytest

from lamina import backends
from lamina.ops.primitives.gather import Scatter, ScatterMode
from lamina.runtime import Device
from lamina.spec import Shape
from tests.helpers.eager import run_on

pytestmark = pytest.mark.gpu


def _one_by_one(x: np.ndarray, index: np.ndarray, source: np.ndarray, mode: str) -> np.ndarray:
    """Entries of all lines along the last axis, in their order, in float32."""
    y, lines = x.copy(), np.arange(len(x))
    for k in range(index.shape[1]):
        here = lines, index[:, k]
        if mode == "add":
            y[here] += source[:, k]
        else:
            y[here] = source[:, k] if mode == "set" else np.minimum(y[here], source[:, k])
    return y


@pytest.mark.parametrize("mode", ["add", "set", "min"])
@pytest.mark.parametrize(
    ("shape", "entries"), [((8192, 1024), 256), ((999, 1000), 1000), ((5000, 77), 300), ((140, 6144), 2048)]
)
def test_entries_are_combined_in_their_order(shape: Shape, entries: int, mode: ScatterMode) -> None:
    """Bit by bit."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    index = rng.integers(0, shape[1], (shape[0], entries))
    index[0] = shape[1] - 1
    source = rng.standard_normal(index.shape).astype(np.float32)
    wanted = _one_by_one(x, index, source, mode)
    (found,) = run_on(backends.get(Device("cuda:0")), Scatter(1, mode), [x, index, source])
    np.testing.assert_array_equal(found, wanted)
    across = [np.ascontiguousarray(a.T) for a in (x, index, source)]
    (found,) = run_on(backends.get(Device("cuda:0")), Scatter(0, mode), across)
    np.testing.assert_array_equal(found.T, wanted)
