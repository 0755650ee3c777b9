"""Programs run by ranks in tests."""

from typing import Any

import ml_dtypes
import numpy as np

from lamina.runtime.ranks import Communicator, current_world
from lamina.runtime.ranks.communicator import reduced

DTYPES: list[Any] = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int64]


def own(rank: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """Small whole numbers, so that sums do not depend on the order."""
    return np.random.default_rng(rank).integers(-8, 8, shape).astype(dtype)


def with_nan(everybody: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Ranks' arrays [ranks, ...] with a NaN at a different place of each."""
    holed = everybody.copy()
    for rank, x in enumerate(holed):
        x.reshape(-1)[rank : rank + 1] = np.nan
    return holed


def check(comm: Communicator) -> list[str]:
    """The faults of each call; all ranks' inputs are known to each."""
    n, me = comm.size, comm.rank
    wrong: list[str] = []

    def compare(what: str, got: Any, wanted: Any) -> None:
        if not np.array_equal(np.asarray(got, np.float64), np.asarray(wanted, np.float64), equal_nan=True):
            wrong.append(f"{what}: {got} is not {wanted}")

    for dtype in DTYPES:
        for shape in [(5,), (0,), (2, 3), ()]:
            everybody = np.stack([own(r, shape, dtype) for r in range(n)])
            for reduction in ("sum", "mean", "max", "min"):
                x, wanted = own(me, shape, dtype), reduced(everybody, reduction)
                comm.all_reduce(x, reduction)
                compare(f"all_reduce {reduction} {dtype.__name__}", x, wanted)
                y = own(me, shape, dtype)
                pending, z = comm.start_all_reduce(y, reduction), own(me, shape, dtype)
                comm.all_reduce(z, "max")
                pending.wait()
                compare(f"start_all_reduce {reduction} {dtype.__name__}", y, wanted)
                compare("all_reduce beside it", z, everybody.max(0) if z.size else z)
            if shape and np.issubdtype(dtype, np.inexact):
                holed = with_nan(everybody)
                for reduction in ("sum", "max", "min"):
                    x = holed[me].copy()
                    comm.all_reduce(x, reduction)
                    compare(f"all_reduce {reduction} of NaN {dtype.__name__}", x, reduced(holed, reduction))
            out = np.empty((n, *shape), dtype)
            comm.all_gather(own(me, shape, dtype), out)
            compare("all_gather", out, everybody)
            for root in range(n):
                x = own(me, shape, dtype)
                comm.broadcast(x, root)
                compare("broadcast", x, everybody[root])
            large = np.stack([own(10 + r, (n, *shape), dtype) for r in range(n)])
            comm.all_to_all(large[me], out)
            compare("all_to_all", out, large[:, me])
            part = np.empty(shape, dtype)
            comm.reduce_scatter(large[me], part, "sum")
            compare("reduce_scatter", part, reduced(large[:, me], "sum"))
            later, sent = np.empty(shape, dtype), large[me].copy()
            pending = comm.start_reduce_scatter(sent, later, "mean")
            comm.all_gather(own(me, shape, dtype), out)
            pending.wait()
            compare("start_reduce_scatter", later, reduced(large[:, me], "mean"))
            compare("all_gather beside it", out, everybody)
    ring, x = np.empty(3), np.full(3, me, np.float64)
    comm.exchange({(me + 1) % n: x} if n > 1 else {}, {(me - 1) % n: ring} if n > 1 else {})
    compare("ring", ring if n > 1 else x, np.full(3, (me - 1) % n))
    if n > 1 and me == 0:
        comm.send(x + 7, 1)
    if n > 1 and me == 1:
        comm.receive(x, 0)
        compare("receive", x, np.full(3, 7.0))
    big = np.full(2_000_003, me + 1.0, np.float32)  # more than sockets buffer
    comm.all_reduce(big, "sum")
    compare("large all_reduce", big[[0, -1]], [n * (n + 1) / 2] * 2)
    return wrong


def check_world_and_pairs() -> list[str]:
    world = current_world()
    found = check(world.communicator())
    if world.size > 2:
        pair = (0, 2) if world.rank in (0, 2) else (3, 1)
        found += check(world.communicator(pair))
    return found
