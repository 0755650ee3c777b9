"""Time of an all-reduce by size, and the fitted link model: the input of `lamina simulate --inside FILE`.

    lamina run --gpus 4 -m benchmarks.all_reduce --out links.json
    torchrun --nproc-per-node 4 -m benchmarks.all_reduce --out links.json

Every rank runs it; all ranks and each smaller power of two of them are measured (`--ranks` selects others). The
largest size of each is left out of the fit, and the link's prediction for it is reported; so are interpolations
(`lamina.simulate.MeasuredAllReduces`) of every second size, and of the largest, from the others, from 1 MiB on.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import lamina as lm
from lamina import distributed
from lamina.runtime import Device, Event, write_atomically
from lamina.runtime.ranks import current_world
from lamina.simulate import MeasuredAllReduces, all_reduce_seconds, fit_link

ALGORITHMS = ("ring", "tree", "switch")
#: Calls per round.
CALLS = 5


def call(group: distributed.Group, nbytes: int, device: Device) -> Callable[[], None]:
    """Queues an all-reduce over a group, in its own memory."""
    if device.kind == "cpu":
        return partial(
            current_world().communicator(group.ranks).all_reduce, np.ones(nbytes // 4, np.float32), "sum"
        )
    comm, x = current_world().gpu_communicator(group.ranks, device), device.allocate(nbytes)
    stream = device.default_stream
    device.platform.fill(x.pointer, 0, nbytes, stream)
    return lambda: comm.all_reduce(x.pointer, x.pointer, nbytes // 4, "float32", "sum", stream.handle)


def measured(ranks: int, nbytes: int, device: Device, rounds: int) -> float:
    """Seconds of an all-reduce over the first `ranks` ranks, by the device's clock: the median of rounds.

    A round is a few calls, so that it counts little when one rank comes later than another.
    """
    queue, stream, times = call(distributed.Group(*range(ranks)), nbytes, device), device.default_stream, []
    for _ in range(rounds + 3):
        begin, end = Event(timing=True).record(stream), Event(timing=True)
        for _ in range(CALLS):
            queue()
        end.record(stream)
        end.synchronize()
        times.append(begin.elapsed(end) / 1e3 / CALLS)
    return statistics.median(times[3:])


def table(sizes: list[int], worlds: list[int], device: Device, rounds: int) -> list[tuple[int, int, float]]:
    """(ranks, bytes, seconds) of all sizes, the same on every rank."""
    found = []
    for ranks in worlds:
        for nbytes in sizes:
            mine = measured(ranks, nbytes, device, rounds) if distributed.rank() < ranks else 0.0
            found.append((ranks, nbytes, max(distributed.all_gather_object(mine))))
    return found


def fitted(points: list[tuple[int, int, float]]) -> dict[str, Any]:
    """The link and the algorithm with the best fit; the largest size is predicted, not fitted."""
    largest = max(n for _, n, _ in points)
    known = [p for p in points if p[1] < largest]
    ways = {a: fit_link(known, a) for a in ALGORITHMS}
    name = min(ways, key=lambda a: ways[a][1])
    link, worst = ways[name]
    unseen = [
        {"ranks": n, "bytes": s, "measured": t, "predicted": all_reduce_seconds(s, n, link, name)}
        for n, s, t in points
        if s == largest
    ]
    return {
        "link": {"latency": link.latency, "bandwidth": link.bandwidth, "algorithm": name},
        "worst_of_fitted": worst,
        "predicted": unseen,
    }


def left_out(points: list[tuple[int, int, float]]) -> list[dict[str, Any]]:
    """The largest size and every second one below it, interpolated from the others, from 1 MiB on."""
    sizes = sorted({n for _, n, _ in points}, reverse=True)
    unseen = set(sizes[::2])
    known = MeasuredAllReduces(tuple((n, s, t) for n, s, t in points if s not in unseen))
    return [
        {"ranks": n, "bytes": s, "measured": t, "predicted": known.seconds(s, n)}
        for n, s, t in points
        if s in unseen and s >= 1 << 20
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", type=int, nargs="+", help="(default: powers of two up to all)")
    parser.add_argument("--mib", type=float, nargs="+", default=[2**k for k in range(-8, 9)])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    world = distributed.init()
    worlds = options.ranks or [n for n in (2**k for k in range(1, 20)) if n <= distributed.world_size()]
    points = table(
        [int(m * (1 << 20)) for m in options.mib], worlds, lm.device(options.device), options.rounds
    )
    if distributed.rank() == 0:
        found = {"world": str(world), **fitted(points), "left_out": left_out(points), "points": points}
        write_atomically(options.out, [json.dumps(found, indent=1).encode()])
        print(json.dumps({k: found[k] for k in ("link", "worst_of_fitted", "predicted")}, indent=1))
    distributed.shutdown()


if __name__ == "__main__":
    main()
