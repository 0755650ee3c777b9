"""Streams: what may run beside the chain, what waits for what, and that no order they allow breaks memory."""

from typing import Any

import numpy as np
import pytest

from lamina import nn, ops, optim
from lamina.distributed import all_reduce_each
from lamina.graph import Executable, compile, trace
from lamina.graph.planning.program import PlannedStep
from lamina.graph.planning.streams import (
    BEHIND_MESSAGES,
    CHAIN,
    MESSAGES,
    Footprint,
    assign_streams,
    waits,
)
from lamina.ops.core import bind
from lamina.ops.primitives.collective import AllGather, AllReduce
from lamina.runtime import Device, Machine
from lamina.spec import Group, Spec, float32, int64
from lamina.train import train_step
from tests.helpers.laid import run_in_arena, run_laid


def training_step() -> Executable:
    net = nn.LeNet(1, 10)
    step = train_step(net, ops.cross_entropy, optim.SGD(lr=0.1, momentum=0.9), device="cpu")
    return step.program(Spec((8, 1, 28, 28), float32), Spec((8,), int64)).executable


def runnable(run: Executable) -> list[PlannedStep]:
    return [s for s in run.program.steps if not s.plan.view]


def test_updates_and_gradients_of_parameters_may_run_beside_the_chain() -> None:
    steps = runnable(training_step())
    stream = assign_streams(steps, [1e-6] * len(steps))
    beside = {s.label for s, side in zip(steps, stream, strict=True) if side}
    chain = {s.label for s, side in zip(steps, stream, strict=True) if not side}
    assert {"sgd_update", "arg_max"} <= beside
    assert {"conv_data_grad", "max_pool_grad", "cross_entropy_grad", "max_pool"} <= chain
    assert not {"conv_data_grad", "max_pool_grad", "cross_entropy_grad"} & beside


def test_what_is_made_of_updates_may_run_beside_the_chain() -> None:
    """Parameters that are gathered behind their updates."""

    def step(x: Any, w: Any, rate: Any) -> tuple[Any, ...]:
        hidden = ops.relu(x @ w)
        new, _ = ops.sgd_update(w, x, x, rate)
        return ops.exp(hidden), bind(AllGather(Group(0, 1)), new)[0]

    square = Spec((4, 4), float32)
    graph = trace(step, square, square, Spec((), float32))
    steps = [s for s in compile(graph, "cpu", backend="null").program.steps if not s.plan.view]
    stream = assign_streams(steps, [1e-6] * (len(steps) - 1) + [1.0])
    beside = {s.node.op.name for s, side in zip(steps, stream, strict=True) if side and s.node is not None}
    assert beside == {"sgd_update", "all_gather"}
    assert {n for s, n in zip(steps, stream, strict=True) if s.node and s.node.op.effect == "collective"} == {
        2
    }


def test_messages_and_what_waits_for_them_have_streams_of_their_own() -> None:
    pair = Group(0, 1)

    def step(x: Any, w: Any, rate: Any) -> tuple[Any, ...]:
        means = bind(AllReduce(pair, "mean"), ops.softmax(x, 0))[
            0
        ]  # as synchronised norms do: the chain waits for it
        hidden = ops.exp(means @ w)
        (grad,) = bind(AllReduce(pair, "mean"), x @ hidden)
        new, _ = ops.sgd_update(w, grad, x, rate)
        return ops.softmax(ops.exp(hidden) @ x, 1), new

    square = Spec((4, 4), float32)
    graph = trace(step, square, square, Spec((), float32))
    steps = [s for s in compile(graph, "cpu", backend="null").program.steps if not s.plan.view]
    names = [s.label for s in steps]
    # However long the second message takes, updates alone wait for it.
    seconds = [
        1.0 if i == len(names) - 1 - names[::-1].index("all_reduce") else 1e-6 for i in range(len(names))
    ]
    stream = dict(
        zip(zip(names, range(len(names)), strict=True), assign_streams(steps, seconds), strict=True)
    )
    by_name = [(name, number) for (name, _), number in stream.items()]
    assert by_name.count(("all_reduce", 0)) == by_name.count(("all_reduce", 2)) == 1
    assert ("sgd_update", 3) in by_name
    assert by_name.count(("softmax", 0)) == 2
    assert {number for name, number in by_name if name == "matmul"} == {0, 1}


def test_a_program_with_one_result_has_one_lane() -> None:
    run = compile(trace(lambda x: ops.softmax(ops.relu(x) + ops.exp(x), 1), Spec((4, 4), float32)), "cpu")
    steps = runnable(run)
    assert assign_streams(steps, [1.0] * len(steps)) == [0] * len(steps)


@pytest.mark.parametrize(
    ("a", "b", "clash"),
    [
        (Footprint(((0, 4),), ()), Footprint(((0, 4),), ()), False),
        (Footprint(((0, 4),), ()), Footprint((), ((3, 8),)), True),
        (Footprint((), ((0, 4),)), Footprint(((3, 8),), ()), True),
        (Footprint((), ((0, 4),)), Footprint((), ((3, 8),)), True),
        (Footprint((), ((0, 4),)), Footprint((), ((4, 8),)), False),
        (Footprint(((0, 4),), ((4, 8),)), Footprint(((8, 12),), ((12, 16),)), False),
        (Footprint((), (), ordered=True), Footprint((), ()), False),
        (Footprint((), (), ordered=True), Footprint((), (), ordered=True), True),
    ],
)
def test_footprints_clash_where_one_writes(a: Footprint, b: Footprint, clash: bool) -> None:
    assert a.clashes(b) == b.clashes(a) == clash


def test_any_order_that_lanes_and_waits_allow_gives_the_same_memory() -> None:
    """Random programs on 12 cells: run in a random order that keeps each stream's order and every wait."""
    rng = np.random.default_rng(0)
    for number in range(200):
        count = int(rng.integers(2, 30))
        cells = [tuple(int(c) for c in rng.integers(0, 12, 3)) for _ in range(count)]
        prints = [Footprint(((a, a + 1), (b, b + 1)), ((c, c + 1),)) for a, b, c in cells]
        stream = [int(v) for v in rng.integers(0, 2 + number % 3, count)]
        waiting = waits(prints, stream)
        assert memory(cells, range(count)) == memory(cells, shuffled(rng, stream, waiting))


def memory(cells, order):  # type: ignore[no-untyped-def]
    held = [(i,) for i in range(12)]
    for i in order:
        a, b, c = cells[i]
        held[c] = (i, hash(held[a]), hash(held[b]))
    return held


def shuffled(rng, stream, waiting):  # type: ignore[no-untyped-def]
    queues = [[i for i, own in enumerate(stream) if own == side] for side in set(stream)]
    order: list[int] = []
    while any(queues):
        ready = [q for q in queues if q and set(waiting[q[0]]) <= set(order)]
        order.append(ready[int(rng.integers(0, len(ready)))].pop(0))
    return order


def test_waits_are_few() -> None:
    """A stream that has waited for a step does not wait for it, or an earlier one, again."""
    same = Footprint((), ((0, 1),))
    assert waits([same] * 4, [0, 1, 1, 1]) == [[], [0], [], []]
    assert waits([same] * 4, [0, 1, 2, 1]) == [[], [0], [0, 1], [2]]


PAIR = Group(0, 1)


def messages_between(x: Any, w: Any, rate: Any) -> list[Any]:
    """Two gradients, of which the norm is taken before both updates, as `max_norm` does."""
    hidden = ops.softmax(x @ w, 1)
    first, second = all_reduce_each([x @ hidden, hidden @ x], "mean", group=PAIR, bucket_bytes=64)
    norm = ops.sqrt((first * first).sum() + (second * second).sum())
    updated = [ops.sgd_update(w, grad / norm, x, rate)[0] for grad in (first, second)]
    return [ops.softmax(ops.exp(hidden) @ x, 1), *updated]


def square(side: int = 4) -> Spec:
    return Spec((side, side), float32)


def test_the_norm_of_all_gradients_is_behind_the_messages() -> None:
    """What an update waits for beside the message does not draw the messages onto the chain."""
    graph = trace(messages_between, square(), square(), Spec((), float32))
    steps = [s for s in compile(graph, "cpu", backend="null").program.steps if not s.plan.view]
    stream = assign_streams(steps, [1e-6] * len(steps))
    by_name = {(s.label, k) for s, k in zip(steps, stream, strict=True)}
    assert {k for name, k in by_name if name == "start_all_reduce"} == {MESSAGES}
    assert {k for name, k in by_name if name in ("sgd_update", "reduce", "foreach")} == {BEHIND_MESSAGES}
    assert ("softmax", CHAIN) in by_name


def alive(run: Executable, label: str) -> list[tuple[int, int]]:
    """First and last step of what steps of this name write, views aside."""
    kinds = [s for s in run.program.steps if s.label == label]
    return [(o.base.first, o.base.last) for s in kinds for o in s.outputs if o.base.kind == "temporary"]


def test_what_updates_and_messages_touch_is_kept_to_the_end_unless_memory_is_scarce() -> None:
    graph = trace(messages_between, square(256), square(256), Spec((), float32))
    gpu = Device("cuda", machine=Machine.named("h200"))
    for device, backend, held in ((gpu, None, True), (Device("cpu"), "null", False)):
        run = compile(graph, device, backend=backend)
        end = len(run.program.steps)
        found = alive(run, "start_all_reduce")
        assert len(found) == 2
        assert all((last == end) == held for _, last in found), device
    plenty = compile(graph, gpu).peak_bytes
    scarce = compile(graph, gpu, memory_limit=plenty)
    assert scarce.peak_bytes < plenty
    assert all(last < len(scarce.program.steps) for _, last in alive(scarce, "start_all_reduce"))


def test_what_a_bias_gradient_is_the_sum_of_is_not_kept() -> None:
    def step(x: Any, w: Any, b: Any, rate: Any) -> list[Any]:
        grad = ops.softmax(x @ w, 1)
        return [ops.sgd_update(b, grad.sum(0), b, rate)[0], ops.softmax(ops.exp(grad) @ w, 1)]

    shapes = [square(256), square(256), Spec((256,), float32), Spec((), float32)]
    run = compile(trace(step, *shapes), Device("cuda", machine=Machine.named("h200")))
    end = len(run.program.steps)
    assert all(last < end for _, last in alive(run, "softmax")[:1])
    assert [last for _, last in alive(run, "reduce")] == [end]


@pytest.mark.parametrize("limited", [False, True])
def test_steps_in_any_order_that_streams_allow_leave_the_same_results_in_the_arena(limited: bool) -> None:
    """Chain, gradients, messages, their norm and updates, on few bytes: whoever comes first, nothing is overwritten
    that somebody still reads."""
    graph = trace(messages_between, square(64), square(64), Spec((), float32))
    gpu = Device("cuda", machine=Machine.named("h200"))
    limit = compile(graph, gpu).peak_bytes
    program = compile(graph, gpu, memory_limit=limit if limited else None).program
    steps = [s for s in program.steps if not s.plan.view]
    offsets = dict(zip(program.temporaries, program.placement.offsets, strict=True))
    outside = {s.base: (1 + i) << 40 for i, s in enumerate([*program.inputs, *program.outputs])}

    def touched(slots: Any) -> tuple[tuple[int, int], ...]:
        starts = [(offsets.get(s.base, outside.get(s.base, 0)), s.base.spec.nbytes) for s in slots]
        return tuple((a, a + n) for a, n in starts)

    prints = [
        Footprint(
            touched(s.inputs),
            touched([*s.outputs, *([s.workspace] if s.workspace else [])]),
            s.node is not None and s.node.op.effect == "collective",
        )
        for s in steps
    ]
    stream = assign_streams(steps, [1e-6] * len(steps))
    assert set(stream) >= {CHAIN, MESSAGES, BEHIND_MESSAGES}
    waiting = waits(prints, stream)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs]
    expected = run_in_arena(program, arrays, steps)
    for given, wanted in zip(expected, run_laid(program, arrays), strict=True):
        np.testing.assert_array_equal(given, wanted)
    orders = set()
    for _ in range(20):
        order = shuffled(rng, stream, waiting)
        orders.add(tuple(order))
        for given, wanted in zip(
            run_in_arena(program, arrays, [steps[i] for i in order]), expected, strict=True
        ):
            np.testing.assert_array_equal(given, wanted)
    assert len(orders) > 3
