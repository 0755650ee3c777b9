"""Lamina, PyTorch and JAX side by side: every workload in every library and mode, in one run.

    python -m benchmarks.suite                          on a GPU when there is one, else on the CPU
    python -m benchmarks.suite --only resnet50 alexnet --budget 500
    python -m benchmarks.suite --only resnet50-train-128 --first-step
    python -m benchmarks.suite --set cpu --rounds 3
    python -m benchmarks.suite --set modern --only train --tight --ahead 8 --budget 400

"lamina" is the default policy as at the first step, "lamina tuned" the same after at most `--settle` seconds of
training, while plans compete between steps, "lamina fastest" times all candidates before its first step; each has a
cache of its own.
Inputs are random and reside on the device, in the layout preferred by each library. A time is the median over
windows: each queues iterations for at least 20 ms and ends when the device is done. Each library runs in a process of
its own that takes one workload after another; the libraries alternate. With `--ahead N` this many cases at a time,
each in a process of its own, are prepared concurrently; then each is timed while the others wait. The result file is
written after every case, so an interrupted run (or one whose budget is spent) keeps its results; `--merge FILE`
continues from it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import workloads
from benchmarks.common import processor, write
from benchmarks.worker import MARK
from benchmarks.workloads import SETS, Workload
from lamina.runtime.cache import cache_directory

ON_GPU = {
    "train": (
        "lamina",
        "lamina fastest",
        "torch captured-amp",
        "torch captured-compile-amp",
        "torch captured",
        "jax",
        "torch eager-amp",
        "torch eager",
        "torch compile-amp",
        "torch reduce-overhead-amp",
    ),
    "both": (
        "lamina",
        "lamina fastest",
        "torch captured",
        "torch captured-compile",
        "jax",
        "torch eager",
        "torch compile",
        "torch reduce-overhead",
    ),
}
ON_GPU["infer"] = ON_GPU["both"]
#: Lamina by default, and the mode that is nearly always PyTorch's best.
TIGHT = {
    "train": ("lamina", "torch reduce-overhead-amp"),
    "both": ("lamina", "torch reduce-overhead"),
    "infer": ("lamina", "torch reduce-overhead"),
}
ON_CPU = ("lamina", "torch eager", "torch eager-nchw")
TUNED, SETTLED = "lamina fastest", "lamina tuned"
#: The cache of each library, below the folder of caches.
CACHES = {
    "LAMINA_CACHE": "lamina",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "JAX_COMPILATION_CACHE_DIR": "jax",
    "CUDA_CACHE_PATH": "cuda",
}


class Worker:
    """A process in which one library is measured."""

    def __init__(self, library: str, device: str, python: str, environment: dict[str, str]) -> None:
        self.before = device_used() if device == "cuda" else None
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.worker", library, device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if not os.environ.get("LAMINA_BENCH_VERBOSE") else None,
            env=environment,
            text=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.facts = self._answer(180)

    def ask(self, request: dict[str, Any], limit: float) -> dict[str, Any]:
        """The answer, or {"error": …} if the process ended or did not answer within `limit` seconds."""
        assert self._process.stdin is not None
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
        except OSError:
            return {"error": "the process ended"}
        return self._answer(limit)

    @property
    def alive(self) -> bool:
        """Whether the process can take another request."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._lines.put(line)
        except ValueError:  # closed while it was read
            pass
        self._lines.put(None)

    def _answer(self, limit: float) -> dict[str, Any]:
        end = time.monotonic() + limit
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                self.close()
                return {"error": f"no answer within {limit:.0f} s"}
            if line is None:
                self._process.wait()
                return {"error": f"the process ended with status {self._process.returncode}"}
            if line.startswith(MARK):
                answer: dict[str, Any] = json.loads(line.removeprefix(MARK))
                return answer


class Pool:
    """One worker per library, started at its first request and again after a failure."""

    def __init__(self, options: argparse.Namespace, device: str) -> None:
        self.options, self.device, self.caches = options, device, options.caches
        self.facts: dict[str, dict[str, Any]] = {}
        self._workers: dict[str, Worker] = {}
        self._pythons = dict(entry.split("=", 1) for entry in options.python)
        self._timing = {"seconds": options.seconds, "settle": options.settle}

    def ask(self, w: Workload, peer: str, limit: float) -> dict[str, Any]:
        """Measure a workload with a peer."""
        if self.options.isolate or self.options.first_step:
            self.close()
        # Lamina's policies do not share a process, so that one does not see another's timings.
        worker = self._worker(peer if peer.startswith("lamina") else peer.partition(" ")[0], peer)
        if "error" in worker.facts:
            return worker.facts
        answer = worker.ask(self._request(w, peer) | self._timing, limit)
        used = device_used()
        if self.options.isolate and worker.before is not None and used is not None:
            answer["process_bytes"] = used - worker.before
        return answer

    def ask_all(
        self, cases: Sequence[tuple[Workload, str]], limit: float
    ) -> Iterator[tuple[Workload, str, dict[str, Any]]]:
        """Prepare cases concurrently, each in a process of its own; then measure one after another."""

        def prepare(w: Workload, peer: str) -> tuple[Worker, dict[str, Any]]:
            worker = self._worker(f"{peer} {w.name}", peer)
            ready = worker.facts if "error" in worker.facts else worker.ask(self._request(w, peer), limit)
            return worker, ready | {"beside": len(cases) - 1}

        with ThreadPoolExecutor(len(cases)) as threads:
            made = list(threads.map(lambda case: prepare(*case), cases))
        for (w, peer), (worker, ready) in zip(cases, made, strict=True):
            if "error" not in ready:
                ready |= worker.ask(self._timing, limit)
            yield w, peer, ready
            self.close(f"{peer} {w.name}")

    def close(self, name: str | None = None) -> None:
        """End one worker, or all."""
        for each in [name] if name else list(self._workers):
            self._workers.pop(each).close()

    def _request(self, w: Workload, peer: str) -> dict[str, Any]:
        """A worker's preparation request."""
        library, _, mode = peer.partition(" ")
        asked = {"workload": w.name, "set": self.options.set, "policy": self.options.policy}
        return asked | {"mode": mode or library}

    def _worker(self, name: str, peer: str) -> Worker:
        """The process of a name, started for this peer unless it is running."""
        if name in self._workers and not self._workers[name].alive:
            self.close(name)
        if name not in self._workers:
            library = peer.partition(" ")[0]
            python = self._pythons.get(library, sys.executable)
            self._workers[name] = Worker(library, self.device, python, self._environment(peer))
            self.facts[library] = self._workers[name].facts
        return self._workers[name]

    def _environment(self, peer: str) -> dict[str, str]:
        added = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        if self.device == "cpu":
            added |= {"OMP_NUM_THREADS": str(self.options.threads), "JAX_PLATFORMS": "cpu"}
        if self.options.ahead:  # cores are shared by this many compiling processes
            share = len(os.sched_getaffinity(0)) // self.options.ahead
            added["TORCHINDUCTOR_COMPILE_THREADS"] = str(max(2, share))
        if self.caches is not None:
            added |= {name: str(Path(self.caches).absolute() / part) for name, part in CACHES.items()}
        if peer.startswith("lamina "):
            base = Path(added.get("LAMINA_CACHE") or cache_directory())
            added["LAMINA_CACHE"] = str(base / f"suite-{peer.partition(' ')[2]}")
        return os.environ | added


def device_used() -> int | None:
    """Bytes in use on the first GPU, by nvidia-smi."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    try:
        done = subprocess.run(query, check=True, capture_output=True, text=True, timeout=20)
        return int(done.stdout.split()[0]) << 20
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def cold_and_warm(pool: Pool, w: Workload, peer: str, limit: float) -> dict[str, Any]:
    """The same case twice in new processes: with empty caches, and with those left by the first one."""
    folder = tempfile.mkdtemp(prefix="lamina-bench-")
    pool.caches = folder
    try:
        cold = pool.ask(w, peer, limit)
        warm = pool.ask(w, peer, limit) if "error" not in cold else cold
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    names = ("first_step_s", "ready_s")
    return warm | {f"cold_{n}": cold[n] for n in names if n in cold}


def summary(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The best peer of a workload, Lamina's speedup over it, and its fraction of the roofline.

    regret: the time by default over that with everything timed before; speedup_tuned is of the latter,
    speedup_settled of the result of tuning between steps.
    """
    times = {peer: r["median_ms"] for peer, r in results.items() if "median_ms" in r}
    ours, tuned, settled = (times.pop(peer, None) for peer in ("lamina", TUNED, SETTLED))
    times = {peer: t for peer, t in times.items() if not peer.startswith("lamina")}
    found: dict[str, Any] = {}
    if times:
        best = min(times, key=lambda peer: times[peer])
        found |= {"best_peer": best, "best_peer_ms": times[best]}
    if ours and times:
        found["speedup"] = found["best_peer_ms"] / ours
    if tuned and times:
        found["speedup_tuned"] = found["best_peer_ms"] / tuned
    if settled and times:
        found["speedup_settled"] = found["best_peer_ms"] / settled
    if ours and tuned:
        found["regret"] = ours / tuned
    limit = results.get("lamina", {}).get("limit_ms")
    if ours and limit:
        found |= {"limit_ms": limit, "fraction_of_limit": limit / ours}
    return found


def mean_of(cases: Iterable[dict[str, Any]], name: str) -> float | None:
    """The geometric mean of a figure over the cases that have it."""
    values = [c[name] for c in cases if name in c]
    return statistics.geometric_mean(values) if values else None


class Record:
    """The result file."""

    def __init__(self, options: argparse.Namespace, device: str) -> None:
        self.name = f"suite_{options.set}" + "_start" * options.first_step
        self.folder, self._seen = options.out, set[tuple[str, str]]()
        self.cases: dict[str, dict[str, Any]] = {}
        self.head: dict[str, Any] = {
            "what": "milliseconds per iteration, medians of windows; inputs on the device"
            + "; a new process for every case" * (options.isolate or bool(options.ahead))
            + "; cases are prepared beside others, which counts in first steps" * bool(options.ahead),
            "processor": processor(),
            "threads": options.threads if device == "cpu" else None,
            "policy": options.policy,
        }
        if options.merge:
            self.cases = {c["name"]: c for c in json.loads(options.merge.read_text())["cases"]}

    def add(self, w: Workload, peer: str, answer: dict[str, Any]) -> None:
        """Add a result; several rounds of one case become the median of their medians.

        An earlier run's result is replaced.
        """
        case = self.cases.setdefault(w.name, asdict(w) | {"results": {}})
        known = case["results"].get(peer, {}) if (w.name, peer) in self._seen else {}
        self._seen.add((w.name, peer))
        rounds = known.get("rounds_ms", [])
        if "median_ms" in answer:
            answer["rounds_ms"] = [*rounds, answer["median_ms"]]
            answer["median_ms"] = statistics.median(answer["rounds_ms"])
        if "median_ms" in answer or not rounds:
            case["results"][peer] = answer
        case |= summary(case["results"])

    def write(self, facts: dict[str, dict[str, Any]]) -> Path:
        """Write all results."""
        devices = [f["device"] for f in facts.values() if "device" in f]
        cases = self.cases.values()
        record = self.head | {
            "device": devices[-1] if devices else None,
            "cudnn": next((f["cudnn"] for f in facts.values() if "cudnn" in f), None),
            "versions": {k: v for f in facts.values() for k, v in f.get("versions", {}).items()},
            "geometric_mean": mean_of(cases, "speedup"),
            "geometric_mean_tuned": mean_of(cases, "speedup_tuned"),
            "geometric_mean_settled": mean_of(cases, "speedup_settled"),
            "regret": mean_of(cases, "regret"),
            "cases": list(cases),
        }
        return write(self.name, record, self.folder)


def chosen(options: argparse.Namespace, device: str) -> Iterator[tuple[Workload, str]]:
    """Every selected workload with every peer, in every round."""
    for _, w in itertools.product(range(options.rounds), SETS[options.set]):
        if options.only and not any(part in w.name for part in options.only):
            continue
        usual = (TIGHT if options.tight else ON_GPU)[w.kind] if device == "cuda" else ON_CPU
        for peer in options.peers or usual:
            yield w, peer


def line(w: Workload, peer: str, answer: dict[str, Any]) -> str:
    """One result as text."""
    if "error" in answer:
        return f"{w.name:24s} {peer:26s} {answer['error'].splitlines()[0][:100]}"
    limit = answer.get("limit_ms")
    parts = [
        f"{w.name:24s} {peer:26s} {answer['median_ms']:9.3f} ms",
        f"first step {answer['first_step_s']:6.1f} s",
        f"cold {answer['cold_first_step_s']:6.1f} s" if "cold_first_step_s" in answer else "",
        f"{answer['kernels']:5d} kernels" if "kernels" in answer else "",
        f"peak {answer['peak_bytes'] / 2**20:8.0f} MiB" if answer.get("peak_bytes") else "",
        f"{limit / answer['median_ms']:.0%} of roofline" if limit else "",
        f"tuned in {answer['settle_s']:.0f} s: {answer['tuning']}" if "tuning" in answer else "",
    ]
    return "  ".join(p for p in parts if p)


def answers(
    pool: Pool, options: argparse.Namespace, device: str
) -> Iterator[tuple[Workload, str, dict[str, Any]]]:
    """Measure all selected cases, until the budget is spent."""
    end = time.monotonic() + options.budget
    cases = list(chosen(options, device))
    size = options.ahead or 1
    for group in (cases[i : i + size] for i in range(0, len(cases), size)):
        left = end - time.monotonic()
        limit = min(options.limit, left)
        if left < 5:
            for w, peer in group:
                print(f"{w.name:24s} {peer:26s} left out: the budget is spent", flush=True)
        elif options.ahead:
            yield from pool.ask_all(group, limit)
        else:
            (w, peer), measure = group[0], cold_and_warm if options.first_step else Pool.ask
            yield w, peer, measure(pool, w, peer, limit)


def run(options: argparse.Namespace) -> int:
    """Measure all selected cases; the exit status says whether Lamina failed anywhere."""
    device = "cuda" if options.set in workloads.ON_GPU else "cpu"
    pool, record = Pool(options, device), Record(options, device)
    failed, path = 0, None
    try:
        for w, peer, answer in answers(pool, options, device):
            failed |= peer.startswith("lamina") and "error" in answer
            record.add(w, peer, answer)
            path = record.write(pool.facts)
            print(line(w, peer, answer), flush=True)
    finally:
        pool.close()
    for case in record.cases.values():
        print(verdict(case))
    print(path)
    return int(failed)


def verdict(case: dict[str, Any]) -> str:
    """The comparison of a workload as text."""
    parts = [
        f"{case['name']:24s}",
        f"{case['speedup']:5.2f} × {case['best_peer']:26s}" if "speedup" in case else "",
        f"tuned {case['speedup_tuned']:5.2f} ×" if "speedup_tuned" in case else "",
        f"after tuning between steps {case['speedup_settled']:5.2f} ×" if "speedup_settled" in case else "",
        f"regret {case['regret']:5.2f}" if "regret" in case else "",
    ]
    return "  ".join(p for p in parts if p)


def main(arguments: list[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--set", choices=SETS, help="which workloads (default: gpu where a GPU is, else cpu)")
    add("--only", nargs="+", help="workloads whose name contains one of these")
    add("--peers", nargs="+", help='such as lamina jax "torch eager-amp" (default: all that suit)')
    add("--seconds", type=float, default=0.6, help="measuring time per case (default: 0.6)")
    add("--settle", type=float, default=60.0, help='most seconds of training before "lamina tuned" is timed')
    add("--rounds", type=int, default=1, help="go through everything so many times")
    add("--budget", type=float, default=1e9, help="seconds for the whole run")
    add("--limit", type=float, default=240, help="seconds for one case (default: 240)")
    add(
        "--isolate",
        action="store_true",
        help="a new process for every case; records what it takes of the GPU",
    )
    add("--first-step", action="store_true", help="every case from empty caches, then from warm ones")
    add("--tight", action="store_true", help="Lamina by default and torch.compile's reduce-overhead alone")
    add("--ahead", type=int, default=0, metavar="N", help="prepare so many cases beside each other")
    add("--policy", default="auto", help='how "lamina" chooses kernels (default: auto, as a user has it)')
    add("--caches", type=Path, help="folder for what the libraries compile (default: their own)")
    add("--threads", type=int, default=2, help="on a CPU (default: 2)")
    add("--python", nargs="*", default=[], metavar="LIBRARY=FILE", help="another interpreter for a library")
    add("--merge", type=Path, help="a result file to go on from")
    add("--out", type=Path, help="folder for the result file")
    options = parser.parse_args(arguments)
    options.set = options.set or ("cpu" if device_used() is None else "gpu")
    if options.ahead and (options.first_step or options.isolate):
        parser.error("--ahead has a process for every case, and its first steps are beside others")
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
