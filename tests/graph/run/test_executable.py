"""Compiled graphs give what the same ops give one by one; state stays in place; dead memory is never read."""

import gc
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.backends import Call, NoKernel, Plan, Run
from lamina.graph import compile, gradients, trace
from lamina.graph.run.staging import Staged
from lamina.graph.run.turn import turns_of
from lamina.runtime.memory import Shelf
from lamina.runtime.stream import Stream
from lamina.spec import ShapeError, Spec, bfloat16, float32
from lamina.tensors import Tensor
from tests.helpers.random_graphs import random_graph

CPU = ["cpu", "reference"]


@pytest.mark.parametrize("backend", CPU)
def test_a_compiled_graph_equals_the_ops_one_by_one(backend: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 9, 9)).astype(np.float32)
    w = rng.standard_normal((16, 3, 3, 3)).astype(np.float32)
    b = rng.standard_normal(16).astype(np.float32)

    def f(x, w, b):  # type: ignore[no-untyped-def]
        y = ops.max_pool2d(ops.relu(ops.conv2d(x, w, b, stride=2, padding=1)), 2)
        return ops.log_softmax(ops.flatten(y, 1), 1)

    graph = trace(f, x, w, b)
    expected = f(*map(lm.tensor, (x, w, b)))
    run = compile(graph, "cpu", backend=backend)
    for _ in range(3):
        np.testing.assert_allclose(run(x, w, b)[0].numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("start", range(0, 200, 20))
def test_poisoned_dead_memory_changes_nothing(start: int) -> None:
    for seed in range(start, start + 20):
        graph, arrays, donate = random_graph(np.random.default_rng(seed))
        expected = [x.numpy().copy() for x in graph(*arrays)]
        state = {i: lm.tensor(arrays[i]) for i in donate}
        run = compile(graph, "cpu", donate=donate, poison=True)
        if state:
            run.load(state)
        results = iter(run(*(a for i, a in enumerate(arrays) if i not in donate)))
        kept = {o: state[i] for i, o in donate.items()}
        for o, value in enumerate(expected):
            found = kept[o] if o in kept else next(results)
            np.testing.assert_allclose(found.numpy(), value, rtol=1e-5, atol=1e-6, err_msg=f"seed {seed}")


def test_poisoned_programs_leave_large_operands_and_results_alone() -> None:
    """Those that lie outside of the program's memory otherwise, where they are large."""
    x = np.random.default_rng(0).standard_normal((1 << 10, 1 << 9)).astype(np.float32)
    before = x.copy()
    run = compile(trace(lambda x: (ops.exp(x), ops.exp(x) @ x.mT, x * 2), x), "cpu", poison=True)
    kept = run(x)
    for found in (run(x), kept):
        np.testing.assert_allclose(found[0].numpy(), np.exp(before), rtol=1e-5)
        np.testing.assert_allclose(found[1].numpy(), np.exp(before) @ before.T, rtol=1e-3, atol=1e-2)
        np.testing.assert_array_equal(found[2].numpy(), before * 2)
    np.testing.assert_array_equal(x, before)


def test_donated_state_is_updated_in_place_and_keeps_its_identity() -> None:
    def step(p, x):  # type: ignore[no-untyped-def]
        return p - 0.5 * gradients(ops.sum(ops.square(p - x)), [p])[0], ops.sum(p)

    p, x = lm.tensor([4.0, 8.0]), np.float32([1.0, 1.0])
    run = compile(trace(step, p, x), "cpu", donate={0: 0})
    run.load({0: p})
    where = p.buffer.pointer
    totals = [run(x)[0].item() for _ in range(2)]
    assert totals == [12.0, 2.0]
    np.testing.assert_array_equal(p.numpy(), [1.0, 1.0])
    assert p.buffer.pointer == where


def test_state_that_is_read_after_its_update_keeps_the_old_value() -> None:
    def step(p, q):  # type: ignore[no-untyped-def]
        return q, p, p * 10.0  # p and q change places

    p, q = lm.tensor([1.0, 2.0]), lm.tensor([3.0, 4.0])
    run = compile(trace(step, p, q), "cpu", donate={0: 0, 1: 1})
    run.load({0: p, 1: q})
    np.testing.assert_array_equal(run()[0].numpy(), [10.0, 20.0])
    np.testing.assert_array_equal(p.numpy(), [3.0, 4.0])
    np.testing.assert_array_equal(q.numpy(), [1.0, 2.0])


@pytest.mark.parametrize("read_late", [False, True])
def test_state_is_written_to_its_place_where_the_old_value_is_done_with(read_late: bool) -> None:
    def step(p, x):  # type: ignore[no-untyped-def]
        total = None if read_late else ops.sum(p)
        new = ops.reshape(x @ x, (2, 2))  # no product writes over its operands
        return new, ops.sum(p * new) if total is None else total

    p, x = lm.tensor([[1.0, 2.0], [3.0, 4.0]]), np.float32([[1.0, 1.0], [0.0, 1.0]])
    run = compile(trace(step, p, x), "cpu", donate={0: 0}, poison=True)
    run.load({0: p})
    assert run(x)[0].item() == (1.0 + 4.0 + 4.0 if read_late else 10.0)
    np.testing.assert_array_equal(p.numpy(), x @ x)
    assert any(s.label == "reorder" for s in run.program.steps) == read_late


def test_one_value_for_two_states() -> None:
    p, q = lm.tensor([1.0]), lm.tensor([2.0])
    run = compile(trace(lambda p, q: (p + q, p + q), p, q), "cpu", donate={0: 0, 1: 1})
    run.load({0: p, 1: q})
    run()
    run()
    assert (p.item(), q.item()) == (6.0, 6.0)


def test_resident_weights_are_reordered_once() -> None:
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((1, 16, 8, 8), (32, 16, 3, 3)))
    graph = trace(lambda x, w: ops.conv2d(x, w, padding=1), x, w)
    expected = graph(x, w)[0].numpy().copy()
    held = lm.tensor(w)
    run = compile(graph, "cpu", resident=[1])
    run.load({1: held})
    assert not any(s.label == "reorder" and s.inputs[0] is run.program.inputs[1] for s in run.program.steps)
    np.testing.assert_allclose(run(x)[0].numpy(), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(held.numpy(), w)  # whatever layout it lies in now


def test_state_that_was_replaced_is_found_again() -> None:
    p = lm.tensor([1.0])
    run = compile(trace(lambda p: (p + 1.0,), p), "cpu", donate={0: 0})
    run.load({0: p})
    run()
    p.move_into(lm.runtime.Device("cpu").allocate(4), p.spec)
    run()
    assert p.item() == 3.0


def test_state_that_lies_in_the_memory_of_other_state_gets_its_own() -> None:
    """Loaded in place of what was there; a second tensor over an input's own memory stays in it."""
    p, q = lm.tensor([1.0, 2.0]), lm.tensor([3.0, 4.0])
    run = compile(trace(lambda p, q: (p + 1.0, q * 2.0), p, q), "cpu", donate={0: 0, 1: 1})
    run.load({0: p, 1: q})
    run()
    twin = Tensor(p.buffer, p.spec)
    run.load({0: twin, 1: q})
    assert twin.buffer is p.buffer
    run()
    assert (p.tolist(), twin.tolist(), q.tolist()) == ([3, 4], [3, 4], [12, 16])
    other = Tensor(q.buffer, q.spec)
    run.load({0: other, 1: q})
    assert other.buffer is not q.buffer
    run()
    assert (other.tolist(), q.tolist(), p.tolist()) == ([13, 17], [24, 32], [3, 4])


@pytest.mark.parametrize("contexts", [None, 2])
def test_what_is_loaded_is_waited_for_where_contexts_have_streams_of_their_own(
    contexts: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = list[Stream]()
    monkeypatch.setattr(Stream, "synchronize", lambda self: waited.append(self))
    w = lm.ones((3, 3))
    run = compile(trace(lambda x, w: x @ ops.relu(w), w, w), "cpu", resident=[1], contexts=contexts)
    waited.clear()
    run.load({1: w})
    assert waited == ([] if contexts is None else [run.device.default_stream])


def test_the_collector_waits_while_kernels_are_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a call and those that make something of weights: to bind them makes as many objects as to plan."""
    at_work = list[bool]()
    bind = Plan.bind

    def watched(plan: Plan, call: Call) -> Run:
        at_work.append(gc.isenabled())
        return bind(plan, call)

    monkeypatch.setattr(Plan, "bind", watched)
    x, w = np.ones((2, 3), np.float32), lm.tensor(np.ones((3, 3), np.float32))
    run = compile(trace(lambda x, w: ops.matmul(x, ops.relu(w)), x, w), "cpu", resident=[1])
    run.load({1: w})
    run(x)
    assert len(at_work) >= 2
    assert not any(at_work)
    assert gc.isenabled()


def test_planned_memory_is_smaller_than_separate_allocations() -> None:
    def chain(x):  # type: ignore[no-untyped-def]
        for _ in range(10):
            x = ops.softmax(ops.transpose(x, 1, 0), 0)
        return x

    run = compile(trace(chain, Spec((64, 64), float32)), "cpu", optimize=False)
    assert run.peak_bytes <= 3 * 64 * 64 * 4
    assert run.unplanned_bytes >= 10 * 64 * 64 * 4
    assert "planned" in lm.graph.profile(run, rounds=0).text()
    assert "softmax" in lm.graph.profile(run, rounds=0).text()


def test_the_null_backend_plans_what_no_machine_here_can_hold() -> None:
    image = Spec((4096, 1024, 256, 256), float32)  # 1 TiB
    run = compile(trace(lambda x: ops.relu(x) + 1.0, image), "cpu", backend="null")
    assert run.peak_bytes >= image.nbytes
    with pytest.raises(RuntimeError, match="null backend plans graphs but cannot run"):
        run(np.zeros(1, np.float32))


def test_what_is_updated_has_another_version_and_a_turn_and_what_is_read_keeps_its_own() -> None:
    p, q, x = lm.tensor([1.0, 2.0]), lm.tensor([3.0, 4.0]), np.float32([1.0, 1.0])
    graph = trace(lambda p, q, x: (p + q + x, q * x), p, q, x)
    run = compile(graph, "cpu", donate={0: 0}, resident=[1])
    run.load({0: p, 1: q})
    before = p.version, q.version
    for calls in (1, 2):
        (y,) = run(x)
        np.testing.assert_array_equal(y.numpy(), [3.0, 4.0])
        assert (p.version, q.version) == (before[0] + calls, before[1])
    np.testing.assert_array_equal(p.numpy(), [9.0, 12.0])
    assert len(turns_of([p])._turns) == 1  # others that read it wait
    assert turns_of([q])._turns == []


def test_one_context_is_enough() -> None:
    run = compile(trace(lambda x: x + 1.0, Spec((2,), float32)), "cpu", contexts=1)
    np.testing.assert_array_equal(run(np.zeros(2, np.float32))[0].numpy(), [1.0, 1.0])
    state = trace(lambda p: (p + 1.0,), Spec((2,), float32))
    with pytest.raises(ValueError, match="contexts=1: calls that update state run one after another"):
        compile(state, "cpu", contexts=1, donate={0: 0})


def test_bad_calls_name_what_is_wrong() -> None:
    graph = trace(lambda p, x: (p + x, p), Spec((2,), float32), Spec((2,), float32), names=["p", "x"])
    with pytest.raises(ValueError, match="input 7 is not one of the graph's 2 inputs"):
        compile(graph, "cpu", donate={7: 0})
    with pytest.raises(ValueError, match="output 9 is not one of the graph's 2 outputs"):
        compile(graph, "cpu", donate={0: 9})
    with pytest.raises(ValueError, match="donated to two inputs"):
        compile(graph, "cpu", donate={0: 0, 1: 0})
    with pytest.raises(ValueError, match="contexts=0: at least 1 is needed"):
        compile(graph, "cpu", contexts=0)
    with pytest.raises(TypeError, match="contexts must be an int or None, got nan"):
        compile(graph, "cpu", contexts=float("nan"))  # type: ignore[arg-type]
    run = compile(graph, "cpu", donate={0: 0})
    with pytest.raises(RuntimeError, match="call load"):
        run(np.zeros(2, np.float32))
    with pytest.raises(KeyError, match=r"the resident inputs are \[0\]"):
        run.load({})
    with pytest.raises(ShapeError, match="input 0 is"):
        run.load({0: lm.zeros(3)})
    run.load({0: lm.zeros(2)})
    with pytest.raises(TypeError, match="takes 1 inputs, got 2"):
        run(1, 2)
    with pytest.raises(ShapeError, match="input x is"):
        run(np.zeros(3, np.float32))
    assert run(np.ones(2, np.float32))[0].tolist() == [0.0, 0.0]  # still usable


def test_donating_to_another_shape_is_refused() -> None:
    graph = trace(lambda p: ops.sum(p), Spec((2,), float32))
    with pytest.raises(ShapeError, match="cannot be updated by output 0"):
        compile(graph, "cpu", donate={0: 0})


def test_a_missing_kernel_is_named() -> None:
    from lamina.backends import Kernels
    from lamina.ops.primitives import Relu

    with pytest.raises(NoKernel, match=r"nowhere has no kernel for relu \(bf16\[2\]\)"):
        Kernels("nowhere").plan(Relu(), (Spec((2,), bfloat16),), lm.device("cpu"), lm.Policy())


def _scaled(device: str = "cpu") -> tuple[lm.graph.Executable, lm.Tensor]:
    """x times the square root of a weight that stays: the root is taken when the weight is loaded."""
    run = compile(
        trace(lambda w, x: ops.sqrt(w) * x, Spec((3,), float32), Spec((3,), float32)), device, resident=(0,)
    )
    weight = lm.tensor(np.array([1.0, 4.0, 9.0], np.float32), device=device)
    run.load({0: weight})
    return run, weight


def test_what_depends_on_weights_alone_is_computed_when_they_are_loaded() -> None:
    run, _ = _scaled()
    assert [s.label for s in run.program.prologue] == ["sqrt"]
    assert [s.label for s in run.program.steps] == ["mul"]
    assert run(np.ones(3, np.float32))[0].tolist() == [1.0, 2.0, 3.0]


def test_overwritten_weights_are_noticed() -> None:
    run, weight = _scaled()
    run(np.ones(3, np.float32))
    weight.copy_([16.0, 25.0, 36.0])
    assert run(np.ones(3, np.float32))[0].tolist() == [4.0, 5.0, 6.0]


def test_large_results_of_small_constants_are_not_kept() -> None:
    def f(x):  # type: ignore[no-untyped-def]
        return ops.expand(lm.tensor(np.ones((1, 512), np.float32)), (512, 512)) * x

    run = compile(trace(f, Spec((512, 512), float32)), "cpu", optimize=False)
    assert run.program.prologue == []


def test_inputs_in_any_layout_are_written_into_their_place() -> None:
    """Channels last, row-major, from a host array, and again with other values in the same memory."""
    graph = trace(lambda x, y: ops.add(x, y), Spec((2, 3, 4, 5), float32), Spec((2, 3, 4, 5), float32))
    run = compile(graph, "cpu")
    rng = np.random.default_rng(0)
    for _ in range(3):
        a, b = rng.normal(size=(2, 2, 3, 4, 5)).astype(np.float32)
        last = lm.from_dlpack(np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2))
        assert not last.spec.is_contiguous
        for operands in ((last, lm.tensor(b)), (last, b), (lm.tensor(b), last)):
            np.testing.assert_array_equal(run(*operands)[0].numpy(), a + b)
    with pytest.raises(ShapeError, match="got f32"):
        run(last, lm.tensor(b[:1]))
    with pytest.raises(ShapeError, match="got f32"):
        run(last, lm.tensor(np.ones((2, 3, 4), np.float32)))


def test_outputs_lie_as_their_kernels_left_them() -> None:
    """A permuted result is not copied into row-major order; its numbers are read all the same."""
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    run = compile(trace(lambda a: ops.permute(a, (2, 0, 1)), Spec(x.shape, float32)), "cpu")
    assert [s.label for s in run.program.steps if not s.plan.view] == []
    (y,) = run(x)
    assert y.shape == (4, 2, 3)
    np.testing.assert_array_equal(y.numpy(), x.transpose(2, 0, 1))
    np.testing.assert_array_equal(np.from_dlpack(y), x.transpose(2, 0, 1))


def test_large_results_are_not_copied_and_stay_while_they_are_used() -> None:
    """No copy while results are dropped; one that is kept, or an array made of it, is never written again."""
    x = np.arange(1 << 19, dtype=np.float32).reshape(512, 1024)
    run = compile(trace(lambda v: (v * 2.0, ops.sum(v)), x), "cpu")
    first = run(x)[0].buffer.pointer
    assert run(x)[0].buffer.pointer == first  # nobody had it any more
    part = run(x)[0].numpy()[3:5]  # a view of its memory
    assert part.ctypes.data == first + 3 * 4096
    kept = run(x + 1)[0]
    np.testing.assert_array_equal(part, 2 * x[3:5])
    assert kept.buffer.pointer != first
    again = run(kept)[0]  # the result as the next input
    np.testing.assert_array_equal(kept.numpy(), 2 * x + 2)
    np.testing.assert_array_equal(again.numpy(), 4 * x + 4)


def test_a_kept_result_stays_when_there_is_no_memory_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones((512, 1024), np.float32)
    run = compile(trace(lambda v: (v * 2.0, v * 3.0), x), "cpu")
    kept = run(x)
    take, calls = Shelf.take, iter([True, False])

    def once(*arguments: Any) -> Any:
        if not next(calls):
            raise MemoryError
        return take(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Shelf, "take", once)
        with pytest.raises(MemoryError):
            run(2 * x)
    again = run(5 * x)
    for found, wanted in zip((*kept, *again), (2, 3, 10, 15), strict=True):
        assert (found.numpy() == wanted).all()


def test_results_that_share_memory_are_copied() -> None:
    """A reshaped result, the same result twice, state that is given out, and small ones."""
    x = np.ones((512, 1024), np.float32)

    def f(v):  # type: ignore[no-untyped-def]
        y = v * 3.0
        return y, ops.reshape(y, (1024, 512)), v + 1.0, ops.sum(v)

    run = compile(trace(f, x), "cpu")
    (a, b, c, d), later = run(x), run(2 * x)
    assert len({t.buffer.pointer for t in (a, b, c, d, *later)}) == 8
    for found, wanted in zip((a, b, c, d), (3, 3, 2, x.size), strict=True):
        assert (found.numpy() == wanted).all()
    twice = compile(trace(lambda v: [w := v * 2.0, w], x), "cpu")(x)
    twice[0].numpy()[0] = 7
    assert (twice[1].numpy() == 2).all()


def test_tensors_on_the_host_go_to_a_gpu_as_arrays_do() -> None:
    """Through pinned memory, unless they are there already."""
    spec = Spec((64, 500), float32)
    run = compile(trace(lambda x: x * 2, spec), "cpu")
    run._queues = True  # as where the device is a GPU
    values = np.random.default_rng(0).standard_normal(spec.shape).astype(np.float32)
    across = lm.tensor(values.T.copy()).t()
    for x in (values, lm.tensor(values), lm.data.default_convert(values), across):
        ((_, given),) = run._given([x])
        assert isinstance(given, Staged)
        np.testing.assert_array_equal(run(x)[0], 2 * values)
    there = lm.tensor(values)
    there.buffer.pinned = True
    assert run._given([there])[0][1] is there
