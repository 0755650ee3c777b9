"""Breakdown of the time to the first step with empty caches: planning, cuDNN's plans, kernel compilation.

    python -m benchmarks.cold_start resnet50-train-128 vit_s_16-train-128       planned for an H200; no GPU is needed
    python -m benchmarks.cold_start efficientnet_b0-train-128 --device cuda      and run on a GPU

Workloads are those of the suite; each is planned in a process of its own. `--again` repeats it in a
process that finds the caches of the first one (parts that take less than 0.3 s to plan are not cached). `--serial`
compiles kernels one by one after planning, for comparison. Seconds of parts are nested (plans
are made in passes and in layouts), and those of threads are summed. Without a GPU it needs cuDNN, NVRTC, and a
libcuda with or without devices.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import lamina as lm
from benchmarks import peer_lamina
from benchmarks.common import processor, versions, write
from benchmarks.workloads import SETS, Workload
from lamina.backends import Plan
from lamina.backends.cuda.cuda_backend import CudaBackend, planned_by
from lamina.backends.cuda.launch.program import Launch, Launches, Program, SubPlan, Together
from lamina.cudnn import engine
from lamina.cudnn import graph as cudnn_graph
from lamina.graph import Executable, Graph, compile
from lamina.graph.planning.layout import Plans
from lamina.graph.run import context, executable, remembered
from lamina.nn import init
from lamina.runtime import Device, Machine, kernel
from lamina.spec import Spec, as_dtype, int64
from lamina.train import compiled_step as training

#: Timed functions: name -> (where it is looked up, its name there).
PARTS: dict[str, tuple[Any, str]] = {
    "compile": (Executable, "__init__"),
    "passes": (executable, "optimize"),
    "layouts": (executable, "plan_graph"),
    "heuristics": (engine.OperationGraph, "heuristic"),
    "cudnn plans": (cudnn_graph, "attempt"),
    "cudnn rebuilt": (cudnn_graph.Graph, "rebuild"),
    "own kernels": (kernel, "_compile"),
    "question": (executable, "question"),
    "read from disk": (remembered, "recall"),
    "weights": (Executable, "load"),
    "binding": (context.ExecutionContext, "_bound_runs"),
    "modules": (kernel.KernelModule, "__init__"),
}


@contextmanager
def clocks() -> Iterator[dict[str, list[float]]]:
    """Within the block each part's calls are counted and timed, in all threads: name -> [calls, seconds]."""
    found: dict[str, list[float]] = {name: [0, 0.0] for name in PARTS}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                found[name][0] += 1
                found[name][1] += time.perf_counter() - start

        return call

    with ExitStack() as patches:
        for name, (owner, attribute) in PARTS.items():
            function = getattr(owner, attribute)
            patches.enter_context(mock.patch.object(owner, attribute, timed(name, function)))
        yield found


def programs(plan: Plan) -> Iterator[Program]:
    """Lamina's kernels launched by a plan."""
    if isinstance(plan.make, Launches):
        for step in plan.make.steps:
            if isinstance(step, Launch | Together):
                yield step.program
            elif isinstance(step, SubPlan):
                yield from programs(step.plan)


class _Planned(Exception):
    """Raised after planning: the training step is not needed."""


def planned(w: Workload, device: Device) -> Executable:
    """The workload's program for an absent device."""
    made: list[Executable] = []

    def compiled(graph: Graph, _: Any, **options: Any) -> Executable:
        given = {k: v for k, v in options.items() if k != "backend"}
        made.append(compile(graph, device, **given))
        raise _Planned

    with init.skipped():
        net = peer_lamina.model(w).train(w.kind != "infer")
        if w.kind != "train":
            return compile(peer_lamina.graph(w, peer_lamina.lowered(net, w)), device)
        with mock.patch.object(training, "compile", compiled):
            sgd = lm.optim.SGD(lr=0.01, momentum=0.9, weight_decay=5e-4)
            step = lm.train_step(net, partial(peer_lamina.loss, w), sgd, device="cpu", precision=w.dtype)
            assert w.labels is not None
            given = int64 if w.takes_ids else as_dtype(peer_lamina.DTYPES[w.dtype])
            with suppress(_Planned):
                step.program(Spec(w.shape, given), Spec(w.labels, int64))
    return made[0]


def without_gpu(w: Workload, serial: bool) -> dict[str, Any]:
    """Plan a workload, and compile its kernels: concurrently with planning, or one by one after it."""
    device = Device("cuda", machine=Machine.named("h200"))

    def begun(self: Plans, plan: Plan) -> Plan:
        if not serial:
            plan.compile_ahead()
        return plan

    def kept(self: CudaBackend) -> dict[str, Any]:
        return planned_by(self.device)

    start, worked = time.perf_counter(), time.process_time()
    with (
        mock.patch.object(Plans, "_begun", begun),
        mock.patch.object(CudaBackend, "remembered_by", kept),
    ):
        program = planned(w, device).program
    ready, planning = time.perf_counter(), time.process_time()
    launched = [p for step in (*program.prologue, *program.steps) for p in programs(step.plan)]
    for one in dict.fromkeys(launched):
        one.cubin(device.machine.target)
    end = time.perf_counter()
    return {
        "planned_s": ready - start,
        "waited_for_kernels_s": end - ready,
        "total_s": end - start,
        "planning_processor_s": planning - worked,
        "processor_s": time.process_time() - worked,
        "launches": len(launched),
        "own_kernels": len(set(launched)),
        "sources": len({p.source for p in launched}),
    }


def on_gpu(w: Workload) -> dict[str, Any]:
    """Prepare a workload and run it three times: kernel by kernel, recorded, as one graph."""
    peer_lamina.warm("cuda")
    start = time.perf_counter()
    ready = peer_lamina.prepare(w, "lamina", "cuda", "auto")
    found = {"prepared_s": time.perf_counter() - start}
    for name in ("first_run_s", "recorded_run_s", "third_run_s"):
        began = time.perf_counter()
        ready.run()
        ready.wait()
        found[name] = time.perf_counter() - began
    return found | {"total_s": found["prepared_s"] + found["first_run_s"], **ready.after()}


def measured(name: str, where: str, serial: bool) -> dict[str, Any]:
    """One workload in this process."""
    w = next(w for group in SETS.values() for w in group if w.name == name)
    with clocks() as parts:
        found = on_gpu(w) if where == "cuda" else without_gpu(w, serial)
    times = {part: {"calls": int(calls), "seconds": seconds} for part, (calls, seconds) in parts.items()}
    return {"workload": name, **found, "parts": {part: t for part, t in times.items() if t["calls"]}}


def apart(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One workload in a process of its own with an empty cache, then optionally in one with the caches of the
    first."""
    command = [sys.executable, "-m", "benchmarks.cold_start", name, "--here", "--device", options.device]
    command += ["--serial"] * options.serial
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"LAMINA_CACHE": folder}
        for caches in ("empty", "as found")[: 1 + options.again]:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            if done.returncode:
                yield {"workload": name, "caches": caches, "error": done.stderr.strip().splitlines()[-1:]}
                return
            yield {"caches": caches, **json.loads(done.stdout.splitlines()[-1])}


def text(result: dict[str, Any]) -> str:
    """One result as text."""
    title = result["workload"] + (f", caches {result['caches']}" if "caches" in result else "")
    if "error" in result:
        return f"{title}: {result['error']}"
    names = [name for name in result if name.endswith("_s")]
    head = ", ".join(f"{name.removesuffix('_s').replace('_', ' ')} {result[name]:.2f} s" for name in names)
    parts = [f"    {part}: {t['calls']} in {t['seconds']:.2f} s" for part, t in result["parts"].items()]
    return "\n".join([f"{title}: {head}", *parts])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workloads", nargs="+")
    parser.add_argument("--device", choices=("none", "cuda"), default="none")
    parser.add_argument("--serial", action="store_true")
    parser.add_argument("--again", action="store_true", help="a second time, with the caches of the first")
    parser.add_argument("--here", action="store_true", help="in this process, one result as JSON")
    parser.add_argument("--out", type=Path, help="folder for a result file")
    options = parser.parse_args(arguments)
    if options.here:
        for name in options.workloads:
            print(json.dumps(measured(name, options.device, options.serial)))
        return 0
    results = []
    for name in options.workloads:
        for result in apart(name, options):
            results.append(result)
            print(text(result), flush=True)
        if options.out:
            what = versions(["lamina", "cuda-core", "nvidia-cudnn-cu13"])
            head = {"processor": processor(), "device": options.device, "serial": options.serial}
            write("cold_start", head | {"versions": what, "results": results}, options.out)
    return int(any("error" in result for result in results))


if __name__ == "__main__":
    sys.exit(main())
