"""How many threads a primitive runs on: its own alone, where there is too little work for a second one.

OpenMP ends a parallel region when the last thread is through. On a machine whose cores have other work, too, a sum of
a hundred numbers then takes as long as a thread waits for a core: milliseconds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from math import prod

from lamina.c import dnnl
from lamina.onednn.memory import MemoryDesc

#: Less work than this (about elements that are read and written) is not worth a second thread.
SHARED = 1 << 15
#: The same in multiplications, which a thread does several of at a time.
SHARED_PRODUCTS = 1 << 18


def is_small(operands: Mapping[str, MemoryDesc | None], sources: Sequence[MemoryDesc] | None = None) -> bool:
    """Whether one thread does as fast as many what has these operands, by their names.

    A product of matrices [M, K] and [K, N] takes MNK multiplications: the square root of its operands' sizes,
    multiplied. For other ops with weights that is their number up to the taps along an axis.
    """
    every = [d for d in (*operands.values(), *(sources or ())) if d is not None]
    sizes = sorted(prod(d.dims) for d in every if d.ndim)
    if any("weights" in name for name in operands) and prod(sizes[-3:]) > SHARED_PRODUCTS**2:
        return False
    return sum(sizes) < SHARED


@lru_cache(maxsize=1)
def _openmp() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """What tells, and what sets, the threads that this thread's next kernel may take; None without OpenMP."""
    library = dnnl.library.open()
    found = [getattr(library, name, None) for name in ("omp_get_max_threads", "omp_set_num_threads")]
    addresses = [ctypes.cast(symbol, ctypes.c_void_p).value or 0 for symbol in found if symbol is not None]
    if len(addresses) < len(found):
        return None
    # Calls this short are not worth letting another thread of Python run meanwhile.
    tell = ctypes.PYFUNCTYPE(ctypes.c_int)(addresses[0])
    return tell, ctypes.PYFUNCTYPE(None, ctypes.c_int)(addresses[1])


@contextmanager
def alone(small: bool) -> Iterator[None]:
    """What is made within is made for one thread, if it is small."""
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
    """`run` on the thread that calls it alone."""
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
