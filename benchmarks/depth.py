"""How a training step grows with depth: planning, step time and memory of 10 to 160 layers.

A layer is a 3x3 convolution of 64 channels, a batch norm and relu on 32 images of 28x28, bf16; `train_step` with SGD.
Each of the three should grow by the same amount for each layer.

    python -m benchmarks.depth [--layers 10 20 40 80 160] [--device cuda] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import lamina as lm
from benchmarks.common import versions, write
from lamina import nn, ops, optim

CHANNELS, SHAPE, CLASSES = 64, (32, 64, 28, 28), 10
ROUNDS, CALLS = 11, 5


def network(layers: int) -> nn.Module:
    """A stack of convolutions with norms, then a classifier."""
    blocks: list[nn.Module] = []
    for _ in range(layers):
        blocks += [
            nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False),
            nn.BatchNorm2d(CHANNELS),
            nn.ReLU(),
        ]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, CLASSES))


def measured(layers: int, device: str, policy: str) -> dict[str, Any]:
    """Seconds to the first step, milliseconds of a step, bytes of the arena and of the device at the peak."""
    where = lm.device(device)
    rng = np.random.default_rng(0)
    x = lm.tensor(rng.standard_normal(SHAPE).astype(np.float32), device=device)
    y = lm.tensor(rng.integers(0, CLASSES, SHAPE[0]), device=device)
    where.reset_peak()
    with lm.policy(algorithm=policy):
        begin = time.perf_counter()
        precision = "bf16" if where.kind == "cuda" else "fp32"
        step = lm.train_step(
            network(layers), ops.cross_entropy, optim.SGD(lr=0.01), device=device, precision=precision
        )
        step(x, y).item()
        first = time.perf_counter() - begin
    for _ in range(3):
        step(x, y)
    where.synchronize()
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(CALLS):
            step(x, y)
        where.synchronize()
        times.append((time.perf_counter() - begin) / CALLS * 1e3)
    executable = step.executable
    return {
        "layers": layers,
        "first_step_s": first,
        "step_ms": statistics.median(times),
        "arena_bytes": executable.peak_bytes,
        "peak_bytes": where.statistics().peak,
        "kernels": len(executable.program.steps),
    }


def main() -> None:
    """A line for each depth, with the increment per layer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, nargs="+", default=[10, 20, 40, 80, 160])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--policy", default="heuristic")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    measured(options.layers[0], options.device, options.policy)  # loads libraries
    rows = []
    for layers in options.layers:
        row = measured(layers, options.device, options.policy)
        rows.append(row)
        print(
            f"{layers:4d} layers: first step {row['first_step_s']:6.2f} s, step {row['step_ms']:7.3f} ms, "
            f"arena {row['arena_bytes'] / 2**20:7.1f} MiB, peak {row['peak_bytes'] / 2**20:7.1f} MiB, "
            f"{row['kernels']} kernels; a layer: {1e3 * row['first_step_s'] / layers:.1f} ms, "
            f"{1e3 * row['step_ms'] / layers:.1f} us, {row['arena_bytes'] / 2**20 / layers:.2f} MiB",
            flush=True,
        )
    where = lm.device(options.device)
    record = {"what": "a training step by depth", "device": where.name, "policy": options.policy}
    names = ["numpy", "cuda-core", "nvidia-cudnn-cu13", "onednn-cpu-gomp"]
    print(write("depth", {**record, "versions": versions(names), "cases": rows}, options.out))


if __name__ == "__main__":
    main()
