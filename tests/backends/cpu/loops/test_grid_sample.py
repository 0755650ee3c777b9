"""Images read at places that are data, and the gradients of that."""

import numpy as np
import pytest

from lamina.backends.cpu.loops import table
from lamina.backends.reference import run_reference
from lamina.ops.core import REGISTRY
from lamina.ops.primitives import GridSample
from lamina.runtime import Device
from lamina.spec import Spec, float32
from tests.helpers.eager import execute
from tests.helpers.loops import check_samples, needs_llvm, plan

pytestmark = needs_llvm


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LEAST", 0)


@pytest.mark.parametrize("name", ["grid_sample", "grid_sample_grad", "grid_sample_grid_grad"])
def test_values(name: str) -> None:
    assert check_samples(REGISTRY[name], dtypes=1, samples=2) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grid_sample", "grid_sample_grad", "grid_sample_grid_grad"])
def test_values_of_all_dtypes(name: str) -> None:
    check_samples(REGISTRY[name], dtypes=9, samples=99)


def test_places_of_several_blocks_that_are_no_numbers() -> None:
    """NaN in the grid counts as far outside; NaN in the image reaches the places that read it alone."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 6, 7)).astype(np.float32)
    grid = rng.uniform(-1.3, 1.3, (2, 23, 19, 2)).astype(np.float32)
    grid[0, 3, 4], x[1, 2, 0, 0] = np.nan, np.nan
    for padding in ("zeros", "border", "reflection"):
        op = GridSample("bilinear", padding)
        (y,) = execute(Device("cpu"), plan(op, [Spec(a.shape, float32).fixed for a in (x, grid)]), [x, grid])
        np.testing.assert_allclose(y, run_reference(op, [x, grid])[0], rtol=1e-4, atol=1e-4)
