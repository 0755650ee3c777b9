"""The list of problems: what is asked of a backend, written and read, and in which order."""

import gzip
import json
from pathlib import Path

import pytest

from benchmarks import plan_problems
from benchmarks.plan_problems import LIST, Request, choices_of, least, ordered, read, recorded, write
from lamina import backends
from lamina.ops.primitives import Add, Conv, Fused, Relu
from lamina.ops.primitives.window import window
from lamina.runtime import Machine
from lamina.spec import Policy, Spec, bfloat16, channels_last
from tests.helpers.planned import H200

MACHINE = Machine.named("h200")
WINDOW = window("conv2d", (3, 3), 1, 1)


def conv(batch: int, channels: int = 64) -> Request:
    x = (batch, channels, 8, 8)
    return Request(
        Conv(WINDOW), (Spec(x, bfloat16, channels_last(x)), Spec((64, channels, 3, 3), bfloat16)), tf32=True
    )


def test_requests_are_read_as_they_were_written(tmp_path: Path) -> None:
    chain = Request(Fused((Conv(WINDOW), Add(), Relu())), (*conv(2).specs, Spec((1, 64, 1, 1), bfloat16)))
    needed = {conv(2): {"a train 1"}, chain: {"a train 1"}}
    write(tmp_path / "list", needed, MACHINE)
    assert set(read(tmp_path / "list")) == {conv(2), chain}
    assert conv(2).policy == Policy(algorithm="fastest", tf32=True)


def test_what_most_networks_need_comes_first_then_each_programs_heaviest() -> None:
    shared, heavy, light, other = conv(1), conv(256), conv(128), conv(64)
    needed = {
        light: {"a train 1"},
        heavy: {"a train 1"},
        other: {"b infer 1"},
        shared: {"a train 1", "b infer 1"},
    }
    assert least(heavy, MACHINE) > least(light, MACHINE) > least(other, MACHINE)
    assert ordered(needed, MACHINE) == [shared, *sorted([heavy, other], key=lambda r: r.name), light]


def test_what_is_to_be_timed_is_recorded() -> None:
    asked: set[Request] = set()
    request = Request(Relu(), (Spec((4,), bfloat16),))
    with recorded(asked):
        backends.get(H200).plan(request.op, request.specs, Policy())
        assert not asked
        backends.get(H200).plan(request.op, request.specs, request.policy)
    assert asked == {request}
    assert not choices_of(request, H200)  # there is one kernel for it


def test_the_committed_list_is_sound() -> None:
    lines = gzip.decompress(LIST.read_bytes()).decode().splitlines()
    counts = [json.loads(line)[0] for line in lines]
    assert counts == sorted(counts, reverse=True)
    requests = read()
    assert len(set(requests)) == len(requests) > 1000
    for request in requests[::50]:
        request.op.infer(*request.specs)


def test_a_broken_list_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list").write_bytes(gzip.compress(b'[1, 1, ["nothing", {}, [], false]]\n'))
    with pytest.raises(ValueError, match="nothing"):
        read(tmp_path / "list")


def test_programs_are_named_by_network_kind_and_batch() -> None:
    names = [name for name, _ in plan_problems.programs(["LeNet"])]
    assert names == ["LeNet train 128", "LeNet infer 1", "LeNet infer 128"]
