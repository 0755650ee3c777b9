"""A host thread bound to one device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import ParamSpec, TypeVar

from lamina.runtime.compute_device import Device
from lamina.runtime.compute_device import device as find_device

P = ParamSpec("P")
R = TypeVar("R")


class Worker:
    """One thread on which all calls for a device run, one after the other.

    CUDA's current device is per thread, and a cuDNN handle must not be used by two threads at once: a
    worker per device satisfies both, and several workers drive several GPUs in parallel.

    Args:
        device: the device that is current on the thread.

    Raises:
        NoGpuError: the device is not present.
    """

    def __init__(self, device: Device | str | None = "auto") -> None:
        self.device = find_device(device)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"lamina-{self.device}")
        self._closed = False
        self._thread: int = self._executor.submit(self._begin).result()

    def _begin(self) -> int:
        self.device.make_current()
        return threading.get_ident()

    def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` on the worker's thread; return its result or raise its exception here.

        From the worker's own thread the call is made at once.
        """
        if threading.get_ident() == self._thread and not self._closed:
            return function(*args, **kwargs)
        return self.submit(function, *args, **kwargs).result()

    def submit(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Queue a call of `function` and return at once with its future."""
        if self._closed:
            raise RuntimeError(f"{self!r} is closed")
        return self._executor.submit(function, *args, **kwargs)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Finish the queued calls and end the thread. Idempotent."""
        self._closed = True
        self._executor.shutdown(wait=threading.get_ident() != self._thread)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Worker({self.device}{', closed' if self._closed else ''})"
