"""Requests of many threads: called, queued or awaited, answered by programs; with statistics and shutdown."""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from numbers import Real
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from lamina._lazy import lazy
from lamina._tree import Structure
from lamina.infer.batching import RequestQueue
from lamina.infer.latency import Latency
from lamina.infer.programs import ServedProgram
from lamina.runtime import Device, usable_cores
from lamina.spec import Policy, Spec

#: Concurrent calls on a GPU without gathering of requests, and with it.
_ON_GPU, _BATCHES_ON_GPU = 8, 2
#: The number of single-array shapes whose kind is cached.
_MOST_PLAIN = 256
#: asyncio takes long to import, and most programs do not need it.
_late = lazy(__name__, {"asked": "lamina.infer.asking"})


class RequestKind(NamedTuple):
    """The key of a program."""

    structure: Structure
    specs: tuple[Spec, ...]
    policy: Policy


@dataclass(frozen=True, eq=False)
class ProgramUse:
    """A program for requests of a kind, the kind that it was made for, and how many samples a request has."""

    program: ServedProgram
    key: RequestKind
    count: int


class Serving(ABC):
    """Answers requests of any number of threads by programs, which subclasses compile or hold.

    At most `contexts` calls run concurrently.
    batch_axis: the axis of the inputs that holds the samples. when_full: "wait" or "raise", where the queue is full.
    """

    def __init__(
        self,
        name: str,
        *,
        max_batch: int,
        max_wait_ms: float,
        batch_axis: int,
        contexts: int,
        queue_limit: int,
        when_full: str,
    ) -> None:
        self.max_batch, self.max_wait_ms, self.batch_axis = max_batch, max_wait_ms, batch_axis
        self.contexts, self.queue_limit, self.when_full = contexts, queue_limit, when_full
        self._plain: dict[Any, RequestKind] = {}  # by shape and dtype of a single array
        self.queue = RequestQueue(contexts, queue_limit, max_wait_ms / 1e3, name)
        self._end = weakref.finalize(self, RequestQueue.abandon, self.queue)

    @abstractmethod
    def flattened(self, inputs: Any) -> tuple[list[Any], Structure]:
        """The arrays in the inputs, and their structure. Raises TypeError."""

    @abstractmethod
    def spec_of(self, x: Any) -> Spec:
        """Shape and dtype of one of them."""

    @abstractmethod
    def policy(self) -> Policy:
        """The policy in the programs' key."""

    @abstractmethod
    def known(self, kind: RequestKind) -> ProgramUse | None:
        """The existing program for a kind of inputs, if any."""

    @abstractmethod
    def made(self, kind: RequestKind, given: Sequence[Any], count: int) -> ProgramUse:
        """The program for a kind of inputs, made at the first request. Raises the errors of an invalid kind."""

    # ---- requests
    def __call__(self, inputs: Any, *, timeout: float | None = None) -> Any:
        """The outputs for arrays of any library, as tensors on the CPU, in the network's structure.

        timeout: seconds to wait for the answer where requests are gathered.
        Raises TypeError for non-arrays, the errors of the network's ops for shapes, dtypes and indices, TimeoutError,
        QueueFull where the queue is full and waiting is not allowed, RuntimeError after `close`.
        """
        given, use = self._asked(inputs)
        if timeout is not None and not (isinstance(timeout, Real) and timeout == timeout):
            raise TypeError(f"{type(self).__name__}: timeout must be a number of seconds, got {timeout!r}")
        if use.program.most > 1:
            block = self.when_full == "wait"
            return self.queue.call(use.program, given, use.count, block=block, timeout=timeout)
        return self._at_once(use, given)

    def _at_once(self, use: ProgramUse, given: Sequence[Any]) -> Any:
        """The answer of a run in the calling thread."""
        begun, stopwatch = time.perf_counter(), self.queue.stopwatch
        try:
            answer = use.program.answer(use.program.run(given), 0, use.count)
        except BaseException:
            stopwatch.ran([], failed=1)
            raise
        stopwatch.ran([begun])
        return answer

    def submit(self, inputs: Any) -> Future[Any]:
        """A future of the outputs. The inputs are copied, and may be changed after this returns.

        `Future.cancel` works until the request's run begins. Immediately raises the errors of an invalid kind of
        inputs, QueueFull and RuntimeError, as a call does; errors of a run are set on the future.
        """
        given, use = self._asked(inputs)
        return self.queue.put(use.program, given, use.count, block=self.when_full == "wait")

    async def ask(self, inputs: Any) -> Any:
        """The outputs, without blocking the event loop (asyncio). Cancelling the task cancels the request."""
        return await _late("asked")(self, inputs)

    def statistics(self) -> Latency:
        """Counts and latencies of the answered requests."""
        return self.queue.stopwatch.latency(self.queue.waiting)

    def reset_statistics(self) -> None:
        """Reset the `statistics`."""
        self.queue.stopwatch.reset()

    # ---- closing
    def close(self, *, cancel: bool = False) -> None:
        """Take no more requests, answer those that wait (or cancel them), and end the threads. Idempotent."""
        self.queue.close(cancel=cancel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close(cancel=kind is not None)

    # ---- kinds
    def kind_of(self, inputs: Any) -> tuple[RequestKind, list[Any], int]:
        """The kind of the inputs, their arrays, and how many samples they have (0 where that is not clear)."""
        if self.queue.closed:
            raise RuntimeError(f"{type(self).__name__}: it was closed, and takes no more requests")
        given, structure = self.flattened(inputs)
        specs = tuple([self.spec_of(x) for x in given])
        axis = self.batch_axis
        counts = {s.shape[axis] if -s.ndim <= axis < s.ndim else 0 for s in specs}
        return RequestKind(structure, specs, self.policy()), given, counts.pop() if len(counts) == 1 else 0

    def _asked(self, inputs: Any) -> tuple[list[Any], ProgramUse]:
        plain = type(inputs) is np.ndarray and inputs.dtype.isnative
        if plain and not self.queue.closed:
            asked = self._plain.get((inputs.shape, inputs.dtype))
            if asked is not None and asked.policy is self.policy():
                use = self.known(asked)
                if use is not None:
                    return [inputs], use
        kind, given, count = self.kind_of(inputs)
        if plain and len(self._plain) < _MOST_PLAIN:
            self._plain[inputs.shape, inputs.dtype] = kind
        return given, self.known(kind) or self.made(kind, given, count)


def default_contexts(device: Device, max_batch: int) -> int:
    """The default number of concurrent calls."""
    if device.kind == "cuda":
        return _ON_GPU if max_batch == 1 else _BATCHES_ON_GPU
    return usable_cores() if max_batch == 1 else 1


def check_numbers(what: str, when_full: str, **numbers: tuple[float, float]) -> None:
    """Raise ValueError where a number is below its given minimum, or `when_full` is invalid.

    Raises TypeError for non-numbers.
    """
    for name, (value, least) in numbers.items():
        if not isinstance(value, Real):
            raise TypeError(f"{what}: {name} must be a number, got {value!r}")
        if not value >= least:
            raise ValueError(f"{what}: {name} must be at least {least}, got {value}")
    if when_full not in ("wait", "raise"):
        raise ValueError(f"{what}: when_full must be 'wait' or 'raise', got {when_full!r}")
