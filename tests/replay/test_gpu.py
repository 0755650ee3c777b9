"""Steps for a GPU: kernels, fills and copies as data, bound to memory and a stream; no GPU is needed to read them."""

import ctypes
import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from lamina import backends
from lamina.backends import Call
from lamina.backends.cuda.launch.program import (
    DeviceTable,
    Fill,
    Launch,
    Number,
    Program,
    Table,
    kernel_plan,
    scratch,
    source,
    target,
)
from lamina.c import cudnn
from lamina.cudnn import handle
from lamina.ops import primitives
from lamina.replay import gpu
from lamina.replay.addresses import ARENA, INPUTS, KEPT, Regions, virtual
from lamina.replay.errors import PlanFileError
from lamina.replay.file import Parts
from lamina.replay.gpu import GpuSteps
from lamina.runtime import Device, Machine, NoGpuError, library_state
from lamina.spec import Policy, Spec, bfloat16, float32

H100 = Device("cuda", machine=Machine.named("h100"))
SOURCE = 'extern "C" __global__ void one(float* y, const float* x, int n, float s) { y[0] = x[0] * s; }'


class Tape:
    """Keeps what is written down."""

    def __init__(self) -> None:
        self.parts, self.zeros = Parts(), 0

    def keep(self, data: Any) -> int:
        return virtual(KEPT, self.parts.add(data))

    def store(self, data: Any) -> list[int]:
        return [self.parts.add(data), memoryview(data).nbytes]

    def counters(self, count: int) -> int:
        self.zeros += count
        return virtual(3, 4 * (self.zeros - count))

    def stored(self, place: Any) -> memoryview:
        content = b"".join(self.parts.pieces)
        return memoryview(content)[place[0] : place[0] + place[1]]


class Module:
    """Stands for machine code: its kernels write down how they are launched."""

    launched: ClassVar[list[tuple[Any, ...]]] = []

    def __init__(self, cubin: bytes, device: Device) -> None:
        assert cubin[:4] == b"\x7fELF"

    def kernel(self, name: str) -> Any:
        class Kernel:
            def prepare(self, grid: Any, block: Any, *values: Any, **more: Any) -> Any:
                return lambda: Module.launched.append((name, grid, block, [bytes(v) for v in values], more))

        return Kernel()


REGIONS = Regions(
    [(0, -1), (0x10000, 4096), (0x20000, 4096), (0x30000, 4096)] + [(0, -1)] * 4 + [(0x40000, 64)]
)
CALL = Call((virtual(INPUTS),), (virtual(ARENA, 256),), virtual(ARENA, 1024))


def test_a_launch_gets_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "KernelModule", Module)
    monkeypatch.setattr(gpu, "as_stream", lambda handle, device: handle)
    table = DeviceTable(np.arange(4, dtype=np.float32))
    arguments = (target(0, 8), source(), Number(7, "i32"), Number(0.5, "f32"), Table((scratch(16), 5)), table)
    step = Launch(Program("one", text=SOURCE), (3, 2), (64,), arguments, shared=128)
    spec = Spec((4,), float32)
    plan = kernel_plan(H100, [spec], [spec], [step], label="one")
    tape = Tape()
    data = plan.recorded(CALL, tape)
    assert data is not None
    Module.launched.clear()
    steps = GpuSteps(H100, tape.stored)
    for one in json.loads(json.dumps(data)):
        steps.step(one)(REGIONS, 99)()
    ((name, grid, block, values, more),) = Module.launched
    assert (name, grid, block) == ("one", [3, 2], [64])
    assert more == {"stream": 99, "shared": 128, "cooperative": False}
    addresses = [int.from_bytes(v, "little") for v in values]
    assert addresses[:3] == [0x10000 + 256 + 8, 0x40000, 7]
    assert np.frombuffer(values[3], np.float32)[0] == 0.5
    assert np.frombuffer(values[4], np.uint64).tolist() == [0x10000 + 1024 + 16, 5]
    kept = addresses[5] - 0x20000
    assert np.frombuffer(b"".join(tape.parts.pieces)[kept : kept + 16], np.float32).tolist() == [0, 1, 2, 3]


def ops() -> list[tuple[Any, list[Spec]]]:
    x = Spec((2, 64, 8, 8), bfloat16).with_tag("acdb")
    return [
        (primitives.Relu(), [x]),
        (primitives.Add(), [x, x]),
        (primitives.Softmax((1,)), [Spec((8, 40), float32)]),
        (primitives.Reduce("mean", (2, 3), True), [x]),
        (primitives.Cast(float32), [x]),
    ]


@pytest.mark.parametrize(("op", "specs"), ops(), ids=str)
def test_own_kernels_are_written_down_and_read(
    op: Any, specs: list[Spec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planned for a GPU that is not there: the code compiles, every address is one of the call's."""
    monkeypatch.setattr(gpu, "KernelModule", Module)
    monkeypatch.setattr(gpu, "as_stream", lambda handle, device: handle)
    plan = backends.get(H100).plan(op, specs, Policy())
    inputs = tuple(virtual(INPUTS + i) for i in range(len(specs)))
    tape = Tape()
    data = plan.recorded(Call(inputs, (virtual(ARENA),), virtual(ARENA, 1 << 20)), tape)
    assert data
    regions = [(0, -1), (1 << 30, 1 << 22), (2 << 30, tape.parts.nbytes), (3 << 30, 4 * tape.zeros)]
    memory = Regions(regions + [(0, -1)] * 4 + [((8 + i) << 30, s.nbytes) for i, s in enumerate(specs)])
    steps, launches = GpuSteps(H100, tape.stored), 0
    Module.launched.clear()
    for one in json.loads(json.dumps(data)):
        run = steps.step(one)(memory, 5)
        if one[0] == "launch":
            run()
            launches += 1
    assert len(Module.launched) == launches > 0
    everything = b"".join(v for _, _, _, values, _ in Module.launched for v in values)
    for i in range(len(specs)):
        assert ((8 + i) << 30).to_bytes(8, "little") in everything


class Plan:
    """Stands for a plan of cuDNN. Two are made at the same time, and the first one takes longer."""

    made: ClassVar[list[tuple[str, int, int]]] = []  # text, handle, thread
    runs: ClassVar[list[tuple[Any, ...]]] = []
    together: ClassVar[threading.Barrier]
    workspace = 64

    def __init__(self, config: None, handle: int, *, json: str) -> None:
        Plan.made.append((json, handle, threading.get_ident()))
        Plan.together.wait(10)
        if json.startswith("bad"):
            time.sleep(0.1 if json == "bad 1" else 0)
            raise ValueError(json)
        self.json = json

    def bind(self, handle: int, pack: Any, stream: int) -> Any:
        return lambda: Plan.runs.append((self.json, handle, pack, stream))


def own_handle(device: Any) -> int:
    return id(library_state())


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[str]], Any]:
    """Steps that run plans of such texts, bound to memory."""
    monkeypatch.setattr(gpu, "ExecutionPlan", Plan)
    monkeypatch.setattr(gpu, "VariantPack", lambda addresses, workspace: (addresses, workspace))
    monkeypatch.setattr(gpu, "handle_of", own_handle)
    monkeypatch.setattr(gpu, "usable_cores", lambda: 2)
    Plan.made, Plan.runs, Plan.together = [], [], threading.Barrier(2)
    device: Any = SimpleNamespace(current=nullcontext)

    def bound(texts: Sequence[str]) -> Any:
        content, places = "".join(texts).encode(), [0, *accumulate(map(len, texts))]
        steps = [
            ["cudnn", [place, len(text)], [[7, virtual(INPUTS)]], virtual(ARENA, 1024), 64]
            for place, text in zip(places, texts, strict=False)
        ]
        reader = GpuSteps(device, lambda place: memoryview(content)[place[0] : place[0] + place[1]])
        return [one(REGIONS, 99) for one in reader.steps([*steps, steps[0]])]

    return bound


def test_plans_are_made_by_threads_each_with_a_handle_of_its_own(plans: Any) -> None:
    texts = ["one", "two", "three", "four"]
    mine, pack = own_handle(None), ({7: 0x40000}, 0x10000 + 1024)
    for run in plans(texts):
        run()
    assert Plan.runs == [(text, mine, pack, 99) for text in [*texts, "one"]]
    assert sorted(text for text, _, _ in Plan.made) == sorted(texts)  # each once
    threads = {thread for _, _, thread in Plan.made}
    assert len(threads) == len({(handle, thread) for _, handle, thread in Plan.made}) == 2
    assert threading.get_ident() not in threads


def test_of_several_bad_plans_the_first_one_is_named(plans: Any) -> None:
    with pytest.raises(ValueError, match="bad 1"):
        plans(["bad 1", "bad 2"])


def test_one_plan_needs_no_thread(plans: Any) -> None:
    Plan.together = threading.Barrier(1)
    assert len(plans(["one"])) == 2
    assert Plan.made == [("one", own_handle(None), threading.get_ident())]


def test_the_version_of_cudnn_is_asked_with_all_open_that_handles_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NVRTC before cuDNN; neither need be there."""
    opened: list[str] = []

    def nvrtc() -> None:
        opened.append("NVRTC")
        raise NoGpuError("not installed")

    def available() -> bool:
        opened.append("cuDNN")
        return False

    monkeypatch.setattr(handle, "open_nvrtc", nvrtc)
    monkeypatch.setattr(cudnn, "library", SimpleNamespace(available=available))
    assert gpu.cuDNN() == ""
    assert opened == ["NVRTC", "cuDNN"]


def test_fills_and_copies_stay_within_their_regions() -> None:
    spec = Spec((16,), float32)
    plan = kernel_plan(H100, [spec], [spec], [Fill(target(), 0, 64)], label="fill")
    data = plan.recorded(CALL, Tape())
    assert data == [["fill", virtual(ARENA, 256), 0, 64]]
    steps = GpuSteps(H100, lambda place: memoryview(b""))
    for wrong in (["fill", virtual(ARENA, 4090), 0, 64], ["copy", virtual(ARENA), virtual(INPUTS), 65]):
        with pytest.raises(PlanFileError, match="beyond"):
            steps.step(wrong)(REGIONS, 0)


@pytest.mark.parametrize(
    "step",
    [["onednn"], ["launch"], ["cudnn", [0, 1]], ["cublaslt", {}, [], [], "", 0, 0], [], ["exec", "x"]],
    ids=str,
)
def test_what_is_no_step_is_refused(step: list[Any]) -> None:
    with pytest.raises((PlanFileError, TypeError, ValueError)):
        GpuSteps(H100, lambda place: memoryview(b"")).step(step)


def test_an_argument_of_no_kind_is_refused() -> None:
    with pytest.raises(PlanFileError, match="no argument 'file'"):
        gpu._argument(["file", "x"], REGIONS)
    with pytest.raises(PlanFileError, match="beyond"):
        gpu._argument(["table", [virtual(ARENA, 1 << 30)]], REGIONS)
    assert isinstance(gpu._argument(["at", virtual(ARENA)], REGIONS), ctypes.c_void_p)


def test_facts_of_a_gpu() -> None:
    assert gpu.gpu(H100) == {
        "device": "cuda", "gpu": H100.machine.name, "target": "sm_90a", "multiprocessors": 132
    } or gpu.gpu(H100)["target"].startswith("sm_90")  # fmt: skip
