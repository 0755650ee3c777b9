"""Elementwise ops, one or a chain of them, as one kernel: its body is the op's NumPy reference on one element.

Any dtypes, any broadcasting, any strides, blocked layouts too. Half types are computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import prod

from lamina.backends import Plan
from lamina.backends.cpu.library import Location, at_input, at_output
from lamina.backends.cpu.loops import table
from lamina.backends.cpu.loops.code import INDEX, KNOWN, Code, Scalar
from lamina.backends.cpu.loops.compiler import masks_cheaply
from lamina.backends.cpu.loops.formula import Formula, LaidOperands, computed, has_instructions
from lamina.backends.cpu.loops.kernel import LoopKernel
from lamina.backends.cpu.loops.reduce import reduce
from lamina.backends.cpu.loops.space import APART, LoopSpace, common_layout, has_runs, space, told_strides
from lamina.backends.cpu.loops.table import loops, worthwhile
from lamina.backends.reference import by_numpy
from lamina.ops.core import Op
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.ops.primitives.pointwise import Identity
from lamina.ops.primitives.reduce import Reduce
from lamina.ops.primitives.shape import Expand
from lamina.runtime import Device
from lamina.spec import DType, Layout, Policy, Spec

#: Strides for which kernels are specialized; others are parameters.
_FIXED = (0, 1)


@loops(Op, Expand, source="loops")
def elementwise(op: Op, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """One elementwise op, a chain or an expression of them."""
    (out,) = op.infer(*(s.open for s in specs))
    worthwhile(op, specs, [out])
    label = "+".join(step.name for step in (op.ops if isinstance(op, (Fused, FusedElementwise)) else (op,)))
    formula = Formula.of(op, specs)
    layout = common_layout(out.shape, formula.wholes, formula.parts)
    return _laid_plan(
        op, formula, formula.laid(out.shape, layout), Spec(out.shape, out.dtype, layout), f"loops {label}"
    )


def _laid_plan(op: Op, formula: Formula, laid: LaidOperands, output: Spec, label: str) -> Plan:
    """The plan that reads operands as laid out by the formula, in the memory order of the output."""
    inputs, operands, places = laid
    doubts = formula.check(output.dtype)
    nested = space(output.shape, output.physical, [*operands, output])
    kernel = nest(formula.op, nested, operands, output, [*places, at_output()])
    if doubts:
        kernel = replace(kernel, refused=partial(by_numpy, op, tuple(inputs), (output,)))
    parted = {leaf.number for leaf in formula.leaves if leaf.part}
    fits = (i for i, s in enumerate(inputs) if s.same_memory(output) and i not in parted)
    aliases = {} if doubts else next(({0: i} for i in fits), {})

    def relaid(layout: Layout) -> Plan | None:
        other = Spec(output.shape, output.dtype, layout)
        runs = has_runs(other.shape, [*operands, other])
        return _laid_plan(op, formula, laid, other, label) if runs else None

    return Plan(tuple(inputs), (output,), kernel, aliases=aliases, label=label, relaid=relaid)


@loops(FusedElementwise, source="loops")
def expression(op: FusedElementwise, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """Elementwise steps, perhaps followed by a reduction."""
    planned = reduce if isinstance(op.ops[-1], Reduce) else elementwise
    return planned(op, specs, device, policy)


def joins(op: Op, specs: Sequence[Spec]) -> bool:
    """Whether an op may be a step of an expression that is a kernel."""
    if not table.answers(op):
        return False
    (out,) = op.infer(*specs)
    formula = Formula.of(op, specs)
    return out.dtype.name in KNOWN and has_instructions(formula.op, formula.dtypes, out.dtype)


def nest(
    op: Op, nested: LoopSpace, inputs: Sequence[Spec], output: Spec, places: Sequence[Location] | None = None
) -> LoopKernel:
    """The kernel that computes the op in every iteration of nested loops.

    places: of the inputs and the output, if not those of the call.
    """
    dtypes, steps = tuple(s.dtype for s in inputs), tuple(row[-1] for row in nested.strides)
    fixed = tuple(step if step in _FIXED else None for step in steps)
    same = tuple(not any(row) for row in nested.strides[:-1])
    rank = len(nested.sizes)
    numbers = [*nested.sizes, *told_strides(nested.strides)]
    places = places or [*(at_input(i) for i in range(len(inputs))), at_output()]
    inner = nested.inner
    text = partial(_text, op, dtypes, output.dtype, rank, inner, fixed, same)
    count = nested.count // prod(nested.sizes[rank - inner :]) if rank > 1 else nested.count
    return LoopKernel(text, [*places, *numbers], count, nested.count * len(places))


@lru_cache(maxsize=1024)
def _text(
    op: Op,
    dtypes: tuple[DType, ...],
    out: DType,
    rank: int,
    inner: int,
    fixed: tuple[int | None, ...],
    same: tuple[bool, ...],
) -> str:
    """The assembly for operands whose innermost strides are known, or None for a parameter.

    inner: how many of the innermost loops each step of the outermost one runs, or 0 for a single loop. same: whether
        an operand is loop-invariant, so that it is loaded once.
    """
    code = Code()
    arrays = [code.array(dtype) for dtype in (*dtypes, out)]
    sizes = code.sizes(rank)
    strides = [code.sizes(rank) for _ in arrays]
    by = [code.value(f) if f is not None else row[-1] + APART for f, row in zip(fixed, strides, strict=True)]
    first, last = code.share()
    once = [array[0] if same_ else None for array, same_ in zip(arrays, same, strict=False)]

    def step(i: Scalar, bases: Sequence[Scalar | int]) -> None:
        values = [
            array[base + i * apart] if held is None else held
            for array, base, apart, held in zip(arrays[:-1], bases, by, once, strict=False)
        ]
        arrays[-1][bases[-1] + i * by[-1]] = computed(op, values)

    def row(bases: Sequence[Scalar | int]) -> None:
        if copies(op) and fixed == (1, 1):
            code.copy(arrays[1], bases[1], arrays[0], bases[0], sizes[-1])
            return
        with code.loop(0, sizes[-1], independent=True, masked=masks_cheaply()) as i:
            step(i, bases)

    if rank == 1:
        with code.loop(first, last, independent=True) as i:
            step(i, [0] * len(arrays))
        return code.text()
    in_rows(code, (first, last), sizes, strides, inner, row)
    return code.text()


def copies(op: Op) -> bool:
    """Whether the op copies elements unchanged."""
    return isinstance(op, Identity)


def in_rows(
    code: Code,
    share: tuple[Scalar, Scalar],
    sizes: Sequence[Scalar],
    strides: Sequence[Sequence[Scalar]],
    inner: int,
    row: Callable[[Sequence[Scalar]], None],
) -> None:
    """Nested loops except for the innermost, which `row` emits, given its start in each operand.

    inner: loops within a step of the outermost one, `row` among them: 1, or 2 so that fewer divisions are needed.
    """
    outer = len(sizes) - inner
    with code.loop(*share) as number:
        if outer:
            bases = offsets(code, number, sizes[:outer], [s[:outer] for s in strides])
        else:
            bases = [code.value(0, INDEX) for _ in strides]
        if inner == 1:
            row(bases)
            return
        with code.loop(0, sizes[outer]) as line:
            row([base + line * s[outer] for base, s in zip(bases, strides, strict=True)])


def offsets(
    code: Code, number: Scalar, sizes: Sequence[Scalar], strides: Sequence[Sequence[Scalar]]
) -> list[Scalar]:
    """The offset of a step in each operand, from its number in nested loops."""
    places: list[Scalar] = []
    for size in reversed(sizes[1:]):
        places.insert(0, code.remainder(number, size))
        number = code.quotient(number, size)
    places.insert(0, number)
    found = []
    for row in strides:
        total = places[0] * row[0]
        for place, stride in zip(places[1:], row[1:], strict=True):
            total = total + place * stride
        found.append(total)
    return found
