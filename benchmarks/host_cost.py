"""Host time per call on a GPU: a plan bound and recorded, an eager op, a whole captured step, and PyTorch's conv2d.

Each case is called many times without waiting for the device, on a problem small enough that the queue never
fills; the figure is the time per call in microseconds, the median of several rounds.

    python -m benchmarks.host_cost [--json] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import torch

import lamina as lm
from benchmarks.common import versions, write
from lamina import cudnn, ops

CALLS, ROUNDS = 200, 15
SHAPES = ((1, 64, 14, 14), (64, 64, 3, 3))


def _microseconds(run: Callable[[], Any], wait: Callable[[], Any]) -> float:
    times = []
    for _ in range(ROUNDS):
        wait()
        start = time.perf_counter()
        for _ in range(CALLS):
            run()
        times.append((time.perf_counter() - start) / CALLS * 1e6)
        wait()
    return statistics.median(times)


def _prepared(device: lm.Device) -> tuple[dict[str, Callable[[], None]], list[object]]:
    """One plan of a convolution prepared in both ways, and the objects to keep alive meanwhile."""
    handle = cudnn.handle_of(device)
    graph = cudnn.Graph()
    x, w = (graph.packed(shape, "bfloat16", channels_last=True) for shape in SHAPES)
    y = graph.packed(SHAPES[0], "bfloat16", channels_last=True)
    graph.conv(x, w, y, stride=(1, 1), pre=(1, 1))
    plan = graph.plan(handle)
    memory = {t.uid: device.allocate(2 * prod(t.dimensions)) for t in (x, w, y)}
    workspace = device.allocate(plan.workspace)
    pack = cudnn.VariantPack({uid: b.pointer for uid, b in memory.items()}, workspace.pointer)
    bound = plan.bind(handle, pack, device.default_stream.handle)
    bound()  # loads the kernels
    recorded = plan.record(handle, pack)
    runs = {"cuDNN plan, bound": bound, "cuDNN plan, recorded": recorded.bind()}
    return runs, [memory, workspace, recorded]


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    device = lm.device("cuda:0")
    x, w = (torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in SHAPES)
    x, w = (t.contiguous(memory_format=torch.channels_last) for t in (x, w))
    ours = [lm.from_dlpack(t) for t in (x, w)]
    captured = lm.compile(lm.trace(lambda a, b: ops.relu(ops.conv2d(a, b, padding=1)), *ours), device)
    for _ in range(3):
        captured(*ours)
    wait = device.synchronize
    prepared, _held = _prepared(device)  # kept until the end
    cases: dict[str, Callable[[], Any]] = {
        **prepared,
        "eager ops.conv2d": lambda: ops.conv2d(*ours, padding=1),
        "compiled graph, two inputs": lambda: captured(*ours),
        "torch.nn.functional.conv2d": lambda: torch.nn.functional.conv2d(x, w, padding=1),
    }
    rows = {name: _microseconds(run, wait) for name, run in cases.items()}
    for name, value in rows.items():
        print(f"{name:30s} {value:8.2f} us")
    if options.json:
        record = {
            "what": "host time per call in microseconds, bf16 convolution 1x64x14x14, 64 3x3",
            "device": torch.cuda.get_device_name(),
            "cudnn": torch.backends.cudnn.version(),
            "versions": versions(["torch", "cuda-core", "nvidia-cudnn-cu13"]),
            "median_us": rows,
        }
        print(write("host_cost", record, options.out))


if __name__ == "__main__":
    _main()
