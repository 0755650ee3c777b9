"""Search in sorted rows: a thread bisects for each value."""

from __future__ import annotations

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
from lamina.ops.primitives.search import SearchSorted
from lamina.runtime import Device
from lamina.spec import Policy, Spec


@kernels(SearchSorted, source="kernel")
def search_sorted(op: SearchSorted, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """Row-major rows and values."""
    rows, values = (s.open.fixed for s in specs)
    y = op.infer(rows, values)[0].fixed
    if not y.numel:
        return kernel_plan(device, [rows, values], [y], [], label=op.name)
    text = f"typedef {index_type(max(rows.numel, values.numel))} Index;\ntypedef {c_type(rows.dtype)} T;\n"
    text += constants(COUNT=y.numel, SIZE=rows.shape[1], WIDTH=values.shape[1], RIGHT=int(op.right))
    program = Program("search_sorted", "elementwise/search.cu", text)
    launch = looping(program, y.numel, (source(0), source(1), target()))
    return kernel_plan(device, [rows, values], [y], [launch], label=op.name)
