"""Reductions over neighbouring axes."""

from typing import Any

import numpy as np
import pytest

from lamina.backends import NoKernel
from lamina.backends.cpu.loops import table
from lamina.ops.core import REGISTRY
from lamina.ops.primitives import Abs, FusedElementwise, Mul, Reduce, Sub
from lamina.runtime import Device
from lamina.spec import Layout, Spec, as_dtype, float32
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


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "prod", "norm2"])
@pytest.mark.parametrize("axes", [(0, 2), (1, 3), (0, 2, 3), (0, 1, 3), (2,), (0, 3)], ids=str)
def test_axes_that_are_apart(kind: Any, axes: tuple[int, ...]) -> None:
    """Rows of several loops, and columns behind loops on both sides of what is kept."""
    x = np.random.default_rng(0).uniform(0.9, 1.1, (3, 4, 5, 70)).astype(np.float32)
    op = Reduce(kind, axes)
    found = plan(op, [Spec(x.shape, float32).fixed])
    assert found.label == "loops reduce"
    (y,) = execute(Device("cpu"), found, [x])
    np.testing.assert_allclose(y, reference_of(op, [x])[0], rtol=2e-5)


@pytest.mark.parametrize("strides", [(600, 120, 3), (1400, 6, 45), (5, 800, 20)], ids=str)
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (0, 1, 2)], ids=str)
def test_operands_with_gaps_are_read_by_the_kernel(strides: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """No axis has neighbours that lie beside one another; NumPy is not asked in the kernel's place."""
    x = np.random.default_rng(0).standard_normal((3, 4, 30)).astype(np.float32)
    found = plan(Reduce("sum", axes), [Spec(x.shape, float32, Layout(strides))])
    (y,) = execute(Device("cpu"), found, [x])
    np.testing.assert_allclose(y, x.sum(axes), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tag", ["acdb", "aBcd16b", "aBcd8b"])
@pytest.mark.parametrize("axes", [(0, 2, 3), (1,), (0, 1, 2, 3), (2, 3)], ids=str)
def test_layouts(tag: str, axes: tuple[int, ...]) -> None:
    """As the operand lies, or row-major where its blocks are reduced in part; blocks may have padding."""
    for channels in (32, 20):
        x = np.random.default_rng(0).standard_normal((2, channels, 3, 5)).astype(np.float32)
        found = plan(Reduce("sum", axes), [Spec(x.shape, float32).with_tag(tag)])
        (y,) = execute(Device("cpu"), found, [x])
        np.testing.assert_allclose(y, x.sum(axes), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8, np.uint8, np.bool_])
@pytest.mark.parametrize("axes", [(1,), (0,), (0, 1)], ids=str)
def test_integers(dtype: Any, axes: tuple[int, ...]) -> None:
    """Sums and products in int64, wrapping as NumPy's; extrema in their own type, the least number too."""
    limits = (0, 1) if dtype is np.bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    x = np.random.default_rng(0).integers(*limits, (37, 130), np.int64, endpoint=True).astype(dtype)
    x[:, 0] = x[0] = limits[0]
    for kind in ("sum", "prod", "max", "min") if dtype is not np.bool_ else ("sum", "prod"):
        op = Reduce(kind, axes)
        (y,) = execute(Device("cpu"), plan(op, [Spec(x.shape, as_dtype(x.dtype)).fixed]), [x])
        np.testing.assert_array_equal(y, reference_of(op, [x])[0])


def test_no_elements_are_left_to_others() -> None:
    with pytest.raises(NoKernel, match="no elements"):
        plan(Reduce("mean", (1,)), [Spec((3, 0), float32).fixed])


EXPRESSION = ((Sub(), (0, 1)), (Abs(), (~0,)), (Mul(), (~1, 2)))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["sum", "mean", "max", "prod"])
@pytest.mark.parametrize("axes", [(0, 1, 2), (2,), (0, 1), (0, 2), (1,)], ids=str)
def test_of_an_expression(dtype: str, kind: Any, axes: tuple[int, ...]) -> None:
    """What is reduced is computed on the way: of operands of one shape, of rows, and of one number; half types are
    rounded before, so that the result is that of two kernels."""
    rng, to = np.random.default_rng(0), as_dtype(dtype).numpy
    arrays = [rng.standard_normal(s).astype(to) for s in ((3, 4, 50), (4, 50), (1,))]
    if kind == "prod":
        arrays = [np.abs(a).astype(to) for a in arrays]
    steps = (*EXPRESSION, (Reduce(kind, axes), (~2,)))
    op = FusedElementwise(tuple(o for o, _ in steps), tuple(r for _, r in steps))
    (y,) = execute(Device("cpu"), plan(op, [Spec(a.shape, as_dtype(a.dtype)).fixed for a in arrays]), arrays)
    wide = [a.astype(np.float64 if dtype == "float64" else np.float32) for a in arrays]
    inner = (np.abs(wide[0] - wide[1]) * wide[2]).astype(to).astype(np.float64)
    (wanted,) = Reduce(kind, axes).reference(inner)
    assert mismatch(y, np.asarray(wanted).astype(to), as_dtype(dtype)) == ""


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
