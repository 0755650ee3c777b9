"""Edges of captured graphs and borrowed streams, on a driver in software; streams on a GPU are in test_gpu.py."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from lamina.runtime import Device, DeviceError, Event, _cuda
from lamina.runtime import stream as module
from lamina.runtime.stream import (
    CapturedGraph,
    CudaStream,
    _borrow,
    _wait_for_ends,
    as_stream,
    early_starts,
    may_start_early,
)


@dataclass(frozen=True)
class Edge:
    """Data of an edge; type 1: what is behind it may begin before what is before it has ended."""

    type: int = 0


@dataclass
class Driver:
    """The driver's functions on the edges of one graph, as the bindings of CUDA 13 or 12 have them."""

    edges: list[tuple[str, str, Edge]]
    suffix: str
    CUgraphEdgeData = Edge

    def functions(self) -> dict[str, Callable[..., Any]]:
        return {
            f"cuGraph{name}{self.suffix}": function
            for name, function in (
                ("GetEdges", self.get),
                ("RemoveDependencies", self.remove),
                ("AddDependencies", self.add),
            )
        }

    def get(self, graph: object, count: int = 0) -> tuple[Any, ...]:
        given = self.edges[:count]
        return [a for a, _, _ in given], [b for _, b, _ in given], [e for *_, e in given], len(self.edges)

    def remove(
        self, graph: object, before: list[str], after: list[str], data: list[Edge], count: int
    ) -> None:
        assert count == len(before)
        self.edges.remove((before[0], after[0], data[0]))

    def add(self, graph: object, before: list[str], after: list[str], data: list[Edge], count: int) -> None:
        assert count == len(before)
        self.edges.append((before[0], after[0], data[0]))


@pytest.mark.feature("B035")
@pytest.mark.parametrize("suffix", ["", "_v2"])
def test_kernels_of_a_graph_wait_for_the_end_of_those_before(
    suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Driver([("a", "b", Edge()), ("b", "c", Edge(1)), ("c", "d", Edge(1))], suffix)
    names = made.functions()
    there = SimpleNamespace(CUgraphEdgeData=Edge, **names)
    monkeypatch.setattr(_cuda, "open_cuda", lambda: SimpleNamespace(driver=there))
    monkeypatch.setattr(_cuda, "call", lambda name, *given: names[name](*given))
    _wait_for_ends("graph")
    assert sorted((a, b) for a, b, _ in made.edges) == [("a", "b"), ("b", "c"), ("c", "d")]
    assert all(edge.type == 0 for *_, edge in made.edges)
    made.edges.clear()
    _wait_for_ends("graph")
    assert made.edges == []


@pytest.mark.feature("B035")
def test_early_starts_are_one_threads_and_end() -> None:
    """Within another block, behind an error, and for other threads it is as it was."""
    seen = []

    def fail() -> None:
        with early_starts():
            with early_starts():
                seen.append(may_start_early())
            seen.append(may_start_early())
            thread = threading.Thread(target=lambda: seen.append(may_start_early()))
            thread.start()
            thread.join()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [*seen, may_start_early()] == [True, True, False, False]


@pytest.mark.parametrize("owned", [True, False])
def test_a_stream_of_another_library_is_never_closed(owned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    asked: list[str] = []
    monkeypatch.setattr(_cuda, "direct", lambda name: lambda handle: called.append(f"{name}({handle})"))

    def call(name: str, *given: int) -> int:
        (called if "Destroy" in name else asked).append(f"{name}{given}")
        return 0

    monkeypatch.setattr(_cuda, "call", call)
    device: Any = SimpleNamespace(kind="cuda", index=0, current=nullcontext)
    stream = CudaStream(device, 77) if owned else _borrow(77, device)
    stream.close()
    stream.close()
    assert called == (["cuStreamSynchronize(77)", "cuStreamDestroy(77,)"] if owned else [])
    assert stream.closed == owned
    del stream
    left = CudaStream(device, 78, owned=owned)
    del left  # what is let go of without `close` is destroyed, too, and without waiting
    assert called[2:] == (["cuStreamDestroy(78,)"] if owned else [])
    with pytest.raises(ValueError, match="stream 0x4d belongs to cuda:0, and the work is on"):
        _borrow(77, SimpleNamespace(kind="cuda", index=1, current=nullcontext))  # type: ignore[arg-type]


def test_launches_of_a_graph_are_in_turn_unless_a_thread_has_it_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver wants one launch of a graph at a time; what it answers is raised, behind which others may launch."""
    device: Any = SimpleNamespace(platform=SimpleNamespace(enter=lambda: 3, leave=lambda _: None))
    stream = CudaStream(device, 5, owned=False)
    graph, seen, answers = CapturedGraph(stream), [], iter([0, 0, 700, 700])

    def launch(executable: int, handle: int) -> int:
        seen.append((executable, handle, graph._lock.locked()))
        return next(answers)

    monkeypatch.setattr(_cuda, "direct", lambda name: {"cuGraphLaunch": launch}[name])
    monkeypatch.setattr(_cuda, "error_text", lambda status: (f"ERROR_{status}", "as it says"))
    with pytest.raises(DeviceError, match="launch: the graph is closed, or its capture has not ended"):
        graph.bind()
    graph._executable = 7
    in_turn, alone = graph.bind(), graph.bind(alone=True)
    in_turn()
    alone()
    for run in (in_turn, alone):
        with pytest.raises(DeviceError, match="cuGraphLaunch failed with ERROR_700"):
            run()
    assert seen == [(7, 5, True), (7, 5, False)] * 2
    assert not graph._lock.locked()
    graph._executable = None
    for run in (in_turn, alone):
        with pytest.raises(DeviceError, match="launch: the graph is closed"):
            run()
    assert len(seen) == 4


@pytest.mark.parametrize(
    ("status", "capturing", "invalidated"), [(0, False, False), (1, True, False), (2, True, True)]
)
def test_a_capture_goes_on_is_over_or_was_broken_off(
    status: int, capturing: bool, invalidated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    device: Any = SimpleNamespace(kind="cuda", index=0)
    stream = CudaStream(device, 77)
    monkeypatch.setattr(
        _cuda, "call", lambda name, handle: {("cuStreamIsCapturing", 77): status}[name, handle]
    )
    assert (stream.capturing, stream._is_invalidated()) == (capturing, invalidated)


class Place(SimpleNamespace):
    """A device, as far as a borrowed stream looks at it."""

    __hash__ = object.__hash__


class Foreign:
    """A stream of another library."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.address)


def test_a_stream_of_another_library_is_borrowed_once_and_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    def call(name: str, *given: int) -> int:
        if name == "cuStreamGetPriority":
            opened.extend(given)
        return 0

    monkeypatch.setattr(_cuda, "call", call)
    monkeypatch.setattr(module, "_borrowed", {})
    default = object()
    device: Any = Place(kind="cuda", index=0, current=nullcontext, default_stream=default)
    assert as_stream(None, device) is default
    number, foreign = as_stream(77, device), Foreign(99)
    assert (number.handle, number.owner) == (77, None)
    assert as_stream(number, device) is number
    found = as_stream(foreign, device)
    assert (found.handle, found.owner) == (99, foreign)
    assert as_stream(Foreign(99), device) is found
    assert found.owner is foreign
    known = as_stream(Foreign(77), device)  # the owner is known by now
    assert known is number
    assert known.owner is not None
    usual = as_stream(0, device)
    assert as_stream(1, device) is usual  # CUDA's legacy default stream
    assert opened == [77, 99, 1]
    host: Any = SimpleNamespace(kind="cpu", default_stream=default)
    with pytest.raises(ValueError, match="it queues work of a GPU, and the work is on"):
        as_stream(77, host)


def test_what_is_no_stream_and_no_event_is_refused_by_name() -> None:
    cpu = Device("cpu")
    stream = cpu.stream()
    stream.wait(Event())
    stream.wait(cpu.stream())
    with pytest.raises(TypeError, match="a CUDA stream is wanted .*, got 'x'"):
        stream.wait("x")
    with pytest.raises(TypeError, match="record: stream must be a Stream, got 3"):
        Event().record(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="record: event must be an Event, got 'x'"):
        stream.record("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="stream: priority must be a whole number, got 'x'"):
        cpu.stream(priority="x")  # type: ignore[arg-type]
