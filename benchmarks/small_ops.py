"""Overhead of ops on small tensors on a CPU compared with PyTorch: host time, as there is almost nothing to compute.

    python -m benchmarks.small_ops [NAME …] [--rounds N] [--out FOLDER]

Eager ops, a layer, a small network's forward pass, its gradients, and these with an update, each in the library's
idiomatic form, with one thread. Both libraries alternate in one process; times are processor times, which depend
little on other programs, and the lower quartile of the rounds counts.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before a library reads it

import numpy as np
import torch

import lamina as lm
from benchmarks.common import processor, versions, write
from lamina import nn, ops, optim

#: Seconds for which one library runs a case in a round.
ROUND = 0.01
Call = Callable[[], Any]


def op_cases() -> dict[str, tuple[Call, Call]]:
    """Single ops: a call for each library by the case's name."""
    rng = np.random.default_rng(0)
    drawn = [rng.standard_normal(shape).astype(np.float32) for shape in ((8,), (8,), (4, 8))]
    a, b, m = map(lm.tensor, drawn)
    ta, tb, tm = map(torch.tensor, drawn)
    return {
        "a + b": (lambda: a + b, lambda: ta + tb),
        "a * 2": (lambda: a * 2, lambda: ta * 2),
        "m.sum()": (lambda: m.sum(), lambda: tm.sum()),
        "m.mean(0)": (lambda: m.mean(0), lambda: tm.mean(0)),
        "relu": (lambda: ops.relu(a), lambda: torch.relu(ta)),
        "exp": (lambda: a.exp(), lambda: ta.exp()),
        "softmax": (lambda: ops.softmax(m, -1), lambda: torch.softmax(tm, -1)),
        "layer_norm": (
            lambda: ops.layer_norm(m, (8,)),
            lambda: torch.nn.functional.layer_norm(tm, (8,)),
        ),
        "where": (lambda: ops.where(a > 0, a, b), lambda: torch.where(ta > 0, ta, tb)),
        "m @ m.T": (lambda: m @ m.T, lambda: tm @ tm.T),
        "cat": (lambda: ops.cat([a, b]), lambda: torch.cat([ta, tb])),
        "m[0]": (lambda: m[0], lambda: tm[0]),
        "m[:, 1:3]": (lambda: m[:, 1:3], lambda: tm[:, 1:3]),
        "reshape": (lambda: m.reshape(8, 4), lambda: tm.reshape(8, 4)),
        "transpose": (lambda: m.transpose(0, 1), lambda: tm.transpose(0, 1)),
        "a.add_(0)": (lambda: a.add_(0.0), lambda: ta.add_(0.0)),
        "a.sum().item()": (lambda: a.sum().item(), lambda: ta.sum().item()),
    }


def network_cases() -> dict[str, tuple[Call, Call]]:
    """A layer of 32 units and a network of two, on 8 samples, likewise."""
    rng = np.random.default_rng(0)
    drawn, labels = rng.standard_normal((8, 32)).astype(np.float32), np.arange(8)
    x, y, tx, ty = lm.tensor(drawn), lm.tensor(labels), torch.tensor(drawn), torch.tensor(labels)
    net = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    peer = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    updates, peer_updates = optim.SGD(net.parameters(), lr=1e-3), torch.optim.SGD(peer.parameters(), lr=1e-3)
    differentiated = lm.value_and_grad(lambda net: ops.cross_entropy(net(x), y))

    def without_gradients(call: Call) -> Call:
        return torch.no_grad()(call)

    def gradients() -> None:
        peer_updates.zero_grad()
        torch.nn.functional.cross_entropy(peer(tx), ty).backward()

    def step() -> None:
        gradients()
        peer_updates.step()

    return {
        "Linear": (lambda: net[0](x), without_gradients(lambda: peer[0](tx))),
        "network, forward": (lambda: net(x), without_gradients(lambda: peer(tx))),
        "network, forward + backward": (lambda: differentiated(net), gradients),
        "network, training step": (lambda: updates.step(differentiated(net)[1]), step),
    }


def microseconds(calls: Sequence[Call], rounds: int) -> list[float]:
    """For each call the lower quartile of alternating rounds."""
    for call in calls * 3:
        call()
    counts = [max(1, int(ROUND / max(_seconds(call, 3), 1e-7))) for call in calls]
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for times, call, count in zip(found, calls, counts, strict=True):
            times.append(_seconds(call, count))
    return [1e6 * sorted(times)[len(times) // 4] for times in found]


def _seconds(call: Call, count: int) -> float:
    begun = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - begun) / count


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases; all without any")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, help="folder for a result file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    cases = op_cases() | network_cases()
    if unknown := [name for name in options.names if name not in cases]:
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(cases)}")
    rows = []
    for name in options.names or cases:
        own, peer = microseconds(cases[name], options.rounds)
        rows.append({"name": name, "lamina": round(own, 2), "torch": round(peer, 2)})
        print(f"{name:28} {own:9.1f} us, PyTorch {peer:8.1f} ({own / peer:5.2f})", flush=True)
    ratios = [float(row["lamina"]) / float(row["torch"]) for row in rows]
    mean = exp(sum(map(log, ratios)) / len(ratios))
    print(f"geometric mean of times beside PyTorch's: {mean:.2f}")
    if options.out:
        what = versions(["lamina", "numpy", "torch", "onednn-cpu-gomp"])
        record = {"machine": processor(), "versions": what, "mean": round(mean, 2), "rows": rows}
        print(write("small_ops_cpu", record, options.out))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
