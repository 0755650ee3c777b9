"""Requests that wait, gathered into batches, and the threads that answer them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from lamina.infer.latency import Stopwatch
from lamina.runtime import renew_after_fork


class QueueFull(RuntimeError):
    """As many requests wait as an `Inferer` takes, and it was made to refuse more."""


class Answering(Protocol):
    """What answers the requests of one kind.

    most: samples that one run takes. together: whether several requests may share a run.
    """

    most: int
    together: bool

    def memory(self) -> list[Any]:
        """Memory for the inputs of one run, whose every place holds a sample that is as valid as any."""
        ...

    def give_back(self, memory: list[Any]) -> None:
        """Let another run use it."""
        ...

    def write(self, memory: list[Any], given: Sequence[Any], start: int, count: int) -> None:
        """Put the samples of a request at a place."""
        ...

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The outputs for the inputs of one run."""
        ...

    def alone(self, memory: Sequence[Any], start: int, count: int) -> Sequence[Any]:
        """The outputs for one request's samples at every place, which lie at `start` in memory."""
        ...

    def answer(self, outputs: Sequence[Any], start: int, count: int) -> Any:
        """A request's part of the outputs."""
        ...


@dataclass(eq=False)
class Request:
    """Samples that wait for an answer, at a place of a batch."""

    start: int
    count: int
    begun: float
    future: Future[Any] = field(default_factory=Future)


@dataclass(eq=False)
class Gathering:
    """A batch that fills: its memory, the requests so far, and until when it waits for others.

    inputs: of a run. used: samples. writing: requests whose samples are not written yet. full: takes no more.
    announced: a thread was called to wait for it.
    """

    to: Answering
    inputs: list[Any]
    until: float
    requests: list[Request] = field(default_factory=list)
    used: int = 0
    writing: int = 0
    full: bool = False
    announced: bool = False


class RequestQueue:
    """Batches that fill or wait, and the threads that run them, as many as are needed up to `threads`.

    limit: the most requests without an answer. seconds: how long the first request of a batch waits for others.
    """

    def __init__(self, threads: int, limit: int, seconds: float, name: str) -> None:
        self.limit, self._most_threads, self._seconds, self._name = limit, threads, seconds, name
        self.stopwatch = Stopwatch()
        self._start()
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child, where the threads are not: nothing waits."""
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # something may be ready to run
        self._room = threading.Condition(self._lock)  # a request was answered
        self._batches: deque[Gathering] = deque()  # not begun
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self.waiting = 0  # requests without an answer
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    # ---- requests
    def put(self, to: Answering, given: Sequence[Any], count: int, *, block: bool) -> Future[Any]:
        """Queue a request of so many samples, whose arrays are copied. Raises QueueFull where it is not to wait for
        room, RuntimeError after `close`."""
        begun = time.perf_counter()
        with self._lock:
            self._admit(block)
            batch = self._place(to, count)
            request = Request(batch.used, count, begun)
            batch.requests.append(request)
            batch.used += count
            batch.writing += 1
            batch.full = batch.full or batch.used >= to.most
            self.waiting += 1
        try:
            to.write(batch.inputs, given, request.start, count)
        except BaseException:
            request.future.cancel()
            raise
        finally:
            with self._lock:
                batch.writing -= 1
                if not batch.announced or (batch.full and not batch.writing):
                    batch.announced = True
                    self._call_thread()
        return request.future

    def _admit(self, block: bool) -> None:
        """Wait until there is room for a request. Raises QueueFull, RuntimeError."""
        while not self._closed and self.waiting >= self.limit:
            if not block:
                raise QueueFull(
                    f"{self._name}: {self.waiting} requests wait for an answer, the queue's limit is {self.limit}; "
                    "try again later, or let submit wait with when_full='wait'"
                )
            self._room.wait()
        if self._closed:
            raise RuntimeError(f"{self._name}: it was closed, and takes no more requests")

    def _place(self, to: Answering, count: int) -> Gathering:
        """The batch that a request joins; a new one where none has room."""
        if to.together:
            for batch in self._batches:
                if batch.to is to and not batch.full and batch.used + count <= to.most:
                    return batch
        wait = self._seconds if to.together else 0.0
        batch = Gathering(to, to.memory(), time.perf_counter() + wait, full=not to.together)
        self._batches.append(batch)
        return batch

    # ---- threads
    def _call_thread(self) -> None:
        """Have a thread look at the batches."""
        if self._idle:
            self._work.notify()
        elif len(self._threads) < self._most_threads:
            thread = threading.Thread(
                target=self._run, name=f"{self._name} {len(self._threads)}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            answered = serve(batch, self.stopwatch)
            with self._lock:
                self.waiting -= answered
                self._room.notify(answered)
            del batch

    def _next(self) -> Gathering | None:
        """The next batch that is ready; None after `close`, when there is none left."""
        with self._lock:
            while True:
                now = time.perf_counter()
                ready = next((b for b in self._batches if self._is_ready(b, now)), None)
                if ready is not None:
                    self._batches.remove(ready)
                    if self._batches:
                        self._call_thread()
                    return ready
                if self._closed and not self._batches:
                    return None
                open_until = [b.until for b in self._batches if not b.full]
                self._idle += 1
                self._work.wait(max(min(open_until) - now, 0.0) if open_until else None)
                self._idle -= 1

    def _is_ready(self, batch: Gathering, now: float) -> bool:
        """Whether a batch is to run now; from its time on it takes no more."""
        batch.full = batch.full or now >= batch.until or self._closed
        return batch.full and not batch.writing

    def close(self, *, cancel: bool) -> None:
        """Take no more requests, answer those that wait (or cancel them), and end the threads."""
        with self._lock:
            self._closed = True
            if cancel:
                for request in [r for b in self._batches for r in b.requests]:
                    request.future.cancel()
            if self._batches:
                self._call_thread()
            self._work.notify_all()
            self._room.notify_all()
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()


def serve(batch: Gathering, stopwatch: Stopwatch) -> int:
    """Answer the requests of a batch that were not cancelled; how many there were in all."""
    live = [r for r in batch.requests if r.future.set_running_or_notify_cancel()]
    cancelled = len(batch.requests) - len(live)
    if not live:
        stopwatch.ran([], cancelled=cancelled, runs=0)
        return cancelled
    try:
        outputs = batch.to.run(batch.inputs)
        answers = [partial(batch.to.answer, outputs, r.start, r.count) for r in live]
        sound = True
    except BaseException as error:
        only = len(batch.requests) == 1
        answers = [partial(_raise, error) if only else partial(_alone, batch, r) for r in live]
        sound = False
    told: list[Callable[[], None]] = []
    begun = []
    for request, answer in zip(live, answers, strict=True):
        try:
            told.append(partial(request.future.set_result, answer()))
            begun.append(request.begun)
        except BaseException as error:
            told.append(partial(request.future.set_exception, error))
    if sound and batch.to.together:
        batch.to.give_back(batch.inputs)
    stopwatch.ran(begun, len(live) - len(begun), cancelled)
    for tell in told:
        with suppress(InvalidStateError):  # set by somebody else
            tell()
    return len(batch.requests)


def _alone(batch: Gathering, r: Request) -> Any:
    """The answer of one request of a batch whose run failed: no request pays for another's values."""
    return batch.to.answer(batch.to.alone(batch.inputs, r.start, r.count), r.start, r.count)


def _raise(error: BaseException) -> Any:
    raise error
