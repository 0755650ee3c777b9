"""The memory held by a process, and whether some work increases it."""

import ctypes
import gc
import os
import sys
from collections.abc import Callable


def resident() -> int:
    """Resident bytes of the process, after freed memory was returned to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(work: Callable[[], object], limit: int, rounds: int = 6) -> int:
    """The least growth in bytes over the rounds of `work`, which stop once one grew by at most `limit`.

    A leak grows in every round. A process used by other tests also grows by itself in some: the kernel
    merges pages into larger ones, an allocator takes one more arena.
    """
    before, least = resident(), sys.maxsize
    for _ in range(rounds):
        work()
        after = resident()
        least, before = min(least, after - before), after
        if least <= limit:
            break
    return least
