"""When a batch begins: full, or when its first request has waited long enough; in whose thread; how its requests are
told."""

import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError
from typing import Any
from unittest.mock import Mock

import pytest

from lamina.infer.batching import Gathering, QueueFull, Request, RequestQueue
from tests.helpers.many_threads import in_threads


class Doubling:
    """Answers numbers by twice themselves; a negative one fails the whole run."""

    def __init__(self, most: int, together: bool = True) -> None:
        self.most, self.together, self.runs, self.seconds = most, together, list[list[int]](), math.inf

    def memory(self) -> list[Any]:
        return [0] * self.most

    def give_back(self, memory: list[Any]) -> None:
        pass

    def write(self, memory: list[Any], given: Sequence[Any], start: int, count: int) -> None:
        if given[0] is None:
            raise TypeError("nothing")
        memory[start : start + count] = given

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        self.runs.append(list(inputs))
        if min(inputs) < 0:
            raise ValueError("negative")
        return [2 * x for x in inputs]

    def alone(self, memory: Sequence[Any], start: int, count: int) -> Sequence[Any]:
        return self.run([memory[start]] * self.most)

    def answer(self, outputs: Sequence[Any], start: int, count: int) -> Any:
        return outputs[start : start + count]


def test_a_batch_begins_when_it_is_full() -> None:
    queue, to = RequestQueue(1, 100, 1e3, "test"), Doubling(4)
    futures = [queue.put(to, [k], 1, block=True) for k in range(4)]
    assert [f.result(10) for f in futures] == [[0], [2], [4], [6]]
    assert to.runs == [[0, 1, 2, 3]]
    queue.close(cancel=False)


def test_a_batch_begins_when_its_time_is_up() -> None:
    queue, to = RequestQueue(1, 100, 0.3, "test"), Doubling(4)
    start = time.perf_counter()
    futures = [queue.put(to, [k], 1, block=True) for k in (1, 2)]
    assert [f.result(10) for f in futures] == [[2], [4]]
    assert time.perf_counter() - start >= 0.3
    assert to.runs == [[1, 2, 0, 0]]
    queue.close(cancel=False)


def test_requests_of_several_samples_stay_whole() -> None:
    queue, to = RequestQueue(1, 100, 0.3, "test"), Doubling(4)
    futures = [queue.put(to, [k] * n, n, block=True) for k, n in ((1, 3), (2, 2), (3, 1))]
    assert [f.result(10) for f in futures] == [[2, 2, 2], [4, 4], [6]]
    assert sorted(to.runs) == [[1, 1, 1, 3], [2, 2, 0, 0]]
    queue.close(cancel=False)


def test_batches_of_several_kinds_fill_beside_each_other() -> None:
    queue, a, b = RequestQueue(1, 100, 0.3, "test"), Doubling(2), Doubling(2)
    futures = [queue.put(to, [k], 1, block=True) for k, to in enumerate([a, b, a, b, a])]
    assert [f.result(10) for f in futures] == [[0], [2], [4], [6], [8]]
    assert (a.runs[0], b.runs) == ([0, 2], [[1, 3]])
    queue.close(cancel=False)


class Waiting(Doubling):
    """Each run says that it has begun, and waits until all may go on."""

    def __init__(self, most: int, seconds: float) -> None:
        super().__init__(most)
        self.seconds, self.begun, self.free = seconds, threading.Semaphore(0), threading.Event()

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        self.begun.release()
        self.free.wait(10)
        return super().run(inputs)


@pytest.mark.parametrize(("runs", "most", "enough"), [(1, 4, 4), (2, 4, 2), (2, 5, 3), (3, 4, 2), (8, 4, 1)])
def test_a_part_begins_where_batches_fill_slowly_and_a_run_is_free(runs: int, most: int, enough: int) -> None:
    """All runs together hold as many samples as one full batch; what comes while all of them are busy fills one."""
    queue, to = RequestQueue(runs, 100, 600.0, "test"), Waiting(most, 0.0)
    futures = []
    for k in range(1, enough * runs + 1):
        futures.append(queue.put(to, [k], 1, block=True))
        if k % enough == 0:
            assert to.begun.acquire(timeout=10), "a run that is free was not taken"
    futures += [queue.put(to, [100 + k], 1, block=True) for k in range(most)]
    assert not to.begun.acquire(blocking=False)
    to.free.set()
    wanted = [[2 * k] for k in range(1, enough * runs + 1)] + [[200 + 2 * k] for k in range(most)]
    assert [f.result(10) for f in futures] == wanted
    assert sorted(sum(x > 0 for x in run) for run in to.runs) == sorted([enough] * runs + [most])
    queue.close(cancel=False)


def test_a_part_waits_where_a_batch_fills_sooner_than_it_runs() -> None:
    queue, to = RequestQueue(2, 100, 600.0, "test"), Waiting(4, 1e6)
    futures = [queue.put(to, [k], 1, block=True) for k in (1, 2, 3)]
    assert not to.begun.acquire(timeout=0.2)
    futures.append(queue.put(to, [4], 1, block=True))
    to.free.set()
    assert [f.result(10) for f in futures] == [[2], [4], [6], [8]]
    assert to.runs == [[1, 2, 3, 4]]
    assert to.seconds < 100, "the least time of a run is kept"
    queue.close(cancel=False)


@pytest.mark.parametrize(
    ("since", "used", "is_ready"), [(-0.29, 2, False), (-0.31, 2, True), (-9.0, 1, False), (-0.46, 3, True)]
)
def test_a_batch_fills_slowly_where_that_takes_longer_than_a_run(
    since: float, used: int, is_ready: bool
) -> None:
    """A run takes 0.6 s: of four samples two have to come in more than 0.3, three in more than 0.45."""
    to = Doubling(4)
    to.seconds = 0.6
    batch = Gathering(to, [0] * 4, since, 100.0, 2)
    batch.used = used
    assert batch.is_ready(0.0) == is_ready
    batch.writing = 1
    assert not batch.is_ready(0.0)


def test_requests_that_are_written_at_the_same_time_are_not_forgotten() -> None:
    """The second one joins the batch while the first one is still being written; neither fills it."""
    queue, both = RequestQueue(1, 100, 0.01, "test"), threading.Barrier(2)

    class Slow(Doubling):
        def write(self, memory: list[Any], given: Sequence[Any], start: int, count: int) -> None:
            if given[0] < 10:
                both.wait(10)
            super().write(memory, given, start, count)

    to = Slow(4)
    assert queue.put(to, [10], 1, block=True).result(10) == [20]  # its thread waits now
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda k=k: found.append(queue.put(to, [k], 1, block=True).result(10)))
        for k in (1, 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(found) == [[2], [4]]
    queue.close(cancel=False)


def test_what_cannot_be_written_is_no_request() -> None:
    queue, to = RequestQueue(1, 100, 0.01, "test"), Doubling(2)
    with pytest.raises(TypeError, match="nothing"):
        queue.put(to, [None], 1, block=True)
    assert queue.put(to, [3], 1, block=True).result(10) == [6]
    queue.close(cancel=False)
    assert queue.waiting == 0


def test_a_failed_batch_is_answered_one_by_one() -> None:
    queue, to = RequestQueue(1, 100, 0.3, "test"), Doubling(4)
    futures = [queue.put(to, [k], 1, block=True) for k in (1, 2, -3)]
    assert futures[1].cancel()
    assert futures[0].result(10) == [2]
    with pytest.raises(ValueError, match="negative"):
        futures[2].result(10)
    queue.close(cancel=False)
    found = queue.stopwatch.latency(queue.waiting)
    assert (found.answered, found.failed, found.cancelled, found.waiting) == (1, 1, 1, 0)


def test_as_many_threads_as_are_needed() -> None:
    queue, gate = RequestQueue(3, 100, 0.0, "test"), threading.Barrier(3)

    class Together(Doubling):
        def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
            gate.wait(10)
            return super().run(inputs)

    to = Together(1, together=False)
    futures = [queue.put(to, [k], 1, block=True) for k in range(3)]
    assert [f.result(10) for f in futures] == [[0], [2], [4]]
    assert len(queue._workers) == 3
    queue.close(cancel=False)


def test_a_worker_that_waits_is_taken_before_another_is_started() -> None:
    queue, to = RequestQueue(3, 100, 0.0, "test"), Doubling(1, together=False)
    for k in range(4):
        assert queue.put(to, [k], 1, block=True).result(10) == [2 * k]
        while queue._idle < 1:  # it has answered, and does not wait yet
            time.sleep(1e-3)
    assert len(queue._workers) == 1
    queue.close(cancel=False)


def test_a_worker_whose_wait_is_over_is_taken_before_another_is_started() -> None:
    """It slept until a batch's time was up, and began that batch itself: afterwards it is known to wait again."""
    queue, to, workers = RequestQueue(3, 100, 0.01, "test"), Doubling(4), list[int]()
    for k in range(5):
        assert queue.put(to, [k], 1, block=True).result(10) == [2 * k]
        end = time.monotonic() + 5
        while (
            queue._idle != len(queue._workers) and time.monotonic() < end
        ):  # one has answered, and does not wait yet
            time.sleep(1e-3)
        workers.append(len(queue._workers))
        assert queue._idle == workers[-1]
    assert set(workers) == {workers[0]}
    queue.close(cancel=False)


def test_callers_run_their_batches_themselves() -> None:
    """Full ones and those whose time is up, side by side: no thread is started for them."""
    queue, to, seen = RequestQueue(2, 100, 0.05, "test"), Doubling(4), set[str]()

    class Seen(Doubling):
        def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
            seen.add(threading.current_thread().name)
            return super().run(inputs)

    to = Seen(4)
    names: list[str] = []

    def work(k: int) -> None:
        names.append(threading.current_thread().name)
        for i in range(20):
            assert queue.call(to, [100 * k + i], 1, block=True) == [2 * (100 * k + i)]

    in_threads(work, 6)
    assert seen <= set(names)
    assert queue._workers == []
    assert queue.stopwatch.latency(queue.waiting).answered == 120
    queue.close(cancel=False)


def test_a_batch_with_futures_is_run_by_a_worker() -> None:
    """Whose callbacks may take long, and are not for a caller's thread."""
    queue, to, told = RequestQueue(1, 100, 1e3, "test"), Doubling(2), list[str]()
    future = queue.put(to, [1], 1, block=True)
    future.add_done_callback(lambda f: told.append(threading.current_thread().name))
    assert in_threads(lambda k: queue.call(to, [5], 1, block=True), 1) == [[10]]
    assert future.result(10) == [2]
    queue.close(cancel=False)
    assert told == ["test 0"]


def test_the_main_thread_and_who_has_no_time_are_answered_by_workers() -> None:
    queue, to = RequestQueue(1, 100, 0.0, "test"), Doubling(2)
    assert queue.call(to, [1], 1, block=True) == [2]
    assert len(queue._workers) == 1
    with pytest.raises(TimeoutError, match=r"test: no answer within 0\.01 s"):
        RequestQueue(1, 100, 1e3, "test").call(Doubling(2), [1], 1, block=True, timeout=0.01)
    assert in_threads(lambda k: queue.call(to, [k], 1, block=True, timeout=10), 3) == [[0], [2], [4]]
    queue.close(cancel=False)


def test_callers_of_a_failed_batch_get_their_own_answers() -> None:
    queue, to = RequestQueue(1, 100, 1e3, "test"), Doubling(3)

    def work(k: int) -> Any:
        try:
            return queue.call(to, [1 - k], 1, block=True)
        except ValueError as error:
            return str(error)

    assert in_threads(work, 3) == [[2], [0], "negative"]
    found = queue.stopwatch.latency(queue.waiting)
    assert (found.answered, found.failed, found.waiting) == (2, 1, 0)
    queue.close(cancel=False)


@pytest.mark.parametrize("cancel", [False, True])
def test_closing_answers_callers_or_cancels_them(cancel: bool) -> None:
    """Whatever the wait: 1e30 seconds are more than a lock can be waited for."""
    queue, to, found = RequestQueue(1, 100, 1e30, "test"), Doubling(8), list[Any]()

    def work(k: int) -> None:
        try:
            found.append(queue.call(to, [k], 1, block=True, timeout=1e30 if k else None))
        except CancelledError:
            found.append(None)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    while queue.waiting < 3:
        time.sleep(1e-3)
    queue.close(cancel=cancel)
    for thread in threads:
        thread.join(10)
    assert sorted(found, key=str) == ([None] * 3 if cancel else [[0], [2], [4]])
    assert queue.waiting == 0


def test_a_callback_may_ask_again_and_close() -> None:
    queue, to, found = RequestQueue(1, 100, 0.0, "test"), Doubling(2), list[Any]()

    def again(future: Any) -> None:
        found.append(queue.put(to, [7], 1, block=True))
        queue.close(cancel=False)

    queue.put(to, [1], 1, block=True).add_done_callback(again)
    while not queue.closed:
        time.sleep(1e-3)
    queue.close(cancel=False)
    assert found[0].result(10) == [14]
    for worker in queue._workers:
        assert not worker.is_alive()


def test_a_request_that_cannot_be_written_leads_no_batch() -> None:
    """The one behind it sees to the batch."""
    queue, written = RequestQueue(1, 100, 0.1, "test"), threading.Event()

    class Late(Doubling):
        def write(self, memory: list[Any], given: Sequence[Any], start: int, count: int) -> None:
            if given[0] is None:
                assert written.wait(10)
            super().write(memory, given, start, count)

    to, found = Late(4), list[Any]()

    def work(k: int) -> Any:
        if k:
            while not queue._batches:
                time.sleep(1e-3)
            threading.Timer(0.02, written.set).start()
            return queue.call(to, [3], 1, block=True)
        with pytest.raises(TypeError, match="nothing"):
            queue.call(to, [None], 1, block=True)
        return None

    found = in_threads(work, 2)
    assert found == [None, [6]]
    queue.close(cancel=False)


def test_a_worker_that_collects_the_owner_waits_for_nothing() -> None:
    """Garbage is collected wherever memory is asked for, also while a worker holds the lock."""

    class Collecting(Doubling):
        def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
            with queue._lock:
                queue.abandon()
            return super().run(inputs)

    queue = RequestQueue(1, 100, 0.05, "test")
    futures = [queue.put(to, [2], 1, block=True) for to in (Collecting(2), Doubling(2))]
    assert [f.result(10) for f in futures] == [[4], [4]]
    assert queue.closed
    for worker in queue._workers:
        worker.join(10)
        assert not worker.is_alive()


def test_callers_wake_each_other_past_those_that_have_left() -> None:
    """A caller that left while its batch ran (by an error that was thrown into its thread) breaks no chain."""
    batch = Gathering(Doubling(4), [0] * 4, 0.0, 0.0, 4)
    requests = [Request(k, 1, 0.0, runs=True) for k in range(3)]
    requests[0].withdrawn = requests[1].withdrawn = True
    batch.told.extend(requests)
    batch.wake_next()
    assert [r.woken.locked() for r in requests] == [True, True, False]
    batch.wake_next()  # nobody is left


def test_callers_that_an_error_is_thrown_into_wake_the_next_ones() -> None:
    """Two of four that wait for a batch which another caller runs: the others do not sleep for ever."""

    class Thrown(RequestQueue):
        def _wait(self, batch: Gathering, request: Request, timeout: float | None) -> None:
            super()._wait(batch, request, timeout)
            waiting = [r for r in batch.requests if r is not batch.runner]
            if request in waiting[:2]:
                raise KeyboardInterrupt

    class Long(Doubling):
        def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
            time.sleep(0.1)  # the others sleep by then
            return super().run(inputs)

    queue, to, found = Thrown(1, 100, 1e3, "test"), Long(5), list[Any]()

    def work(k: int) -> None:
        try:
            found.append(queue.call(to, [k], 1, block=True)[0])
        except KeyboardInterrupt:
            found.append(None)

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(found) == 5
    assert found.count(None) == 2
    assert set(found) <= {None, 0, 2, 4, 6, 8}
    queue.close(cancel=False)


def test_every_caller_is_answered_with_and_without_a_timeout() -> None:
    queue, to = RequestQueue(2, 100, 1e-3, "test"), Doubling(4)

    def work(k: int) -> None:
        for i in range(150):
            timeout = 10.0 if (i + k) % 3 == 0 else None
            assert queue.call(to, [i], 1, block=True, timeout=timeout) == [2 * i]

    in_threads(work, 7)
    assert queue.waiting == 0
    queue.close(cancel=False)


@pytest.mark.parametrize("full", [False, True])
def test_a_caller_whose_batch_is_due_or_runs_sleeps(full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its batch's time is up, but it waits for a context, or another caller, who filled it, runs it."""
    begun, end = threading.Event(), threading.Event()

    class Long(Doubling):
        def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
            begun.set()
            assert end.wait(20)
            return super().run(inputs)

    queue, to = RequestQueue(1, 100, 0.05, "test"), Long(2)
    look = Mock(wraps=queue._begin_ready)
    monkeypatch.setattr(queue, "_begin_ready", look)
    given = [(to, [1], 1), (to, [2], 1)] if full else [(to, [1, 2], 2), (Doubling(2), [3], 1)]
    found, threads = list[Any](), list[threading.Thread]()
    for k, request in enumerate(given):
        threads.append(
            threading.Thread(target=lambda r=request: found.append(queue.call(*r, block=True)), daemon=True)
        )
        threads[k].start()
        while queue.waiting <= k:
            time.sleep(1e-3)
    assert begun.wait(20)
    time.sleep(0.3)
    end.set()
    for thread in threads:
        thread.join(20)
    assert sorted(found) == ([[2], [4]] if full else [[2, 4], [6]])
    assert look.call_count < 20  # one who does not sleep takes thousands
    queue.close(cancel=False)


def test_workers_that_looked_in_time_are_counted_once() -> None:
    """After waits that ended by the clock, two batches still have a worker each: they meet while they run."""
    queue, to, both = RequestQueue(2, 100, 0.01, "test"), Doubling(4), threading.Barrier(2)

    class Together(Doubling):
        def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
            both.wait(10)
            return super().run(inputs)

    for k in range(4):
        assert queue.put(to, [k], 1, block=True).result(10) == [2 * k]
    futures = [queue.put(kind, [k], 1, block=True) for k, kind in enumerate((Together(1), Together(1)))]
    assert [f.result(20) for f in futures] == [[0], [2]]
    queue.close(cancel=False)
    assert (queue._running, queue._serving) == (0, [])


@pytest.mark.parametrize(("seconds", "together"), [(1e3, False), (0.0, True)])
def test_requests_without_company_wait_for_none(seconds: float, together: bool) -> None:
    """Where requests may not share a run, and where there is no time to gather, each begins at once."""
    queue, to = RequestQueue(1, 100, seconds, "test"), Doubling(3, together)
    for k in range(3):
        assert queue.put(to, [k], 1, block=True).result(10) == [2 * k]
    assert in_threads(lambda k: queue.call(to, [k], 1, block=True), 3) == [[0], [2], [4]]
    assert together or len(to.runs) == 6
    queue.close(cancel=False)


def test_a_full_queue_refuses_or_waits_for_room() -> None:
    queue, to, free = RequestQueue(1, 2, 0.0, "test"), Doubling(1), threading.Event()

    class Held(Doubling):
        def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
            assert free.wait(20)
            return super().run(inputs)

    held = [queue.put(Held(1), [k], 1, block=False) for k in range(2)]
    with pytest.raises(
        QueueFull, match=r"test: 2 requests wait for an answer, the queue's limit is 2; try again"
    ):
        queue.put(to, [5], 1, block=False)
    threading.Timer(0.05, free.set).start()
    assert queue.put(to, [5], 1, block=True).result(20) == [10]
    assert [f.result(20) for f in held] == [[0], [2]]
    queue.close(cancel=False)
    for block in (False, True):
        with pytest.raises(RuntimeError, match="test: it was closed, and takes no more requests"):
            queue.put(to, [5], 1, block=block)


def test_what_was_answered_failed_or_was_cancelled_is_counted() -> None:
    queue, to = RequestQueue(1, 100, 0.05, "test"), Doubling(3)
    futures = [queue.put(to, [k], 1, block=True) for k in (1, -2, 3)]  # fails, and is answered one by one
    assert (futures[0].result(10), futures[2].result(10)) == ([2], [6])
    gone = queue.put(to, [4], 1, block=True)
    assert gone.cancel()
    alone = queue.put(to, [-5], 1, block=True)
    with pytest.raises(ValueError, match="negative"):
        alone.result(10)
    queue.close(cancel=False)
    found = queue.stopwatch.latency(queue.waiting)
    assert (found.answered, found.failed, found.cancelled, found.waiting) == (2, 2, 1, 0)
