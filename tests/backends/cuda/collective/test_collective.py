"""What plans of collective operations ask of NCCL: its calls, recorded by a stand-in."""

from typing import Any

import pytest

from lamina import backends, ops
from lamina.backends import Call
from lamina.graph import compile, trace
from lamina.graph.run.context import _together
from lamina.ops.core import bind
from lamina.ops.primitives import collective as c
from lamina.runtime.ranks import world
from lamina.runtime.ranks.nccl import NcclCommunicator
from lamina.spec import Group, Policy, Spec, bfloat16, channels_last, float32, int64
from tests.helpers.planned import H200

PAIR = Group(0, 1)
X = Spec((2, 3), float32)


class Recorder:
    """NCCL's bindings as far as they are used: takes down the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.calls.append((name, *args))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found = Recorder()
    made = object.__new__(NcclCommunicator)
    made.size, made.rank, made.device = 2, 1, H200
    made._calls, made._comm = found, "comm"
    monkeypatch.setattr(world.World, "gpu_communicator", lambda self, ranks, device: made)
    return found


@pytest.mark.feature("B032")
@pytest.mark.parametrize(
    ("op", "spec", "calls"),
    [
        (c.AllReduce(PAIR, "mean"), X, [("all_reduce", 100, 200, 6, 7, 4, "comm", 5)]),
        (c.AllReduce(PAIR, "sum"), Spec((4,), bfloat16), [("all_reduce", 100, 200, 4, 9, 0, "comm", 5)]),
        (c.StartAllReduce(PAIR, "max"), X, [("all_reduce", 100, 200, 6, 7, 2, "comm", 5)]),
        (c.AllGather(PAIR), X, [("all_gather", 100, 200, 24, 1, "comm", 5)]),
        (c.ReduceScatter(PAIR, "sum"), X, [("reduce_scatter", 100, 200, 3, 7, 0, "comm", 5)]),
        (c.StartReduceScatter(PAIR, "mean"), X, [("reduce_scatter", 100, 200, 3, 7, 4, "comm", 5)]),
        (c.Broadcast(PAIR, 1), Spec((3,), int64), [("broadcast", 100, 200, 24, 1, 1, "comm", 5)]),
        (c.ReduceTo(PAIR, "sum", 1), X, [("reduce", 100, 200, 6, 7, 0, 1, "comm", 5)]),
        (
            c.AllToAll(PAIR),
            X,
            [("send", 100, 12, 1, 0, "comm", 5), ("send", 112, 12, 1, 1, "comm", 5),
             ("recv", 200, 12, 1, 0, "comm", 5), ("recv", 212, 12, 1, 1, "comm", 5)],
        ),
        (c.Exchange(PAIR, 0, 0), X, [("send", 100, 24, 1, 0, "comm", 5), ("recv", 200, 24, 1, 0, "comm", 5)]),
    ],
)  # fmt: skip
def test_calls(recorder: Recorder, op: c.Collective, spec: Spec, calls: list[tuple[Any, ...]]) -> None:
    plan = backends.get(H200).plan(op, [spec], Policy())
    plan.bind(Call((100,), (200,), 0, 5))()
    assert [call for call in recorder.calls if not call[0].startswith("group")] == calls


def test_several_are_one_launch(recorder: Recorder) -> None:
    several = {
        "all_reduce": c.AllReduceEach(PAIR, "mean"),
        "reduce_scatter": c.ReduceScatterEach(PAIR, "mean"),
        "all_gather": c.AllGatherEach(PAIR),
    }
    started = {"all_reduce": c.StartAllReduce(PAIR), "reduce_scatter": c.StartReduceScatter(PAIR)}
    for name, op in [*several.items(), *started.items()]:
        plan = backends.get(H200).plan(op, [X, X], Policy())
        plan.bind(Call((100, 300), (200, 400), 0, 5))()
        assert [call[0] for call in recorder.calls] == ["group_start", name, name, "group_end"]
        recorder.calls.clear()


def test_a_reduction_takes_filters_as_convolutions_write_them() -> None:
    lying = Spec((8, 4, 3, 3), float32, channels_last((8, 4, 3, 3)))
    plan = backends.get(H200).plan(c.StartAllReduce(PAIR, "mean"), [lying, X], Policy())
    assert plan.inputs == plan.outputs == (lying, X.fixed)
    assert plan.aliases == {0: 0, 1: 1}


def test_what_ranks_tell_each_other_names_the_layout() -> None:
    """Images that lie otherwise on another rank would be added up element by element, wrongly."""

    def f(x: Any, w: Any) -> Any:
        return bind(c.AllReduce(PAIR, "sum"), ops.conv2d(x, w, padding=1))[0]

    shapes = ((8, 16, 32, 32), (40, 16, 3, 3))
    program = compile(trace(f, *[Spec(s, bfloat16) for s in shapes]), H200).program
    ((ranks, told),) = _together(program)
    assert ranks == (0, 1)
    assert told == "all_reduce(ranks 0,1, reduction=sum)(bf16[8,40,32,32]:acdb)"
