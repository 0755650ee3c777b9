"""One library in one process: reads requests, measures, answers. Started by benchmarks.suite.

    python -m benchmarks.worker lamina|torch|jax DEVICE

A request is a line of JSON {"workload", "set", "mode", "seconds", "policy"}; the answer is a line of JSON behind
`MARK`; what libraries print beside it is passed over.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import statistics
import sys
import time
from typing import Any

from benchmarks.peer import Prepared
from benchmarks.workloads import SETS

MARK = "\x02answer "
#: A window of queued iterations lasts at least so long, and there are so many windows at most.
WINDOW_S, WINDOWS = 0.02, 60


def windows(prepared: Prepared, seconds: float) -> tuple[list[float], int]:
    """Milliseconds per iteration of each window, and the iterations of a window.

    A window queues iterations without waiting between them and ends when the device is done with all of them.
    """

    def timed(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            prepared.run()
        prepared.wait()
        return (time.perf_counter() - start) / count

    estimate = min(timed(1), timed(2))
    count = max(1, min(200, round(WINDOW_S / estimate)))
    number = max(5, min(WINDOWS, int(seconds / (count * estimate))))
    return [1e3 * timed(count) for _ in range(number)], count


def measured(library: Any, request: dict[str, Any], device: str) -> dict[str, Any]:
    """First step, peaks and times of one workload in one mode."""
    w = next(w for w in SETS[request["set"]] if w.name == request["workload"])
    start = time.perf_counter()
    prepared = library.prepare(w, request["mode"], device, request["policy"])
    prepared.run()
    prepared.wait()
    first = time.perf_counter() - start
    for _ in range(prepared.warm_up):
        prepared.run()
    prepared.wait()
    ready = time.perf_counter() - start
    first_peak = prepared.peak()
    prepared.reset_peak()
    times, count = windows(prepared, request["seconds"])
    return {
        "median_ms": statistics.median(times),
        "quartiles_ms": statistics.quantiles(times, n=4)[::2],
        "windows": len(times),
        "iterations_per_window": count,
        "first_step_s": first,
        "ready_s": ready,
        "first_peak_bytes": first_peak,
        "peak_bytes": prepared.peak(),
        **prepared.after(),
    }


def main() -> None:
    """Answer requests until the input ends."""
    name, device = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes with their errors
    library = importlib.import_module(f"benchmarks.peer_{name}")
    print(MARK + json.dumps(library.warm(device)), file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = measured(library, json.loads(line), device)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
        gc.collect()
        print(MARK + json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
