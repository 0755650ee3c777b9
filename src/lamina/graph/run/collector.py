"""Python's cyclic garbage collector waits while a graph is traced, rewritten and planned, and its kernels are bound.

That makes some hundred thousand objects that live on: looking through all that the process holds, again and again,
took a third of the time. What becomes garbage meanwhile is found afterwards.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_inside = 0  # blocks that are entered, in all threads
_resumes = False  # whether the collector was at work before the first


@contextmanager
def collector_paused() -> Iterator[None]:
    """Within the block, of any thread, nothing is collected."""
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
