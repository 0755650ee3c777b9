"""Rows of a table by number, and their gradient, which is the same from run to run."""

from __future__ import annotations

from lamina.backends import Plan
from lamina.backends.cuda.launch.indexing import index_type
from lamina.backends.cuda.launch.program import (
    LOOPING,
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
from lamina.ops.primitives.embedding import Embedding, EmbeddingGrad
from lamina.runtime import Device
from lamina.spec import Policy, Spec


@kernels(Embedding, source="kernel")
def embedding(op: Embedding, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The rows of a row-major table."""
    table, index = (s.open.fixed for s in specs)
    y = op.infer(table, index)[0].fixed
    if y.numel == 0:
        return kernel_plan(device, [table, index], [y], [], label=op.name)
    program = Program("embedding", "elementwise/embedding.cu", _text(table, index))
    launch = looping(program, y.numel, (source(0), source(1), target()))
    return kernel_plan(device, [table, index], [y], [launch], label=op.name)


@kernels(EmbeddingGrad, source="kernel")
def embedding_grad(op: EmbeddingGrad, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """Zeros, then the sums of the rows that are named."""
    g, index = (s.open.fixed for s in specs)
    table = op.infer(g, index)[0].fixed
    steps: list[Fill | Launch] = [Fill(target(), 0, table.nbytes)] if table.nbytes else []
    if g.numel and table.nbytes:
        program = Program("embedding_grad", "elementwise/embedding.cu", _text(table, index))
        places = (source(0), source(1), target())
        steps.append(Launch(program, (index.numel,), (128,), places, waves=LOOPING))
    return kernel_plan(device, [g, index], [table], steps, label=op.name)


def _text(table: Spec, index: Spec) -> str:
    rows, width = table.shape
    kind = index_type(max(index.numel, rows) * width)
    text = f"typedef {kind} Index;\ntypedef {c_type(table.dtype)} T;\ntypedef {c_type(index.dtype)} I;\n"
    return text + constants(COUNT=index.numel, ROWS=rows, WIDTH=width)
