"""One library in one process: reads requests, measures, answers. Started by benchmarks.suite.

    python -m benchmarks.worker lamina|torch|jax DEVICE

A request is a line of JSON; the answer is a line of JSON after `MARK`; other output of libraries is
ignored. {"workload", "set", "mode", "policy"} prepares a workload, {"seconds", "settle"} times the prepared
one; one request may ask for both.
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
#: Minimum duration of a window of queued iterations, and maximum number of windows.
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


def prepared(library: Any, request: dict[str, Any], device: str) -> tuple[Prepared, dict[str, Any]]:
    """One workload in one mode, ready to be timed; how long its first step and its preparation took."""
    w = next(w for w in SETS[request["set"]] if w.name == request["workload"])
    start = time.perf_counter()
    ready: Prepared = library.prepare(w, request["mode"], device, request["policy"])
    ready.run()
    ready.wait()
    first = time.perf_counter() - start
    for _ in range(ready.warm_up):
        ready.run()
    ready.wait()
    took = time.perf_counter() - start
    return ready, {"first_step_s": first, "ready_s": took, "first_peak_bytes": ready.peak()}


def timed(ready: Prepared, seconds: float, settle: float) -> dict[str, Any]:
    """Times, the peak meanwhile, and the library's facts afterwards. settle: seconds of preceding runs, to get
    faster."""
    found = ready.settle(settle)
    ready.reset_peak()
    times, count = windows(ready, seconds)
    return {
        "median_ms": statistics.median(times),
        "quartiles_ms": statistics.quantiles(times, n=4)[::2],
        "windows": len(times),
        "iterations_per_window": count,
        "peak_bytes": ready.peak(),
        **found,
        **ready.after(),
    }


def main() -> None:
    """Answer requests until the input ends."""
    name, device = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries goes to stderr
    library = importlib.import_module(f"benchmarks.peer_{name}")
    print(MARK + json.dumps(library.warm(device)), file=answers, flush=True)
    ready: Prepared | None = None
    for line in sys.stdin:
        request, answer = json.loads(line), dict[str, Any]()
        try:
            if "workload" in request:
                ready = None
                gc.collect()
                ready, answer = prepared(library, request, device)
            if "seconds" in request:
                if ready is None:
                    raise LookupError("no workload is prepared")
                answer |= timed(ready, request["seconds"], request["settle"])
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
        gc.collect()
        print(MARK + json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
