"""Contexts of one executable: each call at a time has its own memory, on the same weights."""

import ctypes
from contextlib import nullcontext
from itertools import product
from types import SimpleNamespace
from typing import Any
from weakref import ref

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from lamina.graph import compile, trace
from lamina.graph.planning.program import PlannedStep
from lamina.graph.run.captured import LYING, PINNED, WRITTEN, CannotMove, GraphCopy
from lamina.graph.run.context import ExecutionContext
from lamina.graph.run.staging import Staged
from lamina.infer import Predictor
from lamina.nn.module import Module
from lamina.ops.core import bind
from lamina.ops.primitives.collective import AllReduce
from lamina.runtime import CaptureInvalidated, Device, DeviceError, copy
from lamina.runtime.memory import Shelf
from lamina.spec import Group, Spec, float32, int8
from tests.helpers import many_threads
from tests.helpers.many_threads import Count, compare, in_threads

CLEAN = {"wrong": 0, "other_bits": 0}


@pytest.fixture(autouse=True)
def several_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with four cores, whatever this one has."""
    monkeypatch.setattr("lamina.graph.run.executable.usable_cores", lambda: 4)


def clean(count: Count) -> dict[str, int]:
    return {"wrong": count.wrong, "other_bits": count.other_bits}


def test_steps_are_bound_anew_only_where_what_they_touch_lies_elsewhere() -> None:
    """And nothing is, where what moves lies as in an earlier call, whichever thread calls."""
    spec = Spec((256, 512), float32)
    run = compile(trace(lambda x: ops.softmax(ops.exp(x.sum(0)).cumsum(0), 0), spec), "cpu")
    first, second = (lm.tensor(np.full(spec.shape, n / 1000, np.float32)) for n in (1, 2))
    for x in (first, second, first):
        run(x)
    in_threads(lambda _: run(second), 1)
    (context,) = run._contexts.items
    assert len(context._bound) == 2
    (one, *_), (other, *_) = context._bound.values()
    reads = [any(slot.base in context._read for slot in step.inputs) for step in context._kernels()]
    assert [a is not b for a, b in zip(one, other, strict=True)] == reads == [True, False, False, False]


def test_kernels_stay_bound_to_the_latest_addresses_alone() -> None:
    spec = Spec((256, 512), float32)
    run = compile(trace(lambda x: ops.sum(x), spec), "cpu")
    given = [lm.full(spec.shape, float(n)) for n in range(20)]
    for n, x in enumerate(given):
        assert run(x)[0].item() == n * 256 * 512
    (context,) = run._contexts.items
    assert [places[1] for places in context._bound] == [x.buffer.pointer for x in given[-16:]]


def test_sixteen_threads_get_what_one_gets() -> None:
    found = many_threads.predictor(many_threads.small_network(), "cpu", threads=16, calls=60)
    assert found.answers == 960
    assert clean(found) == CLEAN


def test_resnet18_in_threads() -> None:
    found = many_threads.predictor(many_threads.NETWORKS["resnet18"](), "cpu", threads=4, calls=3)
    assert clean(found) == CLEAN


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_compiled_function_in_threads(backend: str) -> None:
    xs = many_threads.images(4, 24)
    run = compile(
        trace(lambda x: ops.softmax(ops.mean(ops.exp(x) * x, (2, 3)), 1), xs[0]), "cpu", backend=backend
    )
    assert clean(compare(lambda x: run(x)[0], xs, threads=8, calls=50)) == CLEAN
    assert 1 <= run.contexts <= 4


def test_lent_results_stay_while_other_threads_call() -> None:
    xs = [np.full((512, 1024), k, np.float32) for k in range(4)]
    run = compile(trace(lambda x: x * 2.0, xs[0]), "cpu")

    def work(k: int) -> None:
        kept = [(k, run(xs[k])[0]) for _ in range(5)]
        for value, y in kept:
            assert (y.numpy() == 2 * value).all()

    in_threads(work, 4)


def test_eager_ops_and_recurrent_networks_in_threads() -> None:
    """Kernels of NumPy and oneDNN that keep temporaries of their own."""
    nn.manual_seed(0)
    gru, lstm = nn.GRU(4, 6, num_layers=2, bidirectional=True).eval(), nn.LSTM(4, 6).eval()
    xs = [np.random.default_rng(k).standard_normal((5, 3, 4)).astype(np.float32) for k in range(4)]
    for net in (gru, lstm):
        assert clean(compare(lambda x, net=net: net(lm.tensor(x))[0], xs, threads=8, calls=10)) == CLEAN  # type: ignore[misc]


def test_steps_of_several_threads_are_whole() -> None:
    found = many_threads.training("cpu", threads=8, calls=3)
    assert found.answers == 24
    assert clean(found) == CLEAN


def test_state_that_is_updated_has_one_context() -> None:
    p = lm.tensor([0.0])
    run = compile(trace(lambda p: (p + 1.0,), p), "cpu", donate={0: 0})
    run.load({0: p})
    in_threads(lambda k: [run() for _ in range(50)], 8)
    assert p.item() == 400.0
    assert run.contexts == 1


def test_weights_overwritten_by_one_thread_reach_the_others_whole() -> None:
    """What is made of the weights is made again only between calls: an answer is of one version of them."""
    weight = lm.tensor(np.ones(64, np.float32))
    run = compile(trace(lambda w, x: ops.sqrt(ops.square(w)) * x, weight, weight), "cpu", resident=[0])
    run.load({0: weight})
    ones, other = np.ones(64, np.float32), lm.tensor(np.full(64, 2, np.float32))

    def work(k: int) -> list[set[float]]:
        if k == 0:
            for i in range(40):
                run.load({0: other if i % 2 else weight})
            return []
        return [set(run(ones)[0].tolist()) for _ in range(100)]

    answers = [values for found in in_threads(work, 6) for values in found]
    assert len(answers) == 500
    assert all(values in ({1.0}, {2.0}) for values in answers)


def test_threads_trace_and_compile_at_once() -> None:
    """Each with a new batch size: the network is traced in inference mode, whatever other threads do with it."""
    net = many_threads.small_network().train()
    predictor = Predictor(net, device="cpu")
    xs = [np.random.default_rng(k).standard_normal((k + 1, 3, 8, 8)).astype(np.float32) for k in range(8)]
    frozen: Module = many_threads.small_network()
    wanted = [frozen(lm.tensor(x)).numpy() for x in xs]
    found: list[Any] = in_threads(lambda k: predictor(xs[k]).numpy(), 8)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert all(m.training for m in net.modules())


def test_a_call_that_fails_gives_its_context_back(monkeypatch: pytest.MonkeyPatch) -> None:
    run = compile(trace(lambda x: x * 2.0, np.ones(4, np.float32)), "cpu")
    with monkeypatch.context() as patch:
        patch.setattr(Shelf, "take", lambda *_: 1 / 0)
        for _ in range(10):
            with pytest.raises(ZeroDivisionError):
                run(np.ones(4, np.float32))
    assert run(np.ones(4, np.float32))[0].tolist() == [2.0] * 4


def large(value: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.full((1 << 10, 1 << 9), value, np.float32)  # 2 MiB


def test_results_that_are_held_keep_their_values_call_after_call() -> None:
    """Each is written where it stays, also where that is another place than before."""
    run = lm.compile(lm.trace(lambda x: ops.exp(x) + 1.0, Spec((1 << 10, 1 << 9), float32)), "cpu")
    held = [run(large(i / 4))[0] for i in range(5)]
    for i, result in enumerate(held):
        np.testing.assert_allclose(result.numpy(), np.exp(large(i / 4)) + 1, rtol=1e-6)
    assert len({result.buffer.pointer for result in held}) == 5


@pytest.mark.parametrize(
    "both",
    [
        lambda y: (y, y),
        lambda y: (y, ops.reshape(y, (-1,))),
        lambda y: (ops.reshape(y, (1 << 9, 1 << 10)), ops.reshape(y, (-1,))),
        lambda y: (y, ops.exp(y)),
    ],
    ids=["twice", "with a view", "two views", "read on"],
)
def test_results_that_share_memory_stay_apart(both: Any) -> None:
    """What one of two results was in a call does not change by the next call, whoever holds it."""
    run = lm.compile(lm.trace(lambda x: both(ops.tanh(x) * 2.0), Spec((1 << 10, 1 << 9), float32)), "cpu")
    first = run(large(0.25))
    second = run(large(1.5))
    for results, value in ((first, 0.25), (second, 1.5)):
        y = lm.tensor(np.tanh(large(value)) * 2)
        for found, wanted in zip(results, both(y), strict=True):
            np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-5)
    assert first[0].buffer.pointer != second[0].buffer.pointer


def test_large_inputs_are_read_where_they_lie() -> None:
    """Wherever that is, in rows or not, aligned or not; and nothing of them is kept or written."""
    run = lm.compile(lm.trace(lambda x: (ops.exp(x) + x) * x, Spec((1 << 10, 1 << 9), float32)), "cpu")
    rng = np.random.default_rng(0)
    shifted = np.frombuffer(
        b"xxx" + rng.standard_normal((1 << 19) + 1).astype(np.float32).tobytes(), np.uint8
    )
    given: list[Any] = [
        *(rng.standard_normal((1 << 10, 1 << 9)).astype(np.float32) for _ in range(20)),
        rng.standard_normal((1 << 9, 1 << 10)).astype(np.float32).T,
        shifted[3 : 3 + (1 << 21)].view(np.float32).reshape(1 << 10, 1 << 9),
    ]
    given += [lm.tensor(x) for x in given[:2]]
    for _ in range(2):
        for x in given:
            values = np.array(x)
            (found,) = run(x)
            np.testing.assert_allclose(
                found.numpy(), (np.exp(values) + values) * values, rtol=1e-5, atol=1e-6
            )
            assert (np.array(x) == values).all()
    last = ref(given[-1])
    given.clear()
    del x
    assert last() is None


@pytest.mark.parametrize(
    ("queues", "size", "moves"),
    [
        (False, (1 << 18) - 1, False),
        (False, 1 << 18, True),
        (True, 0, False),
        (True, 1, True),
        (True, 1 << 18, True),
    ],
)
def test_what_kernels_read_and_write_where_it_lies(queues: bool, size: int, moves: bool) -> None:
    """From a quarter of a MiB on a CPU; whatever has a byte on a device that queues, where the program is short."""
    context = compile(trace(lambda x: -x, Spec((size,), int8)), "cpu")._contexts.take()
    context._stream = SimpleNamespace(queues=queues)  # type: ignore[assignment]
    read, written = context._moving()
    assert read == frozenset(context.program.inputs if moves else [])
    assert written == frozenset(context.program.outputs if moves else [])


@pytest.mark.parametrize("queues", [False, True])
def test_what_stays_where_it_was_planned(queues: bool) -> None:
    """All of poisoned programs and of those of many kernels on a device that queues; inputs beside updated state."""
    spec = Spec((1 << 18,), float32)

    def long(x: Any) -> Any:
        for _ in range(4):
            x = ops.relu(x) @ x
        return x

    def moving(program: Any, *specs: Spec, **options: Any) -> tuple[int, int]:
        context = compile(trace(program, *specs), "cpu", **options)._contexts.take()
        context._stream = SimpleNamespace(queues=queues)  # type: ignore[assignment]
        read, written = context._moving()
        return len(read), len(written)

    assert moving(lambda x: -x, spec) == (1, 1)
    assert moving(lambda x: -x, spec, poison=True) == (0, 0)
    assert moving(long, Spec((512, 512), float32)) == ((0, 0) if queues else (1, 1))
    assert moving(lambda p, x: (p + 1.0, ops.exp(x)), spec, spec, donate={0: 0}) == (
        (0, 0) if queues else (0, 1)
    )
    assert moving(lambda x: (y := -x, y), spec) == (1, 0)  # one memory for two results


@pytest.mark.parametrize(("kernels", "much", "short"), [(1, 0, 1), (2, 0, 0), (3, 1, 1), (4, 1, 0)])
def test_a_short_program_is_one_kernel_or_few_that_touch_much_memory(
    kernels: int, much: int, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more than it has operands and results; none that updates state."""
    n = 16
    monkeypatch.setattr("lamina.graph.run.context._MUCH", 2 * 4 * n * n - much)

    def products(x: Any) -> Any:
        for _ in range(kernels):
            x = ops.matmul(x, x)
        return x

    context = compile(trace(products, Spec((n, n), float32)), "cpu")._contexts.take()
    assert len(context._kernels()) == kernels
    assert context._is_short() == short
    for step in context._kernels():  # as a library's that queues a kernel for each time step
        monkeypatch.setattr(type(step.plan), "launches", 100)
    assert not context._is_short()
    monkeypatch.undo()
    updated = compile(trace(lambda p: p + 1.0, Spec((n, n), float32)), "cpu", donate={0: 0})._contexts.take()
    assert len(updated._kernels()) == 1
    assert not updated._is_short()


def test_a_program_that_updates_what_it_is_given_reads_what_was_there_before() -> None:
    p = lm.tensor(large(1.0))
    run = compile(trace(lambda p, x: (p + 1.0, ops.exp(x)), p, p), "cpu", donate={0: 0})
    run.load({0: p})
    assert (run(p)[0].numpy() == np.exp(large(1.0))).all()
    assert (p.numpy() == 2).all()


@pytest.mark.parametrize("failures", [0, 2, 3])
def test_a_recording_that_is_broken_off_is_tried_again(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times in all."""
    left, replays = [failures], list[str]()
    graph = SimpleNamespace(bind=lambda alone: lambda: replays.append("run"))

    def recorded(self: ExecutionContext, *_: object) -> tuple[Any, list[Any]]:
        if left[0]:
            left[0] -= 1
            raise CaptureInvalidated("broken off")
        return graph, []

    monkeypatch.setattr(ExecutionContext, "_recorded", recorded)
    program = compile(trace(lambda x: x + 1, Spec((3,), float32)), "cpu")
    context = program._contexts.take()
    with pytest.raises(CaptureInvalidated) if failures == 3 else nullcontext():
        context._capture(None)
    assert context.is_captured == (failures < 3)
    assert not replays


class Recorded:
    """Stands in for CUDA graphs: which ways of inputs were recorded, and which of these were closed.

    moves: whether graphs can be told where their inputs lie; CannotMove for ways where not.
    """

    def __init__(self, patch: pytest.MonkeyPatch, moves: bool = True) -> None:
        self.asked: list[Any] = []
        self.closed: list[Any] = []

        def capture(context: ExecutionContext, ways: Any) -> None:
            self.asked.append(ways)
            if ways is not None and not moves:
                raise CannotMove
            graph = SimpleNamespace(close=lambda: self.closed.append(ways))
            context._captured[ways] = graph  # type: ignore[assignment]

        patch.setattr(ExecutionContext, "_capture", capture)


def recordable() -> ExecutionContext:
    """The context of a program that has run once, as on a device that records."""
    context = compile(trace(lambda x: x + 1, Spec((3,), float32)), "cpu")._contexts.take()
    context._in_turn, context._rehearsed, context._carries = False, True, True
    return context


ONE, OTHER = (LYING,), (PINNED,)


@pytest.mark.parametrize("known", [(), (None,), (ONE,), (ONE, OTHER)], ids=str)
def test_a_program_is_recorded_as_it_was_before(
    known: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the ways in which inputs came; one that was never recorded, with copies beside the graph."""
    graphs, context = Recorded(monkeypatch), recordable()
    for ways in known:
        context._capture(ways)
    context.unbind()
    assert graphs.closed == list(known)
    assert not context.is_captured
    context._rehearsed, graphs.asked = True, []
    for _ in range(2):  # what is recorded already stays
        context.record()
        assert graphs.asked == (list(known) or [None])
    assert context.is_captured
    assert context._carries


def test_where_operands_cannot_move_a_program_is_recorded_without(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, context = Recorded(monkeypatch, moves=False), recordable()
    context._known_ways = [ONE, OTHER]
    context.record()
    assert (graphs.asked, list(context._captured), context._carries) == ([ONE, None], [None], False)


@pytest.mark.parametrize(("rehearsed", "in_turn"), [(False, False), (True, True)])
def test_what_has_not_run_or_runs_in_turn_is_not_recorded(
    rehearsed: bool, in_turn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs, context = Recorded(monkeypatch), recordable()
    context._rehearsed, context._in_turn = rehearsed, in_turn
    context.record()
    assert graphs.asked == []


class HostCopy:
    """A copy of `HostGraph`, which may be told other addresses unless it is stuck."""

    def __init__(self, copy: GraphCopy, stuck: bool) -> None:
        self.source, self.destination, self.nbytes = copy.source.pointer, copy.place.pointer, copy.nbytes
        self.stuck = stuck

    def read_from(self, source: int) -> None:
        if self.stuck:
            raise DeviceError("refused")
        self.source = source

    def write_to(self, destination: int) -> None:
        self.destination = destination

    def run(self) -> None:
        ctypes.memmove(self.destination, self.source, self.nbytes)


class HostGraph:
    """Stands in for a CUDA graph: kernels between copies, done at each launch."""

    launches = 0
    stuck = False

    def __init__(
        self, before: list[GraphCopy | None], runs: list[Any], behind: list[GraphCopy | None]
    ) -> None:
        self.before, self.behind = ([HostCopy(c, self.stuck) for c in side if c] for side in (before, behind))
        self.runs = runs

    def copy_to(self, pointer: int) -> HostCopy:
        (found,) = (c for c in (*self.before, *self.behind) if c.destination == pointer)
        return found

    def bind(self, alone: bool) -> Any:
        return self.launch

    def launch(self) -> None:
        type(self).launches += 1
        for run in (*(c.run for c in self.before), *self.runs, *(c.run for c in self.behind)):
            run()


class Pinned(Staged):
    """Stands in for an array in pinned memory; counts the copies that are told to be queued."""

    reads = 0

    def send(self, target: Any, stream: Any) -> None:
        copy(target, self.buffer, target.nbytes)

    def is_read_on(self, stream: Any) -> None:
        type(self).reads += 1


def as_pinned(x: Any, large: bool = False) -> Pinned:
    turn = SimpleNamespace(buffer=lm.tensor(x).buffer)
    return Pinned(SimpleNamespace(is_large=large), turn)  # type: ignore[arg-type]


@pytest.mark.parametrize("stuck", [False, True])
def test_a_call_is_one_launch_however_its_inputs_come(stuck: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ways are kept, and the one in which all is written; results stay what they were. Where the graph cannot
    be told where its operands lie, all are written before it.
    """

    class Graph(HostGraph):
        pass

    def recorded(self: ExecutionContext, steps: Any, streams: Any, before: Any, behind: Any) -> Any:
        runs = self._bound_runs(self._stream)
        return Graph(before, runs, behind), runs

    Graph.stuck = stuck
    monkeypatch.setattr(ExecutionContext, "_recorded", recorded)
    pins = list[int]()
    allocate = Device("cpu").allocate

    def pinned(nbytes: int) -> Any:
        pins.append(nbytes)
        return allocate(nbytes)

    monkeypatch.setattr("lamina.graph.run.context.pinned", pinned)
    monkeypatch.setattr(Pinned, "reads", 0)
    specs = [Spec((3, 4), float32), Spec((5,), int8), Spec((0, 2), float32)]
    program = compile(trace(lambda x, n, z: (x * 2.0, n + 1, z * 3.0), *specs), "cpu")
    context = program._contexts.take()
    context._carries = context._rehearsed = True
    rng, held = np.random.default_rng(0), list[Any]()
    ways: list[Any] = [
        lm.tensor,
        np.ascontiguousarray,
        as_pinned,
        lambda x: as_pinned(x, large=True),
        lambda x: lm.tensor(np.ascontiguousarray(x.T)).t() if x.ndim == 2 else lm.tensor(x),
    ]
    for count, (first, second) in enumerate(product(ways, ways), 1):
        x, n = rng.standard_normal((3, 4)).astype(np.float32), rng.integers(-9, 9, 5).astype(np.int8)
        given = [first(x), second(n), lm.zeros((0, 2))]
        held.append((x, n, context(list(zip(program.program.inputs, given, strict=True)))))
        assert Graph.launches == count
    for x, n, found in held:
        for y, wanted in zip(found, (x * np.float32(2), n + 1, np.zeros((0, 2))), strict=True):
            np.testing.assert_array_equal(y.numpy(), wanted)
    assert context._carries
    most = [(LYING, LYING), (LYING, WRITTEN), (LYING, PINNED)]
    rest = [(WRITTEN, WRITTEN)] if stuck else [(WRITTEN, LYING), (WRITTEN, WRITTEN)]
    assert sorted(context._captured) == sorted((*two, WRITTEN) for two in most + rest)  # type: ignore[type-var]
    assert Pinned.reads == (0 if stuck else 1)
    assert pins == [5]  # bytes of the one operand that a graph copies from pinned memory


def test_footprints_are_the_memory_of_steps_and_messages_keep_their_order() -> None:
    """The order of what other ranks take part in matters, whatever memory it touches; that of a reorder does not."""
    spec = Spec((6, 5), float32)

    def f(x: Any) -> Any:
        (mean,) = bind(AllReduce(Group(0, 1), "mean"), ops.softmax(x, 0))
        return ops.cumsum(mean @ x.T, 1)

    context = compile(trace(f, spec), "cpu", backend="reference")._contexts.take()
    steps = context._kernels()
    prints = {step.label: context._footprint(step) for step in steps}
    assert {label for label, found in prints.items() if found.ordered} == {"all_reduce"}
    for step in steps:
        found = prints[step.label]
        for slots, ranges in ((step.inputs, found.reads), (step.outputs, found.writes)):
            sizes = [slot.base.spec.nbytes for slot in slots]
            starts = [context._pointer(slot.base) for slot in slots]
            assert ranges == tuple((a, a + n) for a, n in zip(starts, sizes, strict=True))
    step = steps[0]
    bare = PlannedStep(step.plan, step.inputs, step.outputs, None, step.inputs[0])
    found = context._footprint(bare)
    assert not found.ordered
    assert (
        found.writes == prints[step.label].writes + prints[step.label].reads
    )  # its scratch memory is written
