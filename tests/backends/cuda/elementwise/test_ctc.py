"""CTC's kernels in the emulator: samples, long label sequences in the workspace, wrong lengths, every dtype."""

import shutil
from typing import Any

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.cuda.elementwise import ctc
from lamina.backends.reference import run_reference
from lamina.ops.core import Array
from lamina.ops.primitives.ctc import CtcLoss, CtcLossGrad
from lamina.spec import DType, Policy, Spec, as_dtype, bfloat16, float16, float32, float64
from tests.helpers.eager import mismatch
from tests.helpers.emulator import contrary, run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)


def _run(op: Any, arrays: list[Array]) -> list[Array]:
    plan = CUDA.plan(op, [Spec(a.shape, as_dtype(a.dtype)) for a in arrays], Policy())
    return list(run_plan(plan, arrays))


def _both(op: CtcLoss, arrays: list[Array], dtype: DType) -> None:
    """The losses and states, then the gradient that reads these, beside the reference in float64."""
    wanted = run_reference(op, arrays, float64)
    found = _run(op, arrays)
    assert not any(
        mismatch(y, w, float32 if y.dtype == np.float32 else dtype)
        for y, w in zip(found, wanted, strict=True)
    )
    g = np.linspace(-1, 2, len(found[0])).astype(found[0].dtype)
    grad = CtcLossGrad(op.blank, op.zero_infinity, op.normalized)
    (slopes,) = run_reference(grad, [*arrays, wanted[1].astype(g.dtype), g], float64)
    (mine,) = _run(grad, [*arrays, found[1], g])
    problem = mismatch(mine, slopes, dtype)
    assert not problem, problem
    with contrary():
        (again,) = _run(grad, [*arrays, found[1], g])
    assert again.tobytes() == mine.tobytes()


def _drawn(shape: tuple[int, int, int], labels: list[list[int]], dtype: DType) -> list[Array]:
    x = np.random.default_rng(3).standard_normal(shape)
    x = x - np.log(np.exp(x).sum(2, keepdims=True))
    counts = [len(row) for row in labels]
    padded = np.zeros((len(labels), max(counts)), np.int64)
    for row, values in zip(padded, labels, strict=True):
        row[: len(values)] = values
    steps = [shape[0] - 2 * i for i in range(len(labels))]
    return [x.astype(dtype.numpy), padded, np.array(steps, np.int64), np.array(counts, np.int64)]


@pytest.mark.feature("F074")
@pytest.mark.parametrize("dtype", [float32, float64, bfloat16, float16])
@pytest.mark.parametrize("normalized", [False, True])
def test_values(dtype: DType, normalized: bool) -> None:
    labels = [[1, 2, 2, 3, 1, 2], [], [4, 4], [3, 3, 3, 3, 3]]  # the last has too few steps
    _both(CtcLoss(0, False, normalized, keep=True), _drawn((12, 4, 5), labels, dtype), dtype)


@pytest.mark.parametrize("blank", [0, 2, 4])
def test_more_states_than_threads_share_them_far_away(blank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctc, "_SHARED", 64)
    labels = [[(i * i) % 4 + (0 if blank == 4 else 1) for i in range(20)], [1, 3]]
    _both(CtcLoss(blank, True, keep=True), _drawn((45, 2, 5), labels, float32), float32)


def test_what_is_not_there_is_nan() -> None:
    x, labels, steps, counts = _drawn((6, 3, 4), [[1, 2], [3, 7], [1]], float32)
    steps[0] = 9
    losses, alpha = _run(CtcLoss(keep=True), [x, labels, steps, counts])
    assert np.isnan(losses[:2]).all()
    assert np.isfinite(losses[2])
    (slopes,) = _run(CtcLossGrad(), [x, labels, steps, counts, alpha, np.ones(3, np.float32)])
    assert np.isnan(slopes[:, :2]).all()
    assert np.isfinite(slopes[:, 2]).all()


def test_the_kernels_compile() -> None:
    arrays = _drawn((50, 2, 30), [[1] * 9, [2] * 4], float32)
    specs = [Spec(a.shape, as_dtype(a.dtype)) for a in arrays]
    plan = CUDA.plan(CtcLoss(keep=True), specs, Policy())
    back = CUDA.plan(CtcLossGrad(), [*specs, *plan.outputs[1:], plan.outputs[0]], Policy())
    assert all(p.cubin("sm_90") for p in (*plan.make.programs, *back.make.programs))
