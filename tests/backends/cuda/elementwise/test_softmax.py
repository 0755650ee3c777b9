"""Softmax and its gradients, run on a CPU: groups that lanes hold, and those that are read again."""

import shutil

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.reference import run_reference
from lamina.ops.core import Array, Op
from lamina.ops.primitives import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from lamina.spec import DType, Layout, Policy, Spec, as_dtype, bfloat16, contiguous, float16, float32, float64
from tests.helpers.eager import mismatch
from tests.helpers.emulator import run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)
#: Shape, axis, dtype, (V, LANES, TURNS): one and several accesses, several groups of a warp, lanes without an access,
#: groups of odd length, and such as are not held.
CASES: list[tuple[tuple[int, ...], int, DType, tuple[int, int, int] | None]] = [
    ((3, 5, 256), 2, bfloat16, (8, 32, 1)),
    ((7, 1024), 1, float16, (8, 32, 4)),
    ((9, 192), 1, bfloat16, (8, 8, 3)),
    ((33, 49), 1, float32, (1, 4, 13)),
    ((300, 8), 1, bfloat16, (8, 1, 1)),
    ((5, 10), 1, bfloat16, (2, 8, 1)),
    ((6, 64), 1, float64, (2, 32, 1)),
    ((4, 1026), 1, bfloat16, None),
    ((4, 49), 1, bfloat16, None),
    ((3, 2000), 1, float32, None),
    ((3, 16, 7), 1, float32, None),
]


def plan_of(op: Op, arrays: list[Array], held: tuple[int, int, int] | None) -> object:
    plan = CUDA.plan(op, [Spec(a.shape, as_dtype(a.dtype)).fixed for a in arrays], Policy())
    (step,) = plan.make.steps
    names = ("V", "LANES", "TURNS")
    wanted = [f"#define {name} {n}\n" for name, n in zip(names, held or (), strict=False)]
    assert all(line in step.program.text for line in wanted)
    assert ("#define TURNS" in step.program.text) == (held is not None)
    return plan


@pytest.mark.parametrize("logarithm", [False, True])
@pytest.mark.parametrize(("shape", "axis", "dtype", "held"), CASES, ids=str)
def test_values(
    shape: tuple[int, ...], axis: int, dtype: DType, held: tuple[int, int, int] | None, logarithm: bool
) -> None:
    """Forward, then the gradient from the rounded result; at addresses that are not aligned, too."""
    rng = np.random.default_rng(0)
    x, g = (4 * rng.standard_normal(shape).astype(dtype.numpy) for _ in range(2))
    x, g = x.astype(dtype.numpy), g.astype(dtype.numpy)
    forward, backward = (
        (LogSoftmax((axis,)), LogSoftmaxGrad((axis,)))
        if logarithm
        else (Softmax((axis,)), SoftmaxGrad((axis,)))
    )
    y = run_reference(forward, [x], float64)[0].astype(dtype.numpy)
    for op, arrays in ((forward, [x]), (backward, [y, g])):
        plan = plan_of(op, arrays, held)
        for misaligned in (False, True):
            (found,) = run_plan(plan, arrays, misaligned=misaligned)
            wanted = run_reference(op, arrays, float64)[0]
            assert not mismatch(found, wanted, dtype), f"{op} {shape} {dtype} misaligned={misaligned}"


def test_what_is_masked_has_no_weight() -> None:
    x = np.random.default_rng(1).standard_normal((5, 64)).astype(np.float32)
    x[:, 40:], x[2, :3] = -np.inf, np.nan
    found = run_plan(plan_of(Softmax((1,)), [x], (4, 16, 1)), [x])[0]
    np.testing.assert_array_equal(found[:2, 40:], 0)
    np.testing.assert_allclose(found[[0, 1, 3, 4]].sum(1), 1, rtol=1e-6)
    assert np.isnan(found[2]).all()


def test_groups_apart_are_held_where_they_lie() -> None:
    """Lines of features between others: only the axis of the groups must lie together."""
    spec = Spec((2, 3, 4, 16), bfloat16, Layout((3 * 4 * 16, 16, 3 * 16, 1)))
    x = np.random.default_rng(2).standard_normal(spec.shape).astype(bfloat16.numpy)
    plan = CUDA.plan(Softmax((3,)), [spec], Policy())
    assert plan.inputs[0].physical != contiguous(spec.shape)
    (found,) = run_plan(plan, [x])
    assert not mismatch(found, run_reference(Softmax((3,)), [x], float64)[0], bfloat16)


@pytest.mark.parametrize("op_class", [Softmax, LogSoftmax])
@pytest.mark.parametrize("axis", [1, 2, 3])
@pytest.mark.parametrize("dtype", [bfloat16, float32], ids=str)
def test_parts_of_a_tensor_are_read_where_they_lie(
    axis: int, dtype: DType, op_class: type[Softmax | LogSoftmax]
) -> None:
    """The keys of a projection [B, S, 3, H, D]; the result is dense, in the same order of axes."""
    spec = Spec((2, 3, 4, 16), dtype, Layout((3 * 4 * 3 * 16, 16, 3 * 3 * 16, 1)))
    x = np.random.default_rng(3).standard_normal(spec.shape).astype(dtype.numpy)
    plan = CUDA.plan(op_class((axis,)), [spec], Policy())
    assert plan.inputs == (spec,)
    assert plan.outputs[0].tag == "acbd"
    for misaligned in (False, True):
        (found,) = run_plan(plan, [x], misaligned=misaligned)
        assert not mismatch(found, run_reference(op_class((axis,)), [x], float64)[0], dtype)
