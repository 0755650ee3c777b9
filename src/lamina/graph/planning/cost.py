"""The least time that a step of a program takes on a machine."""

from __future__ import annotations

from lamina.graph.planning.layout import PlannedStep
from lamina.runtime import Machine
from lamina.spec import Policy


def work(step: PlannedStep) -> tuple[int, int]:
    """FLOP of matrix products, and bytes: inputs and outputs once each."""
    flops = step.node.op.flops(*(s.spec.open for s in step.inputs)) if step.node else 0
    return flops, sum(s.spec.nbytes for s in (*step.inputs, *step.outputs))


def least_seconds(step: PlannedStep, machine: Machine) -> float:
    """The shortest time for a step's work."""
    flops, nbytes = work(step)
    dtype = step.inputs[0].spec.dtype.name if step.inputs else "float32"
    tf32 = (step.node.policy if step.node else Policy()).tf32
    return machine.seconds(flops, nbytes, dtype, tf32=tf32)
