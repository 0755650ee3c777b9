"""Pooling on the cpu backend where tensors lie in no layout that oneDNN has a name for."""

import numpy as np
import pytest

from lamina import backends, onednn
from lamina.backends.cpu.window import prefers_channels_last
from lamina.backends.reference import run_reference
from lamina.ops.core import Op
from lamina.ops.primitives import AvgPool, AvgPoolGrad, MaxPool, MaxPoolGrad, Window
from lamina.runtime import Device
from lamina.spec import DType, Layout, Policy, Spec, as_dtype, bfloat16, float16, float32, float64
from tests.helpers.eager import execute, mismatch

pytestmark = pytest.mark.skipif(not onednn.available(), reason="oneDNN is built for x86-64")
CPU = Device("cpu")
ALONG = Window((2,), ((1, 1),), (1,))
WINDOW = Window((2, 2), ((1, 1), (0, 1)), (1, 1))
STEPS = Window((2, 2), ((0, 0), (0, 0)), (1, 1))
X = np.random.default_rng(0).integers(-9, 10, (2, 5, 7, 6)).astype(np.float32)
#: Where rows are pooled as they lie: oneDNN generates code for them on AVX-512 alone, elsewhere it has plain loops.
OF_ROWS = "abcd" if prefers_channels_last() else "acdb"
(POOLED, INDEX) = run_reference(MaxPool((3, 2), WINDOW, True), [X])


def strided(shape: tuple[int, ...]) -> Layout:
    """Rows with a gap behind each: strides that belong to no tag."""
    _, c, h, w = shape
    return Layout(strides=(c * h * (w + 3), h * (w + 3), w + 3, 1))


@pytest.mark.feature("F054")
@pytest.mark.parametrize("lies", ["open", "strided", "row-major"])
@pytest.mark.parametrize(
    "op",
    [
        MaxPool((3, 2), WINDOW, True),
        MaxPool((3, 2), WINDOW),
        AvgPool((3, 2), WINDOW, "include"),
        AvgPool((3, 2), WINDOW, "exclude"),
        MaxPoolGrad((3, 2), WINDOW, (7, 6)),
        AvgPoolGrad((3, 2), WINDOW, "exclude", (7, 6)),
    ],
    ids=str,
)
def test_layouts_without_a_name_become_channels_last(op: Op, lies: str) -> None:
    backward = op.name.endswith("grad")
    arrays = [POOLED, INDEX] if op.name == "max_pool_grad" else [POOLED if backward else X]
    specs = [Spec(a.shape, as_dtype(a.dtype)) for a in arrays]
    specs = [
        {"open": s, "strided": Spec(s.shape, s.dtype, strided(s.shape)), "row-major": s.fixed}[lies]
        for s in specs
    ]
    plan = backends.get(CPU, "cpu").plan(op, specs, Policy())
    assert plan.label.startswith("onednn")
    tags = {s.tag for s in (*plan.inputs, *plan.outputs)}
    assert tags == {OF_ROWS if lies == "row-major" else "acdb"}
    for found, wanted in zip(execute(CPU, plan, arrays), run_reference(op, arrays), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("tag", ["abcd", "acdb", "aBcd8b"])
def test_a_gradient_lies_as_the_index_does(tag: str) -> None:
    """It was written next to the result, wherever the gradient comes from."""
    arrays = [POOLED, INDEX]
    other = "abcd" if tag == "acdb" else "acdb"
    specs = [Spec(a.shape, as_dtype(a.dtype)).with_tag(t) for a, t in zip(arrays, (other, tag), strict=True)]
    op = MaxPoolGrad((3, 2), WINDOW, (7, 6))
    plan = backends.get(CPU, "cpu").plan(op, specs, Policy())
    assert {s.tag for s in (*plan.inputs, *plan.outputs)} == {OF_ROWS if tag == "abcd" else tag}
    for found, wanted in zip(execute(CPU, plan, arrays), run_reference(op, arrays), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "op", [MaxPool((3,), Window((2,), ((0, 0),), (1,))), AvgPool((3,), Window((2,), ((1, 1),), (1,)))]
)
def test_signals_are_not_pooled_by_plain_loops(op: Op) -> None:
    """Row-major signals go channels last, where oneDNN generates code, and keep their values."""
    x = np.random.default_rng(0).standard_normal((3, 8, 101)).astype(np.float32)
    found = backends.get(CPU).plan(op, [Spec(x.shape, as_dtype("float32")).fixed], Policy())
    assert "simple_nchw" not in found.label
    (y,) = execute(CPU, found, [x])
    np.testing.assert_allclose(y, run_reference(op, [x])[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kernel", [(16, 16), (26, 26), (1, 300), (300, 1), (1, 100)], ids=str)
def test_windows_over_the_whole_image(kernel: tuple[int, int]) -> None:
    """Large ones, whose index takes 32 bits from 256 elements on, and their gradients: an image of one pixel lies
    in every order."""
    x = np.random.default_rng(0).standard_normal((2, 16, *kernel)).astype(np.float32)
    window = Window(kernel, ((0, 0), (0, 0)), (1, 1))
    op, grad = MaxPool(kernel, window, True), MaxPoolGrad(kernel, window, kernel)
    for given, arrays in ((op, [x]), (grad, run_reference(op, [x]))):
        for tag in (None, "abcd", "acdb"):
            specs = [Spec(a.shape, as_dtype(a.dtype)) for a in arrays]
            specs = specs if tag is None else [s.with_tag(tag) for s in specs]
            plan = backends.get(CPU, "cpu").plan(given, specs, Policy())
            assert plan.label.startswith("onednn")
            for found, wanted in zip(execute(CPU, plan, arrays), run_reference(given, arrays), strict=True):
                np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("kernel", [(15, 17), (16, 16), (20, 13)])
@pytest.mark.parametrize("dtype", [bfloat16, float16, float32], ids=str)
def test_indices_of_large_kernels(kernel: tuple[int, int], dtype: DType) -> None:
    """From 256 elements on they are int32, which oneDNN has no right ones of in half types."""
    x = np.random.default_rng(1).integers(0, 251, (2, 3, 24, 25)).astype(dtype.numpy)
    pool, grad = MaxPool(kernel, STEPS, True), MaxPoolGrad(kernel, STEPS, x.shape[2:])
    cpu, wanted = backends.get(CPU, "cpu"), run_reference(pool, [x])
    for layout in (None, Layout((1800, 1, 75, 3))):
        found = execute(CPU, cpu.plan(pool, [Spec(x.shape, dtype, layout)], Policy()), [x])
        np.testing.assert_array_equal(found[1], wanted[1])
    g = np.arange(1, 1 + wanted[0].size).reshape(wanted[0].shape).astype(dtype.numpy)
    specs = [Spec(a.shape, as_dtype(a.dtype)) for a in (g, wanted[1])]
    (dx,) = execute(CPU, cpu.plan(grad, specs, Policy()), [g, wanted[1]])
    assert not mismatch(dx, run_reference(grad, [g, wanted[1]], float64)[0], dtype)
