"""Host time per call on a GPU: a prepared plan, an eager op, a whole captured step, and PyTorch's conv2d.

Each case is called many times without waiting for the device, on a problem small enough that the queue never
fills; the figure is the time per call in microseconds, the median of several rounds.

    python -m benchmarks.host_cost [--json] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import lamina as lm
from benchmarks.common import versions, write
from lamina import backends, ops
from lamina.backends import Call
from lamina.ops import Conv
from lamina.ops.window import window
from lamina.spec import Policy, Spec, bfloat16

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


def _prepared(device: lm.Device) -> tuple[Callable[[], None], list[lm.runtime.Buffer]]:
    """A bound convolution plan, as an executable calls it, and the memory that it uses."""
    backend = backends.get(device)
    specs = [Spec(s, bfloat16).with_tag("acdb") for s in SHAPES]
    plan = backend.plan(Conv(window("conv2d", (3, 3), 1, 1)), specs, Policy())
    held = [device.allocate(s.nbytes) for s in (*plan.inputs, *plan.outputs)]
    workspace = device.allocate(plan.workspace)
    call = Call(
        tuple(b.pointer for b in held[:2]),
        tuple(b.pointer for b in held[2:]),
        workspace.pointer,
        device.default_stream.handle,
    )
    return plan.bind(call), [*held, workspace]


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
    prepared, _memory = _prepared(device)  # held until the end
    cases: dict[str, Callable[[], Any]] = {
        "prepared cuDNN plan": prepared,
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
