"""Lower bounds on the time that a step of a program takes on a machine (roofline)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lamina.graph.planning.program import PlannedStep
from lamina.runtime import Machine
from lamina.runtime.machine import MEASURED
from lamina.spec import Policy

#: Operands of more bytes than this do not stay in a host's caches.
_CACHED = 32 << 20


def work(step: PlannedStep) -> tuple[int, int]:
    """FLOP of matrix products, and bytes moved: each input and output counted once."""
    flops = step.node.op.flops(*(v.spec for v in step.node.inputs)) if step.node else 0
    return flops, sum(s.spec.nbytes for s in (*step.inputs, *step.outputs))


def least_times(
    steps: Sequence[PlannedStep], seconds: Sequence[float | None], machine: Machine
) -> list[float]:
    """A lower bound on each step's time, never above the measured time where there is one (in `seconds`).

    The rates of a host are measured, perhaps while it was busy, so the rate that any of the kernels reached raises
    them. Operands that fit into the caches may be faster than main memory; such kernels are compared among each
    other.
    """
    if machine.origin != MEASURED:
        return [least_seconds(step, machine) for step in steps]
    flops, rates = dict(machine.flops), {True: machine.bandwidth, False: machine.bandwidth}
    for step, time in zip(steps, seconds, strict=True):
        products, nbytes = work(step)
        if time:
            kind = _dtype(step) if _dtype(step) in flops else "float32"
            flops[kind] = max(flops[kind], products * step.plan.arithmetic / time)
            rates[nbytes > _CACHED] = max(rates[nbytes > _CACHED], nbytes / time)
    hosts = {large: replace(machine, flops=flops, bandwidth=rate) for large, rate in rates.items()}
    return [least_seconds(step, hosts[work(step)[1] > _CACHED]) for step in steps]


def _dtype(step: PlannedStep) -> str:
    return step.inputs[0].spec.dtype.name if step.inputs else "float32"


def least_seconds(step: PlannedStep, machine: Machine) -> float:
    """A lower bound on a step's time, with as much arithmetic as its kernel's algorithm performs."""
    flops, nbytes = work(step)
    tf32 = (step.node.policy if step.node else Policy()).tf32
    return machine.seconds(flops * step.plan.arithmetic, nbytes, _dtype(step), tf32=tf32)
