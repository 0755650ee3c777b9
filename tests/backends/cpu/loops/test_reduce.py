"""Reductions over neighbouring axes."""

from typing import Any

import numpy as np
import pytest

from lamina.backends import NoKernel
from lamina.backends.cpu.loops import table
from lamina.ops.core import REGISTRY
from lamina.ops.primitives import Reduce
from lamina.runtime import Device
from lamina.spec import Spec, float32
from tests.helpers.eager import execute, mismatch
from tests.helpers.loops import check_samples, needs_llvm, plan, reference_of

pytestmark = needs_llvm


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LEAST", 0)


@pytest.mark.parametrize("name", ["reduce"])
def test_values(name: str) -> None:
    assert check_samples(REGISTRY[name], dtypes=1, samples=2) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reduce"])
def test_values_of_all_dtypes(name: str) -> None:
    check_samples(REGISTRY[name], dtypes=9, samples=99)


def test_axes_that_are_apart_are_left_to_others() -> None:
    with pytest.raises(NoKernel, match="left to NumPy"):
        plan(Reduce("sum", (0, 2)), [Spec((3, 4, 5), float32).fixed])
    plan(Reduce("sum", (0, 2)), [Spec((3, 1, 5), float32).fixed])


@pytest.mark.parametrize("kind", ["sum", "mean", "amax"])
def test_columns_that_are_more_than_one_part(kind: Any) -> None:
    """Of 600 elements behind the axis 256 are summed at a time, then the rest."""
    x = np.random.default_rng(0).standard_normal((2, 5, 600)).astype(np.float32)
    op = Reduce(kind, (1,))
    (y,) = execute(Device("cpu"), plan(op, [Spec(x.shape, float32).fixed]), [x])
    assert mismatch(y, reference_of(op, [x])[0].astype(np.float32), float32) == ""


@pytest.mark.parametrize("kind", ["max", "min", "amax"])
@pytest.mark.parametrize("count", [95, 96, 191, 300])
def test_extrema_of_long_rows(kind: Any, count: int) -> None:
    """Side by side and the rest one by one; NaN in either, and rows of infinities."""
    x = np.random.default_rng(0).standard_normal((7, count)).astype(np.float32)
    x[1, 3], x[2, -1], x[3], x[4, 5] = np.nan, np.nan, -np.inf, np.inf
    x[5] = -np.abs(x[5]) - 1
    for axes in ((1,), (0, 1)):
        op = Reduce(kind, axes)
        (y,) = execute(Device("cpu"), plan(op, [Spec(x.shape, float32).fixed]), [x])
        np.testing.assert_array_equal(y, reference_of(op, [x])[0])
