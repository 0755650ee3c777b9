"""How many threads a primitive runs on: only the calling one where there is too little work for a second.

OpenMP ends a parallel region when its last thread has finished. On a machine with other load, a sum of a hundred
numbers then takes as long as a thread waits for a core: milliseconds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from math import prod

from lamina.c import dnnl
from lamina.onednn.memory import MemoryDesc

#: Less work than this (about the number of elements read and written) is not worth a second thread.
SHARED = 1 << 15
#: The same in multiplications, several of which a thread does at a time.
SHARED_PRODUCTS = 1 << 18


def is_small(operands: Mapping[str, MemoryDesc | None], sources: Sequence[MemoryDesc] | None = None) -> bool:
    """Whether one thread is as fast as many on a primitive with these operands (by name).

    A product of matrices [M, K] and [K, N] takes MNK multiplications: the square root of the product of the sizes of
    operands and result. For other ops with weights that is their number up to a factor, the taps along an axis.
    """
    every = [d for d in (*operands.values(), *(sources or ())) if d is not None]
    sizes = sorted(prod(d.dims) for d in every if d.ndim)
    if any("weights" in name for name in operands) and prod(sizes[-3:]) > SHARED_PRODUCTS**2:
        return False
    return sum(sizes) < SHARED


@lru_cache(maxsize=1)
def _openmp() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """The getter and setter of the number of threads for this thread's next kernel; None without OpenMP."""
    library = dnnl.library.open()
    found = [getattr(library, name, None) for name in ("omp_get_max_threads", "omp_set_num_threads")]
    addresses = [ctypes.cast(symbol, ctypes.c_void_p).value or 0 for symbol in found if symbol is not None]
    if len(addresses) < len(found):
        return None
    # Calls this short are not worth releasing the GIL.
    tell = ctypes.PYFUNCTYPE(ctypes.c_int)(addresses[0])
    return tell, ctypes.PYFUNCTYPE(None, ctypes.c_int)(addresses[1])


@contextmanager
def alone(small: bool) -> Iterator[None]:
    """Primitives created within are made for one thread, if `small`."""
    openmp = _openmp() if small else None
    if openmp is None:
        yield
        return
    tell, allow = openmp
    before = tell()
    allow(1)
    try:
        yield
    finally:
        allow(before)


def run_alone(run: Callable[[], None]) -> Callable[[], None]:
    """`run` restricted to the calling thread."""
    openmp = _openmp()
    if openmp is None:
        return run
    tell, allow = openmp

    def alone() -> None:
        before = tell()
        if before == 1:
            return run()
        allow(1)
        try:
            run()
        finally:
            allow(before)
        return None

    return alone
