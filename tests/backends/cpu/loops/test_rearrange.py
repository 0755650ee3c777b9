"""Slices, joins, padding, repetition, reversal: values, and layouts that stay."""

import numpy as np
import pytest

from lamina.backends import Call, NoKernel
from lamina.backends.cpu.loops import table
from lamina.backends.cpu.loops.rearrange import relaid
from lamina.ops.core import REGISTRY, Op
from lamina.ops.primitives import Add, Concat, Diagonal, Flip, Pad, Slice, Tanh
from lamina.runtime import Device
from lamina.spec import Layout, Spec, float32, from_tag
from tests.helpers.eager import execute
from tests.helpers.loops import check_samples, needs_llvm, plan, reference_of

pytestmark = needs_llvm


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LEAST", 0)


@pytest.mark.parametrize("name", ["concat", "diagonal", "expand", "flip", "pad", "slice"])
def test_values(name: str) -> None:
    assert check_samples(REGISTRY[name], dtypes=1, samples=2) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["concat", "diagonal", "expand", "flip", "pad", "slice"])
def test_values_of_all_dtypes(name: str) -> None:
    check_samples(REGISTRY[name], dtypes=9, samples=99)


def test_dense_inputs_keep_the_order_of_their_axes() -> None:
    shape = (2, 6, 3, 4)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    last = Spec(shape, float32).with_tag("acdb")
    for op, count in (
        (Slice((0, 1, 0, 1), (2, 6, 3, 4), (1, 2, 1, 1)), 1),
        (Concat(1), 2),
        (Pad(((0, 0), (1, 2), (0, 1), (2, 0)), 1.5), 1),
    ):
        found = plan(op, [last] * count)
        assert (found.inputs[0].tag, found.outputs[0].tag) == ("acdb", "acdb")
        (y,) = execute(Device("cpu"), found, [x] * count)
        np.testing.assert_array_equal(y, reference_of(op, [x] * count)[0])


def test_inputs_with_gaps_are_read_where_they_lie() -> None:
    memory = np.arange(200, dtype=np.float32)
    x = np.lib.stride_tricks.as_strided(memory, (5, 6), (4 * 20, 4 * 3))
    found = plan(Slice((1, 0), (5, 5), (1, 2)), [Spec((5, 6), float32, Layout((20, 3)))])
    y = np.zeros(found.outputs[0].shape, np.float32)
    found.bind(Call((memory.ctypes.data,), (y.ctypes.data,)))()
    np.testing.assert_array_equal(y, x[1:5, 0:5:2])


def test_diagonals_are_read_where_rows_lie_apart() -> None:
    x = np.random.default_rng(0).standard_normal((4, 7, 9)).astype(np.float32)
    found = plan(Diagonal(-2), [Spec(x.shape, float32).with_tag("acb")])
    assert (found.label, found.inputs[0].tag) == ("loops diagonal", "acb")
    (y,) = execute(Device("cpu"), found, [x])
    np.testing.assert_array_equal(y, np.diagonal(x, -2, 1, 2))


def test_layouts_change_by_runs() -> None:
    """Between layouts whose innermost neighbours are the same, with gaps too; padding blocks are oneDNN's."""
    x = np.random.default_rng(0).standard_normal((3, 5, 4, 19)).astype(np.float32)
    rows, moved = Spec(x.shape, float32).fixed, Spec(x.shape, float32).with_tag("acbd")
    gaps = Spec(x.shape, float32, Layout((2000, 400, 100, 1)))
    for source, target in ((rows, moved), (moved, rows), (gaps, rows), (rows, gaps)):
        found = relaid(source, target)
        (y,) = execute(Device("cpu"), found, [x])
        np.testing.assert_array_equal(y, x)
    for target in (Spec(x.shape, float32).with_tag("acdb"), Spec(x.shape, float32).with_tag("aBcd16b")):
        with pytest.raises(NoKernel, match="no copy of runs"):
            relaid(rows, target)


@pytest.mark.parametrize(
    ("op", "count", "written"),
    [
        (Concat(1), 2, "acbd"),
        (Slice((0, 1, 0, 2), (3, 5, 4, 19), (1, 2, 1, 1)), 1, "bacd"),
        (Flip((2,)), 1, "cabd"),
        (Pad(((0, 0), (1, 2), (0, 1), (2, 0)), 1.5), 1, "acbd"),
        (Tanh(), 1, "bacd"),
        (Add(), 2, "acbd"),
    ],
    ids=str,
)
def test_results_written_as_a_reader_wants_them(op: Op, count: int, written: str) -> None:
    x = np.random.default_rng(0).standard_normal((3, 5, 4, 19)).astype(np.float32)
    found = plan(op, [Spec(x.shape, float32).fixed] * count)
    assert found.relaid is not None
    (out,) = found.outputs
    other = found.relaid(from_tag(written, out.shape))
    assert other is not None
    assert (other.inputs, [s.tag for s in other.outputs]) == (found.inputs, [written])
    (y,) = execute(Device("cpu"), other, [x] * count)
    np.testing.assert_allclose(y, reference_of(op, [x] * count)[0], rtol=1e-6)
    assert found.relaid(from_tag("acdb", out.shape)) is None  # neighbours would not stay neighbours
    assert found.relaid(from_tag("aBcd8b", out.shape)) is None
