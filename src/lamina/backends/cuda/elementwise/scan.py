"""Scans: a block scans a row, or a thread a column where that reads memory in order."""

from __future__ import annotations

from math import prod

from lamina.backends import Plan
from lamina.backends.cuda.launch.indexing import index_type
from lamina.backends.cuda.launch.program import (
    LOOPING,
    Launch,
    Program,
    c_type,
    constants,
    kernel_plan,
    looping,
    neutral,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.scan import Scan
from lamina.runtime import Device
from lamina.spec import Policy, Spec

#: Elements that a thread combines by itself.
EACH = 4
#: Contiguous columns from which each thread takes one: a warp then reads whole lines.
COLUMNS = 32
_KINDS = ("sum", "prod", "max", "min", "logsumexp")


@kernels(Scan, source="kernel")
def scan(op: Scan, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The scan of a row-major tensor; output and input may be the same memory."""
    x = specs[0].open.fixed
    if not x.numel:
        return kernel_plan(device, [x], [x], [], label=op.name, aliases={0: 0})
    size, inner = x.shape[op.axis], prod(x.shape[op.axis + 1 :])
    rows = x.numel // size
    text = f"typedef {index_type(x.numel + 256 * EACH * inner)} Index;\ntypedef {c_type(x.dtype)} T;\n"
    text += constants(
        ROWS=rows,
        SIZE=size,
        INNER=inner,
        EACH=EACH,
        KIND=_KINDS.index(op.kind),
        NEUTRAL=neutral(op.kind, x.dtype),
    )
    places = (source(), target())
    if inner >= COLUMNS or size <= EACH:
        launch = looping(Program("scan_columns", "elementwise/scan.cu", text), rows, places)
    else:
        program = Program("scan_rows", "elementwise/scan.cu", text)
        launch = Launch(program, (rows,), (256,), places, waves=LOOPING)
    return kernel_plan(device, [x], [x], [launch], label=op.name, aliases={0: 0})
