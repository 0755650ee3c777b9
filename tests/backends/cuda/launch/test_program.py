"""Own kernels as values: what is compiled before it is asked for."""

import shutil
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from lamina.backends import Call, Plan
from lamina.backends.cuda.launch import program
from lamina.backends.cuda.launch.program import (
    Launch,
    Program,
    SubPlan,
    Together,
    kernel_plan,
    source,
    target,
)
from lamina.spec import Spec, float32
from tests.helpers.emulator import Memory, run_launch
from tests.helpers.planned import H200

X = Spec((8,), float32)


def of(name: str) -> Program:
    return Program(name, text=f'extern "C" __global__ void {name}(f32 *x) {{}}')


def plan(*steps: Launch | Together | SubPlan) -> Plan:
    return kernel_plan(H200, [X], [X], steps, label="some")


def test_kernels_are_compiled_ahead_in_the_order_of_their_launches_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[Callable[[], object]] = []
    monkeypatch.setattr(program.compilers, "begin", begun.append)
    compiled: list[tuple[str, str]] = []
    monkeypatch.setattr(Program, "cubin", lambda self, arch: compiled.append((self.name, arch)))
    program._begun.cache_clear()
    launches = [Launch(of(name), (1,), (32,), (target(),)) for name in ("one", "two", "one")]
    inner = plan(Launch(of("four"), (1,), (32,), (target(),)))
    waiting = Together(of("three"), (1,), (32,), (target(),), ())
    whole = plan(*launches, waiting, SubPlan(inner, (source(),), (target(),)))
    whole.compile_ahead()
    whole.compile_ahead()
    for task in begun:
        task()
    assert compiled == [(name, "sm_90a") for name in ("one", "two", "three", "four")]


def test_a_plan_without_kernels_has_nothing_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program.compilers, "begin", lambda task: pytest.fail("nothing is to be done"))
    Plan((X,), (X,), lambda call: lambda: None).compile_ahead()
    plan().compile_ahead()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_the_emulator_has_the_functions_of_float_that_cuda_has() -> None:
    """What is called with a float computes in float: in double, a kernel would look more exact than on a GPU."""
    names = (
        "ceil cos erf erfc exp exp2 expm1 fabs floor lgamma log log10 log1p log2 rint round sin sqrt tan tanh"
    )
    pairs = "copysign fmax fmin fmod pow"
    given = [
        *(f"{name}(v)" for name in [*names.split(), "trunc"]),
        *(f"{name}(v, v)" for name in pairs.split()),
    ]
    sizes = " ".join(f"x[{i}] = sizeof({text});" for i, text in enumerate(given))
    kernel = Program("sizes", text=f'extern "C" __global__ void sizes(f32 *x) {{ f32 v = 1; {sizes} }}')
    found = Memory(4 * len(given))
    run_launch(Launch(kernel, (1,), (32,), (target(),)), Call((), (found.pointer,)))
    np.testing.assert_array_equal(found.bytes.view(np.float32), 4)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_the_emulator_widens_every_float16() -> None:
    text = 'extern "C" __global__ void widen_all(f32 *x, const f16 *h) { FOR_EACH(i, 65536) x[i] = widen(h[i]); }'
    halves, found = Memory(2 << 16), Memory(4 << 16)
    bits = np.arange(1 << 16, dtype=np.uint16)
    halves.bytes[:] = bits.view(np.uint8)
    launch = Launch(
        Program("widen_all", text=f"typedef i32 Index;\n{text}"), (1,), (256,), (target(), source())
    )
    run_launch(launch, Call((halves.pointer,), (found.pointer,)))
    np.testing.assert_array_equal(found.bytes.view(np.float32), bits.view(np.float16).astype(np.float32))


@pytest.mark.parametrize("count", range(5))
def test_a_sequence_runs_all_in_their_order(count: int) -> None:
    done: list[int] = []
    runs = [partial(done.append, i) for i in range(count)]
    program.sequence([program.nothing, *runs, program.nothing])()
    assert done == list(range(count))
    assert program.sequence([program.nothing]) is program.nothing
