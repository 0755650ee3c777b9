"""The least time that a workload can take: its graph's arithmetic and memory traffic at the machine's rates.

Each convolution and product reads its operands and writes its result once and takes the longer of arithmetic and
memory traffic; training adds the optimizer's traffic. Everything else counts as fused, and steps of
recurrent networks as free of latency, so nothing reaches this limit; it serves to compare workloads.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.workloads import Workload
from lamina.graph import Graph
from lamina.runtime import Machine

#: Bytes per parameter that an update reads and writes: float32 weight and momentum.
UPDATE = 16


@dataclass(frozen=True)
class Work:
    """flops: of one iteration. seconds: the least time for them."""

    flops: float
    seconds: float


def of_graph(graph: Graph, machine: Machine, parameters: int = 0) -> Work:
    """The work of a traced graph. parameters: the number updated by an optimizer afterwards."""
    flops, seconds = 0.0, 0.0
    for node in graph.nodes:
        inputs = [v.spec for v in node.inputs]
        count = node.op.flops(*inputs)
        if count:
            moved = sum(s.nbytes for s in (*inputs, *(v.spec for v in node.outputs)))
            flops += count
            seconds += machine.seconds(count, moved, inputs[0].dtype.name)
    return Work(flops, seconds + parameters * UPDATE / machine.bandwidth)


def of_sequence(w: Workload, machine: Machine) -> Work:
    """The work of a recurrent network or an encoder, by formula: all products of all layers at once."""
    forward, weights = _recurrent(w) if w.network in ("lstm", "gru") else _encoder(w)
    passes = 3 if w.kind == "both" else 1
    dtype, itemsize = ("float32", 4) if w.dtype == "fp32" else ("bfloat16", 2)
    elements = 1
    for n in w.shape:
        elements *= n
    moved = passes * itemsize * (weights + 2 * elements)
    return Work(passes * forward, machine.seconds(passes * forward, moved, dtype))


def _recurrent(w: Workload) -> tuple[float, float]:
    """FLOP of the forward pass and number of weights."""
    steps, batch, features = w.shape
    hidden, layers = w.size
    gates = {"lstm": 4, "gru": 3}[w.network]
    weights = sum(gates * hidden * ((features if i == 0 else hidden) + hidden) for i in range(layers))
    return 2.0 * steps * batch * weights, weights


def _encoder(w: Workload) -> tuple[float, float]:
    """FLOP of the forward pass and number of weights: four projections, two products of attention, 1:4:1."""
    batch, length, width = w.shape
    layers = w.size[1]
    weights = layers * 12 * width * width
    attention = layers * 4.0 * batch * length * length * width
    return 2.0 * batch * length * weights + attention, weights
