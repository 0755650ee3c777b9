"""Timed choice against the heuristic's, on random convolutions: is the tuned plan used again, and is it never slower?

For each shape: the heuristic's first plan and the tuned one are timed in turns (CUDA events, medians); the plan is
made again from the store on disk; the workspace must stay below the cap.

    python -m benchmarks.autotune [--count 50] [--json] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import numpy as np

import lamina as lm
from benchmarks.common import versions, write
from lamina import backends
from lamina.backends import Call, Plan, Run
from lamina.backends.cuda import choice, conv
from lamina.ops import Conv, ConvDataGrad, ConvFilterGrad
from lamina.ops.core import Op
from lamina.ops.window import window
from lamina.runtime import Buffer, Device, Event
from lamina.spec import Policy, Spec, bfloat16

CAP = 256 << 20
REPEATS = 30


def _case(rng: np.random.Generator) -> tuple[Op, list[Spec]]:
    """A convolution of networks' usual sizes in one of the three directions."""
    channels = int(rng.choice([3, 16, 32, 64, 96, 128, 256, 512]))
    filters = int(rng.choice([32, 64, 128, 192, 256, 512]))
    side, kernel = int(rng.choice([7, 14, 27, 28, 56])), int(rng.choice([1, 3, 5]))
    batch, stride = int(rng.choice([1, 8, 32, 128])), int(rng.choice([1, 1, 2]))
    win = window("conv2d", (kernel, kernel), stride, kernel // 2)
    x, w = Spec((batch, channels, side, side), bfloat16), Spec((filters, channels, kernel, kernel), bfloat16)
    (y,) = Conv(win).infer(x, w)
    which = int(rng.integers(3))
    if which == 0:
        return Conv(win), [x, w]
    if which == 1:
        return ConvDataGrad(win, x.shape[2:]), [y, w]
    return ConvFilterGrad(win, w.shape[2:]), [x, y]


def _bound(plan: Plan, device: Device) -> tuple[Run, list[Buffer]]:
    held = [device.allocate(s.nbytes) for s in (*plan.inputs, *plan.outputs)]
    for buffer in held:
        lm.runtime.copy(
            buffer, np.random.default_rng(0).bytes(min(buffer.nbytes, 1 << 20)), min(buffer.nbytes, 1 << 20)
        )
    held.append(device.allocate(plan.workspace))
    count = len(plan.inputs)
    addresses = [b.pointer for b in held]
    stream = device.default_stream.handle
    return plan.bind(Call(tuple(addresses[:count]), tuple(addresses[count:-1]), addresses[-1], stream)), held


def _times(runs: list[Run], device: Device) -> list[float]:
    """Median milliseconds of each, measured in turns."""
    times: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    for _ in range(REPEATS):
        for run, found in zip(runs, times, strict=True):
            start, end = Event(timing=True), Event(timing=True)
            device.default_stream.record(start)
            run()
            device.default_stream.record(end)
            found.append(start.elapsed(end))
    return [statistics.median(t) for t in times]


def _again(op: Op, specs: list[Spec], device: Device, policy: Policy) -> str:
    """The label of the plan that a new process would make: all memory caches dropped, the store on disk kept."""
    conv._cached.cache_clear()
    choice.plan_store.cache_clear()
    return backends.get(device).plan(op, specs, policy).label


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    device, rng = lm.device("cuda:0"), np.random.default_rng(options.seed)
    tuned_policy = Policy(algorithm="fastest", workspace_limit=CAP)
    rows = []
    for _ in range(options.count):
        op, specs = _case(rng)
        plans = [backends.get(device).plan(op, specs, p) for p in (Policy(workspace_limit=CAP), tuned_policy)]
        bound = [_bound(p, device) for p in plans]
        heuristic, tuned = _times([run for run, _ in bound], device)
        rows.append(
            {
                "op": str(op),
                "inputs": [str(s) for s in specs],
                "heuristic_ms": heuristic,
                "tuned_ms": tuned,
                "plan": plans[1].label,
                "same_plan_again": _again(op, specs, device, tuned_policy) == plans[1].label,
                "workspace": plans[1].workspace,
            }
        )
    ratios = [r["tuned_ms"] / r["heuristic_ms"] for r in rows]
    summary = {
        "shapes": len(rows),
        "remembered": sum(r["same_plan_again"] for r in rows),
        "geometric_mean_of_tuned_over_heuristic": statistics.geometric_mean(ratios),
        "worst": max(ratios),
        "slower_than_1.02": sum(r > 1.02 for r in ratios),
        "largest_workspace": max(r["workspace"] for r in rows),
        "cap": CAP,
    }
    for name, value in summary.items():
        print(f"{name:40s} {value}")
    if options.json:
        record = {"what": __doc__.splitlines()[0], "device": device.name, "summary": summary, "rows": rows}
        print(
            write(
                "autotune", record | {"versions": versions(["cuda-core", "nvidia-cudnn-cu13"])}, options.out
            )
        )


if __name__ == "__main__":
    _main()
