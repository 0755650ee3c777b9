"""Maps that only move elements: by runs of neighbours, which read and write the same bits."""

import numpy as np
import pytest

from lamina.backends.cpu.loops import table
from lamina.backends.cpu.loops.kernel import LoopKernel
from lamina.backends.cpu.loops.runs import row_runs, sources
from lamina.ops.primitives import MapAxes
from lamina.ops.primitives.axis_map import AxisMap
from lamina.runtime import Device
from lamina.spec import DType, Spec, bfloat16, bool_, float16, float32, float64, int64, uint8
from tests.helpers.eager import execute
from tests.helpers.loops import needs_llvm, plan, reference_of

pytestmark = needs_llvm


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LEAST", 0)


#: Maps and the shape that they read: each falls into runs.
CASES = (
    ((None, AxisMap("reflect", 9, 15, (3,)), AxisMap("reflect", 33, 40, (5,))), (3, 9, 33)),
    ((AxisMap("circular", 5, 5, (2,)), None, AxisMap("circular", 41, 41, (17,))), (5, 3, 41)),
    ((None, AxisMap("replicate", 7, 12, (4,)), None), (2, 7, 13)),
    ((None, AxisMap("circular", 6, 6, (1,)), None), (2, 6, 3)),
    ((None, AxisMap("patches", 12, 36, (3, 1, 1, 1)), AxisMap("patches", 31, 93, (3, 1, 1, 1))), (2, 12, 31)),
    ((AxisMap("patches", 20, 28, (2, 1, 0, 6)), AxisMap("nearest", 3, 6, (0.5,)), None), (20, 3, 17)),
)


DTYPES = (float32, float64, float16, bfloat16, int64, uint8, bool_)


@pytest.mark.parametrize(
    ("maps", "shape", "dtype"),
    [(*case, d) for case in CASES for d in DTYPES if d.is_float or MapAxes(case[0]).moves],
)
def test_bits(maps: tuple[AxisMap | None, ...], shape: tuple[int, ...], dtype: DType) -> None:
    op = MapAxes(maps)
    x = (np.random.default_rng(0).standard_normal(shape) * 9).astype(dtype.numpy)
    if dtype.is_float:
        x.reshape(-1)[::7] = np.array([np.nan, np.inf, -np.inf, -0.0], dtype.numpy)[
            np.arange(-(-x.size // 7)) % 4
        ]
    found = plan(op, [Spec(shape, dtype).fixed])
    assert "by runs" in found.label
    assert isinstance(found.make, LoopKernel)
    assert found.make.work == 2 * found.outputs[0].numel  # each element is read and written
    (y,) = execute(Device("cpu"), found, [x])
    wanted = reference_of(op, [x])[0]
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y.astype(np.float64), wanted.astype(np.float64))


@pytest.mark.parametrize(
    ("maps", "shape"),
    [
        ((None, AxisMap("nearest", 8, 16, (0.5,))), (4, 8)),
        ((None, AxisMap("linear", 8, 16, (0.5, 0))), (4, 8)),
        ((None, AxisMap("patches", 30, 45, (3, 2, 0, 1))), (4, 30)),
        ((None, AxisMap("patches", 9, 27, (3, 1, 1, 1), True)), (4, 27)),
    ],
)
def test_what_does_not_fall_into_runs_is_left_alone(
    maps: tuple[AxisMap | None, ...], shape: tuple[int, ...]
) -> None:
    op = MapAxes(maps)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    found = plan(op, [Spec(shape, float32).fixed])
    assert "by runs" not in found.label
    np.testing.assert_allclose(execute(Device("cpu"), found, [x])[0], reference_of(op, [x])[0], rtol=1e-6)


def test_runs_of_an_axis() -> None:
    """Copies of eight and more, the others one by one; nothing is copied across a place that is empty."""
    at = sources(AxisMap("patches", 12, 24, (2, 1, 1, 1)).table)
    assert at is not None
    found = row_runs(at, 1)
    assert found.runs.tolist() == [[1, 0, 11], [12, 0, 12]]
    assert found.single.tolist() == [[0, -1]]
    few = row_runs(np.array([2, 3, -1, 0]), 3)
    assert few.runs.tolist() == []
    assert few.single[:4].tolist() == [[0, 6], [1, 7], [2, 8], [3, 9]]
    assert few.single[6:9].tolist() == [[6, -1], [7, -1], [8, -1]]
    assert sources(AxisMap("linear", 4, 8, (0.5, 0)).table) is None


@pytest.mark.parametrize("behind", range(1, 10))
def test_runs_and_single_elements_are_the_whole_row(behind: int) -> None:
    """Each element of a row is written once, from where it is taken; runs are of eight elements at least."""
    rng = np.random.default_rng(behind)
    for size in (1, 2, 7, 8, 9, 40):
        pieces = [a + np.arange(n) for a, n in rng.integers(1, (90, 20), (size, 2))]
        at = np.where(rng.random(size) < 0.2, -1, np.concatenate(pieces)[:size])
        found = row_runs(at, behind)
        written: dict[int, int] = {}
        for to, start, count in found.runs.tolist():
            assert count >= 8
            assert not written.keys() & set(range(to, to + count))
            written |= zip(range(to, to + count), range(start, start + count), strict=True)
        assert not written.keys() & {to for to, _ in found.single.tolist()}
        written |= found.single.tolist()
        places = np.where(at[:, None] < 0, -1, at[:, None] * behind + np.arange(behind)).reshape(-1)
        assert [written[i] for i in range(size * behind)] == places.tolist()
        assert sum(found.runs[:, 2]) + len(found.single) == len(written) == size * behind
        assert found.parts == len(found.runs) + len(found.single)
