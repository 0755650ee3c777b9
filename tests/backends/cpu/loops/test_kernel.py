"""Kernels bound to memory, shared among threads, and watched."""

import numpy as np
import pytest

from lamina import backends
from lamina.backends import Call, NoKernel, Plan
from lamina.backends.cpu.library import Stages, at_input, at_output
from lamina.backends.cpu.loops import kernel, table
from lamina.backends.cpu.loops.code import Code
from lamina.backends.cpu.loops.kernel import InOrder, LoopKernel
from lamina.ops.core import REGISTRY
from lamina.runtime import Device
from lamina.spec import Policy, Spec, float32, int64
from tests.helpers.loops import needs_llvm

pytestmark = needs_llvm
BACKEND = backends.get(Device("cpu"), "cpu")


def doubled() -> str:
    code = Code()
    x, y = code.array(float32), code.array(float32)
    first, last = code.share()
    with code.loop(first, last, independent=True) as i:
        y[i] = x[i] * 2
    return code.text()


@pytest.mark.parametrize("count", [1, 2, 3, 1000, 70001])
@pytest.mark.parametrize("work", [1, kernel.SHARED])
def test_every_step_is_done_by_one_thread(count: int, work: int) -> None:
    x, y = np.arange(count, dtype=np.float32), np.full(count + 1, 7, np.float32)
    made = LoopKernel(doubled, [at_input(0), at_output()], count, work)
    made(Call((x.ctypes.data,), (y.ctypes.data,)))()
    np.testing.assert_array_equal(y, [*(2 * x), 7])


def flagged() -> str:
    """Copies; the flag is set where an element is negative."""
    code = Code()
    x, y, flag = code.array(float32), code.array(float32), code.array(int64)
    first, last = code.share()
    with code.loop(first, last) as i:
        y[i] = x[i]
        with code.when(x[i] < 0):
            flag[0] = 1
    return code.text()


def test_what_a_kernel_refuses_runs_elsewhere() -> None:
    x, y, refused = np.arange(4, dtype=np.float32), np.zeros(4, np.float32), list[int]()
    made = LoopKernel(flagged, [at_input(0), at_output()], 4, 1, lambda call: lambda: refused.append(1))
    run = made(Call((x.ctypes.data,), (y.ctypes.data,)))
    run()
    assert (y[3], refused) == (3, [])
    x[2] = -1
    run()
    x[2] = 1
    run()
    assert refused == [1]


def kernels_of(plan: Plan) -> list[LoopKernel]:
    """The kernels of a plan, which may stand among oneDNN's primitives."""
    made = plan.make
    found = made.kernels if isinstance(made, InOrder) else made.stages if isinstance(made, Stages) else [made]
    return [one for one in found if isinstance(one, LoopKernel)]


def test_steps_and_work_are_those_of_the_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """No loop has more steps than there are elements. Each step reads or writes some, each element a few times: by
    that a kernel is shared among threads.
    """
    monkeypatch.setattr(table, "LEAST", 0)
    seen = 0
    for op_class in REGISTRY.values():
        if not op_class.__module__.startswith("lamina.ops."):
            continue
        dtype = float32 if float32 in op_class.dtypes else op_class.dtypes[0]
        for sample in op_class.samples():
            if sample.dtypes is not None and dtype not in sample.dtypes:
                continue
            try:
                plan = BACKEND.plan(
                    sample.op, [Spec(a.shape, a.dtype or dtype) for a in sample.args], Policy()
                )
            except NoKernel:
                continue
            elements = sum(s.numel for s in (*plan.inputs, *plan.outputs))
            for made in kernels_of(plan):
                assert made.steps <= max(elements, 1), sample
                assert made.steps <= made.work <= 20 * elements or elements == 0, sample
                seen += 1
    assert seen > 200
