"""Own kernels as values: what is compiled before it is asked for."""

import shutil
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from lamina.backends import Call, Plan
from lamina.backends.cuda.launch import program
from lamina.backends.cuda.launch.program import (
    Aligned,
    Bindable,
    Copy,
    DeviceTable,
    Fill,
    Launch,
    Number,
    Program,
    SubPlan,
    Table,
    Together,
    kernel_plan,
    lanes_of,
    looping,
    recorded_steps,
    scratch,
    source,
    target,
)
from lamina.spec import Spec, float32
from tests.helpers.emulator import Memory, run_launch
from tests.helpers.planned import H200

X = Spec((8,), float32)


def of(name: str) -> Program:
    return Program(name, text=f'extern "C" __global__ void {name}(f32 *x) {{}}')


def plan(*steps: Bindable) -> Plan:
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


class Tape:
    """What a plan writes down beside its steps."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []

    def keep(self, data: bytes) -> int:
        return 7000 + len(bytes(data))

    def store(self, data: bytes) -> list[int]:
        self.stored.append(data)
        return [100 * len(self.stored), len(data)]

    def counters(self, count: int) -> int:
        return 9000 + count


def test_steps_as_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with the numbers that it runs with, in their order; only blocks that wait for each other run together."""
    monkeypatch.setattr(Program, "cubin", lambda self, arch: f"{self.name} {arch}".encode())
    call, arguments = Call((1024, 2048), (3072,), workspace=5120), (target(), source(1, 8), Number(3, "i32"))
    given = [["at", 3072], ["at", 2056], ["bytes", "03000000"]]
    numbers = DeviceTable(np.arange(6, dtype=np.float32).reshape(2, 3))
    table = Table((source(), 5, scratch(16)))
    most = 2 * H200.machine.multiprocessors
    steps: list[Bindable] = [
        Launch(of("one"), (5, 2), (64, 4), arguments, shared=48),
        Launch(of("two"), (10**6, 3), (32,), (table, numbers), waves=2),
        Launch(of("two"), (7, 3), (32,), (), waves=2),
        Together(of("three"), (4, 2), (128,), arguments[:2], arguments[2:], shared=16),
        Together(of("four"), (4,), (128,), arguments[:2], arguments[2:], counted=False),
        Fill(target(0, 4), 255, 12),
        Copy(scratch(32), source(), 20),
        SubPlan(plan(Fill(target(), 1, 8), Fill(scratch(), 2, 4)), (target(),), (source(1),), 64),
        Aligned(),
    ]
    tape = Tape()
    found = recorded_steps(steps, H200, call, tape)
    assert found == [
        ["launch", [100, 10], "one", [5, 2], [64, 4], 48, False, given],
        ["launch", [200, 10], "two", [most, 3], [32], 0, False, [["table", [1024, [5], 5136]], ["at", 7024]]],
        ["launch", [300, 10], "two", [7, 3], [32], 0, False, []],
        ["launch", [400, 12], "three", [4, 2], [128], 16, True, [*given[:2], ["at", 9004], given[2]]],
        ["launch", [500, 11], "four", [4], [128], 0, True, given],
        ["fill", 3076, 255, 12],
        ["copy", 5152, 1024, 20],
        ["fill", 2048, 1, 8],
        ["fill", 5184, 2, 4],
    ]
    assert tape.stored == [f"{name} sm_90a".encode() for name in ("one", "two", "two", "three", "four")]
    nameless = Plan((X,), (X,), lambda call: lambda: None)
    assert recorded_steps([*steps, SubPlan(nameless, (), ())], H200, call, tape) is None
    with pytest.raises(ValueError, match=r"multiples of 16, got 0x3ec, 0xbc4;"):
        Aligned().recorded(H200, Call((1004,), (3012,)), tape)


@pytest.mark.parametrize("name", ["i32", "u32", "i64", "u64", "f32", "f64"])
def test_numbers_are_the_bytes_that_a_kernel_gets(name: str) -> None:
    kind = np.dtype({"i": "int", "u": "uint", "f": "float"}[name[0]] + name[1:])
    assert Number(3, name).recorded(Call((), ()), None) == ["bytes", kind.type(3).tobytes().hex()]  # type: ignore[arg-type]


def test_lanes_that_share_a_row() -> None:
    """All accesses are made; as few lanes as can be are idle, and no lane has more than it may."""
    for accesses in range(1, 200):
        for most in (1, 2, 4, 8):
            lanes, turns = lanes_of(accesses, most)
            assert (turns - 1) * lanes < accesses <= turns * lanes
            if accesses > 32 * most:
                assert lanes == 32
                continue
            assert turns <= most
            others = [n for n in (32, 16, 8, 4, 2, 1) if n >= min(4, accesses) and -(-accesses // n) <= most]
            idle = {n: n * -(-accesses // n) for n in others}
            assert lanes == max(n for n in others if idle[n] == min(idle.values()))


@pytest.mark.parametrize(("threads", "blocks"), [(0, 1), (1, 1), (256, 1), (257, 2), (1000, 4)])
@pytest.mark.parametrize("each", [1, 3])
def test_launches_of_kernels_that_loop(threads: int, blocks: int, each: int) -> None:
    launch = looping(of("loops"), threads, (target(),), each=each)
    assert (launch.grid, launch.block, launch.waves) == ((blocks,), (256,), program.LOOPING * each)
    assert looping(of("loops"), threads, (), block=64).grid == (max(1, -(-threads // 64)),)
