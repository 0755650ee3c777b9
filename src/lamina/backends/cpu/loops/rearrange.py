"""Ops that move elements: slices, diagonals, concatenation, constant padding, reversal. Elements are copied
bitwise."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.backends import NoKernel, Plan
from lamina.backends.cpu.library import Location, at_input, at_output
from lamina.backends.cpu.loops import compiler
from lamina.backends.cpu.loops.elementwise import nest
from lamina.backends.cpu.loops.kernel import InOrder, LoopKernel
from lamina.backends.cpu.loops.space import has_runs, space
from lamina.backends.cpu.loops.table import loops, worthwhile
from lamina.ops.primitives.diagonal import Diagonal
from lamina.ops.primitives.full_like import FullLike
from lamina.ops.primitives.pointwise import Identity
from lamina.ops.primitives.shape import Concat, Flip, Pad, Slice
from lamina.runtime import Device
from lamina.spec import DType, Layout, Policy, Shape, Spec, dense, int16, int32, int64, uint8

#: The type in which elements are moved, by item size.
RAW: dict[int, DType] = {1: uint8, 2: int16, 4: int32, 8: int64}


def copied(shape: Shape, x: StridedPart, y: StridedPart) -> LoopKernel:
    """The kernel that copies a part of one array to a part of another."""
    operands = [Spec(shape, RAW[part.itemsize], Layout(part.strides)) for part in (x, y)]
    nested = space(shape, operands[1].physical, operands)
    return nest(Identity(), nested, operands[:1], operands[1], [x.place, y.place])


def relaid(source: Spec, target: Spec, *, by_runs: bool = True) -> Plan:
    """The copy into another layout, by contiguous runs. Raises NoKernel where there are none.

    by_runs: whether runs are required; otherwise elements are copied one by one where there are none.
    """
    source, target = source.fixed, target.fixed
    if source.physical.is_blocked or target.physical.is_blocked or not compiler.available():
        raise NoKernel(f"cpu: {source} to {target} is no copy of runs")
    worthwhile(Identity(), [source], [target])
    if by_runs and not has_runs(source.shape, [source, target]):
        raise NoKernel(f"cpu: {source} to {target} is no copy of runs")
    kernel = copied(source.shape, StridedPart(at_input(0), source), StridedPart(at_output(), target))
    return Plan((source,), (target,), kernel, label="loops copy")


class StridedPart:
    """Elements of an array: the position of the first one, and the strides along the axes, in elements."""

    def __init__(
        self, place: Location, spec: Spec, start: Sequence[int] = (), step: Sequence[int] = ()
    ) -> None:
        strides, rank = spec.physical.strides, spec.ndim
        self.itemsize = spec.dtype.itemsize
        first = sum(a * s for a, s in zip(start or (0,) * rank, strides, strict=True))
        self.place = place.at(first * self.itemsize)
        self.strides = tuple(s * t for s, t in zip(strides, step or (1,) * rank, strict=True))

    @classmethod
    def taken(cls, op: Slice | Diagonal, place: Location, spec: Spec) -> StridedPart:
        """The part of an array that an op reads."""
        strides = spec.physical.strides
        (out,) = op.infer(spec.open)
        lie = Spec(out.shape, out.dtype, Layout(op.strides_within(spec.shape, strides)))
        return cls(place.at(op.first_within(strides) * spec.dtype.itemsize), lie)


def _read(spec: Spec) -> Spec:
    """The spec in which x is read: its own layout, row-major where that is open or blocked."""
    return spec.open.fixed if spec.physical.is_blocked else spec.fixed


def _alike(x: Spec, shape: Shape, dtype: DType) -> Spec:
    """A dense spec with the axis order of x."""
    if x.tag is None or len(shape) != x.ndim:
        return Spec(shape, dtype).fixed
    order = sorted(range(x.ndim), key=lambda a: (-x.physical.strides[a], a))
    return Spec(shape, dtype, dense(shape, tuple(order)))


def _part_plan(x: Spec, y: Spec, part: StridedPart, label: str) -> Plan:
    """The plan that writes a part of x."""

    def relaid(layout: Layout) -> Plan | None:
        other, read = Spec(y.shape, y.dtype, layout), Spec(y.shape, y.dtype, Layout(part.strides))
        return _part_plan(x, other, part, label) if has_runs(y.shape, [read, other]) else None

    kernel = copied(y.shape, part, StridedPart(at_output(), y))
    return Plan((x,), (y,), kernel, label=label, relaid=relaid)


@loops(Slice, source="loops")
def sliced(op: Slice, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """Elements from start on, step by step."""
    x, (y,) = _read(specs[0]), op.infer(specs[0])
    y = _alike(x, y.shape, y.dtype)
    worthwhile(op, [y], [y])
    return _part_plan(x, y, StridedPart.taken(op, at_input(0), x), "loops slice")


@loops(Diagonal, source="loops")
def diagonal(op: Diagonal, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """Elements one row and one column apart."""
    x, (y,) = _read(specs[0]), op.infer(specs[0])
    worthwhile(op, [y], [y])
    return _part_plan(x, y.fixed, StridedPart.taken(op, at_input(0), x), "loops diagonal")


@loops(Flip, source="loops")
def flipped(op: Flip, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """Elements in reverse order."""
    x = _read(specs[0])
    y = _alike(x, x.shape, x.dtype)
    worthwhile(op, [x], [y])
    axes = {a % x.ndim for a in op.axes}
    start = [n - 1 if a in axes else 0 for a, n in enumerate(x.shape)]
    step = [-1 if a in axes else 1 for a in range(x.ndim)]
    return _part_plan(x, y, StridedPart(at_input(0), x, start, step), "loops flip")


@loops(Concat, source="loops")
def joined(op: Concat, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """Each input to its part of the output."""
    inputs = [_read(s) for s in specs]
    (out,) = op.infer(*(s.open for s in specs))
    y = _alike(inputs[0], out.shape, out.dtype)
    worthwhile(op, inputs, [y])
    return _joined_plan(inputs, y, op.axis % y.ndim)


def _joined_plan(inputs: Sequence[Spec], y: Spec, axis: int) -> Plan:
    """The plan that writes inputs one after another along an axis."""
    kernels, start = list[LoopKernel](), 0
    for number, x in enumerate(inputs):
        place = [start if a == axis else 0 for a in range(x.ndim)]
        if x.numel:
            kernels.append(
                copied(x.shape, StridedPart(at_input(number), x), StridedPart(at_output(), y, place))
            )
        start += x.shape[axis]

    def relaid(layout: Layout) -> Plan | None:
        runs = all(has_runs(x.shape, [x, Spec(x.shape, x.dtype, layout)]) for x in inputs if x.numel)
        return _joined_plan(inputs, Spec(y.shape, y.dtype, layout), axis) if runs else None

    return Plan(tuple(inputs), (y,), InOrder(kernels), label="loops concat", relaid=relaid)


@loops(Pad, source="loops")
def padded(op: Pad, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """The input in the middle, the value in the surrounding slabs."""
    x, (out,) = _read(specs[0]), op.infer(specs[0])
    y = _alike(x, out.shape, out.dtype)
    worthwhile(op, [x], [y])
    if x.numel == 0:
        raise NoKernel(f"cpu: {op} of {x} is left to NumPy")
    return _padded_plan(op, x, y)


def _padded_plan(op: Pad, x: Spec, y: Spec) -> Plan:
    before = [pair[0] for pair in op.pairs]
    kernels = [copied(x.shape, StridedPart(at_input(0), x), StridedPart(at_output(), y, before))]
    for axis, (low, high) in enumerate(op.pairs):
        for start, size in ((0, low), (low + x.shape[axis], high)):
            if size:
                kernels.append(_slab(op, x, y, axis, start, size))

    def relaid(layout: Layout) -> Plan | None:
        runs = has_runs(x.shape, [x, Spec(x.shape, x.dtype, layout)])
        return _padded_plan(op, x, Spec(y.shape, y.dtype, layout)) if runs else None

    return Plan((x,), (y,), InOrder(kernels), label="loops pad", relaid=relaid)


def _slab(op: Pad, x: Spec, y: Spec, axis: int, start: int, size: int) -> LoopKernel:
    """Fill the slab before or after x along an axis: as wide as x along earlier axes, as y along later ones."""
    first = [op.pairs[a][0] if a < axis else 0 for a in range(x.ndim)]
    first[axis] = start
    part = StridedPart(at_output(), y, first)
    shape = (*x.shape[:axis], size, *y.shape[axis + 1 :])
    slab = Spec(shape, y.dtype, Layout(part.strides))
    value = bool(op.value) if y.dtype.kind == "b" else op.value
    return nest(
        FullLike(value), space(shape, slab.physical, [slab, slab]), [slab], slab, [part.place, part.place]
    )
