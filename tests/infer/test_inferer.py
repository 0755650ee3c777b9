"""An Inferer's answers are one thread's, in every bit, however requests are gathered; none is lost or given twice."""

import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from lamina.graph import compile, trace
from lamina.infer import Inferer, Predictor, QueueFull
from lamina.spec import ShapeError, Spec, float32
from tests.helpers.many_threads import NETWORKS, compare, in_threads, small_network

Array = np.ndarray[Any, Any]


def floats(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Lambda(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def forward(self, *xs: Any, **named: Any) -> Any:
        return self.function(*xs, **named)


class Tree(nn.Module):
    """Takes a dict, gives a dict of a tuple and an array."""

    def __init__(self) -> None:
        self.embed, self.linear = nn.Embedding(11, 6), nn.Linear(6, 4)

    def forward(self, words: Any, scale: Any) -> Any:
        y = self.linear(ops.mean(self.embed(words), 1) * scale)
        return {"both": (y, ops.softmax(y, 1)), "largest": ops.argmax(y, 1)}


# ---- the same bits
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Any], dict[str, Any]]] = {
    "convolution": (small_network, lambda k: floats(k, 1, 3, 16, 16), {}),
    "two samples": (small_network, lambda k: floats(k, 1 + k % 3, 3, 16, 16), {}),
    "second axis": (
        lambda: Lambda(lambda x: ops.tanh(x) * ops.mean(x, 0)),
        lambda k: floats(k, 5, 1, 4),
        {"batch_axis": 1},
    ),
    "lstm": (
        lambda: Lambda(nn.LSTM(4, 6, bidirectional=True)),
        lambda k: floats(k, 5, 1, 4),
        {"batch_axis": 1},
    ),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        lambda k: floats(k, 1, 5, 8),
        {},
    ),
    "itself": (lambda: Lambda(lambda x: x), lambda k: floats(k, 1, 40), {}),
    "tree": (
        Tree,
        lambda k: {
            "words": np.random.default_rng(k).integers(0, 11, (1, 7)),
            "scale": floats(k, 1, 6),
        },
        {},
    ),
}


#: Whose kernels round differently from place to place on some processors: the trial finds it.
PLACES_MATTER = {"lstm", "encoder", "tree"}


def every_leaf(answer: Any) -> list[bytes]:
    return [x.numpy().tobytes() for x in lm._tree.leaves(answer)]


@pytest.mark.feature("F113", "B035")
@pytest.mark.parametrize("max_batch", [1, 4])
@pytest.mark.parametrize("name", CASES)
def test_threads_get_the_bits_of_one_thread(name: str, max_batch: int) -> None:
    make, request, more = CASES[name]
    nn.manual_seed(0)
    net = make()
    inputs = [request(k) for k in range(9)]
    with Inferer(net, device="cpu", max_batch=max_batch, max_wait_ms=2, **more) as inferer:
        wanted = [every_leaf(inferer(x)) for x in inputs]

        def work(k: int) -> None:
            for i in np.random.default_rng(k).permutation(9):
                assert every_leaf(inferer(inputs[i])) == wanted[i]

        in_threads(work, 6)
        found = inferer.statistics()
        assert (found.answered, found.failed, found.cancelled, found.waiting) == (63, 0, 0, 0)
        together = {p.together for p in inferer._programs.values()}
        assert together == {max_batch > 1} or name in PLACES_MATTER
        assert (found.runs < 63) == (True in together)
        alone = Predictor(net, device="cpu")
        for x in inputs[:3]:
            for a, b in zip(lm._tree.leaves(inferer(x)), lm._tree.leaves(alone(x)), strict=True):
                np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_resnet18_in_batches() -> None:
    net = NETWORKS["resnet18"]()
    xs = [floats(k, 1, 3, 64, 64) for k in range(4)]
    with Inferer(net, device="cpu", max_batch=4, max_wait_ms=20) as inferer:
        found = compare(inferer, xs, threads=4, calls=5)
    assert (found.wrong, found.other_bits) == (0, 0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - ops.mean(x, 0),
        lambda x: x * float(x.shape[0]),
        lambda x: x + np.arange(x.shape[0], dtype=np.float32)[:, None],
        lambda x: x - x[-1:],
        lambda x: ops.relu(x) if x.shape[0] > 2 else ops.tanh(x),
    ],
    ids=["mean", "count", "place", "last", "branch"],
)
def test_a_network_that_mixes_samples_answers_each_request_alone(function: Callable[[Any], Any]) -> None:
    net = Lambda(function)
    with Inferer(net, device="cpu", max_batch=4, max_wait_ms=5) as inferer:
        for n in (1, 2, 4):
            found = [inferer.submit(floats(k, n, 3)) for k in range(6)]
            for k, future in enumerate(found):
                wanted = net(lm.tensor(floats(k, n, 3))).numpy()
                np.testing.assert_allclose(future.result(10).numpy(), wanted, rtol=1e-6)
        assert inferer.statistics().fill == 1


def test_what_depends_on_places_by_its_kernels_alone_is_found_by_trial(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where a kernel splits its sums by the place of a sample."""
    caplog.set_level("INFO", "lamina.infer")
    monkeypatch.setattr("lamina.infer.programs.GatheredProgram.is_placeless", lambda program: False)
    with Inferer(nn.Linear(3, 2), device="cpu", max_batch=4) as inferer:
        inferer(floats(0, 1, 3))
        assert inferer.statistics().fill == 1
    assert "requests run alone" in caplog.text


@pytest.mark.parametrize("sizes", [[8, 3], [3, 8, 2], [8, 3, 8, 1]])
def test_where_the_trial_fails_requests_of_any_size_run_alone_in_any_order(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    """The program of a whole batch that ran alone has the key that a gathered one would have."""
    trials: list[Any] = []

    def failed(program: Any) -> bool:
        trials.append(program)
        return False

    monkeypatch.setattr("lamina.infer.programs.GatheredProgram.is_placeless", failed)
    net = nn.Linear(4, 3)
    with Inferer(net, device="cpu", max_batch=8) as inferer:
        for n in sizes:
            x = floats(n, n, 4)
            np.testing.assert_allclose(inferer(x).numpy(), net(lm.tensor(x)).numpy(), rtol=1e-5, atol=1e-6)
        assert len(trials) == 1


def test_failed_trials_of_no_more_kinds_than_programs_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina.infer.programs.GatheredProgram.is_placeless", lambda program: False)
    with Inferer(Lambda(ops.tanh), device="cpu", max_batch=4, max_programs=2) as inferer:
        for size in (3, 5, 7, 3):
            for n in (4, 1):
                assert inferer(floats(0, n, size)).shape == (n, size)
            assert len(inferer._alone) <= 2


def test_requests_larger_than_a_batch_and_other_shapes_have_programs_of_their_own() -> None:
    net = small_network()
    with Inferer(net, device="cpu", max_batch=4, max_programs=3) as inferer:
        for shape in ((1, 3, 8, 8), (6, 3, 8, 8), (2, 3, 12, 12), (1, 3, 16, 16), (1, 3, 8, 8)):
            x = floats(0, *shape)
            np.testing.assert_allclose(inferer(x).numpy(), net(lm.tensor(x)).numpy(), rtol=1e-4, atol=1e-5)
            assert len(inferer._programs) <= 3
        assert "batches of 4" in repr(inferer)
        assert repr(inferer).count("Executable") == 3


def test_weights_are_shared_and_refreshed() -> None:
    net = nn.Linear(3, 2)
    with Inferer(net, device="cpu", max_batch=2) as inferer:
        x = floats(0, 1, 3)
        inferer(x)
        net.weight.copy_(np.ones((2, 3), np.float32))
        inferer.refresh()
        np.testing.assert_allclose(inferer(x).numpy(), net(lm.tensor(x)).numpy(), rtol=1e-6)


# ---- futures
@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs wait until the event is set."""
    event, run = threading.Event(), lm.infer.programs.ServedProgram.run

    def waits(program: Any, inputs: Any) -> Any:
        assert event.wait(30)
        return run(program, inputs)

    event.set()
    monkeypatch.setattr("lamina.infer.programs.ServedProgram.run", waits)
    return event


@pytest.mark.parametrize("max_batch", [1, 4])
def test_a_request_is_cancelled_until_it_runs(held: Any, max_batch: int) -> None:
    with Inferer(nn.Linear(3, 2), device="cpu", max_batch=max_batch, contexts=1, max_wait_ms=0) as inferer:
        inferer(floats(0, 1, 3))
        held.clear()
        first = inferer.submit(floats(0, 1, 3))
        while not first.running():
            time.sleep(1e-3)
        others = [inferer.submit(floats(k, 1, 3)) for k in range(5)]
        assert others[2].cancel()
        assert not first.cancel()
        held.set()
        assert first.result(10).shape == (1, 2)
        for k, future in enumerate(others):
            if k == 2:
                with pytest.raises(CancelledError):
                    future.result(10)
            else:
                assert future.result(10).shape == (1, 2)
        found = inferer.statistics()
    assert (found.answered, found.cancelled, found.waiting) == (6, 1, 0)


def cancellations(net: nn.Module, inputs: list[Array], each: int, threads: int, **more: Any) -> None:
    """Threads ask, and cancel at random: every request is told once, and every answer is the right one."""
    with Inferer(net, max_wait_ms=0.2, queue_limit=64, **more) as inferer:
        wanted = [inferer(x).numpy().tobytes() for x in inputs]
        inferer.reset_statistics()

        def work(k: int) -> tuple[int, int]:
            rng, calls = np.random.default_rng(k), [0] * each
            futures = []
            for i in range(each):
                future = inferer.submit(inputs[i % len(inputs)])
                future.add_done_callback(lambda f, i=i: calls.__setitem__(i, calls[i] + 1))  # type: ignore[misc]
                futures.append(future)
                if rng.random() < 0.3:
                    futures[rng.integers(max(0, i - 40), len(futures))].cancel()
            for i, future in enumerate(futures):
                if not future.cancelled():
                    assert future.result(30).numpy().tobytes() == wanted[i % len(inputs)]
            gone = sum(f.cancelled() for f in futures)
            assert calls == [1] * each
            return gone, each - gone

        found = in_threads(work, threads)
        statistics = inferer.statistics()
        while statistics.waiting:  # those that were cancelled last are counted when their turn comes
            time.sleep(1e-3)
            statistics = inferer.statistics()
    assert statistics.cancelled == sum(gone for gone, _ in found) > 0
    assert statistics.answered == sum(answered for _, answered in found)
    assert statistics.failed == 0


@pytest.mark.parametrize("max_batch", [1, 8])
def test_a_thousand_requests_with_random_cancellations_are_answered_once(max_batch: int) -> None:
    cancellations(
        nn.Linear(3, 2), [floats(k, 1, 3) for k in range(16)], 250, 4, device="cpu", max_batch=max_batch
    )


@pytest.mark.slow
@pytest.mark.feature("F113", "B035")
@pytest.mark.parametrize("max_batch", [1, 8])
def test_ten_thousand_requests_with_random_cancellations(max_batch: int) -> None:
    inputs = [floats(k, 1, 3, 16, 16) for k in range(16)]
    cancellations(small_network(), inputs, 1250, 8, device="cpu", max_batch=max_batch)


@pytest.mark.gpu
@pytest.mark.feature("F113", "B035")
@pytest.mark.parametrize("max_batch", [1, 8])
def test_gpu_ten_thousand_requests_with_random_cancellations(max_batch: int) -> None:
    inputs = [floats(k, 1, 3, 64, 64) for k in range(16)]
    more: dict[str, Any] = {"device": "cuda:0", "precision": "bf16"}
    cancellations(nn.resnet18(), inputs, 1250, 8, max_batch=max_batch, **more)


def test_a_full_queue_refuses_or_waits(held: Any) -> None:
    x = floats(0, 1, 3)
    with Inferer(nn.Linear(3, 2), device="cpu", contexts=1, queue_limit=2, when_full="raise") as inferer:
        inferer(x)
        held.clear()
        futures = [inferer.submit(x), inferer.submit(x)]
        with pytest.raises(QueueFull, match="2 requests wait for an answer, the queue's limit is 2"):
            inferer.submit(x)
        held.set()
        assert [f.result(10).shape for f in futures] == [(1, 2)] * 2
    with Inferer(nn.Linear(3, 2), device="cpu", contexts=1, queue_limit=2) as waits:
        waits(x)
        held.clear()
        threading.Timer(0.05, held.set).start()
        assert [f.result(10).shape for f in [waits.submit(x) for _ in range(6)]] == [(1, 2)] * 6


def test_the_error_of_a_request_is_its_own() -> None:
    net = Tree()
    good = {"words": np.array([[1, 2]]), "scale": floats(0, 1, 6)}
    bad = {"words": np.array([[1, 99]]), "scale": floats(0, 1, 6)}
    with Inferer(net, device="cpu", max_batch=4, max_wait_ms=30) as inferer:
        wanted = every_leaf(inferer(good))
        for order in ([good, bad, good], [bad, good], [bad], [good]):  # what was bad leaves nothing behind
            futures = [inferer.submit(x) for x in order]
            for x, future in zip(order, futures, strict=True):
                if x is bad:
                    with pytest.raises(IndexError):
                        future.result(10)
                else:
                    assert every_leaf(future.result(10)) == wanted
        assert inferer.statistics().failed == 3
        with pytest.raises(TypeError):
            inferer.submit("no array")
        with pytest.raises(ShapeError):
            inferer({"words": np.array([[1, 2]]), "scale": floats(0, 1, 5)})
        assert every_leaf(inferer(good)) == wanted


def test_what_a_network_refuses_is_told_in_the_shapes_of_the_request() -> None:
    with Inferer(nn.Linear(4, 3), max_batch=8, device="cpu") as inferer:
        with pytest.raises(ShapeError, match=r"got f32\[2,5\] and f32\[3,4\]"):
            inferer(np.zeros((2, 5), np.float32))
        assert inferer(np.zeros((2, 4), np.float32)).shape == (2, 3)


def test_inputs_may_change_once_submitted(held: Any) -> None:
    for max_batch in (1, 4):
        with Inferer(nn.Linear(3, 2), device="cpu", max_batch=max_batch) as inferer:
            x = floats(0, 1, 3)
            wanted = inferer(x).numpy().tobytes()
            held.clear()
            future = inferer.submit(x)
            x[...] = 7
            held.set()
            assert future.result(10).numpy().tobytes() == wanted


# ---- the end
def test_closing_answers_what_waits_or_cancels_it(held: Any) -> None:
    x = floats(0, 1, 3)
    for cancel in (False, True):
        inferer = Inferer(nn.Linear(3, 2), device="cpu", contexts=1, max_batch=2, max_wait_ms=1e4)
        inferer_threads = inferer.queue
        futures = [inferer.submit(x)]
        held.clear()
        futures += [inferer.submit(x) for _ in range(4)]
        threading.Timer(0.02, held.set).start()
        inferer.close(cancel=cancel)
        inferer.close()
        assert all(f.done() for f in futures)
        assert any(f.cancelled() for f in futures) == cancel
        assert not any(t.is_alive() for t in inferer_threads._workers)
        for call in (inferer, inferer.submit):
            with pytest.raises(RuntimeError, match="closed"):
                call(x)


def test_threads_end_with_the_inferer() -> None:
    inferer = Inferer(nn.Linear(3, 2), device="cpu", max_batch=2)
    inferer.submit(floats(0, 1, 3)).result(10)
    threads = list(inferer.queue._workers)
    assert threads
    del inferer
    gc.collect()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_contexts_of_an_executable_are_for_what_updates_nothing() -> None:
    graph = trace(lambda x: x + 1.0, Spec((2,), float32))
    with pytest.raises(ValueError, match="contexts=0: at least 1 is needed"):
        compile(graph, "cpu", contexts=0)
    with pytest.raises(ValueError, match="contexts=2: calls that update state run one after another"):
        compile(graph, "cpu", contexts=2, donate={0: 0})


# ---- on a GPU
@pytest.mark.gpu
@pytest.mark.feature("F113", "B035")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("max_batch", [1, 8])
@pytest.mark.parametrize("name", CASES)
def test_gpu_threads_get_the_bits_of_one_thread(name: str, max_batch: int, precision: str) -> None:
    make, request, more = CASES[name]
    nn.manual_seed(0)
    inputs = [request(k) for k in range(9)]
    with Inferer(
        make(), device="cuda:0", max_batch=max_batch, precision=precision, contexts=4, max_wait_ms=2, **more
    ) as inferer:
        wanted = [every_leaf(inferer(x)) for x in inputs]

        def work(k: int) -> None:
            for _ in range(10):
                for i in np.random.default_rng(k).permutation(9):
                    assert every_leaf(inferer(inputs[i])) == wanted[i]

        in_threads(work, 8)
        assert all(p.executable.is_captured for p in inferer._programs.values())
        together = {p.together for p in inferer._programs.values()}
        assert together == {max_batch > 1} or name in PLACES_MATTER


@pytest.mark.gpu
@pytest.mark.parametrize("max_batch", [1, 8])
def test_gpu_resnet_gives_the_bits_of_one_thread(max_batch: int) -> None:
    nn.manual_seed(0)
    xs = [floats(k, 1, 3, 224, 224) for k in range(8)]
    with Inferer(
        nn.resnet50(), device="cuda:0", max_batch=max_batch, precision="bf16", contexts=4
    ) as inferer:
        found = compare(inferer, xs, threads=8, calls=40)
        assert (found.wrong, found.other_bits) == (0, 0)
        (program,) = inferer._programs.values()
        assert program.together == (max_batch > 1)
        assert program.executable.contexts > 1
