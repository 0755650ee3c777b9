"""Own ops on a GPU: their kernels compiled by NVRTC and run on a CPU, their expressions fused, what is refused."""

import shutil
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.backends import NoKernel
from lamina.backends.cuda import backend
from lamina.backends.cuda.launch.program import Launches
from lamina.backends.reference import run_reference
from lamina.ops.core import bind, call
from lamina.ops.custom import CudaKernel, CustomOp
from lamina.runtime import CompileError
from lamina.spec import FLOATS, Policy, Spec, bfloat16, float32, float64
from tests.helpers.eager import mismatch
from tests.helpers.emulator import run_plan
from tests.helpers.own_ops import RowMax, example, unregistered
from tests.helpers.planned import H200

pytestmark = pytest.mark.feature("B046")

CUDA = backend(H200)
SNAKE, DISTANCES = example()["Snake"], example()["Distances"]
compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


@compiler
@pytest.mark.feature("F105")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op_class", [SNAKE, DISTANCES], ids=lambda c: c.name)
def test_values(op_class: type[CustomOp], dtype: Any) -> None:
    for sample in list(op_class.samples())[:4]:
        arrays = sample.draw(np.random.default_rng(0), dtype)
        plan = CUDA.plan(sample.op, [Spec(a.shape, dtype) for a in arrays], Policy())
        wanted = run_reference(sample.op, arrays, float64)
        for y, ref in zip(run_plan(plan, arrays), wanted, strict=True):
            assert not mismatch(y, ref, dtype), sample


@pytest.mark.feature("F105")
@pytest.mark.parametrize("dtype", [float32, float64, bfloat16], ids=str)
def test_nvrtc_compiles_them(dtype: Any) -> None:
    for op, shapes in ((SNAKE(1.5), [(4, 5)]), (DISTANCES(), [(3, 5), (4, 5)])):
        plan = CUDA.plan(op, [Spec(s, dtype) for s in shapes], Policy())
        assert isinstance(plan.make, Launches)
        for program in plan.make.programs:
            assert program.cubin("sm_90")[:4] == b"\x7fELF"


@pytest.mark.feature("F105")
def test_an_expression_fuses_with_its_neighbours() -> None:
    graph = lm.trace(lambda x, y: ops.relu(call(SNAKE(1.5), x + y)) * 2, *[np.ones((8, 8), np.float32)] * 2)
    planned = lm.compile(graph, H200)
    assert planned.kernels == 1
    assert "snake" in planned.program.steps[0].plan.label


def test_a_training_step_is_planned_for_a_gpu() -> None:
    def loss(x: Any, w: Any) -> Any:
        value = ops.mean(call(DISTANCES(), call(SNAKE(1.0), x @ w), w))
        return value, *lm.gradients(value, [w])

    graph = lm.trace(loss, np.ones((4, 8), np.float32), np.ones((8, 8), np.float32))
    labels = [step.plan.label for step in lm.compile(graph, H200).program.steps]
    assert "kernel distances" in labels


def test_a_python_function_is_planned_for_a_gpu() -> None:
    assert CUDA.plan(RowMax(), [Spec((2, 3), float32)], Policy()).label == "python row_max"


class _Given(CustomOp, abstract=True):
    """An op whose kernels are given."""

    __eq__, __hash__ = object.__eq__, object.__hash__

    def __init__(self, *kernels: CudaKernel) -> None:
        object.__setattr__(self, "kernels", kernels)

    def infer(self, x: Spec) -> tuple[Spec]:
        return (x.open,)

    def reference(self, x: Any) -> tuple[Any]:
        return (x * 2 + 1,)

    def cuda(self, x: Spec) -> Any:
        return self.kernels or None


TWICE = CudaKernel(
    "twice",
    'extern "C" __global__ void twice(const In0 *x, Out0 *y, float *between, float factor, int n)\n'
    "{ int i = threadIdx.x; if (i < n) between[i] = x[i] * factor; }",
    threads=5,
    block=32,
    numbers=(np.float32(2), np.int32(5)),
    scratch=20,
)
PLUS = CudaKernel(
    "plus",
    'extern "C" __global__ void plus(const In0 *x, Out0 *y, const float *between)\n'
    "{ y[threadIdx.x] = between[threadIdx.x] + 1; }",
    grid=(1,),
    block=(5,),
)


@compiler
def test_several_kernels_share_scratch_memory() -> None:
    plan = CUDA.plan(_Given(TWICE, PLUS), [Spec((5,), float32)], Policy())
    assert plan.workspace == 20
    (y,) = run_plan(plan, [np.arange(5, dtype=np.float32)])
    np.testing.assert_array_equal(y, [1, 3, 5, 7, 9])


def test_nothing_is_launched_for_nothing() -> None:
    plan = CUDA.plan(_Given(TWICE, PLUS), [Spec((0,), float32)], Policy())
    assert isinstance(plan.make, Launches)
    assert plan.make.steps == ()


def test_what_is_refused() -> None:
    with pytest.raises(
        NoKernel, match=r"cuda has no kernel for given \(f32\[5\]\): .* expression .*, cuda or run"
    ):
        CUDA.plan(_Given(), [Spec((5,), float32)], Policy())
    wrong = CudaKernel("f", "", threads=1, numbers=(1j,))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="numbers of a CudaKernel are .*float32.*, got 1j"):
        CUDA.plan(_Given(wrong), [Spec((5,), float32)], Policy())


def test_errors_of_the_compiler_name_the_line_of_the_source() -> None:
    broken = CudaKernel(
        "broken", '\nextern "C" __global__ void broken(const In0 *x, Out0 *y) { y[0] = z; }', threads=1
    )
    plan = CUDA.plan(_Given(broken), [Spec((5,), float32)], Policy())
    assert isinstance(plan.make, Launches)
    with pytest.raises(CompileError, match=r'given.broken\(2\): error: identifier "z" is undefined'):
        plan.make.programs[0].cubin("sm_90")


@pytest.mark.gpu
@pytest.mark.feature("F105")
def test_values_on_a_gpu() -> None:
    with unregistered():
        for op_class in (SNAKE, DISTANCES):
            for sample in op_class.samples():
                arrays = sample.draw(np.random.default_rng(0), float32)
                found = bind(sample.op, *(lm.tensor(a, device="cuda") for a in arrays))
                for y, ref in zip(found, run_reference(sample.op, arrays, float64), strict=True):
                    assert not mismatch(y.numpy(), ref, float32), sample
