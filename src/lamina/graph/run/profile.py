"""How long each kernel of a compiled graph takes, and what fraction of the machine's roofline it reaches.

On a GPU the whole program is captured once more with an event between any two kernels, so that every kernel is timed
in place: with the cache contents that its predecessors leave, and without host launches in between.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from lamina.backends import Run
from lamina.graph.planning.cost import least_times, work
from lamina.graph.planning.program import PlannedStep
from lamina.graph.planning.updates import gradient_sources
from lamina.graph.run.executable import Executable
from lamina.graph.run.timeline import Timeline
from lamina.ops.arguments import checked, within
from lamina.runtime import Event, Stream, human_bytes

#: More rounds take longer than anybody waits.
_MOST_ROUNDS = 10**6


@dataclass(frozen=True)
class Row:
    """One kernel: its op and operands, its plan, its work, and its time where it was measured.

    flops: of matrix products. nbytes: inputs and outputs once each. limit_ms: the least time for this work.
    origin: the module and the line of the program that it computes. update: whether it brings state to the next step.
    """

    op: str
    kernel: str
    inputs: str
    outputs: str
    flops: int
    nbytes: int
    workspace: int
    milliseconds: float | None = None
    limit_ms: float = 0.0
    origin: str = ""
    update: bool = False

    @property
    def fraction(self) -> float | None:
        """Fraction of the roofline: 1 is the machine's limit."""
        if self.milliseconds is None:
            return None
        return self.limit_ms / self.milliseconds if self.milliseconds > 0 else None

    @property
    def record(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self) | {"fraction": self.fraction}


@dataclass(frozen=True)
class Life:
    """A block of the arena that is in use from step `first` to step `last`."""

    offset: int
    nbytes: int
    first: int
    last: int
    label: str


@dataclass(frozen=True)
class Profile:
    """A compiled graph kernel by kernel, and its memory over time.

    gradients: the operands of updates: the number of the producing kernel, and bytes.
    """

    device: str
    rows: tuple[Row, ...]
    lives: tuple[Life, ...]
    arena: int
    unplanned: int
    bound: int
    gradients: tuple[tuple[int, int], ...] = ()
    refusals: tuple[str, ...] = ()
    recomputed: int = 0

    @property
    def milliseconds(self) -> float | None:
        """All kernels together; None where they were not timed."""
        times = [r.milliseconds for r in self.rows]
        return None if None in times else sum(t for t in times if t is not None)

    @property
    def fraction(self) -> float | None:
        """Fraction of the roofline, over all kernels."""
        total = self.milliseconds
        return sum(r.limit_ms for r in self.rows) / total if total else None

    @property
    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "device": self.device,
            "milliseconds": self.milliseconds,
            "fraction_of_limit": self.fraction,
            "memory": {"planned": self.arena, "unplanned": self.unplanned, "bound": self.bound},
            "recomputed": self.recomputed,
            "gradients": list(self.gradients),
            "kernels": [r.record for r in self.rows],
            "lives": [asdict(life) for life in self.lives],
            "refused_fusions": list(self.refusals),
        }

    def text(self) -> str:
        """A human-readable table."""
        head = ("op", "kernel", "ms", "% of roofline", "GFLOP", "bytes", "outputs", "from")
        table = [head, *(_cells(r) for r in self.rows)]
        widths = [min(max(len(r[c]) for r in table), 64) for c in range(len(head))]
        lines = ["  ".join(f[:64].ljust(w) for f, w in zip(r, widths, strict=True)).rstrip() for r in table]
        total, fraction = self.milliseconds, self.fraction
        timed = "not timed" if total is None else f"{total:.3f} ms"
        lines.append(
            f"{len(self.rows)} kernels on {self.device}: {timed}"
            + ("" if fraction is None else f", {fraction:.0%} of roofline")
            + f"; temporaries: {human_bytes(self.arena)} planned, {human_bytes(self.unplanned)} unplanned, "
            f"at least {human_bytes(self.bound)} in any plan"
            + (f"; {self.recomputed} nodes run again to save memory" if self.recomputed else "")
        )
        return "\n".join([*lines, *(f"not fused: {reason}" for reason in self.refusals)])


def _cells(r: Row) -> tuple[str, ...]:
    return (
        r.op,
        r.kernel,
        "" if r.milliseconds is None else f"{r.milliseconds:.4f}",
        "" if r.fraction is None else f"{r.fraction:.0%}",
        f"{r.flops / 1e9:.2f}" if r.flops else "",
        human_bytes(r.nbytes),
        r.outputs,
        r.origin,
    )


@checked
def profile(executable: Executable, rounds: int = 20) -> Profile:
    """The kernels of an executable with their work and, if rounds > 0, the median of that many timings of each.

    The resident state must be loaded for timing, and it is used: what is donated is updated `rounds` times.
    Raises RuntimeError for the null backend or before `load`, ValueError for rounds outside [0, 1e+06].
    """
    within("profile", "rounds", rounds, 0, _MOST_ROUNDS)
    steps = [s for s in executable.program.steps if not s.plan.view]
    times = kernel_times(executable, rounds) if rounds else [None] * len(steps)
    seconds = [None if t is None else t / 1e3 for t in times]
    limits = least_times(steps, seconds, executable.device.machine)
    placed = executable.program.placement
    return Profile(
        device=f"{executable.device} ({executable.backend.name})",
        rows=tuple(_row(s, t, limit * 1e3) for s, t, limit in zip(steps, times, limits, strict=True)),
        lives=_lives(executable),
        arena=placed.nbytes,
        unplanned=placed.unplanned,
        bound=placed.bound,
        gradients=tuple(gradient_sources(steps)),
        refusals=tuple(executable.refusals),
        recomputed=executable.recomputed,
    )


def _row(step: PlannedStep, milliseconds: float | None, limit_ms: float) -> Row:
    flops, nbytes = work(step)
    return Row(
        str(step.node.op) if step.node else "reorder",
        step.plan.label,
        ", ".join(str(s.spec) for s in step.inputs),
        ", ".join(str(s.spec) for s in step.outputs),
        flops,
        nbytes,
        step.plan.workspace,
        milliseconds,
        limit_ms,
        _origin(step),
        step.node is not None and step.node.op.effect == "update",
    )


def _origin(step: PlannedStep) -> str:
    """The origin of a step; of an update, its parameter."""
    if step.node is None:
        return ""
    if step.node.op.effect == "update":
        # States are named by their kind, then by the parameter: "parameters/fc.weight".
        updated = [s.name.partition("/") for s in step.inputs if s.kind == "resident"]
        return (
            f"update of {', '.join(dict.fromkeys(name for kind, _, name in updated if kind == 'parameters'))}"
        )
    return str(step.node.origin)


def _lives(executable: Executable) -> tuple[Life, ...]:
    program = executable.program
    return tuple(
        Life(offset, slot.spec.nbytes, slot.first, slot.last, slot.name or str(slot.spec))
        for slot, offset in zip(program.temporaries, program.placement.offsets, strict=True)
        if slot.spec.nbytes
    )


@checked
def record_call(executable: Executable, before: int = 2) -> Timeline:
    """The timeline of one call on zeros, after `before` others (the first two load and capture the kernels).

    The resident state must be loaded, and it is used: what is donated is updated. Raises RuntimeError before `load`,
    and for the null backend.
    """
    zeros = [np.zeros(spec.shape, spec.dtype.numpy) for spec in executable.given]
    timeline = Timeline(1, skip=before)
    with timeline.record():
        for _ in range(before + 1):
            executable(*zeros)
    return timeline


def kernel_times(executable: Executable, rounds: int) -> list[float]:
    """Milliseconds of each kernel in order, the median of `rounds` runs of all of them."""
    steps = executable.bound_steps()
    runs = [run for _, run in steps]
    if executable.device.default_stream.queues:
        for run in runs:
            run()  # libraries and modules load lazily, and must not do so while capturing
        if all(step.capturable for step, _ in steps):
            return _event_times(executable, rounds)
        return _host_times(executable.device.default_stream, runs, rounds)
    return _clock_times(runs, rounds)


def _event_times(executable: Executable, rounds: int) -> list[float]:
    """By a graph with an event between any two kernels, recorded on a stream of its own."""
    stream = executable.device.default_stream
    with executable.device.stream() as side:
        runs = [run for _, run in executable.bound_steps(side)]
        marks = [Event(timing=True) for _ in range(len(runs) + 1)]
        with side.capture(home=stream) as graph:
            side.stamp(marks[0])
            for run, mark in zip(runs, marks[1:], strict=True):
                run()
                side.stamp(mark)
    samples = []
    for _ in range(rounds):
        graph.launch()
        stream.synchronize()
        samples.append([a.elapsed(b) for a, b in pairwise(marks)])
    graph.close()
    return [median(column) for column in zip(*samples, strict=True)]


def _host_times(stream: Stream, runs: Sequence[Run], rounds: int) -> list[float]:
    """By events between kernels that the host launches one by one."""
    marks, samples = [Event(timing=True) for _ in range(len(runs) + 1)], []
    for _ in range(rounds):
        stream.record(marks[0])
        for run, mark in zip(runs, marks[1:], strict=True):
            run()
            stream.record(mark)
        stream.synchronize()
        samples.append([a.elapsed(b) for a, b in pairwise(marks)])
    return [median(column) for column in zip(*samples, strict=True)]


def _clock_times(runs: list[Run], rounds: int) -> list[float]:
    samples = []
    for _ in range(rounds):
        marks = [time.perf_counter()]
        for run in runs:
            run()
            marks.append(time.perf_counter())
        samples.append([(b - a) * 1e3 for a, b in pairwise(marks)])
    return [median(column) for column in zip(*samples, strict=True)]
