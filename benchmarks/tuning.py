"""Tuning between steps: training with it from an empty plan store, compared with no tuning and "fastest".

    python -m benchmarks.tuning resnet18 --batch-size 128 --seconds 60 [--modes tuning fixed fastest] [--out FOLDER]

Each mode runs in a process of its own with empty caches (`--cache FOLDER` gives it a persistent one): "tuning" is
the policy "auto" with tuning between steps, "fixed" the same without, "fastest" times everything before
the first step. With `--without-database` the package starts without measured plans. Steps use one batch on the
device; the loss of each is read, so that a step's time is the device's. For "tuning" the time is split at the end of
tuning. Losses are compared with those of "fixed": up to the first change of plans they are the same, after it they
differ by rounding.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from statistics import mean, median
from typing import Any
from unittest import mock

import numpy as np

import lamina as lm
from benchmarks.common import processor, versions, write
from lamina import nn, ops, optim
from lamina.backends.cuda.select import known

MODES = ("tuning", "fixed", "fastest")
#: Steps per median before and after tuning, and preceding steps, which load and record.
_SAMPLE, _WARM = 50, 3
#: Steps at the start, and at the end, whose losses are compared.
_COMPARED = 200


@contextmanager
def without_database() -> Iterator[None]:
    """Within the block the package has no plan database."""
    with ExitStack() as stack:
        for name in ("database_of", "database_of_kin"):
            stack.enter_context(mock.patch.object(known, name, return_value=None))
        yield


def measured(options: argparse.Namespace, mode: str) -> dict[str, Any]:
    """Train for this many seconds: each step's milliseconds and loss, and the tuning statistics."""
    where = lm.device(options.device)
    nn.manual_seed(0)
    rng = np.random.default_rng(0)
    builder = nn.models.builders()[options.network]
    shape = (options.batch_size, builder.channels, builder.size, builder.size)
    x = lm.tensor(rng.standard_normal(shape).astype(np.float32), device=where)
    y = lm.tensor(rng.integers(0, builder.classes, options.batch_size), device=where)
    begin = time.perf_counter()
    with lm.policy(algorithm="fastest" if mode == "fastest" else "auto"):
        net = builder(builder.channels, builder.classes)
        step = lm.train_step(
            net,
            ops.cross_entropy,
            optim.SGD(lr=options.lr, momentum=0.9),
            device=where,
            precision=options.precision,
            tuning=mode == "tuning",
        )
        losses = [step(x, y).item()]
        first = time.perf_counter() - begin
        times, swaps, opens = [], [], []
        end = time.perf_counter() + (options.seconds if mode == "tuning" else min(options.seconds, 10.0))
        while (now := time.perf_counter()) < end or len(times) < _COMPARED:
            losses.append(step(x, y).item())
            times.append((time.perf_counter() - now) * 1e3)
            swaps.append(step.tuning.swaps)
            opens.append(step.tuning.open)
    return {
        "mode": mode,
        "first_step_s": first,
        "tuning": str(step.tuning),
        "peak_bytes": where.statistics().peak,
        **split(times, swaps, opens),
        "losses": losses,
    }


def split(times: Sequence[float], swaps: Sequence[int], opens: Sequence[int]) -> dict[str, Any]:
    """Milliseconds of a step before, while and after plans compete.

    times, swaps, opens: for each step its duration, and the numbers of swaps and of open choices at that point.
    """
    steady = times[_WARM:]
    busy = [i for i, count in enumerate(opens) if count]
    changed = [i for i in range(1, len(swaps)) if swaps[i] != swaps[i - 1]]
    last = max([*busy[-1:], *changed[-1:], _WARM])
    while_tuning = times[_WARM : last + 1]
    found = {
        "steps": len(times),
        "before_ms": median(steady[:_SAMPLE]),
        "after_ms": median(times[-_SAMPLE:]),
        "mean_ms": mean(steady),
        "swaps": swaps[-1],
        "first_swap_step": changed[0] if changed else None,
        "settled_step": last if busy else None,
        "settled_s": sum(times[: last + 1]) / 1e3 if busy else None,
        "is_settled": not opens[-1],
    }
    if busy:
        p50, p99 = (float(np.percentile(while_tuning, q)) for q in (50, 99))
        found |= {
            "tuning_p50_ms": p50,
            "tuning_p99_ms": p99,
            "p99_over_p50": p99 / p50,
            "slowest_ms": max(while_tuning),
        }
    return found


def compared(tuned: dict[str, Any], fixed: dict[str, Any]) -> dict[str, Any]:
    """The losses of a run with swaps compared with those of one without."""
    a, b = (run["losses"][:_COMPARED] for run in (tuned, fixed))
    count = tuned["first_swap_step"]
    before = _COMPARED if count is None else min(count, _COMPARED)  # losses[i + 1] is times[i]'s
    apart = [abs(p - q) / max(abs(q), 1e-6) for p, q in zip(a, b, strict=False)]
    return {
        "equal_before_the_first_swap": a[: before + 1] == b[: before + 1],
        "largest_relative_difference": max(apart),
        "mean_loss": mean(a),
        "mean_loss_without_swaps": mean(b),
    }


def in_process(arguments: Sequence[str], mode: str, cache: Path | None) -> dict[str, Any]:
    """The result of `measured` in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        environment = {**os.environ, "LAMINA_CACHE": str(cache or Path(folder) / "cache")}
        command = [
            sys.executable,
            "-m",
            "benchmarks.tuning",
            *arguments,
            "--run",
            mode,
            "--result",
            str(result),
        ]
        subprocess.run(command, env=environment, check=True)
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", choices=sorted(nn.models.builders()))
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=60.0, help='of "tuning"; the others take 10')
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["tuning", "fixed"])
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--without-database", action="store_true", help="the package's database is not asked")
    parser.add_argument("--cache", type=Path, help="the cache folder of every mode (default: a new one each)")
    parser.add_argument("--out", type=Path, help="folder of the result file")
    parser.add_argument("--run", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parsed(given)
    if options.run:
        with without_database() if options.without_database else nullcontext():
            options.result.write_text(json.dumps(measured(options, options.run)))
        return 0
    runs = {}
    for mode in options.modes:
        runs[mode] = in_process(given, mode, options.cache)
        shown = {name: value for name, value in runs[mode].items() if name != "losses"}
        print(shown, file=sys.stderr, flush=True)
    record: dict[str, Any] = {
        "network": options.network,
        "batch_size": options.batch_size,
        "database": not options.without_database,
    }
    if {"tuning", "fixed"} <= runs.keys():
        record["losses"] = compared(runs["tuning"], runs["fixed"])
    for run in runs.values():
        run.pop("losses")
    record |= {"runs": runs, "seconds": options.seconds, "precision": options.precision}
    if options.out is not None:
        about = {"host": processor(), "device": lm.device(options.device).name}
        packages = ["nvidia-cudnn-cu13", "nvidia-cublas", "nvidia-cuda-nvrtc", "cuda-core"]
        write(f"tuning_{options.network}", {**about, "versions": versions(packages), **record}, options.out)
    print(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
