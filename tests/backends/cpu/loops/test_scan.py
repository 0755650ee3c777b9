"""Running sums, products and extrema: values, and the order of sums."""

import numpy as np
import pytest

from lamina.backends.cpu.loops import table
from lamina.ops.core import REGISTRY
from lamina.ops.primitives import Scan
from lamina.runtime import Device
from lamina.spec import Spec, float32
from tests.helpers.eager import execute
from tests.helpers.loops import check_samples, needs_llvm, plan

pytestmark = needs_llvm


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LEAST", 0)


@pytest.mark.parametrize("name", ["scan"])
def test_values(name: str) -> None:
    assert check_samples(REGISTRY[name], dtypes=1, samples=2) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scan"])
def test_values_of_all_dtypes(name: str) -> None:
    check_samples(REGISTRY[name], dtypes=9, samples=99)


@pytest.mark.parametrize(("shape", "axis"), [((19, 50), 1), ((3, 40, 300), 1), ((40, 3), 0)], ids=str)
def test_sums_are_added_in_order(shape: tuple[int, ...], axis: int) -> None:
    """Bit for bit NumPy's in float64, rounded once, however many lines go side by side."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    (y,) = execute(Device("cpu"), plan(Scan("sum", axis), [Spec(shape, float32).fixed]), [x])
    np.testing.assert_array_equal(y, np.cumsum(x, axis, dtype=np.float64).astype(np.float32))
