"""Normalization by oneDNN: every layout, padded blocks too, relu and residuals, against the reference."""

import numpy as np
import pytest

from lamina import backends
from lamina.backends.cpu.loops import compiler
from lamina.backends.cpu.window import prefers_channels_last
from lamina.backends.reference import run_reference
from lamina.ops.core import Op
from lamina.ops.primitives import (
    BatchNorm,
    BatchNormGrad,
    BatchNormInfer,
    LayerNorm,
    LayerNormGrad,
    LocalResponseNorm,
)
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec, as_dtype, bfloat16, float32, float64
from tests.helpers.eager import execute, mismatch

CPU = backends.get(Device("cpu"), "cpu")
#: The layout that oneDNN blocks channels to: one register of the processor.
BLOCKED = "aBcd16b" if prefers_channels_last() else "aBcd8b"
OPS: list[Op] = [
    BatchNorm(1e-5, 0.2), BatchNorm(1e-5, relu=True), BatchNorm(1e-5, relu=True, residual=True),
    BatchNorm(1e-5, residual=True), BatchNormInfer(1e-3, relu=True), BatchNormInfer(1e-3, True, True),
    BatchNorm(1e-5, relu=True, hi=0.8), BatchNorm(1e-5, relu=True, residual=True, hi=0.8),
    BatchNormInfer(1e-3, True, hi=0.8), BatchNormInfer(1e-3, True, True, hi=0.8),
    BatchNormGrad(relu=True, hi=0.8), BatchNormGrad(True, True, hi=0.8),
    BatchNormGrad(), BatchNormGrad(relu=True), BatchNormGrad(True, True), BatchNormGrad(True, moving=False),
    LocalResponseNorm(5, 0.1),
]  # fmt: skip


def operands(op: Op, shape: tuple[int, ...], dtype: DType) -> list[np.ndarray]:
    rng = np.random.default_rng(4)

    def big() -> np.ndarray:
        return rng.standard_normal(shape).astype(dtype.numpy)

    def small(low: float = -1) -> np.ndarray:
        return rng.uniform(low, 2, shape[1]).astype(np.float32)

    if isinstance(op, LocalResponseNorm):
        return [big()]
    if isinstance(op, BatchNormGrad):
        extra = [big()] if op.residual else [small()] if op.relu else []
        return [big(), big(), small(), small(), small(0.5), *extra]
    return [big(), small(), small(), small(), small(0.5), *([big()] if op.residual else [])]  # type: ignore[attr-defined]


@pytest.mark.skipif(CPU.supports(BatchNorm) != "onednn", reason="oneDNN is not here")
@pytest.mark.parametrize("dtype", [float32, bfloat16])
@pytest.mark.parametrize("tag", ["abcd", "acdb", BLOCKED])
@pytest.mark.parametrize("op", OPS, ids=str)
def test_every_layout(op: Op, tag: str, dtype: DType) -> None:
    """20 channels leave a block partly padding, which batch norms take with AVX-512 alone."""
    padded = prefers_channels_last() or isinstance(op, LocalResponseNorm)
    shape = (3, 20 if padded else 32, 5, 4)
    arrays = operands(op, shape, dtype)
    specs = [Spec(a.shape, as_dtype(a.dtype)) for a in arrays]
    specs = [s.with_tag(tag) if s.ndim == 4 else s.fixed for s in specs]
    plan = CPU.plan(op, specs, Policy())
    if dtype == float32 and not isinstance(op, LocalResponseNorm):
        assert plan.label.startswith("onednn")
        assert plan.inputs[0].tag == tag
    elif dtype == float32:  # oneDNN's kernel needs AVX-512
        assert plan.label.startswith("onednn" if prefers_channels_last() else "numpy")
    wanted = run_reference(op, arrays, float64)
    for i, (y, ref, spec) in enumerate(
        zip(execute(CPU.device, plan, arrays), wanted, plan.outputs, strict=True)
    ):
        problem = mismatch(y, ref, spec.dtype)
        assert not problem, f"output {i}: {problem} ({plan.label})"


@pytest.mark.skipif(CPU.supports(BatchNorm) != "onednn", reason="oneDNN is not here")
def test_layer_norm_by_onednn() -> None:
    x, c = Spec((4, 3, 40), float32), Spec((3, 40), float32)
    stats = Spec((4,), float32)
    assert CPU.plan(LayerNorm(2, 1e-5), [x, c, c], Policy()).label.startswith("onednn")
    assert CPU.plan(LayerNormGrad(2), [x, x, c, stats, stats], Policy()).label.startswith("onednn")


@pytest.mark.skipif(CPU.supports(BatchNorm) != "onednn", reason="oneDNN is not here")
@pytest.mark.parametrize(
    ("op", "first", "second"),
    [
        (BatchNorm(1e-5, residual=True), 0, 5),
        (BatchNormInfer(1e-5, residual=True), 0, 5),
        (BatchNormGrad(), 1, 0),
        (BatchNormGrad(True, True), 1, 0),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("tags", "wanted"),
    [
        (("abcd", "acdb"), "abcd"),
        (("acdb", "abcd"), "acdb"),
        ((BLOCKED, "abcd"), BLOCKED),
        ((None, "abcd"), "abcd"),
        ((None, BLOCKED), BLOCKED),
        ((None, None), "acdb"),
    ],
)
def test_all_take_the_layout_of_x_or_else_that_of_the_other_tensor(
    op: Op, first: int, second: int, tags: tuple[str | None, str | None], wanted: str
) -> None:
    """The other: the residual, or the gradient. Without any layout channels are last."""
    arrays = operands(op, (3, 32, 5, 4), float32)
    specs = [Spec(a.shape, float32) for a in arrays]
    for i, tag in zip((first, second), tags, strict=True):
        specs[i] = specs[i].with_tag(tag) if tag else specs[i]
    plan = CPU.plan(op, specs, Policy())
    assert {s.tag for s in (*plan.inputs, *plan.outputs) if s.ndim == 4} == {wanted}
    for y, ref in zip(execute(CPU.device, plan, arrays), run_reference(op, arrays, float64), strict=True):
        assert not mismatch(y, ref, float32)


@pytest.mark.skipif(CPU.supports(BatchNorm) != "onednn", reason="oneDNN is not here")
@pytest.mark.parametrize("op", OPS, ids=str)
def test_results_may_take_the_place_of_operands(op: Op) -> None:
    """Running statistics move in place, and y replaces x where that is read once."""
    arrays = operands(op, (3, 32, 5, 4), float32)
    plan = CPU.plan(op, [Spec(a.shape, float32).fixed for a in arrays], Policy())
    if isinstance(op, BatchNorm):
        assert plan.aliases == op.inplace
    if isinstance(op, BatchNormInfer) and not op.residual:
        assert plan.aliases == {0: 0}
    found = execute(CPU.device, plan, arrays, in_place=True)
    for y, ref in zip(found, run_reference(op, arrays, float64), strict=True):
        assert not mismatch(y, ref, float32)


@pytest.mark.skipif(CPU.supports(BatchNorm) != "onednn", reason="oneDNN is not here")
@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("where", range(3), ids=["x", "scale", "bias"])
@pytest.mark.parametrize(
    ("op", "value"),
    [
        (op, value)
        for op in OPS
        if isinstance(op, BatchNorm | BatchNormInfer)
        for value in (np.nan, np.inf, -np.inf)
        if np.isnan(value) or not (op.relu and op.residual)  # its relu makes NaN of -inf
    ],
    ids=str,
)
def test_one_channel_that_is_not_finite(op: Op, value: float, where: int) -> None:
    """relu keeps NaN, and so do the statistics; the other channels do not notice."""
    arrays = operands(op, (3, 32, 5, 4), float32)
    arrays[where][(1, 7, 2, 3) if where == 0 else 7] = value
    plan = CPU.plan(op, [Spec(a.shape, float32).fixed for a in arrays], Policy())
    for y, ref in zip(execute(CPU.device, plan, arrays), run_reference(op, arrays, float64), strict=True):
        np.testing.assert_allclose(y, ref, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(CPU.supports(BatchNorm) != "onednn", reason="oneDNN is not here")
@pytest.mark.skipif(not compiler.available(), reason="needs a C compiler")
@pytest.mark.parametrize(
    ("op", "shape", "tag", "source"),
    [
        (BatchNormInfer(1e-3), (2, 16, 16, 16), "abcd", "loops"),
        (BatchNormInfer(1e-3), (2, 15, 16, 16), "abcd", "onednn"),  # too little work
        (BatchNormInfer(1e-3), (2, 16, 16, 16), "acdb", "onednn"),
        (BatchNormInfer(1e-3, True), (2, 16, 16, 16), "abcd", "onednn"),
        (BatchNormInfer(1e-3, residual=True), (2, 16, 16, 16), "abcd", "onednn"),
    ],
)
def test_loops_take_what_onednn_has_no_generated_code_for(
    op: Op, shape: tuple[int, ...], tag: str, source: str
) -> None:
    specs = [Spec(a.shape, float32) for a in operands(op, shape, float32)]
    specs = [s.with_tag(tag) if s.ndim == 4 else s.fixed for s in specs]
    assert CPU.plan(op, specs, Policy()).label.startswith(source)


@pytest.mark.skipif(CPU.supports(BatchNorm) != "onednn", reason="oneDNN is not here")
@pytest.mark.parametrize("op", [BatchNorm(1e-5), BatchNormGrad(), BatchNormInfer(1e-5)], ids=str)
@pytest.mark.parametrize("tag", ["aBcd8b", "aBcd16b"])
def test_blocks_that_channels_do_not_fill(op: Op, tag: str) -> None:
    """Whichever layout is taken, nothing of a result stays as it was, as `execute` sees to: convolutions read it."""
    arrays = operands(op, (2, 4, 5, 6), float32)
    specs = [Spec(a.shape, float32) for a in arrays]
    plan = CPU.plan(op, [s.with_tag(tag) if s.ndim == 4 else s for s in specs], Policy())
    for y, ref in zip(execute(CPU.device, plan, arrays), run_reference(op, arrays, float64), strict=True):
        assert not mismatch(y, ref, float32)


@pytest.mark.parametrize("epsilon", [1e-5, 0.0])
def test_statistics_of_rows_without_variance_or_numbers_warn_of_nothing(epsilon: float) -> None:
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    x[0], x[1, 3], x[2, 5] = 2.0, np.nan, np.inf
    one = np.ones(64, np.float32)
    op = LayerNorm(1, epsilon)
    plan = CPU.plan(op, [Spec(a.shape, float32) for a in (x, one, one)], Policy())
    found = execute(CPU.device, plan, [x, one, one])
    wanted = run_reference(op, [x, one, one])
    assert found[2].shape == wanted[2].shape
    np.testing.assert_allclose(found[2][[0, 3]], wanted[2][[0, 3]], rtol=1e-5)
    assert np.isnan(found[2][1]).all()
