"""Engine and stream: where primitives run."""

from __future__ import annotations

import os
from functools import lru_cache

from lamina.c import dnnl
from lamina.onednn.owned import Owned

#: The spin count of a waiting OpenMP thread before it sleeps: about half a millisecond. Without a limit, waiting
#: threads take cores from working ones when the machine is shared. LibGOMP reads it when it is loaded.
_SPIN = ("GOMP_SPINCOUNT", "10000")
_PAUSE_HARD = 2  # omp_pause_hard: threads are ended, not only put to sleep


def available() -> bool:
    """Whether the library can be opened; never raises. The user's own OpenMP settings are kept."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault(*_SPIN)
    return dnnl.library.available()


def _end_waiting_threads() -> None:
    """Before a fork: end the OpenMP threads that wait for this thread's next kernel; that kernel starts new ones.

    A child has no such threads but would wait for them for ever (libgomp does not handle forks; other OpenMP
    libraries do).
    """
    if dnnl.library.is_open:
        pause = getattr(dnnl.library.open(), "omp_pause_resource_all", None)
        if pause is not None:
            pause(_PAUSE_HARD)


os.register_at_fork(before=_end_waiting_threads)


class Engine(Owned):
    """A device that oneDNN computes on: dnnl_engine_create.

    Args:
        index: number of the engine among those of the CPU kind (there is one).

    Raises:
        LibraryNotFound: there is no oneDNN. DnnlError: no such engine.
    """

    __slots__ = ()

    def __init__(self, index: int = 0) -> None:
        handle = dnnl.dnnl_engine_create(dnnl.dnnl_engine_kind_t.dnnl_cpu, index)
        super().__init__(handle, dnnl.dnnl_engine_destroy)

    def _describe(self) -> str:
        return "cpu"


class Stream(Owned):
    """A queue of an engine: dnnl_stream_create. On the CPU a primitive is done when its call returns."""

    __slots__ = ("engine",)

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine = engine or default_engine()
        flags = dnnl.dnnl_stream_flags_t.dnnl_stream_default_flags
        super().__init__(
            dnnl.dnnl_stream_create(self.engine.handle, flags), dnnl.dnnl_stream_destroy, self.engine.owner
        )

    def wait(self) -> None:
        """Wait until all queued work is done: dnnl_stream_wait."""
        dnnl.dnnl_stream_wait(self.handle)

    def _describe(self) -> str:
        return repr(self.engine)


@lru_cache(maxsize=1)
def default_engine() -> Engine:
    """The CPU engine that primitives, streams and memories are made on."""
    return Engine()


@lru_cache(maxsize=1)
def default_stream() -> Stream:
    """The stream that is used when none is named."""
    return Stream(default_engine())
