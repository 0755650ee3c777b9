"""AlexNet on a CPU: a training step and inference, Lamina against PyTorch.

Each library runs in a process of its own (two OpenMP runtimes in one process get in each other's way); the processes
take turns, so that both see the same machine. Times are medians in milliseconds.

    python -m benchmarks.alexnet_cpu [--batch 16] [--threads 2] [--rounds 3] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.common import processor, versions, write

CASES = ("lamina", "torch", "torch channels_last")


def _time(run: Callable[[], Any], repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def _lamina(batch: int, repeats: int) -> dict[str, list[float]]:
    import numpy as np

    import lamina as lm
    from lamina import nn, optim

    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, 1, 224, 224)).astype(np.float32)
    labels = rng.integers(0, 10, batch)
    net = nn.AlexNet(in_channels=1, classes=10)
    step = lm.train_step(net, lm.ops.cross_entropy, optim.SGD(lr=0.01, momentum=0.9), device="cpu")
    for _ in range(2):
        step(x, labels)
    train = _time(lambda: step(x, labels), repeats)
    infer = lm.train.Predictor(net, device="cpu")
    for _ in range(2):
        infer(x)
    return {"train": train, "infer": _time(lambda: infer(x), repeats)}


def _torch(batch: int, repeats: int, threads: int, channels_last: bool) -> dict[str, list[float]]:
    import torch

    from benchmarks.alexnet_torch import Trainer

    torch.set_num_threads(threads)
    trainer = Trainer("cpu", channels_last=channels_last)
    x, labels = trainer.inputs(batch)
    for _ in range(2):
        trainer.step(x, labels)
    train = _time(lambda: trainer.step(x, labels), repeats)
    trainer.infer(x)
    return {"train": train, "infer": _time(lambda: trainer.infer(x), repeats)}


def _worker(case: str, options: argparse.Namespace) -> dict[str, list[float]]:
    if case == "lamina":
        return _lamina(options.batch, options.repeats)
    return _torch(options.batch, options.repeats, options.threads, case.endswith("channels_last"))


def _spawn(case: str, options: argparse.Namespace) -> dict[str, list[float]]:
    command = [sys.executable, "-m", "benchmarks.alexnet_cpu", "--worker", case]
    command += [f"--{k}={getattr(options, k)}" for k in ("batch", "threads", "repeats")]
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="write the figures to benchmarks/results")
    parser.add_argument("--worker", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(_worker(options.worker, options)))
        return
    times: dict[str, dict[str, list[float]]] = {c: {"train": [], "infer": []} for c in CASES}
    for _ in range(options.rounds):
        for case in CASES:
            for kind, values in _spawn(case, options).items():
                times[case][kind] += values
    medians = {c: {k: statistics.median(v) for k, v in t.items()} for c, t in times.items()}
    ratios = {}
    for kind in ("train", "infer"):
        best = min(medians[c][kind] for c in CASES[1:])
        ratios[kind] = medians["lamina"][kind] / best
    for case in CASES:
        print(f"{case:22s} train {medians[case]['train']:7.1f} ms   infer {medians[case]['infer']:7.1f} ms")
    print(f"lamina / better torch  train {ratios['train']:7.2f}      infer {ratios['infer']:7.2f}")
    if options.json:
        record = {
            "what": "AlexNet 1x224x224, float32, SGD momentum; medians in ms",
            "batch": options.batch,
            "threads": options.threads,
            "processor": processor(),
            "versions": versions(["lamina", "torch", "numpy", "onednn-cpu-gomp"]),
            "median_ms": medians,
            "ratio_to_better_torch": ratios,
            "times_ms": times,
        }
        print(write("alexnet_cpu", record))


if __name__ == "__main__":
    _main()
