"""Maxima over unevenly spaced windows."""

from __future__ import annotations

from math import prod

from lamina.backends import Plan
from lamina.backends.cuda.launch.indexing import index_type
from lamina.backends.cuda.launch.program import (
    Program,
    c_type,
    constants,
    kernel_plan,
    looping,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.region_pool import RegionMax
from lamina.runtime import Device
from lamina.spec import Policy, Spec


@kernels(RegionMax, source="kernel")
def region_max(op: RegionMax, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """Row-major planes."""
    inputs = [s.open.fixed for s in specs]
    outputs = [s.fixed for s in op.infer(*(s.open for s in specs))]
    x, y = inputs[0], outputs[0]
    if not y.numel:
        return kernel_plan(device, inputs, outputs, [], label=op.name)
    lead = 3 - len(op.output)
    sizes, windows = (1,) * lead + x.shape[2:], (1,) * lead + op.output
    begins = [-1] * lead + [sum(op.output[:a]) for a in range(len(op.output))]
    numbers = {
        f"{name}{i}": v
        for name, row in (("S", sizes), ("O", windows), ("A", begins))
        for i, v in enumerate(row)
    }
    text = f"typedef {index_type(max(x.numel, y.numel))} Index;\ntypedef {c_type(x.dtype)} T;\n"
    text += constants(
        PLANES=prod(x.shape[:2]), EVERY=int(inputs[1].shape[0] > 1), BOUNDS=sum(op.output), **numbers
    )
    places = (source(0), source(1), source(2), target(0), target(1))
    launch = looping(Program("region_max", "pool/region_pool.cu", text), y.numel, places)
    return kernel_plan(device, inputs, outputs, [launch], label=op.name)
