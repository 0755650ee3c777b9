"""Elements by number, and the way back: values, order of sums, indices that are wrong."""

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.backends.cpu.loops import table
from lamina.backends.cpu.loops.code import Code
from lamina.backends.cpu.loops.compiler import compiled
from lamina.backends.cpu.loops.gather import Index
from lamina.ops.core import REGISTRY
from lamina.ops.primitives import EmbeddingGrad, GatherGrad
from lamina.runtime import Device
from lamina.spec import Spec, as_dtype, bfloat16, int64
from tests.helpers.eager import execute
from tests.helpers.loops import check_samples, needs_llvm, plan, reference_of

pytestmark = needs_llvm


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LEAST", 0)


@pytest.mark.parametrize(
    "name", ["embedding", "embedding_grad", "embedding_sum", "gather", "gather_grad", "scatter"]
)
def test_values(name: str) -> None:
    assert check_samples(REGISTRY[name], dtypes=1, samples=2) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["embedding", "embedding_grad", "embedding_sum", "gather", "gather_grad", "scatter"]
)
def test_values_of_all_dtypes(name: str) -> None:
    check_samples(REGISTRY[name], dtypes=9, samples=99)


@pytest.mark.parametrize("index", [-6, 5, 1 << 40])
def test_indices_outside_raise(index: int) -> None:
    x = lm.tensor(np.zeros((5, 4), np.float32))
    places = lm.tensor(np.full((3, 4), index, np.int64))
    with pytest.raises(IndexError, match="outside"):
        ops.gather(x, 0, places)
    with pytest.raises(IndexError, match="outside"):
        ops.scatter_add(x, 0, places, lm.tensor(np.ones((3, 4), np.float32)))
    with pytest.raises(IndexError, match="outside"):
        ops.embedding(places, x)
    with pytest.raises(IndexError, match="outside"):
        ops.embedding_bag(places, x)


@pytest.mark.parametrize("from_back", [False, True])
@pytest.mark.parametrize("size", [1, 5])
def test_an_index_that_is_wrong_reads_the_first_element(size: int, from_back: bool) -> None:
    """Whatever the size is, so that nothing is touched that lies outside; the flag tells of it."""
    given = np.array([0, size - 1, size, -1, -size, -size - 1, 1 << 40, -(1 << 40)])
    for index in given:
        code = Code()
        at, y, flag = (code.array(int64) for _ in range(3))
        (n,) = code.sizes(1)
        first, last = code.share()
        inside = Index(code, n, from_back)
        with code.loop(first, last) as i:
            y[i] = inside(at[i])
        inside.tell(flag)
        one, found, told = np.array([index]), np.array([-7]), np.zeros(1, np.int64)
        words = np.array([one.ctypes.data, found.ctypes.data, told.ctypes.data, size])
        compiled(code.text())(words.ctypes.data, 0, 1)
        meant = index + size if from_back and index < 0 else index
        right = 0 <= meant < size
        assert (found[0], told[0]) == ((meant, 0) if right else (0, 1)), index


def test_rows_that_no_index_names_are_left_out() -> None:
    op, g = EmbeddingGrad(4), np.ones((6, 3), np.float32)
    index = np.array([0, -1, 3, 4, 3, -9])
    (y,) = execute(
        Device("cpu"), plan(op, [Spec(a.shape, as_dtype(a.dtype)).fixed for a in (g, index)]), [g, index]
    )
    np.testing.assert_array_equal(y[:, 0], [1, 0, 0, 2])


def test_columns_that_threads_share_are_added_in_order() -> None:
    """Few lines of many columns, in a half type: sums of 300 terms are rounded once."""
    op, rng = GatherGrad(0, 7), np.random.default_rng(0)
    g = rng.standard_normal((300, 700)).astype(bfloat16.numpy)
    index = rng.integers(-7, 7, (300, 1))
    found = plan(op, [Spec(g.shape, bfloat16).fixed, Spec(index.shape, as_dtype(index.dtype)).fixed])
    (y,) = execute(Device("cpu"), found, [g, index])
    wanted = reference_of(op, [g, index])[0]
    assert np.abs(y.astype(np.float64) - wanted).max() <= np.abs(wanted).max() * 2**-8
