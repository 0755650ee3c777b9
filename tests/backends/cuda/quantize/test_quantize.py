"""8-bit kernels for GPUs, run on a CPU: own convolutions and products, and float8 bit by bit."""

import shutil

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.cuda.cudnn_graphs.epilogue import NONE
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.launch.program import kernel_plan
from lamina.backends.cuda.quantize import quantize
from lamina.backends.cuda.quantize.quantize import eights_problem
from lamina.backends.cuda.select.formulations import Problem
from lamina.backends.reference import run_reference
from lamina.ops.core import Op
from lamina.ops.primitives import (
    Add,
    Dequantize,
    Fused,
    Quantize,
    QuantizedConv,
    QuantizedMatmul,
    Relu,
    Window,
)
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec, as_dtype, channels_last, float8_e4m3fn, float32, float64, int8
from tests.helpers.eager import mismatch, run_on
from tests.helpers.emulator import run_plan
from tests.helpers.planned import H200

EMULATED = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
DEVICE = H200


@EMULATED
@pytest.mark.feature("B018")
@pytest.mark.parametrize("op_class", [QuantizedConv, QuantizedMatmul])
def test_own_kernels(op_class: type[QuantizedConv | QuantizedMatmul]) -> None:
    for turn, sample in enumerate(list(op_class.samples())[:4]):
        dtype = op_class.dtypes[turn % 2]
        arrays = sample.draw(np.random.default_rng(turn), dtype)
        wanted = run_reference(sample.op, arrays, float64)[0]
        x, w, y = (
            full(s, channels_last(s.shape)) for s in (*_specs(arrays[:2]), Spec(wanted.shape, float32))
        )
        problem = eights_problem(sample.op, x, w, y, NONE)  # type: ignore[arg-type]
        plan = kernel_plan(DEVICE, problem.inputs, problem.outputs, problem.plain, label="direct")
        assert mismatch(run_plan(plan, arrays)[0], wanted, float32) == "", str(sample)


@EMULATED
def test_float8_rounds_as_it_should() -> None:
    """Every number, every middle between two of them, what is beyond, and random ones."""
    grid = np.arange(256, dtype=np.uint8).view(float8_e4m3fn.numpy)
    grid = grid[np.isfinite(grid.astype(np.float32))]
    one = np.float32(1)
    back = run_plan(_plan(Dequantize(), [grid, one]), [grid, np.array(one)])[0]
    np.testing.assert_array_equal(back, grid.astype(np.float32))
    ordered = np.unique(grid.astype(np.float32))
    spread = np.exp(np.random.default_rng(0).uniform(-9, 7, 3000)).astype(np.float32)
    x = np.concatenate([ordered, (ordered[1:] + ordered[:-1]) / 2, spread, -spread, [464, 465, 1e9, -1e9]])
    x = x.astype(np.float32)
    found = run_plan(_plan(Quantize(float8_e4m3fn), [x, one]), [x, np.array(one)])[0]
    wanted = np.clip(x, -448, 448).astype(float8_e4m3fn.numpy)
    np.testing.assert_array_equal(found.view(np.uint8), wanted.view(np.uint8))


@pytest.mark.feature("B018")
@pytest.mark.parametrize(
    "op", [QuantizedConv(Window((1, 1), ((1, 1), (1, 1)), (1, 1))), QuantizedMatmul()], ids=str
)
@pytest.mark.parametrize(
    ("steps", "label", "kind"),
    [
        ((), "", float32),
        ((Add(), Relu()), "+add+relu", float32),
        ((Relu(), Quantize(int8)), "+relu+div", int8),
        ((Add(), Relu(), Quantize(int8)), "+add+relu+div", int8),
    ],
)
def test_steps_read_what_stands_behind_the_scale(
    op: QuantizedConv | QuantizedMatmul,
    steps: tuple[Op, ...],
    label: str,
    kind: DType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The third input is the head's scale; rounding to 8 bits is a division before cuDNN writes."""
    asked: list[Problem] = []
    monkeypatch.setattr(quantize, "choose", lambda problem, *given: asked.append(problem))
    quantize._cached.cache_clear()
    convolves = isinstance(op, QuantizedConv)
    shapes = ((4, 32, 9, 8), (48, 32, 3, 3)) if convolves else ((6, 32), (48, 32))
    extras = [Spec((1, 48, 1, 1) if convolves else (48,), float32)] * (Add() in steps)
    extras += [Spec((), float32)] * (kind == int8)
    specs = [*(Spec(s, int8) for s in shapes), Spec((48,), float32), *extras]
    quantize.eights_plan(op, specs, steps, DEVICE)
    quantize._cached.cache_clear()
    (problem,) = asked
    assert [s.shape for s in problem.inputs] == [s.shape for s in specs]
    assert [s.dtype for s in problem.inputs] == [s.dtype for s in specs]
    assert [(s.shape, s.dtype) for s in problem.outputs] == [(op.infer(*specs[:3])[0].shape, kind)]
    assert problem.label == op.name + label
    assert [one.name for one in problem.formulations] == (["plain"] if steps else ["plain", "direct"])
    assert bool(problem.plain) == (not steps)


@pytest.mark.gpu
@pytest.mark.feature("B018")
@pytest.mark.parametrize("dtype", [int8, float8_e4m3fn], ids=str)
@pytest.mark.parametrize("steps", [0, 2, 3])
def test_tensor_cores(dtype: DType, steps: int) -> None:
    """A convolution alone, with bias and relu, and rounded to 8 bits again, some results beyond the type."""
    rng = np.random.default_rng(5)
    win = Window((1, 1), ((1, 1), (1, 1)), (1, 1))
    op = (
        QuantizedConv(win)
        if not steps
        else Fused((QuantizedConv(win), Add(), Relu(), Quantize(dtype))[: steps + 1])
    )
    x, w = (rng.integers(-8, 9, s).astype(dtype.numpy) for s in ((4, 32, 9, 8), (48, 32, 3, 3)))
    arrays = [
        x,
        w,
        rng.uniform(0.5, 1, 48).astype(np.float32),
        rng.standard_normal((1, 48, 1, 1)).astype(np.float32),
    ]
    arrays = [*arrays, np.array(2.5, np.float32)][: 3 + (steps > 0) + (steps > 2)]
    found = run_on(backend(Device("cuda:0")), op, arrays)[0].astype(np.float64)
    wanted = run_reference(op, arrays, float64)[0].astype(np.float64)
    assert len(np.unique(wanted)) > 20
    step = 0.0 if steps < 3 else 1.0 if dtype == int8 else 2.0**-3 * np.abs(wanted)
    off = np.abs(found - wanted) > 1e-4 * np.abs(wanted) + 1e-3
    assert off.mean() < (1e-3 if steps > 2 else 1e-9), f"{off.mean()} of the results differ"
    assert (np.abs(found - wanted) <= step + 1e-4 * np.abs(wanted) + 1e-3).all()


def _specs(arrays):  # type: ignore[no-untyped-def]
    return [Spec(np.shape(a), as_dtype(np.asarray(a).dtype)) for a in arrays]


def _plan(op, arrays):  # type: ignore[no-untyped-def]
    return backend(DEVICE).plan(op, _specs(arrays), Policy())
