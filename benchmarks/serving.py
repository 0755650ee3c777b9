"""Serving performance: threads, batches, cancellations, and the first answer of a saved plan.

    python -m benchmarks.serving [--device cuda] [--network resnet50] [--precision bf16] [--host] [--out DIR]

One network answers requests of one sample: from one thread; from several threads, each request alone; from several
threads, batched, by calls and by `submit` with several requests in flight. Every answer is compared
bitwise with that of one thread of the same Inferer. Then requests are canceled at random, and counted: none
may be lost or answered twice. Then the plan is saved, and
processes are started that load it: seconds from the start of the process to its first answer, part by part. The
host's share: microseconds of calls on a tiny network, and its throughput for threads with a sleeping stand-in
for the device; on a GPU also the driver's share (`--host`: only these). If
PyTorch is installed, it serves the same network, eagerly and as CUDA graphs. With `--out` (or `--json`, into
benchmarks/results/) everything is written as JSON. The exit status is 1 if an answer was wrong, lost or repeated.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import lamina as lm
from benchmarks.common import processor, versions, write
from benchmarks.networks import NETWORKS
from benchmarks.workloads import images
from lamina import nn, ops, optim
from lamina.infer import Inferer, Predictor
from lamina.infer.programs import ServedProgram

Array = np.ndarray[Any, Any]
Record = dict[str, Any]

#: Number of inputs whose answers are compared.
_INPUTS = 16
#: Calls in a round of the host's time; samples and seconds of a stand-in's run.
_CALLS, _BATCH, _RUN_SECONDS = 10, 8, 6e-4
#: Requests of `submit` that a thread has in flight.
_IN_FLIGHT = 4
_NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet50": (nn.resnet50, (3, 224, 224)),
    "resnet18": (nn.resnet18, (3, 224, 224)),
    "lenet": (lambda: nn.LeNet(in_channels=1, num_classes=10), (1, 28, 28)),
}


class Load:
    """Threads that send requests one after another, each as soon as the last is answered."""

    def __init__(
        self, ask: Callable[[Array], Array], inputs: Sequence[Array], wanted: Sequence[bytes] | None
    ) -> None:
        self.ask, self.inputs, self.wanted = ask, inputs, wanted
        self.answers, self.wrong = 0, 0
        self.behind = 0  # an answer is that of the request this many before
        self._lock = threading.Lock()

    def run(self, threads: int, seconds: float) -> float:
        """Send requests for this many seconds; answers per second."""
        start = threading.Barrier(threads + 1)
        workers = [threading.Thread(target=self._work, args=(k, start, seconds)) for k in range(threads)]
        for worker in workers:
            worker.start()
        start.wait()
        begin = time.perf_counter()
        for worker in workers:
            worker.join()
        return self.answers / (time.perf_counter() - begin)

    def _work(self, k: int, start: threading.Barrier, seconds: float) -> None:
        answers, wrong, i = 0, 0, k
        start.wait()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            found = self.ask(self.inputs[i % len(self.inputs)])
            if self.wanted is not None:
                asked = max(k, i - self.behind)
                wrong += np.asarray(found).tobytes() != self.wanted[asked % len(self.inputs)]
            answers, i = answers + 1, i + 1
        with self._lock:
            self.answers += answers
            self.wrong += wrong


def asking(inferer: Inferer, in_flight: int) -> Callable[[Array], Array]:
    """The request function of a thread: a call (0), or `submit` with this many requests in flight, which waits for
    the
    oldest: the answer is that of the request so many before, at first of the first one."""
    local = threading.local()

    def ask(x: Array) -> Array:
        if not in_flight:
            return inferer(x).numpy()  # type: ignore[no-any-return]
        if not hasattr(local, "waiting"):
            local.waiting = deque(inferer.submit(x) for _ in range(in_flight - 1))
        local.waiting.append(inferer.submit(x))
        return local.waiting.popleft().result().numpy()  # type: ignore[no-any-return]

    return ask


def served(
    inferer: Inferer, inputs: Sequence[Array], threads: int, seconds: float, in_flight: int = 0
) -> Record:
    """Throughput, latency and wrong answers of an Inferer under this many threads, which call, or have this many
    requests of `submit` in flight."""
    wanted = [inferer(x).numpy().tobytes() for x in inputs]
    Load(asking(inferer, in_flight), inputs, None).run(threads, min(0.5, seconds))  # creates every context
    inferer.reset_statistics()
    load = Load(asking(inferer, in_flight), inputs, wanted)
    load.behind = max(0, in_flight - 1)
    per_second = load.run(threads, seconds)
    found = inferer.statistics()
    latency = {
        name: round(found.record[name], 3) for name in ("mean_ms", "p50_ms", "p95_ms", "p99_ms", "fill")
    }
    return {"threads": threads, "per_second": round(per_second, 1), **latency, "other_bits": load.wrong}


def cancelled(inferer: Inferer, inputs: Sequence[Array], threads: int, requests: int) -> Record:
    """Requests of which some are canceled at random: how many ended how, were lost, or were answered repeatedly."""
    wanted = [inferer(x).numpy().tobytes() for x in inputs]
    told = [[0] * (requests // threads) for _ in range(threads)]
    counts = {"answered": 0, "cancelled": 0, "lost": 0, "wrong": 0}
    lock = threading.Lock()

    def work(k: int) -> None:
        rng, futures = np.random.default_rng(k), []
        mine = dict.fromkeys(counts, 0)
        for i in range(requests // threads):
            future = inferer.submit(inputs[i % len(inputs)])
            future.add_done_callback(lambda f, i=i: told[k].__setitem__(i, told[k][i] + 1))  # type: ignore[misc]
            futures.append(future)
            if rng.random() < 0.3:
                futures[rng.integers(max(0, i - 20), i + 1)].cancel()
        for i, future in enumerate(futures):
            if future.cancelled():
                mine["cancelled"] += 1
                continue
            try:
                answer = future.result(60).numpy().tobytes()
            except TimeoutError:
                mine["lost"] += 1
                continue
            mine["answered"] += 1
            mine["wrong"] += answer != wanted[i % len(inputs)]
        with lock:
            for name, count in mine.items():
                counts[name] += count

    begin = time.perf_counter()
    workers = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - begin
    twice = sum(n > 1 for row in told for n in row)
    never = sum(n == 0 for row in told for n in row)
    return {"requests": threads * (requests // threads), **counts, "told_twice": twice, "never_told": never,
            "seconds": round(seconds, 2)}  # fmt: skip


# ------------------------------------------------------------------------------------------- a process that answers

CHILD = """
import sys, time
begun = float(sys.argv[1])
marks = [("python", time.time())]
import numpy as np
marks.append(("numpy", time.time()))
import lamina as lm
load = lm.infer.load
marks.append(("lamina", time.time()))
inferer = load(sys.argv[2])
marks.append(("load", time.time()))
x = np.load(sys.argv[3])
y = inferer(x)
marks.append(("answer", time.time()))
for _ in range(3):
    z = inferer(x)
marks.append(("three more", time.time()))
import json
same = y.tobytes() == np.load(sys.argv[4]).tobytes() == z.tobytes()
seconds, last = {}, begun
for name, mark in marks:
    seconds[name], last = round(mark - last, 4), mark
print(json.dumps({"seconds": seconds, "first_answer_s": round(dict(marks)["answer"] - begun, 4), "same_bits": same}))
"""


def first_answers(inferer: Inferer, x: Array, runs: int, *, portable: bool) -> Record:
    """Save the plan; seconds from the start of a process to its first answer from it, and its parts."""
    wanted = inferer(x).numpy()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as in an installed package
    with tempfile.TemporaryDirectory() as folder:
        plan, given, answer = (str(Path(folder) / name) for name in ("plan", "x.npy", "y.npy"))
        environment["PYTHONPYCACHEPREFIX"] = str(Path(folder) / "bytecode")
        begin = time.perf_counter()
        inferer.save(plan, portable=portable)
        saving = time.perf_counter() - begin
        np.save(given, x)
        np.save(answer, wanted)
        found = []
        for _ in range(runs + 1):  # the first one compiles Python's files
            command = [sys.executable, "-c", CHILD, str(time.time()), plan, given, answer]
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            if done.returncode:
                return {"error": done.stderr[-2000:]}
            found.append(json.loads(done.stdout))
        found = found[1:]
        parts = {name: median(f["seconds"][name] for f in found) for name in found[0]["seconds"]}
        return {
            "portable": portable,
            "file_bytes": Path(plan).stat().st_size,
            "save_s": round(saving, 3),
            "first_answer_s": {"median": median(f["first_answer_s"] for f in found),
                               "least": min(f["first_answer_s"] for f in found)},
            "parts_s": parts,
            "same_bits": all(f["same_bits"] for f in found),
        }  # fmt: skip


# ------------------------------------------------------------------------------------------------------- the host


def host_microseconds(device: str, seconds: float) -> Record:
    """Host time per call on a tiny network, in microseconds, over rounds; the queue is synchronized between them,
    and within a call only if its results go to the host. On a CPU OMP_NUM_THREADS=1 excludes its threads' waits.
    """
    nn.manual_seed(0)
    x, labels = np.zeros((2, 8), np.float32), np.zeros(2, np.int64)
    given, targets = (lm.tensor(a, device=device) for a in (x, labels))
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    predictor, function = Predictor(net, device=device), lm.jit(lambda a, b: ops.relu(a) + b, device=device)
    chain = lm.jit(_chain, device=device)
    trained = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    step = lm.train_step(trained, ops.cross_entropy, optim.SGD(lr=1e-3), device=device)
    with Inferer(net, device=device) as inferer:
        cases: dict[str, Callable[[], Any]] = {
            "Predictor, tensors on the device": lambda: predictor(given),
            "Predictor, from and to host arrays": lambda: predictor(x).numpy(),
            "Inferer, one thread": lambda: inferer(x).numpy(),
            "compiled function, tensors on the device": lambda: function(given, given),
            "compiled function of a few kernels": lambda: chain(given),
            "training step, tensors on the device": lambda: step(given, targets),
            "training step, host arrays": lambda: step(x, labels),
        }
        wait = lm.device(device).synchronize
        return {name: _microseconds(run, wait, seconds / 4) for name, run in cases.items()}


def driver_microseconds(seconds: float) -> Record:
    """The driver's share of that, on a GPU: the launch of a call's graph, updates of its copy nodes, a
    copy, and the wait for a finished one."""
    device = lm.device("cuda")
    given = [lm.tensor(np.zeros((64, 64), np.float32), device=device) for _ in range(2)]
    function = lm.jit(_chain, device=device)
    for _ in range(3):
        function(given[0])
    (captured,) = function.program(given[0])._contexts.items[0]._captured.values()
    ((_, copy),) = captured.arriving
    turns = itertools.cycle([x.buffer.pointer for x in given])
    transfer, stream, a, b = device.platform.copy, device.default_stream, *(x.buffer.pointer for x in given)
    cases: dict[str, Callable[[], Any]] = {
        "launch of a graph": captured.launch,
        "operand of a captured copy set": lambda: copy.read_from(next(turns)),
        "copy queued": lambda: transfer(a, b, 1 << 10, stream),
        "wait for what is done": stream.synchronize,
    }
    return {name: _microseconds(run, device.synchronize, seconds / 4) for name, run in cases.items()}


def _chain(x: Any) -> Any:
    """More kernels than are launched individually."""
    for _ in range(6):
        x = ops.cumsum(x, 1)
    return x


def _microseconds(run: Callable[[], Any], wait: Callable[[], None], seconds: float) -> Record:
    times, end = list[float](), time.perf_counter() + seconds
    while len(times) < 2 or time.perf_counter() < end:
        wait()
        begin = time.perf_counter()
        for _ in range(_CALLS):
            run()
        times.append((time.perf_counter() - begin) / _CALLS * 1e6)
    return {"median": round(median(times), 1), "least": round(min(times), 1)}


class StandIn:
    """Replaces a program's executable: takes some time without the GIL, as a device does, and returns existing
    outputs. Runs are queued: each begins when the one before it has ended."""

    def __init__(self, program: ServedProgram, seconds: float) -> None:
        self.device, self._seconds, self._turn = program.executable.device, seconds, threading.Lock()
        self._outputs, self._end = program.executable(*program.memory()), 0.0

    def __call__(self, *inputs: Any) -> Any:
        with self._turn:
            end = self._end = max(self._end, time.perf_counter()) + self._seconds
        time.sleep(max(0.0, end - time.perf_counter()))
        return self._outputs


def handed_over(threads: int, in_flight: int, seconds: float) -> Record:
    """Threads that request batches of 8 images, with a run of 0.6 ms: answers per second, also as a fraction of
    the rate of the runs alone; processor time, and how often a thread slept, per request.

    in_flight: requests of `submit` that each thread has at a time; 0: calls.
    """
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())  # requests share a run on every processor
    x = np.zeros((1, 3, 224, 224), np.float32)
    with Inferer(net, device="cpu", max_batch=_BATCH, max_wait_ms=2.0, contexts=2) as inferer:
        inferer(x)
        for program in inferer._programs.values():
            program.executable = StandIn(program, _RUN_SECONDS)
        inferer.reset_statistics()
        load, before = Load(asking(inferer, in_flight), [x], None), resource.getrusage(resource.RUSAGE_SELF)
        per_second = load.run(threads, seconds)
        after = resource.getrusage(resource.RUSAGE_SELF)
        busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {
            "threads": threads,
            "in_flight": in_flight,
            "per_second": round(per_second),
            "of_the_runs_alone": round(per_second * _RUN_SECONDS / _BATCH, 3),
            "fill": round(inferer.statistics().fill, 2),
            "processor_us": round(busy / load.answers * 1e6, 1),
            "sleeps": round((after.ru_nvcsw - before.ru_nvcsw) / load.answers, 2),
        }


# ------------------------------------------------------------------------------------------------------- PyTorch


def by_torch(options: argparse.Namespace, inputs: Sequence[Array]) -> Record:
    """The same network served by PyTorch: one thread and several, eagerly, and on a GPU as CUDA graphs."""
    torch = importlib.import_module("torch")
    peer = importlib.import_module("benchmarks.peer_torch")

    where = torch.device(options.device)
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(options.precision, torch.float32)
    net = peer.model(images(options.network, "infer", 1)).to(where, half).eval()
    if where.type == "cuda":
        net = net.to(memory_format=torch.channels_last)

    def eager(x: Array) -> Array:
        with torch.inference_mode():
            found: Array = net(torch.from_numpy(x).to(where, half)).float().cpu().numpy()
            return found

    record: Record = {}
    for name, threads in (("eager, one thread", 1), ("eager, threads", options.threads)):
        Load(eager, inputs, None).run(threads, 0.5)
        record[name] = round(Load(eager, inputs, None).run(threads, options.seconds), 1)
        print(f"torch {name}: {record[name]} a second", flush=True)
    if where.type == "cuda":
        record["CUDA graph, one thread"] = round(_graphed(torch, net, where, half, inputs, options), 1)
        print(f"torch CUDA graph, one thread: {record['CUDA graph, one thread']} a second", flush=True)
    return record


def _graphed(
    torch: Any, net: Any, where: Any, half: Any, inputs: Sequence[Array], options: argparse.Namespace
) -> float:
    """Answers per second of one thread that replays a CUDA graph."""
    given = torch.empty((1, *inputs[0].shape[1:]), dtype=half, device=where)
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                net(given)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            made = net(given)

    def replay(x: Array) -> Array:
        with torch.inference_mode():
            given.copy_(torch.from_numpy(x))
            graph.replay()
            found: Array = made.float().cpu().numpy()
            return found

    Load(replay, inputs, None).run(1, 0.5)
    return Load(replay, inputs, None).run(1, options.seconds)


# ---------------------------------------------------------------------------------------------------------- main


def measured(options: argparse.Namespace) -> Record:
    """All measurements, printed as they come."""
    make, shape = _NETWORKS[options.network]
    nn.manual_seed(0)
    net = make()
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((1, *shape)).astype(np.float32) for _ in range(_INPUTS)]
    more: Record = {"device": options.device, "precision": options.precision}
    record: Record = {}
    with Inferer(net, **more) as alone:
        record["one thread"] = served(alone, inputs, 1, options.seconds)
        print(f"one thread: {record['one thread']}", flush=True)
        record["threads"] = served(alone, inputs, options.threads, options.seconds)
        print(f"threads: {record['threads']}", flush=True)
        for portable in (False, True):
            name = "saved plan" if not portable else "saved plan, portable"
            record[name] = first_answers(alone, inputs[0], options.runs, portable=portable)
            print(f"{name}: {record[name]}", flush=True)
    with Inferer(net, max_batch=options.threads, max_wait_ms=options.max_wait_ms, **more) as gathered:
        record["threads, batches"] = served(gathered, inputs, options.threads, options.seconds)
        print(f"threads, batches: {record['threads, batches']}", flush=True)
        record["threads, batches, submitted"] = served(
            gathered, inputs, options.threads, options.seconds, _IN_FLIGHT
        )
        print(f"threads, batches, submitted: {record['threads, batches, submitted']}", flush=True)
        record["cancelled"] = cancelled(gathered, inputs, options.threads, options.requests)
        print(f"cancelled: {record['cancelled']}", flush=True)
        record["gathers"] = all(p.together for p in gathered._programs.values())
    one = record["one thread"]["per_second"]
    record["times_one_thread"] = {
        name: round(record[name]["per_second"] / one, 2)
        for name in ("threads", "threads, batches", "threads, batches, submitted")
    }
    print(f"times one thread: {record['times_one_thread']}", flush=True)
    return record | host_part(options)


def host_part(options: argparse.Namespace) -> Record:
    """Only the host's share, printed as it comes."""
    record: Record = {"host_us": host_microseconds(options.device, options.seconds)}
    print(f"host, us: {record['host_us']}", flush=True)
    if options.device != "cpu":
        record["driver_us"] = driver_microseconds(options.seconds)
        print(f"the driver's part, us: {record['driver_us']}", flush=True)
    record["stand-in"] = [handed_over(options.threads, n, options.seconds) for n in (0, _IN_FLIGHT)]
    print(f"a device that sleeps: {record['stand-in']}", flush=True)
    return record


def failures(record: Record) -> list[str]:
    """Violations."""
    found = [name for name, r in record.items() if isinstance(r, dict) and r.get("other_bits")]
    found += [name for name, r in record.items() if name.startswith("saved") and not r.get("same_bits")]
    counts = record["cancelled"]
    found += [name for name in ("lost", "wrong", "told_twice", "never_told") if counts[name]]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if an answer was wrong, lost or repeated."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if lm.device("auto").kind == "cuda" else "cpu")
    parser.add_argument("--network", choices=_NETWORKS, default="resnet50")
    parser.add_argument("--precision", help="default: bf16 on a GPU, fp32 on a CPU")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--max-wait-ms", type=float, default=2.0)
    parser.add_argument("--requests", type=int, default=10_000, help="of which some are cancelled")
    parser.add_argument("--runs", type=int, default=5, help="processes that answer from the saved plan")
    parser.add_argument("--host", action="store_true", help="the host's part alone")
    parser.add_argument("--no-torch", action="store_true", help="leave PyTorch out")
    parser.add_argument("--json", action="store_true", help="write to benchmarks/results/")
    parser.add_argument("--out", type=Path, help="the folder for the JSON instead")
    options = parser.parse_args(arguments)
    options.precision = options.precision or ("fp32" if options.device == "cpu" else "bf16")
    begin = time.perf_counter()
    record = host_part(options) if options.host else measured(options)
    wrong = [] if options.host else failures(record)
    if not (options.no_torch or options.host) and options.network in NETWORKS:
        try:
            rng = np.random.default_rng(0)
            shape = _NETWORKS[options.network][1]
            inputs = [rng.standard_normal((1, *shape)).astype(np.float32) for _ in range(_INPUTS)]
            record["torch"] = by_torch(options, inputs)
        except ImportError as error:
            print(f"without PyTorch: {error}", flush=True)
    facts = {
        "what": f"serving {options.network} in {options.precision}: answers a second, ms; seconds of a first answer",
        "device": lm.device(options.device).name,
        "processor": processor(),
        "versions": versions(["lamina", "nvidia-cudnn-cu13", "onednn-cpu-gomp", "torch"]),
        "seconds": round(time.perf_counter() - begin, 1),
    }
    print(
        f"in {facts['seconds']} s; " + (f"wrong: {', '.join(wrong)}" if wrong else "nothing wrong"),
        flush=True,
    )
    if options.json or options.out:
        print(write("serving", {**facts, **record}, options.out))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
