"""When a batch begins: full, or when its first request has waited long enough; and how its requests are told."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from lamina.infer.batching import Gathering, Request, RequestQueue, serve
from lamina.infer.latency import Stopwatch


class Doubling:
    """Answers numbers by twice themselves; a negative one fails the whole run."""

    def __init__(self, most: int, together: bool = True) -> None:
        self.most, self.together, self.runs = most, together, list[list[int]]()

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
    queue, a, b = RequestQueue(2, 100, 0.02, "test"), Doubling(2), Doubling(2)
    futures = [queue.put(to, [k], 1, block=True) for k, to in enumerate([a, b, a, b, a])]
    assert [f.result(10) for f in futures] == [[0], [2], [4], [6], [8]]
    assert (a.runs[0], b.runs) == ([0, 2], [[1, 3]])
    queue.close(cancel=False)


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
    watch, to = Stopwatch(), Doubling(3)
    requests = [Request(k, 1, 0.0) for k in range(3)]
    assert requests[1].future.cancel()
    batch = Gathering(to, [1, 2, -3], 0.0, requests)
    assert serve(batch, watch) == 3
    assert requests[0].future.result(0) == [2]
    with pytest.raises(ValueError, match="negative"):
        requests[2].future.result(0)
    found = watch.latency(0)
    assert (found.answered, found.failed, found.cancelled) == (1, 1, 1)


def test_as_many_threads_as_are_needed() -> None:
    queue, gate = RequestQueue(3, 100, 0.0, "test"), threading.Barrier(3)

    class Together(Doubling):
        def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
            gate.wait(10)
            return super().run(inputs)

    to = Together(1, together=False)
    futures = [queue.put(to, [k], 1, block=True) for k in range(3)]
    assert [f.result(10) for f in futures] == [[0], [2], [4]]
    assert len(queue._threads) == 3
    queue.close(cancel=False)
