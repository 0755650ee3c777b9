"""Programs that are one launch: graphs that copy operands from where they lie and results to where they stay.

Most of it also runs on the driver in software (tests/runtime/test_fake_driver.py): the program is copies alone.
"""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina.graph import Executable, compile, trace
from lamina.graph.run.context import ExecutionContext
from lamina.graph.run.timeline import Timeline
from lamina.infer import Inferer, Predictor
from lamina.ops.core import call
from lamina.runtime import (
    CapturedCopy,
    CapturedGraph,
    DeviceError,
    as_stream,
    copy,
    from_host,
    memset,
    to_host,
)
from lamina.spec import Spec, float32, int64
from lamina.tensors import as_tensor
from tests.helpers.many_threads import in_threads
from tests.helpers.rolling import TURNS, Rolling, RollRows, rolled

pytestmark = pytest.mark.gpu
SHAPE = (64, 8)


def values(seed: int, shape: tuple[int, ...] = SHAPE, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 1000, shape).astype(dtype)


def wanted(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.roll(x, TURNS, 0)


def there(x: Any) -> lm.Tensor:
    return lm.tensor(x, device="cuda:0")


def context_of(run: Executable) -> ExecutionContext:
    return run._contexts.items[0]


@pytest.fixture
def run() -> Executable:
    return compile(
        trace(lambda x, y: (rolled(x), rolled(y)), Spec(SHAPE, float32), Spec(SHAPE, float32)), "cuda:0"
    )


@pytest.mark.feature("B016")
def test_results_stay_and_operands_lie_anywhere(run: Executable) -> None:
    """Tensors at other addresses at each call, results that are held, and let go of in any order."""
    xs = [values(k) for k in range(12)]
    held = []
    for k in range(12):
        held.append((k, *run(there(xs[k]), there(xs[-k]))))
        if k % 3 == 2:
            del held[k % 2]
    for k, a, b in held:
        np.testing.assert_array_equal(a.numpy(), wanted(xs[k]))
        np.testing.assert_array_equal(b.numpy(), wanted(xs[-k]))
    assert run.is_captured
    pointers = [y.buffer.pointer for _, *pair in held for y in pair]
    assert len(set(pointers)) == len(pointers)


def test_operands_may_be_freed_and_overwritten_as_soon_as_the_call_returns(run: Executable) -> None:
    array, other, found = np.empty(SHAPE, np.float32), there(values(99)), []
    for k in range(20):
        array[...] = values(k)
        x = there(values(k + 1))
        found.append(run(array, x))
        array[...] = -1
        del x
        memset(lm.device("cuda:0").allocate(other.nbytes), 255)  # where x was
    for k, (a, b) in enumerate(found):
        np.testing.assert_array_equal(a.numpy(), wanted(values(k)))
        np.testing.assert_array_equal(b.numpy(), wanted(values(k + 1)))


def test_every_way_in_which_operands_come(run: Executable) -> None:
    """Tensors of the device and of the host, arrays in any order, parts of memory, in all pairs."""
    x = values(0)
    big = there(np.concatenate([values(5), x])).buffer
    ways = {
        "device": lambda: there(x),
        "array": lambda: x.copy(),
        "fortran array": lambda: np.asfortranarray(x),
        "strided array": lambda: np.repeat(x, 2, 1)[:, ::2],
        "host tensor": lambda: lm.tensor(x),
        "part": lambda: lm.Tensor(big.view(x.nbytes, x.nbytes), Spec(SHAPE, float32)),
    }
    for _ in range(2):
        for first in ways.values():
            for second in ways.values():
                for y in run(first(), second()):
                    np.testing.assert_array_equal(y.numpy(), wanted(x))
    assert len(context_of(run)._captured) == 4  # each on the device, or through pinned memory


def test_layouts_that_no_copy_brings_to_the_rows(run: Executable) -> None:
    """These are read by a kernel, beside the graph; and there are more ways than graphs are kept for."""
    x = values(0)
    ways = [
        lambda: there(x),
        lambda: x,
        lambda: there(x.T.copy()).t(),
        lambda: there(np.repeat(x, 2, 0))[::2],
    ]
    for _ in range(2):
        for first in ways:
            for second in ways:
                for y in run(first(), second()):
                    np.testing.assert_array_equal(y.numpy(), wanted(x))
    assert len(context_of(run)._captured) == 5


@pytest.mark.parametrize("dtype", ["float16", "int32", "uint8", "bool", "float64"])
def test_other_types(dtype: str) -> None:
    x = values(1).astype(dtype)
    f = lm.jit(rolled)
    for given in (there(x), there(x), there(x), x, x):
        np.testing.assert_array_equal(f(given).numpy(), wanted(x))


def test_arrays_larger_than_what_is_staged_within_the_call() -> None:
    """Inputs that go by a stream of their own, beside small ones, and results that are fetched in one piece."""
    large, small = Spec((512, 128), float32), Spec((16,), int64)
    run = compile(trace(lambda x, y: (rolled(x), rolled(y)), large, small), "cuda:0")
    found = []
    for k in range(8):
        x, y = values(k, (512, 128)), values(k, (16,), np.int64)
        found.append(run(x, y))
        x[...], y[...] = -1, -1
    for k, (a, b) in enumerate(found):
        np.testing.assert_array_equal(a.numpy(), wanted(values(k, (512, 128))))
        np.testing.assert_array_equal(b.numpy(), wanted(values(k, (16,), np.int64)))


def test_what_has_no_elements() -> None:
    run = compile(
        trace(lambda x, y: (x.reshape(3, 0), rolled(y)), Spec((0, 3), float32), Spec(SHAPE, float32)),
        "cuda:0",
    )
    for k in range(4):
        a, b = run(np.zeros((0, 3), np.float32), values(k))
        assert a.shape == (3, 0)
        np.testing.assert_array_equal(b.numpy(), wanted(values(k)))


def test_operands_that_other_streams_wrote_and_results_that_they_read(run: Executable) -> None:
    """The memory of neither is used again before these streams have passed."""
    device, x = lm.device("cuda:0"), values(0)
    for k in range(6):
        with device.stream() as other:
            buffer = device.allocate(x.nbytes, stream=other)
            lm.runtime.copy(buffer, values(k), stream=other)
            device.default_stream.wait(other)
            a, b = run(lm.Tensor(buffer, Spec(SHAPE, float32)), there(x))
            del buffer
            found = np.empty(SHAPE, np.float32)
            other.wait(device.default_stream)
            lm.runtime.copy(found, a.buffer, stream=other)
            del a
            other.synchronize()
        np.testing.assert_array_equal(found, wanted(values(k)))
        np.testing.assert_array_equal(b.numpy(), wanted(x))


def test_memory_that_a_graph_cannot_copy_from_is_copied_beside_it(
    run: Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, refused = values(0), []
    for _ in range(3):
        run(there(x), there(x))

    def read_from(self: CapturedCopy, source: int) -> None:
        refused.append(source)
        raise DeviceError("cuGraphExecMemcpyNodeSetParams: another kind of memory")

    with monkeypatch.context() as patch:
        patch.setattr(CapturedCopy, "read_from", read_from)
        for k in range(3):
            a, b = run(there(values(k)), there(values(k + 1)))
            np.testing.assert_array_equal(a.numpy(), wanted(values(k)))
            np.testing.assert_array_equal(b.numpy(), wanted(values(k + 1)))
    assert refused
    before = len(context_of(run)._captured)
    np.testing.assert_array_equal(run(there(values(7)), there(x))[0].numpy(), wanted(values(7)))
    assert len(context_of(run)._captured) == before  # the first graph is used again


def test_a_driver_whose_graphs_show_no_copies(run: Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy_to(self: CapturedGraph, destination: int) -> CapturedCopy:
        raise DeviceError(f"copy_to: the graph has no copy to {destination:#x}")

    monkeypatch.setattr(CapturedGraph, "copy_to", copy_to)
    for k in range(5):
        a, b = run(there(values(k)), values(k + 1))
        np.testing.assert_array_equal(a.numpy(), wanted(values(k)))
        np.testing.assert_array_equal(b.numpy(), wanted(values(k + 1)))
    assert list(context_of(run)._captured) == [None]


def test_a_call_that_fails_leaves_the_program_usable(
    run: Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = values(3)
    for _ in range(3):
        run(there(x), x)
    with monkeypatch.context() as patch:
        patch.setattr("lamina.graph.run.context.Shelf.take", lambda self: 1 / 0)
        for _ in range(5):
            with pytest.raises(ZeroDivisionError):
                run(there(x), x)
    with pytest.raises(lm.ShapeError, match=r"input x1 is f32\[64,8\], got f64\[3\]"):
        run(there(x), there(np.zeros(3)))
    for y in run(there(x), x):
        np.testing.assert_array_equal(y.numpy(), wanted(x))


def test_timelines_and_checked_numbers_go_another_way() -> None:
    f, x = lm.jit(rolled), values(0)
    for _ in range(3):
        f(there(x))
    timeline = Timeline()
    with timeline.record():
        found = [f(there(values(k))) for k in range(3)]
    with lm.policy(check_finite=True):
        found.append(f(there(values(3))))
    found += [f(there(values(4))), f(values(5))]
    for k, y in enumerate(found):
        np.testing.assert_array_equal(y.numpy(), wanted(values(k)))
    assert timeline.recorded == 3


def test_weights_that_move_are_read_where_they_are_then() -> None:
    """Also where no call has looked at them since another program moved them."""
    x, w = values(0), there(values(1))
    f = lm.jit(lambda x: (rolled(x), rolled(w)))
    for k in range(6):
        if k % 2:
            w.copy_(values(k))
        if k == 4:
            w.move_into(lm.device("cuda:0").allocate(w.nbytes), w.spec)
        a, b = f(there(x))
        np.testing.assert_array_equal(a.numpy(), wanted(x))
        np.testing.assert_array_equal(b.numpy(), wanted(values(k - 1 + k % 2 if k else 1)))


@pytest.mark.feature("F113")
@pytest.mark.parametrize("threads", [1, 6])
def test_a_predictor_and_an_inferer_of_several_threads(threads: int) -> None:
    xs = [values(k) for k in range(8)]
    given = [there(x) for x in xs]
    predictor = Predictor(Rolling(), device="cuda:0")
    with Inferer(Rolling(), device="cuda:0", contexts=3) as inferer:

        def work(k: int) -> None:
            for i in np.random.default_rng(k).integers(0, 8, 60):
                for found in (predictor(given[i]), predictor(xs[i]), inferer(xs[i])):
                    np.testing.assert_array_equal(found.numpy(), wanted(xs[i]))

        in_threads(work, threads)


def test_a_predictor_forgets_what_was_made_for_other_settings() -> None:
    """Programs that are known by the identity of a tensor's spec and policy are those of the settings in force."""
    net, x = Rolling(), there(values(0))
    predictor = Predictor(net, device="cuda:0")
    for turns in (6, 5, 6):
        net.turns = turns
        for _ in range(3):
            np.testing.assert_array_equal(predictor(x).numpy(), np.roll(values(0), turns, 0))
    with lm.policy(deterministic=True):
        np.testing.assert_array_equal(predictor(x).numpy(), np.roll(values(0), 6, 0))
    assert len(predictor._programs) == 2


def test_memory_of_results_goes_round_and_comes_back(run: Executable) -> None:
    device, x = lm.device("cuda:0"), there(values(0))
    for _ in range(3):
        run(x, x)
    device.synchronize()
    before = device.statistics().live
    for _ in range(50):
        run(x, x)
    held = [run(x, x) for _ in range(20)]
    assert len({y.buffer.pointer for pair in held for y in pair}) == 40
    del held
    gc.collect()
    assert device.statistics().live <= before + 8


def test_a_program_that_updates_what_it_is_given_reads_what_was_there_before() -> None:
    """The operand is copied before the graph writes over the state that it is."""
    p, now = there(values(0)), values(0)
    run = compile(
        trace(lambda p, x: (rolled(p), rolled(x, TURNS + 1)), Spec(SHAPE, float32), Spec(SHAPE, float32)),
        "cuda:0",
        donate={0: 0},
    )
    run.load({0: p})
    for _ in range(5):
        (y,) = run(p)
        np.testing.assert_array_equal(y.numpy(), np.roll(now, TURNS + 1, 0))
        now = wanted(now)
        np.testing.assert_array_equal(p.numpy(), now)
    assert run.is_captured


@dataclass(frozen=True)
class RollOnHost(RollRows):
    """The rows of x shifted by the host, which waits for them: no CUDA graph can hold that."""

    capturable = False

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any], stream: int) -> None:
        """Read, shifted and written back."""
        x, y = as_tensor(inputs[0]), as_tensor(outputs[0])
        as_stream(stream, x.device).synchronize()
        rows = np.roll(to_host(x.buffer).reshape(x.shape[0], -1), 1, 0)
        copy(y.buffer, from_host(rows, x.device), stream=stream)


def held_up(x: Any) -> tuple[Any, Any]:
    """x rolled by `TURNS` + 1 and by five rows, three of the former turns by the host."""
    y = call(RollOnHost(), call(RollOnHost(), rolled(x, 2)))
    return call(RollOnHost(), rolled(y, TURNS - 4)), rolled(y, 1)


def test_steps_that_no_graph_can_hold_stand_between_graphs() -> None:
    run = compile(trace(held_up, Spec(SHAPE, float32)), "cuda:0")
    for k in range(6):
        x = values(k)
        for given in (there(x), x):
            last, beside = run(given)
            np.testing.assert_array_equal(last.numpy(), np.roll(x, TURNS + 1, 0))
            np.testing.assert_array_equal(beside.numpy(), np.roll(x, 5, 0))
    assert [len(c.graphs) for c in context_of(run)._captured.values()] == [2]
    timeline = Timeline()
    with timeline.record():
        run(there(values(0)))
    assert timeline.recorded == 1
    context_of(run).unbind()
    for _ in range(3):
        np.testing.assert_array_equal(run(values(3))[1].numpy(), np.roll(values(3), 5, 0))
