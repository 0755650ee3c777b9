"""A child that was forked after use: it answers on the CPU, and says why not on a GPU. It never hangs."""

import gc
import multiprocessing
import threading
import traceback
from collections.abc import Callable

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.infer import Predictor
from lamina.runtime import DeviceError, _cuda, renew_after_fork
from lamina.runtime.fork import RenewedLock
from tests.helpers import many_threads

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def forked(work: Callable[[], object]) -> int | None:
    """The exit status of a child that does the work; None where it hangs."""

    def run() -> None:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            raise SystemExit(1) from None

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    child.join(60)
    if child.is_alive():
        child.kill()
    return child.exitcode if child.exitcode is None or child.exitcode >= 0 else None


def test_ops_predictors_and_steps_answer_in_a_child() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((4, 16, 32, 32), (16, 16, 3, 3)))
    expected = ops.conv2d(x, w).numpy()
    net = many_threads.small_network()
    predictor, image = Predictor(net, device="cpu"), many_threads.images(1, 32)[0]
    answer = predictor(image).numpy().copy()
    step = lm.train_step(nn.Linear(4, 2), ops.cross_entropy, optim.SGD(lr=0.1), device="cpu")
    rows, labels = np.ones((3, 4), np.float32), np.array([0, 1, 0])
    step(rows, labels)

    def work() -> None:
        np.testing.assert_array_equal(ops.conv2d(x, w).numpy(), expected)
        np.testing.assert_array_equal(predictor(image).numpy(), answer)
        assert np.isfinite(step(rows, labels).item())

    assert forked(work) == 0
    work()  # and the parent goes on


def test_a_fork_while_other_threads_compute() -> None:
    net = many_threads.small_network()
    predictor, image = Predictor(net, device="cpu"), many_threads.images(1, 32)[0]
    answer, stop = predictor(image).numpy().copy(), threading.Event()

    def busy() -> None:
        while not stop.is_set():
            predictor(image).numpy()

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for t in threads:
        t.start()
    try:
        for _ in range(5):
            assert forked(lambda: np.testing.assert_array_equal(predictor(image).numpy(), answer)) == 0
    finally:
        stop.set()
        for t in threads:
            t.join()


class Locked:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        renew_after_fork(self)

    def renew(self) -> None:
        self.lock = threading.Lock()


def test_locks_of_other_threads_are_free_in_the_child() -> None:
    owner, gone = Locked(), Locked()
    del gone
    gc.collect()
    thread = threading.Thread(target=owner.lock.acquire)
    thread.start()
    thread.join()
    assert forked(lambda: owner.lock.acquire(timeout=1) or 1 / 0) == 0
    assert owner.lock.locked()  # the parent's own


def test_a_child_of_a_process_with_cuda_reads_of_spawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cuda, "_lost", [1])
    monkeypatch.setattr(_cuda, "probe", lambda: _cuda.Driver(1, 13000, "libcuda.so.1", ""))
    _cuda.open_cuda.cache_clear()
    with pytest.raises(
        DeviceError, match="forked after its parent had opened it: start the process with spawn"
    ):
        _cuda.open_cuda()


def test_a_lock_that_another_thread_holds_is_free_in_the_child() -> None:
    """And one that the forking thread holds is left as it was entered."""
    renewed, held, done = RenewedLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with renewed.lock:
            held.set()
            done.wait(60)

    def take() -> None:
        assert renewed.lock.acquire(timeout=5)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    try:
        assert forked(take) == 0
    finally:
        done.set()
        thread.join()
    with renewed.lock:
        assert forked(take) == 0
