"""Timelines: calls are as they are otherwise, spans lie in order, clocks of ranks are compared, files join."""

import json
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.graph import Timeline, clock_offset, compile, merge_timelines, record_call, trace
from lamina.graph.run import timeline as module
from lamina.graph.run.context import _between, _Stamped
from lamina.graph.run.timeline import Span, host_span
from lamina.spec import Spec, float32

pytestmark = pytest.mark.feature("B038")
X = np.random.default_rng(0).standard_normal((4, 1, 28, 28)).astype(np.float32)
Y = np.arange(4)


def step() -> Any:
    nn.manual_seed(0)
    return lm.train_step(nn.LeNet(1, 10), ops.cross_entropy, optim.SGD(0.1), device="cpu")


def test_recorded_steps_train_as_others_do() -> None:
    plain, recorded = step(), step()
    expected = [plain(X, Y).item() for _ in range(5)]
    timeline = Timeline(2, skip=1)
    with timeline.record():
        found = [recorded(X, Y).item() for _ in range(5)]
    assert found == expected
    assert timeline.recorded == 2
    calls = [s for s in timeline.spans if s.lane == "host"]
    assert [c.name for c in calls] == ["train_step"] * 2
    kernels = [s for s in timeline.spans if s.lane == "stream 0"]
    assert len(kernels) == 2 * recorded.executable.kernels
    assert {s.kind for s in kernels} <= {"compute", "update", "reorder"}
    assert {"conv > add > relu", "max_pool_grad"} <= {s.name for s in kernels}
    for call in calls:
        inside = [s for s in kernels if call.begin <= s.begin and s.end <= call.end]
        assert len(inside) == recorded.executable.kernels
        assert all(a.end <= b.begin for a, b in pairwise(inside))
    assert all("test_timeline.py" in str(s.details["from"]) for s in kernels if s.name == "conv > add > relu")


def test_only_this_thread_is_recorded_and_only_within_the_block() -> None:
    run = compile(trace(lambda x: ops.relu(x) * 2.0, Spec((3,), float32)), "cpu")
    x = np.ones(3, np.float32)
    timeline = Timeline()
    run(x)
    with timeline.record():
        other = threading.Thread(target=run, args=(x,))
        other.start()
        other.join()
        assert timeline.recorded == 0
        with host_span("mine"):
            run(x)
    with host_span("later"):
        run(x)
    assert timeline.recorded == 1
    assert [s.name for s in timeline.spans if s.kind == "host"] == [run.graph.name, "mine"]


def test_one_call_of_a_program() -> None:
    run = compile(trace(lambda x, y: ops.matmul(x, y), *[Spec((4, 4), float32)] * 2), "cpu")
    assert [str(spec) for spec in run.given] == ["f32[4,4]"] * 2
    found = record_call(run)
    (product,) = [s for s in found.spans if s.name == "matmul"]
    assert product.details["flop"] == 128
    assert found.recorded == 1
    with pytest.raises(RuntimeError, match="null backend"):
        record_call(compile(trace(ops.relu, Spec((3,), float32)), "cpu", backend="null"))


def test_poisoned_programs_are_recorded_too() -> None:
    run = compile(trace(lambda x: ops.exp(ops.matmul(x, x)), Spec((4, 4), float32)), "cpu", poison=True)
    assert len([s for s in record_call(run).spans if s.kind != "host"]) == run.kernels


# ---- communication


def span(kind: str, begin: int, end: int) -> Span:
    return Span(kind, kind, f"stream {kind}", begin, end - begin)


@pytest.mark.parametrize(
    ("spans", "communication", "exposed"),
    [
        ([], 0, 0),
        ([("compute", 0, 10), ("host", 0, 90)], 0, 0),
        ([("compute", 0, 10), ("communication", 2, 6)], 4, 0),
        ([("compute", 0, 10), ("communication", 8, 15)], 7, 5),
        ([("compute", 0, 10), ("communication", 8, 15), ("update", 13, 20)], 7, 3),
        ([("communication", 0, 5), ("communication", 2, 9), ("compute", 3, 4), ("compute", 20, 30)], 9, 8),
    ],
)
def test_what_is_exposed(spans: list[tuple[str, int, int]], communication: int, exposed: int) -> None:
    timeline = Timeline()
    timeline.spans = [span(*s) for s in spans]
    assert timeline.communication == pytest.approx(communication / 1e9)
    assert timeline.exposed == pytest.approx(exposed / 1e9)


# ---- on a GPU


class Clock:
    """A stream and its events whose time goes on with each call."""

    def __init__(self) -> None:
        self.now = 0.0
        self.done: list[str] = []

    def stamp(self, event: "Mark") -> None:
        self.done.append(event.name)
        event.at = self.now

    def kernel(self) -> None:
        self.done.append("kernel")
        self.now += 0.25


class Mark:
    def __init__(self, name: str) -> None:
        self.name, self.at = name, 0.0

    def elapsed(self, end: "Mark") -> float:
        return end.at - self.at


def test_kernels_stand_between_their_events() -> None:
    clock, marks = Clock(), [(Mark(f"before {i}"), Mark(f"behind {i}")) for i in range(2)]
    origin: Any = Mark("origin")
    for pair in marks:
        _between(clock.stamp, clock.kernel, *pair)  # type: ignore[arg-type]
    assert clock.done == ["before 0", "kernel", "behind 0", "before 1", "kernel", "behind 1"]
    stamped = _Stamped(None, lambda: None, [], [0, 1], origin, marks)  # type: ignore[arg-type]
    first, second = stamped.times(1000)
    assert (first.stream, first.begin, first.nanoseconds) == (0, 1000, 250_000)
    assert (second.stream, second.begin, second.nanoseconds) == (1, 251_000, 250_000)


@pytest.mark.gpu
def test_gpu_steps_are_recorded_on_their_streams() -> None:
    nn.manual_seed(0)
    plain, recorded = (
        lm.train_step(nn.LeNet(1, 10), ops.cross_entropy, optim.SGD(0.1), device="cuda:0") for _ in range(2)
    )
    for a, b in zip(plain.state.parameters.values(), recorded.state.parameters.values(), strict=True):
        b.copy_(a)
    with lm.policy(deterministic=True):
        expected = [plain(X, Y).item() for _ in range(6)]
        timeline = Timeline(2, skip=3)
        with timeline.record():
            found = [recorded(X, Y).item() for _ in range(6)]
    assert found == expected
    kernels = [s for s in timeline.spans if s.kind != "host"]
    assert len(kernels) == 2 * recorded.executable.kernels
    calls = [s for s in timeline.spans if s.kind == "host"]
    assert all(any(c.begin <= s.begin and s.end <= c.end + 10**6 for c in calls) for s in kernels)


# ---- several ranks


def exchanges(ranks: int) -> list[Any]:
    """For threads that stand for ranks: what each exchanges numbers by."""
    barrier, given = threading.Barrier(ranks), [0] * ranks

    def exchange(rank: int) -> Any:
        def of(value: int) -> list[int]:
            given[rank] = value
            barrier.wait()
            found = list(given)
            barrier.wait()
            return found

        return of

    return [exchange(rank) for rank in range(ranks)]


def test_clocks_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ranks whose clocks differ by hours: the difference is found, within the error that is told."""
    wrong = {"rank 0": 5, "rank 1": -(10**13), "rank 2": 3 * 10**12}
    true = time.monotonic_ns

    class Wrong:
        @staticmethod
        def monotonic_ns() -> int:
            return true() + wrong[threading.current_thread().name]

    monkeypatch.setattr(module, "time", Wrong)
    found: dict[int, tuple[int, int]] = {}
    threads = [
        threading.Thread(
            target=lambda r, e: found.update({r: clock_offset(e, r)}),
            args=(rank, exchange),
            name=f"rank {rank}",
        )
        for rank, exchange in enumerate(exchanges(3))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == (0, 0)
    for rank in (1, 2):
        offset, error = found[rank]
        assert abs(offset - (wrong[f"rank {rank}"] - wrong["rank 0"])) <= error
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        clock_offset(lambda value: [value], 0, 0)


def test_files_of_ranks_join(tmp_path: Path) -> None:
    paths = []
    for rank in range(3):
        one = Timeline(rank=rank)
        one.offset = 10**6 * rank
        one.spans = [Span("relu", "compute", "stream 0", 5000 + 10**6 * rank, 2000, {"bytes": 8})]
        paths.append(tmp_path / f"rank{rank}.json")
        one.save(paths[-1])
    out = tmp_path / "all.json"
    assert merge_timelines(paths[::-1], out) == 3
    found = json.loads(out.read_text())
    spans = [e for e in found["traceEvents"] if e["ph"] == "X"]
    assert sorted(e["pid"] for e in spans) == [0, 1, 2]
    assert {(e["name"], e["ts"], e["dur"], e["cat"]) for e in spans} == {("relu", 5.0, 2.0, "compute")}
    names = {e["pid"]: e["args"]["name"] for e in found["traceEvents"] if e["name"] == "process_name"}
    assert names == {0: "rank 0", 1: "rank 1", 2: "rank 2"}
    assert [r["rank"] for r in found["otherData"]["ranks"]] == [0, 1, 2]
    with pytest.raises(ValueError, match="rank 1 comes twice"):
        merge_timelines([paths[1], out], tmp_path / "twice.json")
    for content in ("{}", "[1]", "no json", '{"traceEvents": [], "otherData": {"format": "another"}}'):
        (tmp_path / "other.json").write_text(content)
        with pytest.raises(ValueError, match="other.json: is no timeline that Lamina wrote"):
            merge_timelines([tmp_path / "other.json"], out)
