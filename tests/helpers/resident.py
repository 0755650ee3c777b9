"""How much memory a process holds, and whether some work makes it hold more."""

import ctypes
import gc
import os
import sys
from collections.abc import Callable


def resident() -> int:
    """Bytes of the process that lie in memory, after what was freed went back to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(work: Callable[[], object], limit: int, rounds: int = 6) -> int:
    """The least growth in bytes of the rounds of `work`, of which there are no more once one grew by at most `limit`.

    What leaks grows in every round. A process that other tests have used also grows by itself in some: the kernel
    joins pages to larger ones, an allocator takes one arena more.
    """
    before, least = resident(), sys.maxsize
    for _ in range(rounds):
        work()
        after = resident()
        least, before = min(least, after - before), after
        if least <= limit:
            break
    return least
