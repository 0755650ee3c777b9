"""Gain by the second stream of captured programs: `python -m benchmarks.streams` on a machine with a GPU.

Each workload is captured twice, with its steps on two streams (`graph/planning/streams.py`) and on one, and both are
replayed alternately; the medians of a replay in milliseconds and their ratio are printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any
from unittest import mock

import lamina as lm
from benchmarks import peer_lamina
from benchmarks.workloads import ENCODER, Workload, images, recurrent
from lamina.graph.run.context import ExecutionContext

WORKLOADS = [
    images("resnet50", "train", 128),
    recurrent("lstm", "both", 100, 64, 1024, 2),
    ENCODER,
    images("googlenet", "train", 128),
    images("alexnet", "train", 128),
]
ROUNDS, CALLS = 15, 10


def captured(workload: Workload, streams: int) -> Callable[[], Any]:
    """The workload as it is replayed, captured on this many streams."""
    assign_streams = (
        (lambda self, steps: [0] * len(steps)) if streams == 1 else ExecutionContext._assign_streams
    )
    with mock.patch.object(ExecutionContext, "_assign_streams", assign_streams):
        run = peer_lamina.prepare(workload, "lamina", "cuda", "fastest").run
        for _ in range(4):
            run()
        lm.device("cuda").synchronize()
    return run


def milliseconds(run: Callable[[], Any]) -> float:
    """Of one call, over several queued together."""
    lm.device("cuda").synchronize()
    begin = time.perf_counter()
    for _ in range(CALLS):
        run()
    lm.device("cuda").synchronize()
    return (time.perf_counter() - begin) / CALLS * 1e3


def main() -> None:
    """A line for each workload."""
    for workload in WORKLOADS:
        runs = [captured(workload, streams) for streams in (2, 1)]
        two, one = (
            median(times)
            for times in zip(*([milliseconds(r) for r in runs] for _ in range(ROUNDS)), strict=True)
        )
        print(
            f"{workload.name:32s} two streams {two:8.3f} ms, one {one:8.3f} ms: {one / two:.3f}", flush=True
        )


if __name__ == "__main__":
    main()
