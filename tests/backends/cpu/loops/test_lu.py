"""LU factors and orders of rows by generated loops, against their definitions in NumPy."""

import numpy as np
import pytest

from lamina.backends.cpu.loops import lu
from lamina.ops.primitives.lu import PivotedFactor, RowOrder
from lamina.runtime import Device
from lamina.spec import Shape, Spec, as_dtype
from tests.helpers.eager import execute
from tests.helpers.loops import check_samples, needs_llvm, plan

pytestmark = needs_llvm
RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lu, "_FEWEST", 1)
    monkeypatch.setattr(lu, "_EXCHANGES", 1)


def test_values() -> None:
    assert check_samples(PivotedFactor, dtypes=2, samples=99) > 5
    assert check_samples(RowOrder, dtypes=1, samples=99) > 3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(33, 33), (4, 21, 9), (3, 9, 21), (300, 4, 4)])
def test_larger_ones(shape: Shape, dtype: str) -> None:
    x = RNG.standard_normal(shape).astype(dtype)
    op = PivotedFactor()
    factors, pivots = execute(Device("cpu"), plan(op, [Spec(shape, as_dtype(dtype)).fixed]), [x])
    wanted, places = op.reference(x)
    np.testing.assert_array_equal(pivots, places)
    np.testing.assert_allclose(factors, wanted, rtol=0, atol=1e-12 if dtype == "float64" else 2e-4)


def test_zeros_and_pivots_that_name_no_row() -> None:
    x = np.array([[0.0, 1, 2], [0, 3, 1], [0, 6, 4]])
    factors, pivots = execute(
        Device("cpu"), plan(PivotedFactor(), [Spec((3, 3), as_dtype("float64")).fixed]), [x]
    )
    assert pivots.tolist() == [1, 3, 3]
    np.testing.assert_allclose(factors, [[0, 1, 2], [0, 6, 4], [0, 0.5, -1]])
    given = np.array([[0, 9, -1], [3, 2, 3]], np.int32)
    for inverse in (False, True):
        (found,) = execute(
            Device("cpu"), plan(RowOrder(3, inverse), [Spec((2, 3), as_dtype("int32")).fixed]), [given]
        )
        np.testing.assert_array_equal(found, RowOrder(3, inverse).reference(given)[0])
