"""A thread bound to a device."""

import threading

import pytest

from lamina.runtime import Device, NoGpuError, Worker

pytestmark = pytest.mark.feature("F016")


def test_runs_on_its_own_thread_always() -> None:
    with Worker("cpu") as worker:
        threads = {worker.run(threading.get_ident) for _ in range(5)}
        assert len(threads) == 1
        assert threading.get_ident() not in threads
        assert worker.device == Device("cpu")


def test_results_and_exceptions_pass_through() -> None:
    def divide(a: int, b: int, *, scale: int = 1) -> float:
        return scale * a / b

    with Worker("cpu") as worker:
        assert worker.run(divide, 6, 3, scale=2) == 4
        with pytest.raises(ZeroDivisionError):
            worker.run(divide, 1, 0)
        assert worker.run(divide, 1, 1) == 1


def test_a_call_from_inside_is_made_at_once() -> None:
    with Worker("cpu") as worker:
        assert worker.run(lambda: worker.run(lambda: worker.run(int, "7"))) == 7


def test_calls_are_queued_in_order() -> None:
    seen: list[int] = []
    with Worker("cpu") as worker:
        futures = [worker.submit(seen.append, number) for number in range(100)]
        futures[-1].result()
    assert seen == list(range(100))


def test_close_finishes_the_queue_and_refuses_more() -> None:
    seen: list[int] = []
    worker = Worker("cpu")
    for number in range(10):
        worker.submit(seen.append, number)
    worker.close()
    worker.close()
    assert seen == list(range(10))
    assert worker.closed
    assert "closed" in repr(worker)
    with pytest.raises(RuntimeError, match=r"Worker\(cpu, closed\) is closed"):
        worker.run(int)


def test_its_thread_ends() -> None:
    before = threading.active_count()
    worker = Worker("cpu")
    assert threading.active_count() == before + 1
    worker.close()
    assert threading.active_count() == before


def test_may_be_closed_from_inside() -> None:
    worker = Worker("cpu")
    worker.run(worker.close)
    assert worker.closed


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(NoGpuError):
        Worker("cuda:1000")


def test_workers_run_side_by_side() -> None:
    barrier = threading.Barrier(2)
    with Worker("cpu") as one, Worker("cpu") as two:
        futures = [worker.submit(barrier.wait, 10) for worker in (one, two)]
        assert sorted(future.result() for future in futures) == [0, 1]
