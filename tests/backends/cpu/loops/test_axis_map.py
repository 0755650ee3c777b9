"""Linear maps along axes: values, planes that are too large to keep, and elements that are not finite."""

import numpy as np
import pytest

from lamina.backends.cpu.loops import axis_map, table
from lamina.ops.core import REGISTRY
from lamina.ops.primitives import MapAxes
from lamina.ops.primitives.axis_map import AxisMap
from lamina.runtime import Device
from lamina.spec import DType, Spec, bfloat16, float32
from tests.helpers.eager import execute, mismatch
from tests.helpers.loops import check_samples, needs_llvm, plan, reference_of

pytestmark = needs_llvm


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LEAST", 0)


@pytest.mark.parametrize("name", ["map_axes"])
def test_values(name: str) -> None:
    assert check_samples(REGISTRY[name], dtypes=1, samples=2) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["map_axes"])
def test_values_of_all_dtypes(name: str) -> None:
    check_samples(REGISTRY[name], dtypes=9, samples=99)


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_large_planes_go_through_workspace(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded once, at the end, there too."""
    op = MapAxes(
        (
            None,
            AxisMap("linear", 9, 20, (9 / 20, 0)),
            AxisMap("area", 50, 3),
            AxisMap("cubic", 5, 8, (5 / 8, 0)),
        )
    )
    x = np.random.default_rng(0).standard_normal((3, 9, 50, 5)).astype(dtype.numpy)
    specs = [Spec(x.shape, dtype).fixed]
    kept = execute(Device("cpu"), plan(op, specs), [x])[0]
    monkeypatch.setattr(axis_map, "_OWN", 0)
    found = plan(op, specs)
    assert found.workspace > 0
    (y,) = execute(Device("cpu"), found, [x])
    assert mismatch(y, reference_of(op, [x])[0].astype(dtype.numpy), dtype) == ""
    np.testing.assert_array_equal(y.astype(np.float32), kept.astype(np.float32))


def test_what_is_not_read_does_not_count() -> None:
    """NaN reaches the windows that hold it, and no empty place beside them."""
    op = MapAxes((None, AxisMap("patches", 4, 10, (2, 1, 1, 1)), AxisMap("reflect", 5, 9, (2,), True)))
    x = np.ones((2, 4, 9), np.float32)
    x[0, 0, 0] = np.nan
    (y,) = execute(Device("cpu"), plan(op, [Spec(x.shape, float32).fixed]), [x])
    np.testing.assert_array_equal(y, reference_of(op, [x])[0])


@pytest.mark.parametrize("behind", [1, 2, 3])
def test_an_axis_with_few_elements_behind_each(behind: int) -> None:
    op = MapAxes((None, AxisMap("linear", 9, 20, (9 / 20, 0)), None))
    x = np.random.default_rng(0).standard_normal((3, 9, behind)).astype(np.float32)
    (y,) = execute(Device("cpu"), plan(op, [Spec(x.shape, float32).fixed]), [x])
    assert mismatch(y, reference_of(op, [x])[0].astype(np.float32), float32) == ""
