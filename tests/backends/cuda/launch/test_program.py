"""Own kernels as values: what is compiled before it is asked for."""

from collections.abc import Callable

import pytest

from lamina.backends import Plan
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
