"""Rows in order: values and indices, ties, NaN and zeros of both signs."""

import numpy as np
import pytest

from lamina.backends.cpu.loops import table
from lamina.backends.reference import run_reference
from lamina.ops.core import REGISTRY
from lamina.ops.primitives import Sort
from lamina.runtime import Device
from lamina.spec import DType, Spec, float16, float32, float64, int8, int64, uint8
from tests.helpers.eager import execute
from tests.helpers.loops import check_samples, needs_llvm, plan

pytestmark = needs_llvm


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LEAST", 0)


@pytest.mark.parametrize("name", ["sort"])
def test_values(name: str) -> None:
    assert check_samples(REGISTRY[name], dtypes=1, samples=2) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sort"])
def test_values_of_all_dtypes(name: str) -> None:
    check_samples(REGISTRY[name], dtypes=9, samples=99)


@pytest.mark.parametrize("dtype", [float64, float32, float16, int64, int8, uint8], ids=str)
@pytest.mark.parametrize("first", [None, 3], ids=["all", "few"])
@pytest.mark.parametrize("descending", [False, True], ids=["up", "down"])
def test_the_order_is_stable(dtype: DType, first: int | None, descending: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 6, (5, 40)).astype(dtype.numpy)
    if dtype.is_float:
        for value in (np.nan, -np.nan, np.inf, -np.inf, -0.0):
            x[rng.random(x.shape) < 0.1] = value
    elif dtype.kind == "i":
        x[0, :3] = [np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max, -1]
    op = Sort(descending, first)
    values, order = execute(Device("cpu"), plan(op, [Spec(x.shape, dtype).fixed]), [x])
    wanted = run_reference(op, [x])
    np.testing.assert_array_equal(order, wanted[1])
    np.testing.assert_array_equal(values, wanted[0])
