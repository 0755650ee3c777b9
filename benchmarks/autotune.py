"""Timed choice against the heuristic's, on random convolutions: is the tuned plan used again, and is it never slower?

For each shape: the heuristic's first plan and the tuned one are measured alternately, independent of the tuner's
figures (a CUDA graph of many runs on two copies of the operands, in turns that start with either one equally often,
medians; a plan's ratio to itself is 1); then the choice is requested again from a reopened store, with timing
forbidden; the workspace must stay below the cap. The store starts empty.

    python -m benchmarks.autotune [--count 50] [--level ops|graph] [--json] [--out FOLDER]

    ops     the cuda backend's plans: every formulation of an op competes
    graph   lamina.cudnn.Graph.autotune: the engines of one graph compete
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import lamina as lm
from benchmarks.common import versions, write
from lamina import backends, cudnn
from lamina.backends import Call, Plan, Run
from lamina.backends.cuda.conv import conv
from lamina.backends.cuda.cudnn_graphs.conv import Direction, Operands, conv_graph
from lamina.backends.cuda.launch.program import source, target
from lamina.backends.cuda.select import autotune, formulations
from lamina.cudnn import PlanStore, contest
from lamina.cudnn import autotune as cudnn_autotune
from lamina.ops.core import Op
from lamina.ops.primitives import Conv, ConvDataGrad, ConvFilterGrad
from lamina.ops.primitives.window import Window, window
from lamina.runtime import Device, Event
from lamina.spec import Policy, Spec, bfloat16, channels_last

CAP = 256 << 20
#: Measurements of each plan: even, so that each plan comes first in half of them.
ROUNDS = 20
#: Approximate milliseconds of one measurement, and most runs in it: many, as the launch of a graph is included.
SPAN, MOST_RUNS = 1.0, 200
#: Runs for a first estimate: with only one the host's time would be measured.
SEVERAL = 10

#: Binds a plan to inputs, outputs, workspace and a stream.
Bind = Callable[[Sequence[int], Sequence[int], int, int], Run]


@dataclass(frozen=True)
class Case:
    """One direction of a convolution."""

    direction: Direction
    window: Window
    x: Spec
    w: Spec
    y: Spec

    @property
    def op(self) -> tuple[Op, list[Spec]]:
        """As an op and the specs of its operands."""
        if self.direction is Conv:
            return Conv(self.window), [self.x, self.w]
        if self.direction is ConvDataGrad:
            return ConvDataGrad(self.window, self.x.shape[2:]), [self.y, self.w]
        return ConvFilterGrad(self.window, self.w.shape[2:]), [self.x, self.y]

    @property
    def graph(self) -> cudnn.Graph:
        """As a cuDNN graph, channels last."""
        last = [Spec(s.shape, s.dtype, channels_last(s.shape)) for s in (self.x, self.w, self.y)]
        return conv_graph(self.direction, Operands(self.window, *last), (source(), source(1), target()))[0]

    @property
    def memory(self) -> tuple[list[int], int]:
        """Bytes of the inputs and of the result."""
        specs = {Conv: (self.x, self.w, self.y), ConvDataGrad: (self.y, self.w, self.x)}
        *inputs, result = specs.get(self.direction, (self.x, self.y, self.w))
        return [s.nbytes for s in inputs], result.nbytes

    @property
    def uids(self) -> tuple[tuple[int, int], int]:
        """Uids of the inputs and the result in the graph."""
        return {Conv: ((1, 2), 3), ConvDataGrad: ((3, 2), 1)}.get(self.direction, ((1, 3), 2))

    def __str__(self) -> str:
        return f"{self.direction.name}({self.window}) x={self.x} w={self.w}"


@dataclass(frozen=True)
class Made:
    """A plan: its name, its workspace in bytes, and its bind function."""

    label: str
    workspace: int
    bind: Bind


@dataclass(frozen=True)
class Row:
    """The measurements of one shape."""

    case: str
    heuristic_ms: float
    tuned_ms: float
    ratio: float
    plan: str
    heuristic_plan: str
    remembered: bool
    workspace: int
    tuning_s: float


def cases(rng: np.random.Generator, count: int) -> list[Case]:
    """Convolutions of typical network sizes, in the three directions."""
    found = []
    for _ in range(count):
        channels = int(rng.choice([3, 16, 32, 64, 96, 128, 256, 512]))
        filters = int(rng.choice([32, 64, 128, 192, 256, 512]))
        side, kernel = int(rng.choice([7, 14, 27, 28, 56])), int(rng.choice([1, 3, 5]))
        batch, stride = int(rng.choice([1, 8, 32, 128])), int(rng.choice([1, 1, 2]))
        win = window("conv2d", (kernel, kernel), stride, kernel // 2)
        x, w = (
            Spec((batch, channels, side, side), bfloat16),
            Spec((filters, channels, kernel, kernel), bfloat16),
        )
        (y,) = Conv(win).infer(x, w)
        direction = (Conv, ConvDataGrad, ConvFilterGrad)[int(rng.integers(3))]
        found.append(Case(direction, win, x, w, y))
    return found


# ------------------------------------------------------------------------------------------------------- plans


def of_op(case: Case, device: Device, store: PlanStore, algorithm: str) -> Made:
    """The backend's plan."""
    conv._cached.cache_clear()
    op, specs = case.op
    with mock.patch.object(formulations, "plan_store", return_value=store):
        plan: Plan = backends.get(device).plan(op, specs, Policy(algorithm=algorithm, workspace_limit=CAP))

    def bind(inputs: Sequence[int], outputs: Sequence[int], workspace: int, stream: int) -> Run:
        return plan.bind(Call(tuple(inputs), tuple(outputs), workspace, stream))

    return Made(plan.label, plan.workspace, bind)


def of_graph(case: Case, device: Device, store: PlanStore, algorithm: str) -> Made:
    """The plan of the graph."""
    handle, graph = cudnn.handle_of(device), case.graph
    if algorithm == "fastest":
        plan = graph.autotune(handle, workspace_limit=CAP, store=store)
    else:
        plan = graph.plan(
            handle, workspace_limit=CAP, accept=partial(cudnn_autotune.unwanted, data_type="bfloat16")
        )
    uids, result = case.uids

    def bind(inputs: Sequence[int], outputs: Sequence[int], workspace: int, stream: int) -> Run:
        pointers = {**dict(zip(uids, inputs, strict=True)), result: outputs[0]}
        return plan.bind(handle, cudnn.VariantPack(pointers, workspace), stream)

    return Made(cudnn.key_text(plan.config.key) if plan.config else "", plan.workspace, bind)


LEVELS = {"ops": of_op, "graph": of_graph}


def no_contest(*arguments: Any) -> None:
    """Replaces the contest: the choice must come from the store."""
    raise AssertionError("timed again")


def again(make: Callable[..., Made], case: Case, device: Device, store: PlanStore) -> str:
    """The label of the plan that a new process would make; "" if it would time again."""
    opened = PlanStore("benchmark", "1", store.path.parent)
    try:
        with (
            mock.patch.object(autotune, "contest", no_contest),
            mock.patch.object(cudnn_autotune, "Contest", no_contest),
        ):
            return make(case, device, opened, "fastest").label
    except AssertionError:
        return ""


# ---------------------------------------------------------------------------------------------------- measuring


def measure(plans: Sequence[Made], case: Case, device: Device) -> list[float]:
    """Milliseconds per run of each plan: medians of measurements in turns."""
    sizes, result = case.memory
    drawn = contest.Contest(device, [contest.OperandMemory(n, "bfloat16") for n in sizes], [], 1.0)
    copies = [(drawn.copies[at][0], device.allocate(result)) for at in (0, -1)]
    scratch = device.allocate(max(p.workspace for p in plans))
    device.synchronize()
    with device.stream() as stream:
        graphs, counts = [], []
        for plan in plans:
            runs = [
                plan.bind([b.pointer for b in inputs], [out.pointer], scratch.pointer, stream.handle)
                for inputs, out in copies
            ]
            once = min(_elapsed(stream, partial(_several, runs, SEVERAL)) / SEVERAL for _ in range(3))
            counts.append(2 * max(1, min(MOST_RUNS // 2, int(SPAN / 2 / max(once, 1e-3)))))
            with stream.capture() as graph:
                for number in range(counts[-1]):
                    runs[number % 2]()
            graph.launch(stream)
            graphs.append(graph)
        times: list[list[float]] = [[] for _ in plans]
        measured = list(zip(graphs, counts, times, strict=True))
        for number in range(ROUNDS):
            for graph, count, found in measured if number % 2 else reversed(measured):
                found.append(_elapsed(stream, partial(graph.launch, stream)) / count)
        stream.synchronize()
        for graph in graphs:
            graph.close()
    return [statistics.median(t) for t in times]


def _several(runs: Sequence[Run], count: int) -> None:
    for number in range(count):
        runs[number % len(runs)]()


def _elapsed(stream: lm.runtime.Stream, run: Callable[[], Any]) -> float:
    start, end = Event(timing=True), Event(timing=True)
    stream.record(start)
    run()
    stream.record(end)
    return start.elapsed(end)


def row(make: Callable[..., Made], case: Case, device: Device, store: PlanStore) -> Row:
    """All measurements of one shape."""
    heuristic = make(case, device, store, "heuristic")
    began = time.perf_counter()
    tuned = make(case, device, store, "fastest")
    seconds = time.perf_counter() - began
    if tuned.label == heuristic.label:
        (first,) = measure([heuristic], case, device)
        second = first  # the same plan
    else:
        first, second = measure([heuristic, tuned], case, device)
    return Row(
        str(case),
        first,
        second,
        second / first,
        tuned.label,
        heuristic.label,
        again(make, case, device, store) == tuned.label,
        tuned.workspace,
        seconds,
    )


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The main figures."""
    ratios = [r.ratio for r in rows]
    return {
        "shapes": len(rows),
        "remembered": sum(r.remembered for r in rows),
        "geometric_mean_of_tuned_over_heuristic": statistics.geometric_mean(ratios),
        "best": min(ratios),
        "worst": max(ratios),
        "slower_than_1.02": sum(r > 1.02 for r in ratios),
        "kept_the_heuristics": sum(r.plan == r.heuristic_plan for r in rows),
        "largest_workspace": max(r.workspace for r in rows),
        "cap": CAP,
        "median_tuning_s": statistics.median(r.tuning_s for r in rows),
        "total_tuning_s": sum(r.tuning_s for r in rows),
    }


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--level", choices=LEVELS, default="ops")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    device, rng = lm.device("cuda:0"), np.random.default_rng(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        store = PlanStore("benchmark", "1", Path(folder))
        rows = [row(LEVELS[options.level], case, device, store) for case in cases(rng, options.count)]
    figures = summary(rows)
    for name, value in figures.items():
        print(f"{name:40s} {value}")
    if options.json:
        record = {
            "what": __doc__.splitlines()[0],
            "device": device.name,
            "level": options.level,
            "summary": figures,
            "rows": [asdict(r) for r in rows],
            "versions": versions(["cuda-core", "nvidia-cudnn-cu13"]),
        }
        name = "autotune" if options.level == "ops" else f"autotune_{options.level}"
        print(write(name, record, options.out))


if __name__ == "__main__":
    _main()
