"""The computation of a kernel in each iteration, and its operand accesses: elementwise ops on parts of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

from lamina.backends import NoKernel
from lamina.backends.cpu.library import Location, at_input
from lamina.backends.cpu.loops.code import Code, Scalar
from lamina.backends.cpu.loops.space import operand
from lamina.ops.core import Op
from lamina.ops.primitives.diagonal import Diagonal
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.ops.primitives.pointwise import Identity
from lamina.ops.primitives.reduce import Reduce
from lamina.ops.primitives.shape import Expand, Reshape, Slice
from lamina.spec import DType, Layout, Shape, Spec


class Leaf(NamedTuple):
    """An access to an input: all of it, or a part with its own start and strides."""

    spec: Spec
    number: int
    start: int = 0
    part: bool = False


class LaidOperands(NamedTuple):
    """The specs that inputs must have, and the loops' accesses: specs and places, one per leaf."""

    inputs: list[Spec]
    specs: list[Spec]
    places: list[Location]


@dataclass(frozen=True)
class Formula:
    """An elementwise op on leaves of a call's inputs."""

    op: Op
    leaves: tuple[Leaf, ...]
    inputs: tuple[Spec, ...]

    @classmethod
    def of(cls, op: Op, specs: Sequence[Spec]) -> Formula:
        """Of an elementwise op, a chain or an expression, without its reduction. Raises NoKernel."""
        if isinstance(op, FusedElementwise):
            return _of_expression(op, specs)
        if isinstance(op, Reduce):
            op = Identity()
        first, *steps = op.ops if isinstance(op, Fused) else (op,)
        if isinstance(first, Expand):  # operands are broadcast anyway
            op = Fused((Identity(), *steps))
        return cls(op, tuple(Leaf(s, i) for i, s in enumerate(specs)), tuple(specs))

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Of the leaves."""
        return tuple(leaf.spec.dtype for leaf in self.leaves)

    @property
    def wholes(self) -> list[Spec]:
        """The inputs that are read whole."""
        return [leaf.spec for leaf in self.leaves if not leaf.part]

    @property
    def parts(self) -> list[Spec]:
        """The parts of inputs that are read where they are."""
        return [leaf.spec for leaf in self.leaves if leaf.part]

    def check(self, out: DType) -> bool:
        """Whether results may be doubtful. Raises NoKernel where the op's reference has no instructions."""
        return _check(self.op, self.dtypes, out)

    def laid(self, shape: Shape, layout: Layout) -> LaidOperands:
        """The operands for loops over `shape` in the order of a layout."""
        parted = {leaf.number for leaf in self.leaves if leaf.part}
        inputs = [_plain(s) if i in parted else operand(s, shape, layout) for i, s in enumerate(self.inputs)]
        specs = [leaf.spec if leaf.part else inputs[leaf.number] for leaf in self.leaves]
        specs = [_one(s) if s.numel == 1 else s for s in specs]
        places = [at_input(leaf.number).at(leaf.start * leaf.spec.dtype.itemsize) for leaf in self.leaves]
        return LaidOperands(inputs, specs, places)


def _one(spec: Spec) -> Spec:
    """A single element, for all iterations."""
    return Spec((), spec.dtype).fixed


def _plain(spec: Spec) -> Spec:
    """The spec of an input that is read in parts: strided, without blocks."""
    return spec.open.fixed if spec.layout is None or spec.layout.is_blocked else spec


def _of_expression(op: FusedElementwise, specs: Sequence[Spec]) -> Formula:
    """Slices and broadcasts become accesses of leaves; the rest are elementwise steps."""
    leaves: dict[Leaf, int] = {Leaf(s, i): i for i, s in enumerate(specs)}
    order, ops, reads = list(leaves), list[Op](), list[tuple[int, ...]]()
    values: list[int] = []  # per step: leaf k, or ~k for step k of the remaining ones
    for step, read in zip(op.ops, op.reads, strict=True):
        given = tuple(k if k >= 0 else values[~k] for k in read)
        if isinstance(step, Reduce):
            break
        if isinstance(step, Slice | Diagonal):
            values.append(
                _leaf(_part(step, order[given[0]]), leaves, order) if given[0] >= 0 else _refuse(op)
            )
        elif isinstance(step, Expand) or (isinstance(step, Reshape) and prod(step.shape) == 1):
            values.append(given[0])
        elif step.elementwise:
            ops.append(step)
            reads.append(given)
            values.append(~(len(ops) - 1))
        else:
            _refuse(op)
    if not values or values[-1] >= 0:
        ops, reads = [*ops, Identity()], [*reads, (values[-1] if values else op.reads[0][0],)]
    used = sorted({k for read in reads for k in read if k >= 0})
    numbers = {k: i for i, k in enumerate(used)}
    shown = tuple(tuple(numbers[k] if k >= 0 else k for k in read) for read in reads)
    return Formula(FusedElementwise(tuple(ops), shown), tuple(order[k] for k in used), tuple(specs))


def _refuse(op: Op) -> int:
    raise NoKernel(f"cpu: no loops for {op}")


def _leaf(leaf: Leaf, leaves: dict[Leaf, int], order: list[Leaf]) -> int:
    """The number of a leaf, which may exist already."""
    if leaf not in leaves:
        leaves[leaf] = len(order)
        order.append(leaf)
    return leaves[leaf]


def _part(op: Slice | Diagonal, leaf: Leaf) -> Leaf:
    """The part of a leaf that an op reads."""
    spec = leaf.spec if leaf.part else _plain(leaf.spec)
    strides = spec.physical.strides
    (out,) = op.infer(spec.open)
    part = Spec(out.shape, out.dtype, Layout(op.strides_within(spec.shape, strides)))
    return Leaf(part, leaf.number, leaf.start + op.first_within(strides), True)


@lru_cache(maxsize=1024)
def _check(op: Op, dtypes: tuple[DType, ...], out: DType) -> bool:
    code = Code()
    values = [code.array(dtype)[0] for dtype in dtypes]
    code.array(out)[0] = computed(op, values)
    return code.doubts


def has_instructions(op: Op, dtypes: tuple[DType, ...], out: DType) -> bool:
    """Whether an elementwise op's reference can be compiled to a kernel."""
    try:
        _check(op, dtypes, out)
    except NoKernel:
        return False
    return True


def computed(op: Op, values: Sequence[Scalar]) -> Scalar:
    """The op's reference on one element. Raises NoKernel where it has no instructions."""
    try:
        if isinstance(op, FusedElementwise):
            return _steps(op, values)
        (found,) = op.reference(*values)
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise NoKernel(f"cpu: no instructions for {op}: {error}") from None
    return values[0].code.value(found)


def _steps(op: FusedElementwise, values: Sequence[Scalar]) -> Scalar:
    found: list[Scalar] = []
    for step, read in zip(op.ops, op.reads, strict=True):
        found.append(computed(step, [values[k] if k >= 0 else found[~k] for k in read]))
    return found[-1]
