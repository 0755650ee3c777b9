"""Python's cyclic garbage collector is paused while a graph is traced, rewritten and planned, and its kernels are
bound.

These steps create some hundred thousand objects that live on: scanning all objects of the process again and again
took a third of the time. Garbage made meanwhile is collected afterwards.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_inside = 0  # blocks entered, in all threads
_resumes = False  # whether the collector was enabled before the first


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause garbage collection in all threads while any thread is within the block."""
    global _inside, _resumes
    with _lock:
        if not _inside:
            _resumes = gc.isenabled()
            gc.disable()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside and _resumes:
                gc.enable()
