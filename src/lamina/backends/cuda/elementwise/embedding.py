"""Embedding lookup, and its gradient, which is deterministic."""

from __future__ import annotations

from lamina.backends import Plan
from lamina.backends.cuda.elementwise.sort import Rows, sort_steps, sorted_pairs
from lamina.backends.cuda.launch.indexing import index_type
from lamina.backends.cuda.launch.program import (
    LOOPING,
    WORKSPACE_ALIGNMENT,
    Bindable,
    Fill,
    Launch,
    Program,
    c_type,
    constants,
    kernel_plan,
    looping,
    round_up,
    scratch,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.embedding import Embedding, EmbeddingGrad
from lamina.runtime import Device
from lamina.spec import Policy, Spec

_FILE = "elementwise/embedding.cu"
#: Indices that one block adds up. An index that occurs n times takes about n / CHUNK sequential additions.
CHUNK = 32


@kernels(Embedding, source="kernel")
def embedding(op: Embedding, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The rows of a row-major table."""
    table, index = (s.open.fixed for s in specs)
    y = op.infer(table, index)[0].fixed
    if y.numel == 0:
        return kernel_plan(device, [table, index], [y], [], label=op.name)
    program = Program("embedding", _FILE, _text(table, index))
    launch = looping(program, y.numel, (source(0), source(1), target()))
    return kernel_plan(device, [table, index], [y], [launch], label=op.name)


@kernels(EmbeddingGrad, source="kernel")
def embedding_grad(op: EmbeddingGrad, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """Zeros, then the sums over runs of equal indices, which are sorted first."""
    g, index = (s.open.fixed for s in specs)
    table = op.infer(g, index)[0].fixed
    if not g.numel or not table.nbytes:
        zeros = [Fill(target(), 0, table.nbytes)] if table.nbytes else []
        return kernel_plan(device, [g, index], [table], zeros, label=op.name)
    rows = Rows(1, index.numel, c_type(index.dtype), "u32", _key(op.rows))
    sorting, sorted_bytes = sort_steps(rows, index.numel, source(1), None)
    chunks, width = -(-index.numel // CHUNK), table.shape[1]
    part = round_up(chunks * width * table.dtype.compute.itemsize, WORKSPACE_ALIGNMENT)
    keys, places = sorted_pairs(rows)
    first, last = scratch(sorted_bytes), scratch(sorted_bytes + part)
    text = _text(table, index) + constants(CHUNK=CHUNK)
    sums = Launch(
        Program("embedding_grad", _FILE, text),
        (chunks * -(-width // 128),),
        (128,),
        (source(0), keys, places, target(), first, last),
        waves=LOOPING,
    )
    steps: list[Bindable] = [Fill(target(), 0, table.nbytes), *sorting, sums]
    if chunks > 1:
        program = Program("embedding_grad_runs", _FILE, text)
        steps.append(looping(program, (chunks - 1) * width, (keys, first, last, target())))
    return kernel_plan(device, [g, index], [table], steps, label=op.name, workspace=sorted_bytes + 2 * part)


def _key(rows: int) -> str:
    """The sort key: indices out of range come last."""
    return (
        "__device__ __forceinline__ Key to_key(S x)\n{\n"
        f"    return x >= 0 && (i64)x < {rows} ? (u32)x : 0xfffffffeu;\n}}\n"
    )


def _text(table: Spec, index: Spec) -> str:
    rows, width = table.shape
    kind = index_type(max(index.numel, rows) * width)
    text = f"typedef {kind} Index;\ntypedef {c_type(table.dtype)} T;\ntypedef {c_type(index.dtype)} I;\n"
    return text + constants(COUNT=index.numel, ROWS=rows, WIDTH=width)
