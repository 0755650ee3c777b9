"""Requests gathered into batches, and the threads that run them.

Callers that ask again immediately would fill one batch together and all wait for it: the device would idle while the
host writes and answers, and the host while the device runs. So where a batch takes longer to fill than to run, it
begins partly filled when a run is free: with as many samples as let all runs together hold those of a full batch.

A caller that waits for its answer has a thread: the one that fills a batch runs it, otherwise the batch's first
caller when its time is up. So no thread is woken to begin a run, and each of the others is woken once, when its
answer is ready. Batches with requests that no thread waits for (`put`) are run by workers. The thread that finishes a
run starts the next batch before it hands out answers.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import get_ident
from typing import Any, Protocol

from lamina.infer.latency import Stopwatch
from lamina.runtime import renew_after_fork


class QueueFull(RuntimeError):
    """The queue of an `Inferer` made with when_full="raise" is full."""


class Answering(Protocol):
    """A program that answers requests of one kind.

    most: samples that one run takes. together: whether several requests may share a run.
    seconds: the shortest time of a run so far; infinite before the first.
    """

    most: int
    together: bool
    seconds: float

    def memory(self) -> Any:
        """Memory for the inputs of one run, in which every place holds a valid sample."""
        ...

    def give_back(self, memory: Any) -> None:
        """Release it for another run."""
        ...

    def write(self, memory: Any, given: Sequence[Any], start: int, count: int) -> None:
        """Write the samples of a request at a place."""
        ...

    def run(self, memory: Any) -> Sequence[Any]:
        """The outputs for the inputs of one run."""
        ...

    def alone(self, memory: Any, start: int, count: int) -> Sequence[Any]:
        """The outputs for one request's samples at every place, which lie at `start` in memory."""
        ...

    def answer(self, outputs: Sequence[Any], start: int, count: int) -> Any:
        """A request's part of the outputs."""
        ...


def _locked() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def _seconds(left: float) -> float:
    """The timeout argument of a wait for this many seconds."""
    return min(max(left, 0.0), threading.TIMEOUT_MAX)


@dataclass(eq=False, slots=True)
class Request:
    """Samples that wait for an answer, at a place of a batch.

    future: receives the answer; None where the caller waits, until `woken` is released. runs: whether the caller's
    thread may run batches. withdrawn: the answer is no longer wanted.
    """

    start: int
    count: int
    begun: float
    future: Future[Any] | None = None
    woken: threading.Lock = field(default_factory=_locked)
    runs: bool = False
    withdrawn: bool = False

    @property
    def may_run(self) -> bool:
        """Whether a waiting thread may run its batch."""
        return self.runs and not self.withdrawn

    def starts(self) -> bool:
        """Mark it as running, so that it can no longer be cancelled; False if it was cancelled before."""
        if self.future is None:
            return not self.withdrawn
        try:
            return self.future.set_running_or_notify_cancel()
        except InvalidStateError:  # set by another thread
            return False

    def cancel(self) -> None:
        """Cancel it, unless it runs."""
        if self.future is None:
            self.withdrawn = True
            self.wake()
        else:
            self.future.cancel()

    def wake(self) -> None:
        """Wake the caller to check the state of its batch."""
        with suppress(RuntimeError):  # it has not checked since it was last woken
            self.woken.release()


@dataclass(eq=False)
class Gathering:
    """A batch: it fills, runs, and has answers.

    memory: of its inputs. since: when its first request came. until: when it begins even if not full. enough: number
    of samples worth a run. used: number of samples. writing: requests whose samples are not written yet. due: its
    time is up.
    leader: the caller that watches the deadline. begun: accepts no more. runner: the caller whose thread runs it.
    done: it has run. told: callers that then wake each other.
    outputs, error: its result.
    """

    to: Answering
    memory: Any
    since: float
    until: float
    enough: int
    requests: list[Request] = field(default_factory=list)
    used: int = 0
    writing: int = 0
    due: bool = False
    leader: Request | None = None
    begun: bool = False
    runner: Request | None = None
    done: bool = False
    told: deque[Request] = field(default_factory=deque)
    outputs: Sequence[Any] | None = None
    error: BaseException | None = None

    def wake_next(self) -> None:
        """Wake the next caller; that one wakes the one after it, so that the GIL, which all of them need, is nearly
        uncontended when each wakes up."""
        while self.told:
            try:
                request = self.told.popleft()
            except IndexError:  # another thread has taken it
                return
            if not request.withdrawn:
                request.wake()
                return

    def is_ready(self, now: float) -> bool:
        """Whether it should run now, if a run is free."""
        self.due = self.due or now >= self.until
        return not self.writing and (self.due or self.used >= self.to.most or self._fills_slowly(now))

    def _fills_slowly(self, now: float) -> bool:
        """Whether it has enough samples, and would take longer to fill than to run."""
        return self.used >= self.enough and (now - self.since) * self.to.most >= self.to.seconds * self.used

    def begin(self, mine: Request | None) -> None:
        """Close it to requests; a caller runs it if one may, preferably `mine`. Batches with futures, whose callbacks
        may take long, are not run by callers."""
        self.begun = True
        if all(r.future is None for r in self.requests):
            callers = [r for r in self.requests if r.may_run]
            self.runner = mine if mine in callers else callers[0] if callers else None

    def run(self) -> list[Request]:
        """Run it with the requests that were not cancelled before."""
        live = [r for r in self.requests if r.starts()]
        if live:
            begun = time.perf_counter()
            try:
                self.outputs = self.to.run(self.memory)
            except BaseException as error:
                self.error = error
            else:
                self.to.seconds = min(self.to.seconds, time.perf_counter() - begun)
                self.to.give_back(self.memory)
        return live

    def answer(self, r: Request) -> Any:
        """A request's answer, or error; if the run failed, by its own run, so that none fails because of another's
        values.
        """
        if self.outputs is not None:
            return self.to.answer(self.outputs, r.start, r.count)
        assert self.error is not None
        if len(self.requests) == 1:
            raise self.error
        return self.to.answer(self.to.alone(self.memory, r.start, r.count), r.start, r.count)


class RequestQueue:
    """Batches that fill or wait, and the workers for those that no caller runs.

    runs: the maximum number of concurrent runs, and of workers. limit: the maximum number of unanswered requests.
    seconds: how long the first request of a batch waits for others.
    """

    def __init__(self, runs: int, limit: int, seconds: float, name: str) -> None:
        self.limit, self._most, self._seconds, self._name = limit, runs, seconds, name
        self.stopwatch = Stopwatch()
        self._start()
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child, which lacks the threads: reset to an empty queue."""
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(
            self._lock
        )  # there is room for a request, or all is done after `close`
        self._batches: deque[Gathering] = deque()  # not begun
        self._running = 0  # batches that have begun and hold a context
        self._serving: list[int] = []  # threads that run batches or hand out answers
        self._workers: list[threading.Thread] = []
        self._idle = 0  # waiting workers minus wake-ups already sent
        self._calls: SimpleQueue[Gathering | None] = SimpleQueue()  # for workers: what to run; None: check
        self.waiting = 0  # requests without an answer
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    # ---- requests
    def put(self, to: Answering, given: Sequence[Any], count: int, *, block: bool) -> Future[Any]:
        """A future for a request of `count` samples, whose arrays are copied. Raises QueueFull if the queue is full
        and waiting is not allowed, RuntimeError after `close`."""
        future: Future[Any] = Future()
        self._join(to, given, Request(0, count, time.perf_counter(), future), block)
        return future

    def call(
        self, to: Answering, given: Sequence[Any], count: int, *, block: bool, timeout: float | None = None
    ) -> Any:
        """The answer to a request of `count` samples, within `timeout` seconds. Raises as `put` does, TimeoutError,
        CancelledError where `close` cancelled it, and any error of the run.

        The main thread runs no batch, because Ctrl-C may interrupt it anywhere; nor does a caller with too short a
        timeout.
        """
        begun = time.perf_counter()
        runs = timeout is None and get_ident() != threading.main_thread().ident
        request = Request(0, count, begun, runs=runs)
        batch = self._join(to, given, request, block)
        try:
            self._wait(batch, request, timeout)
        except BaseException:
            with self._lock:
                request.withdrawn = True
            if batch.done:
                batch.wake_next()
            raise
        if request.withdrawn:
            raise CancelledError
        if batch.told:
            batch.wake_next()
        return self._answered(batch, request)

    def _join(self, to: Answering, given: Sequence[Any], request: Request, block: bool) -> Gathering:
        """Write a request into a batch, which begins when it is full."""
        with self._lock:
            self._admit(block)
            batch = self._place(to, request)
            self.waiting += 1
        try:
            to.write(batch.memory, given, request.start, request.count)
        except BaseException:
            request.cancel()
            raise
        finally:
            with self._lock:
                batch.writing -= 1
                if request.withdrawn:
                    self._pass_on(batch, request)
                if request.withdrawn or self._closed or batch.is_ready(time.perf_counter()):
                    self._begin_ready(request)
        return batch

    def _pass_on(self, batch: Gathering, request: Request) -> None:
        """Choose another leader for a batch whose leader is this request, which is gone."""
        if batch.leader is request:
            self._lead(batch)
            if batch.leader is not None:
                batch.leader.wake()

    def _admit(self, block: bool) -> None:
        """Wait until there is room for a request. Raises QueueFull, RuntimeError."""
        while not self._closed and self.waiting >= self.limit:
            if not block:
                raise QueueFull(
                    f"{self._name}: {self.waiting} requests wait for an answer, the queue's limit is {self.limit}; "
                    "try again later, or let submit wait with when_full='wait'"
                )
            self._changed.wait()
        if self._closed:
            raise RuntimeError(f"{self._name}: it was closed, and takes no more requests")

    def _place(self, to: Answering, request: Request) -> Gathering:
        """The batch that a request joins; a new one where none has room."""
        batch = None
        if to.together:
            for found in self._batches:
                if found.to is to and found.used + request.count <= to.most:
                    batch = found
                    break
        if batch is None:
            now, seconds = time.perf_counter(), self._seconds if to.together else 0.0
            batch = Gathering(to, to.memory(), now, now + seconds, math.ceil(to.most / self._most))
            batch.due = not seconds
            self._batches.append(batch)
        request.start = batch.used
        batch.requests.append(request)
        batch.used += request.count
        batch.writing += 1
        if len(batch.requests) == 1:
            self._lead(batch)
        return batch

    def _lead(self, batch: Gathering) -> None:
        """Have a caller, or a worker, begin a batch when its time is up."""
        batch.leader = next((r for r in batch.requests if r.may_run), None)
        if batch.leader is None and batch.to.together:
            self._call_worker(None)

    def _wait(self, batch: Gathering, request: Request, timeout: float | None) -> None:
        """Wait until a batch has run; run it in this thread if it is the runner. Raises TimeoutError."""
        end = math.inf if timeout is None else request.begun + timeout
        while not (batch.done or request.withdrawn):
            if batch.runner is request:
                self._serve(batch)
                return
            leads = batch.leader is request and not (batch.due or batch.begun)
            until = batch.until if leads else end
            if request.woken.acquire(
                timeout=-1 if until == math.inf else _seconds(until - time.perf_counter())
            ):
                continue
            if time.perf_counter() >= end:
                raise TimeoutError(f"{self._name}: no answer within {timeout} s")
            with self._lock:
                self._begin_ready(request)

    # ---- runs
    def _begin_ready(self, mine: Request | None = None) -> None:
        """Begin the ready batches, while contexts are free: in the asking request's thread if it is that one's batch,
        else in another caller's or a worker's."""
        now = time.perf_counter()
        for batch in [b for b in self._batches if self._closed or b.is_ready(now)]:
            if batch.writing or self._running >= self._most:
                continue
            self._batches.remove(batch)
            self._running += 1
            batch.begin(mine)
            if batch.runner is None:
                self._call_worker(batch)
            elif batch.runner is not mine:
                batch.runner.wake()

    def _serve(self, batch: Gathering) -> None:
        """Run a batch that has begun, let others begin, and distribute the answers."""
        self._serving.append(get_ident())
        live: list[Request] = []
        try:
            live = batch.run()
        finally:
            with self._lock:
                self._running -= 1
                self.waiting -= len(batch.requests)
                self._changed.notify(len(batch.requests))
                self._begin_ready()
            begun = [r.begun for r in live] if batch.error is None else []
            self.stopwatch.ran(begun, cancelled=len(batch.requests) - len(live), runs=min(len(live), 1))
            self._tell(batch, live)
            self._serving.remove(get_ident())
            if self._closed:
                with self._lock:
                    self._release()

    def _tell(self, batch: Gathering, live: Sequence[Request]) -> None:
        """Wake the callers, whose threads take their answers themselves, and set the results of futures.

        Callers that may leave early (the main thread, by Ctrl-C, and those with a timeout) are woken here, the others
        in a chain.
        """
        waiting = [r for r in live if r.future is None and r is not batch.runner]
        batch.told.extend(r for r in waiting if r.runs)
        batch.done = True
        for r in waiting:
            if not r.runs:
                r.wake()
        batch.wake_next()
        for r in live:
            if r.future is not None:
                with suppress(InvalidStateError):  # set by another thread
                    try:
                        answer = self._answered(batch, r)
                    except BaseException as error:
                        r.future.set_exception(error)
                    else:
                        r.future.set_result(answer)

    def _answered(self, batch: Gathering, request: Request) -> Any:
        """A request's answer, counted where its batch was not."""
        if batch.error is None:
            return batch.answer(request)
        try:
            answer = batch.answer(request)
        except BaseException:
            self.stopwatch.ran([], failed=1, runs=0)
            raise
        self.stopwatch.ran([request.begun], runs=0)
        return answer

    # ---- workers
    def _call_worker(self, batch: Gathering | None) -> None:
        """Have a worker run a batch, or check (None) until when batches wait."""
        self._calls.put(batch)
        self._idle -= 1
        if self._idle < 0 and len(self._workers) < self._most:
            name = f"{self._name} {len(self._workers)}"
            self._workers.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._workers[-1].start()

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            self._serve(batch)
            del batch

    def _next(self) -> Gathering | None:
        """The next batch for a worker; None after `close`, when nothing is left."""
        while True:
            with self._lock:
                self._idle += 1
                self._begin_ready()
                if self._closed and self._is_done():
                    return None
                now = time.perf_counter()
                waits = [b.until - now for b in self._batches if b.leader is None and not b.due]
            try:
                batch = self._calls.get(timeout=_seconds(min(waits)) if waits else None)
            except Empty:
                with self._lock:
                    if self._calls.empty():
                        self._idle -= 1
                    batch = None if self._calls.empty() else self._calls.get()
            if batch is not None:
                return batch

    # ---- closing
    def close(self, *, cancel: bool) -> None:
        """Take no more requests, answer those that wait (or cancel them), and end the threads. It waits for all that,
        except when called from a future's callback."""
        with self._lock:
            self._closed = True
            waiting = [r for b in self._batches for r in b.requests] if cancel else []
            for request in waiting:
                if request.future is None:
                    request.cancel()
        for request in waiting:  # callbacks of futures may call anything
            if request.future is not None:
                request.cancel()
        with self._lock:
            self._begin_ready()
            self._changed.notify_all()
            self._release()
            if get_ident() in self._serving:
                return
            self._changed.wait_for(self._is_done)
        for worker in self._workers:
            worker.join()

    def abandon(self) -> None:
        """`close` for an object without an owner, which garbage collection may find in any thread: in a worker's,
        which may hold the lock, it waits for nothing, and pending requests are answered."""
        if threading.current_thread() not in self._workers:
            self.close(cancel=True)
            return
        self._closed = True
        for _ in self._workers:
            self._calls.put(None)

    def _is_done(self) -> bool:
        """Whether nothing runs, is pending, or is being answered."""
        return not (self._batches or self._running or self._serving)

    def _release(self) -> None:
        """After `close`: let the workers and the threads waiting for them end, when nothing is left."""
        if self._is_done():
            for _ in self._workers:
                self._calls.put(None)
            self._changed.notify_all()
