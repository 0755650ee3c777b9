"""LSTMs whose weights stay on the GPU, run on a CPU with all blocks at the same time; planned for an H200."""

import ctypes
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lamina.backends import Call, Plan
from lamina.backends.cuda import rnn_resident
from lamina.backends.cuda.program import Launches
from lamina.backends.cuda.rnn_resident import Tiling, forward_plan, gradient_plan
from lamina.backends.reference import run_reference
from lamina.ops.core import Array
from lamina.ops.matmul import Matmul
from lamina.ops.rnn import Rnn, RnnGrad, Sizes
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec, as_dtype, bfloat16, float16, float64, uint8
from tests.backends import emulator
from tests.ops.eager import apart

compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CPU = Device("cpu")


def multiplied(op: Matmul, specs: Sequence[Spec], *rest: Any) -> Plan:
    """A product by NumPy on the addresses of the call."""
    (out,) = op.infer(*specs)

    def make(call: Call) -> Any:
        def run() -> None:
            a, b, c = (view(p, s) for p, s in zip((*call.inputs, *call.outputs), (*specs, out), strict=True))
            c[:] = op.reference(a.astype(np.float32), b.astype(np.float32))[0].astype(c.dtype)

        return run

    return Plan(tuple(s.fixed for s in specs), (out.fixed,), make)


def view(address: int, spec: Spec) -> Array:
    raw = (ctypes.c_uint8 * spec.nbytes).from_address(address)
    return np.frombuffer(raw, spec.dtype.numpy).reshape(spec.shape)


def run(plan: Plan, arrays: Sequence[Array], crooked: bool = False) -> list[Array]:
    """The outputs of a plan. crooked: operands at addresses that are odd multiples of an element."""
    assert isinstance(plan.make, Launches)
    places = [2 if crooked and s.dtype != uint8 else 0 for s in (*plan.inputs, *plan.outputs)]
    given = [np.ascontiguousarray(a).view(np.uint8).reshape(-1) for a in arrays]
    sizes = [*(a.nbytes for a in given), *(s.nbytes for s in plan.outputs)]
    memories = [emulator.Memory(size + place) for size, place in zip(sizes, places, strict=True)]
    for memory, place, raw in zip(memories, places, given, strict=False):
        memory.bytes[place:] = raw
    scratch = emulator.Memory(plan.workspace)
    addresses = [m.pointer + place for m, place in zip(memories, places, strict=True)]
    call = Call(tuple(addresses[: len(given)]), tuple(addresses[len(given) :]), scratch.pointer)
    steps = plan.make.plain() if crooked and plan.make.plain else plan.make.steps
    emulator.run_steps(steps, call)
    for memory in (*memories, scratch):
        memory.check(plan.label)
    results = zip(memories[len(given) :], plan.outputs, places[len(given) :], strict=True)
    return [m.bytes[place:].copy().view(s.dtype.numpy).reshape(s.shape) for m, s, place in results]


def operands(op: Rnn, sizes: Sizes, dtype: DType) -> list[Array]:
    rng = np.random.default_rng(sizes.batch)
    shapes = [tuple(sizes), *op.state_shapes(sizes.batch)]
    found = [rng.uniform(-1, 1, s) for s in shapes]
    found += [rng.uniform(-1, 1, s) / np.sqrt(op.hidden) for s in op.weight_shapes(sizes.inputs)]
    return [a.astype(dtype.numpy) for a in found]


#: op, sizes, wave, units, groups, type
CASES = [
    (Rnn("lstm", 128), Sizes(5, 3, 8), False, 8, 1, float16),
    (Rnn("lstm", 128, 2), Sizes(4, 8, 24), True, 16, 1, bfloat16),
    (Rnn("lstm", 128, 3, bias=False), Sizes(7, 13, 16), True, 32, 2, float16),
    (Rnn("lstm", 256, 2), Sizes(3, 37, 16), False, 8, 1, float16),
    (Rnn("lstm", 384), Sizes(4, 20, 7), False, 16, 2, float16),
    (Rnn("lstm", 256, 2), Sizes(1, 5, 8), True, 32, 1, bfloat16),
]


@compiler
@pytest.mark.parametrize("crooked", [False, True])
@pytest.mark.parametrize(("op", "sizes", "wave", "units", "groups", "dtype"), CASES, ids=str)
def test_values(
    op: Rnn, sizes: Sizes, wave: bool, units: int, groups: int, dtype: DType, crooked: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Forward, and the gradients from what it keeps, or from a forward pass of their own."""
    monkeypatch.setattr(rnn_resident, "matmul_plan", multiplied)
    found = Tiling(sizes.steps, sizes.batch, op.hidden, op.layers, wave, units, groups)
    assert found.fits
    arrays = operands(op, sizes, dtype)
    specs = [Spec(a.shape, dtype).fixed for a in arrays]
    wanted = run_reference(op, [a.astype(np.float64) for a in arrays], float64)
    training = Rnn("lstm", op.hidden, op.layers, bias=op.bias, reserve=True)
    plan = forward_plan(training, specs, found, CPU, Policy())
    *outputs, reserve = run(plan, arrays, crooked)
    roundings = sizes.steps * op.layers
    check(op, outputs, wanted, dtype, roundings)
    if not crooked:
        slim = run(forward_plan(op, specs, found, CPU, Policy()), arrays)
        for a, b in zip(slim, outputs, strict=True):
            np.testing.assert_array_equal(a, b)
    rng = np.random.default_rng(1)
    grads = [rng.uniform(-1, 1, a.shape).astype(dtype.numpy) for a in outputs]
    back = RnnGrad("lstm", op.hidden, op.layers, bias=op.bias, reserve=crooked)
    given = [*arrays[:3], outputs[0], *grads, *([reserve] if crooked else []), *arrays[3:]]
    plan = gradient_plan(back, [Spec(a.shape, as_dtype(a.dtype)).fixed for a in given], found, CPU, Policy())
    gradients = run(plan, given, crooked)
    alone = RnnGrad("lstm", op.hidden, op.layers, bias=op.bias)
    wide = [a.astype(np.float64) for a in given if a.dtype != np.uint8]
    check(alone, gradients[: len(arrays)], run_reference(alone, wide, float64), dtype, roundings)


def check(op: Any, found: Sequence[Array], wanted: Sequence[Array], dtype: DType, roundings: int) -> None:
    for i, (y, ref) in enumerate(zip(found, wanted, strict=True)):
        problem = apart(y, ref, dtype, roundings)
        assert not problem, f"{op} output {i}: {problem}"
