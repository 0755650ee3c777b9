"""Worker processes that make batches, each at the other end of a socket, with shared memory for the messages.

A message is a file in memory (`memfd_create`) that holds a pickled object, with its arrays beside the pickle
(out of band); only the file's descriptor goes through the socket. The receiver maps it, and the arrays stay there
until the last of them is released. Nothing has a name, so nothing can be left behind, and no limit of /dev/shm
applies. A worker whose reader is gone, even if killed, sees the end of its socket and exits.
"""

from __future__ import annotations

import io
import itertools
import mmap
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from multiprocessing.util import Finalize
from types import FrameType
from typing import Any

import numpy as np

from lamina.tensors import Tensor, as_tensor

#: Makes a batch from a part's indices and its generator.
Making = Callable[[Any, Any], Any]
#: Bytes of the message's header, and of the whole.
_LENGTHS = struct.Struct("<QQ")
#: Alignment of arrays in memory.
_ALIGNED = 64
#: Signals that end the reader and also reach its process group: Ctrl-C, and the end of a scheduler's job.
_READERS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
#: Seconds that a worker has to exit by itself.
_PATIENCE = 2.0


class WorkerError(RuntimeError):
    """A worker process has died; the message tells which one, and how."""


class KeptWorkers:
    """The worker processes of a loader: started when first needed, kept until `close`, or for the loader's lifetime.

    loops: numbers its loops over them. Copies and unpickled objects begin without processes.
    """

    def __init__(self) -> None:
        self.loops = itertools.count()
        self._held: Workers | None = None
        self._starting = threading.Lock()

    def __reduce__(self) -> tuple[type[KeptWorkers], tuple[()]]:
        return KeptWorkers, ()

    def get(self, count: int, making: Making) -> Workers:
        """The processes; `count` of them are started if there are none."""
        with self._starting:
            if self._held is None:
                self._held = Workers(count, making)
            return self._held

    def close(self) -> None:
        """End the processes, if any."""
        with self._starting:
            if self._held is not None:
                self._held.close()
                self._held = None


class Workers:
    """Processes that make batches from the parts sent to them, in turn; each holds the data set.

    Raises any error of pickling `making`.
    """

    def __init__(self, count: int, making: Making) -> None:
        self._workers: list[_Worker] = []
        # At exit, before multiprocessing sends its daemons SIGTERM and waits for them.
        self._end = Finalize(self, _end_all, (self._workers,), exitpriority=1)
        for number in range(count):
            self._workers.append(_Worker(f"process {number + 1} of {count}", making, number))
        self._turn = 0
        self._lock = threading.Lock()

    def submit(self, indices: Any, rng: Any) -> Ticket:
        """Request a batch. Raises WorkerError."""
        with self._lock:
            worker = self._workers[self._turn]
            self._turn = (self._turn + 1) % len(self._workers)
            return worker.submit(indices, rng)

    def close(self) -> None:
        """End the processes."""
        self._end()


@dataclass(frozen=True)
class Ticket:
    """A pending batch of a worker."""

    worker: _Worker
    number: int

    def result(self) -> Any:
        """The batch. Raises the worker's error, with its traceback as a note; WorkerError."""
        return self.worker.result(self.number)

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds; whether it is ready, or the error raised. Raises WorkerError."""
        return self.worker.wait(self.number, timeout)

    def cancel(self) -> None:
        """Cancel it."""
        self.worker.cancel(self.number)


class _Worker:
    """One process, its socket, and its results not yet collected."""

    def __init__(self, name: str, making: Making, place: int) -> None:
        self.name, self._lock = name, threading.Lock()
        self._sent = 0
        self._found: dict[int, Any] = {}
        self._dropped: set[int] = set()
        self._link, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        context = multiprocessing.get_context("spawn")  # a forked child lacks oneDNN's threads
        self._process: SpawnProcess = context.Process(
            target=_work, args=(there, making, place), name=f"lamina data {name}", daemon=True
        )
        with there:
            # A child inherits the parent's mask of blocked signals.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _READERS)
            try:
                self._process.start()
            except BaseException as error:
                self._link.close()
                if isinstance(error, pickle.PicklingError | AttributeError | TypeError):
                    error.add_note(
                        "DataLoader: with processes=True the data set, its transforms, collate_fn and worker_init_fn "
                        "are pickled: functions are those of a module's top level (no lambda, none within a "
                        "function), files and locks are opened in the worker; threads (processes=False) need none"
                    )
                raise
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def submit(self, indices: Any, rng: Any) -> Ticket:
        with self._lock:
            self._sent += 1
            try:
                _send(self._link, (self._sent, indices, rng))
            except ConnectionError:
                raise self._died() from None
            return Ticket(self, self._sent)

    def result(self, number: int) -> Any:
        with self._lock:
            while number not in self._found:
                self._receive()
            batch, failure = self._found.pop(number)
        if failure is not None:
            raise failure.error()
        return batch

    def wait(self, number: int, timeout: float) -> bool:
        end = time.monotonic() + timeout
        with self._lock:
            while number not in self._found:
                if not connection.wait([self._link], max(0.0, end - time.monotonic())):
                    return False
                self._receive()
        return True

    def cancel(self, number: int) -> None:
        with self._lock:
            if self._found.pop(number, None) is None:
                self._dropped.add(number)

    def _receive(self) -> None:
        """Receive the process's next result."""
        try:
            message = _received(self._link)
        except ConnectionError:
            message = None
        if message is None:
            raise self._died()
        number, *found = message
        if number in self._dropped:
            self._dropped.remove(number)
        else:
            self._found[number] = found

    def _died(self) -> WorkerError:
        self._process.join(_PATIENCE)
        status = self._process.exitcode
        if status is not None and status < 0:
            name = signal.Signals(-status).name
            how = f"was killed by {name}" + ("; is there enough memory?" if name == "SIGKILL" else "")
        else:
            how = (
                f"ended with status {status}; what it wrote to standard error says why (a script that starts "
                "processes needs its main part under `if __name__ == '__main__':`)"
            )
        return WorkerError(f"DataLoader: {self.name} (id {self._process.pid}) {how}")

    def hang_up(self) -> None:
        """Tell it that there is no more work."""
        self._link.close()

    def end(self) -> None:
        """Wait for its exit, and kill it if that takes long."""
        self._process.join(_PATIENCE)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._process.close()


def _end_all(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.hang_up()
    for worker in workers:
        worker.end()


# ---- in the process


@dataclass(frozen=True)
class _Failure:
    """A worker's error, pickled if possible, and its traceback."""

    pickled: bytes | None
    traceback: str

    @staticmethod
    def of(error: Exception) -> _Failure:
        text = traceback.format_exc()
        try:
            pickled = pickle.dumps(error)
            pickle.loads(pickled)
        except Exception:  # whatever the pickling of a foreign exception raises: the traceback remains
            return _Failure(None, text)
        return _Failure(pickled, text)

    def error(self) -> Exception:
        if self.pickled is None:
            return RuntimeError(f"DataLoader: a worker failed:\n{self.traceback}")
        error: Exception = pickle.loads(self.pickled)
        error.add_note(f"In a worker of the DataLoader:\n{self.traceback}")
        return error


def _work(link: socket.socket, making: Making, place: int) -> None:
    """Make the requested batches until the reader is gone; before that, call `making.begin(place)`, if defined."""
    begin = getattr(making, "begin", None)
    for number in _READERS:
        signal.signal(number, _leave_to_the_reader)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _READERS)
    with link:
        try:
            while (task := _received(link)) is not None:
                number, indices, rng = task
                try:
                    if begin is not None:
                        begin(place)
                        begin = None
                    _send(link, (number, making(indices, rng), None))
                except ConnectionError:
                    raise
                except Exception as error:
                    _send(link, (number, None, _Failure.of(error)))
        except ConnectionError:
            return  # the reader has gone


def _leave_to_the_reader(number: int, frame: FrameType | None) -> None:
    """A process whose reader is gone exits on reading its socket."""


# ---- messages


class _Pickler(pickle.Pickler):
    """Sends tensors on the host as their arrays, which the receiver does not copy."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor and obj.device.kind == "cpu":
            return as_tensor, (np.ascontiguousarray(obj.numpy()).reshape(obj.shape),)
        return NotImplemented


def _send(link: socket.socket, thing: Any) -> None:
    """Send an object through shared memory. Raises ConnectionError if the reader is gone, and errors of pickling."""
    parts: list[Any] = []
    written = io.BytesIO()
    _Pickler(written, protocol=5, buffer_callback=lambda b: parts.append(b.raw())).dump(thing)
    body = written.getbuffer()
    head = pickle.dumps((len(body), [p.nbytes for p in parts]))
    places, total = _places(len(head), [len(body), *(p.nbytes for p in parts)])
    file = os.memfd_create("lamina batch")
    try:
        os.ftruncate(file, total)
        with mmap.mmap(file, total) as memory:
            memory[: len(head)] = head
            for place, part in zip(places, (body, *parts), strict=True):
                memory[place] = part
        socket.send_fds(link, [_LENGTHS.pack(len(head), total)], [file])
    finally:
        os.close(file)


def _received(link: socket.socket) -> Any | None:
    """The next object; None when the other end is closed. Raises ConnectionError."""
    message, files, _, _ = socket.recv_fds(link, _LENGTHS.size, 1)
    if not message:
        return None
    head, total = _LENGTHS.unpack(message)
    try:
        memory = memoryview(mmap.mmap(files[0], total))
    finally:
        os.close(files[0])
    body, sizes = pickle.loads(memory[:head])
    first, *rest = (memory[place] for place in _places(head, [body, *sizes])[0])
    return pickle.loads(first, buffers=rest)


def _places(head: int, sizes: list[int]) -> tuple[list[slice], int]:
    """The offsets of parts of these sizes after the header, and the total size."""
    return (found := list(_slices(head, sizes))), found[-1].stop


def _slices(end: int, sizes: list[int]) -> Iterator[slice]:
    for size in sizes:
        begin = -(-end // _ALIGNED) * _ALIGNED
        end = begin + size
        yield slice(begin, end)
