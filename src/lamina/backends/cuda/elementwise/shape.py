"""Ops that move elements: views where strides allow, else copies at memory bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from lamina.backends import Call, Plan, Run, passing_plan
from lamina.backends.cuda.elementwise.interleave import interleaved, interleaves
from lamina.backends.cuda.elementwise.loop import (
    MOST_JOINED,
    JoinedOperand,
    KernelOperand,
    elementwise,
)
from lamina.backends.cuda.elementwise.pointwise import full, literal
from lamina.backends.cuda.launch.indexing import (
    Space,
    Strides,
    collapse,
    dense_layout,
    memory_order,
    offset_function,
)
from lamina.backends.cuda.launch.program import (
    LOOPING,
    VECTOR,
    Bindable,
    Launch,
    Place,
    Program,
    bits_type,
    c_type,
    constants,
    kernel_plan,
    nothing,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives import shape as shape_ops
from lamina.ops.primitives.diagonal import Diagonal
from lamina.runtime import Device
from lamina.spec import Layout, Policy, Shape, Spec, contiguous

_TILE = 32


# ------------------------------------------------------------------------------------------------------ copies


def strided_copy(
    shape: Shape, spec: Spec, read: Strides, write: Strides, origin: Place, to: Place, *, vector: bool = True
) -> Launch:
    """One launch that copies elements of `shape` from strides `read` to strides `write`."""
    order = memory_order(shape, write)
    space = collapse(shape, [read, write], order)
    kind, width, places = bits_type(spec.dtype), VECTOR // spec.dtype.itemsize, (origin, to)
    if vector and interleaves(space, width, places):
        return interleaved(space, width, (kind, kind), "return e0;", places)
    axes = _transposed(space)
    if axes is not None:
        return _tiled(space, axes, spec, origin, to)
    return elementwise(
        shape,
        order,
        [KernelOperand(spec.dtype, read, origin)],
        [KernelOperand(spec.dtype, write, to)],
        [],
        ["a0"],
        vector=vector,
        raw=kind,
    )


def _transposed(space: Space) -> tuple[int, int] | None:
    """(row, column) when source and target have different innermost axes, else None."""
    if len(space.sizes) < 2 or 0 in space.sizes:
        return None
    rows = [a for a, s in enumerate(space.strides[1]) if s == 1]
    columns = [a for a, s in enumerate(space.strides[0]) if s == 1]
    if len(rows) != 1 or len(columns) != 1 or rows == columns:
        return None
    if min(space.sizes[rows[0]], space.sizes[columns[0]]) < 4 or any(s <= 0 for s in space.strides[0]):
        return None
    return rows[0], columns[0]


def _tiled(space: Space, axes: tuple[int, int], spec: Spec, origin: Place, to: Place) -> Launch:
    row, column = axes
    batch = space.part([a for a in range(len(space.sizes)) if a not in axes])
    if not batch.sizes:
        batch = Space((1,), ((0,), (0,)))
    text = constants(
        T=bits_type(spec.dtype),
        ROWS=space.sizes[row],
        COLUMNS=space.sizes[column],
        SOURCE_ROW=space.strides[0][row],
        TARGET_COLUMN=space.strides[1][column],
        BATCHES=batch.count,
    )
    text = f"typedef {space.index_type} Index;\n{text}"
    text += offset_function("source_batch", batch, 0) + offset_function("target_batch", batch, 1)
    tiles = -(-space.sizes[row] // _TILE) * -(-space.sizes[column] // _TILE) * batch.count
    return Launch(
        Program("transpose", "elementwise/transpose.cu", text),
        (tiles,),
        (256,),
        (origin, to),
        waves=LOOPING * 4,
    )


def copy_plan(given: Spec, out: Spec, read: Strides, offset: int, device: Device, label: str) -> Plan:
    """The plan that reads `given` with strides `read` from element `offset` on, and writes `out`."""
    if out.numel == 0:
        return kernel_plan(device, [given], [out], [], label=label)
    origin, write = source(0, offset * given.dtype.itemsize), out.physical.strides

    def steps(vector: bool) -> tuple[Bindable, ...]:
        return (strided_copy(out.shape, out, read, write, origin, target(), vector=vector),)

    def relaid(layout: Layout) -> Plan | None:
        if not _is_fast(out.shape, read, layout.strides):
            return None
        return copy_plan(given, full(out, layout), read, offset, device, label)

    return kernel_plan(
        device, [given], [out], steps(True), label=label, plain=lambda: steps(False), relaid=relaid
    )


def _is_fast(shape: Shape, read: Strides, write: Strides) -> bool:
    """Whether a copy reads and writes whole cache lines: along one axis, or tile by tile along two."""
    space = collapse(shape, [read, write], memory_order(shape, write))
    return space.strides[0][-1] in (0, 1) or _transposed(space) is not None


def reorder(given: Spec, wanted: Spec, device: Device) -> Plan:
    """From one layout to another."""
    return copy_plan(given.fixed, wanted.fixed, given.physical.strides, 0, device, "reorder")


def plain_layout(spec: Spec) -> Spec:
    """The spec in its own layout, or row-major where that is open or blocked."""
    return full(spec, contiguous(spec.shape)) if spec.physical.is_blocked else spec.fixed


def row_major(spec: Spec) -> Spec:
    """The spec in row-major order."""
    return full(spec, contiguous(spec.shape))


def view(given: Spec, out: Spec, label: str) -> Plan:
    """The same memory under another spec: nothing runs."""
    return Plan((given,), (out,), _unused, view=True, label=f"view {label}")


def _unused(call: Call) -> Run:
    """A view has nothing to run."""
    return nothing


# ------------------------------------------------------------------------------------------------------- ops


@kernels(shape_ops.Reshape, source="view")
def reshape(op: shape_ops.Reshape, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The same memory under another shape: no work, except for a reorder where joined axes are not adjacent in
    memory."""
    return view(*specs[0].reshaped(op.shape), op.name)


@kernels(shape_ops.After, source="view")
def after(op: shape_ops.After, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The first operand, unchanged."""
    return passing_plan(specs, op.name)


@kernels(shape_ops.Transpose, source="view")
def transpose(op: shape_ops.Transpose, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The same memory with permuted strides; readers reorder if they need another layout."""
    given = plain_layout(specs[0])
    (out,) = op.infer(*specs)
    strides = tuple(given.physical.strides[a] for a in op.order)
    return view(given, full(out, Layout(strides)), op.name)


@kernels(shape_ops.Concat, source="kernel")
def concat(op: shape_ops.Concat, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """One launch for few inputs, else one for each into its part of the output."""
    (out,) = op.infer(*specs)
    given = tuple(plain_layout(s) for s in specs)
    return _joined(given, full(out, common_layout(specs, out)), op.axis % out.ndim, device, op.name)


def _joined(given: Sequence[Spec], out: Spec, axis: int, device: Device, label: str) -> Plan:
    """The plan that writes inputs one after another along an axis."""
    write = out.physical.strides

    def steps(vector: bool) -> tuple[Bindable, ...]:
        if _joins_at_once(given, out):
            return (_joining(given, out, axis, vector),)
        made, start = [], 0
        for i, spec in enumerate(given):
            to = target(0, start * write[axis] * out.dtype.itemsize)
            start += spec.shape[axis]
            if spec.numel:
                read = spec.physical.strides
                made.append(strided_copy(spec.shape, spec, read, write, source(i), to, vector=vector))
        return tuple(made)

    def relaid(layout: Layout) -> Plan | None:
        fast = all(_is_fast(s.shape, s.physical.strides, layout.strides) for s in given if s.numel)
        return _joined(given, full(out, layout), axis, device, label) if fast else None

    return kernel_plan(
        device, given, [out], steps(True), label=label, plain=lambda: steps(False), relaid=relaid
    )


def _joins_at_once(given: Sequence[Spec], out: Spec) -> bool:
    """Whether one launch reads all inputs: if they are few, and rows stay contiguous."""
    few = 1 < sum(s.numel > 0 for s in given) <= MOST_JOINED
    return few and all(_has_rows(s, out) for s in given if s.numel)


def _has_rows(given: Spec, out: Spec) -> bool:
    """Whether an input's contiguous runs are the result's."""
    order = memory_order(given.shape, out.physical.strides)
    space = collapse(given.shape, [given.physical.strides, out.physical.strides], order)
    return space.strides[0][-1] in (0, 1)


def _joining(given: Sequence[Spec], out: Spec, axis: int, vector: bool) -> Launch:
    """The launch that reads inputs as one, concatenated along an axis."""
    kept = [(i, s) for i, s in enumerate(given) if s.numel]
    parts = tuple(KernelOperand(s.dtype, s.physical.strides, source(i)) for i, s in kept)
    read = JoinedOperand(parts, axis, tuple(s.shape[axis] for _, s in kept))
    written = KernelOperand(out.dtype, out.physical.strides, target())
    order, kind = memory_order(out.shape, written.strides), bits_type(out.dtype)
    return elementwise(out.shape, order, [read], [written], [], ["a0"], vector=vector, raw=kind)


def common_layout(specs: Sequence[Spec], out: Spec) -> Layout:
    """The axis order of the first input, for the joined shape."""
    first = specs[0]
    order = memory_order(first.shape, first.physical.strides) if first.tag else tuple(range(out.ndim))
    return dense_layout(out.shape, order)


@kernels(shape_ops.Slice, source="kernel")
def slice_(op: shape_ops.Slice, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """A copy of part of the input."""
    given = plain_layout(specs[0])
    (out,) = op.infer(*specs)
    return _part_plan(op, given, _alike(given, out), device)


def _part_plan(op: shape_ops.Slice | Diagonal, given: Spec, out: Spec, device: Device) -> Plan:
    """The copy of the part that an op selects."""
    strides = given.physical.strides
    read, offset = op.strides_within(given.shape, strides), op.first_within(strides)
    return copy_plan(given, out, read, offset, device, op.name)


@kernels(Diagonal, source="kernel")
def diagonal(op: Diagonal, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """A copy that advances one row and one column per element."""
    given = plain_layout(specs[0])
    return _part_plan(op, given, op.infer(*specs)[0].fixed, device)


@kernels(shape_ops.Flip, source="kernel")
def flip(op: shape_ops.Flip, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """A copy that reads some axes backwards."""
    given = plain_layout(specs[0])
    (out,) = op.infer(*specs)
    strides, axes = given.physical.strides, {a % max(given.ndim, 1) for a in op.axes}
    offset = sum((given.shape[a] - 1) * strides[a] for a in axes) if out.numel else 0
    read = tuple(-s if a in axes else s for a, s in enumerate(strides))
    return copy_plan(given, _alike(given, out), read, offset, device, op.name)


@kernels(shape_ops.Expand, source="kernel")
def expand(op: shape_ops.Expand, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """A copy that reads broadcast axes with stride 0."""
    given = plain_layout(specs[0])
    (out,) = op.infer(*specs)
    lead = out.ndim - given.ndim
    own = zip(given.shape, given.physical.strides, strict=True)
    read = (0,) * lead + tuple(0 if n == 1 else s for n, s in own)
    return copy_plan(given, out.fixed, read, 0, device, op.name)


@kernels(shape_ops.Pad, source="kernel")
def pad(op: shape_ops.Pad, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The constant everywhere, then the input copied into its place."""
    given = plain_layout(specs[0])
    (out,) = op.infer(*specs)
    return _padded(op, given, _alike(given, out), device)


def _padded(op: shape_ops.Pad, given: Spec, out: Spec, device: Device) -> Plan:
    if out.numel == 0:
        return kernel_plan(device, [given], [out], [], label=op.name)
    read, write = given.physical.strides, out.physical.strides
    start = sum(lo * s for (lo, _), s in zip(op.pairs, write, strict=True))

    def steps(vector: bool) -> tuple[Bindable, ...]:
        made: list[Bindable] = [_constant(out, op.value, vector)]
        if given.numel:
            to = target(0, start * out.dtype.itemsize)
            made.append(strided_copy(given.shape, given, read, write, source(), to, vector=vector))
        return tuple(made)

    def relaid(layout: Layout) -> Plan | None:
        fast = given.numel == 0 or _is_fast(given.shape, read, layout.strides)
        return _padded(op, given, full(out, layout), device) if fast else None

    return kernel_plan(
        device, [given], [out], steps(True), label=op.name, plain=lambda: steps(False), relaid=relaid
    )


def _constant(spec: Spec, value: float, vector: bool) -> Launch:
    """One launch that writes `value` everywhere."""
    count = prod(spec.shape)
    out = KernelOperand(spec.dtype, (1,), target())
    name = "f64" if spec.dtype.is_float else c_type(spec.dtype)
    return elementwise((count,), (0,), [], [out], [], [literal(value, name)], vector=vector)


def _alike(given: Spec, out: Spec) -> Spec:
    """`out` with the input's memory order of axes."""
    if given.tag is None or given.numel == 0:
        return out.fixed
    return replace(out, layout=dense_layout(out.shape, memory_order(given.shape, given.physical.strides)))
