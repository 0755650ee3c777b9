"""Embedding bags: a thread for each element of the result, or for an access of adjacent ones."""

from __future__ import annotations

from math import gcd

from lamina.backends import Plan
from lamina.backends.cuda.launch.indexing import index_type
from lamina.backends.cuda.launch.program import (
    VECTOR,
    Fill,
    Launch,
    Program,
    c_type,
    constants,
    kernel_plan,
    looping,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.embedding_bag import BagMax, BagSpread, BagSum, EmbeddingSum
from lamina.runtime import Device
from lamina.spec import Policy, Spec


@kernels(BagSum, source="kernel")
def bag_sum(op: BagSum, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """Row-major rows."""
    return _plan(op, specs, device)


@kernels(BagMax, source="kernel")
def bag_max(op: BagMax, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """Row-major rows."""
    return _plan(op, specs, device)


@kernels(BagSpread, source="kernel")
def bag_spread(op: BagSpread, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """Row-major rows; the bag of each row by bisection."""
    return _plan(op, specs, device)


@kernels(EmbeddingSum, source="kernel")
def embedding_sum(op: EmbeddingSum, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """Row-major rows, which are summed as they are looked up; by single elements where an address is not aligned."""
    table, index = inputs = [s.open.fixed for s in specs]
    y = op.infer(table, index)[0].fixed
    if not y.numel or not index.numel:
        steps = [Fill(target(), 0, y.nbytes)] if y.numel else []
        return kernel_plan(device, inputs, [y], steps, label=op.name)

    def launches(width: int) -> tuple[Launch, ...]:
        kind = index_type(max(table.numel, index.numel, y.numel))
        text = f"typedef {kind} Index;\ntypedef {c_type(y.dtype)} T;\ntypedef {c_type(index.dtype)} I;\n"
        text += constants(
            V=width,
            BAGS=y.shape[0],
            EACH=index.shape[1],
            ROWS=table.shape[0],
            WIDTH=y.shape[1],
            MEAN=int(op.mean),
        )
        program = Program(op.name, "elementwise/embedding_bag.cu", text)
        return (looping(program, y.numel // width, (source(0), source(1), target())),)

    width = gcd(y.shape[1], VECTOR // y.dtype.itemsize)
    return kernel_plan(device, inputs, [y], launches(width), label=op.name, plain=lambda: launches(1))


def _plan(op: BagSum | BagMax | BagSpread, specs: tuple[Spec, ...], device: Device) -> Plan:
    x, starts = inputs = [s.open.fixed for s in specs]
    outputs = [y.fixed for y in op.infer(*inputs)]
    y = outputs[0]
    if not y.numel:
        return kernel_plan(device, inputs, outputs, [], label=op.name)
    rows = op.rows if isinstance(op, BagSpread) else x.shape[0]
    text = f"typedef {index_type(max(x.numel, y.numel))} Index;\ntypedef {c_type(x.dtype)} T;\n"
    text += constants(BAGS=starts.shape[0] - 1, ROWS=rows, WIDTH=y.shape[1])
    program = Program(op.name, "elementwise/embedding_bag.cu", text)
    places = (source(0), source(1), *(target(i) for i in range(len(outputs))))
    return kernel_plan(device, inputs, outputs, [looping(program, y.numel, places)], label=op.name)
