"""Reductions: over contiguous elements, over strided elements, and in two stages when few outputs remain.

The layout decides which kernel runs: when the innermost axis is reduced, a warp or a block takes each output
(`reduce_rows`); when it is kept, threads run along the outputs and divide the reduced elements among rows of threads
(`reduce_columns`: the bias gradient). Sums of one call are always taken in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from lamina.backends import Plan
from lamina.backends.cuda.elementwise.pointwise import full, literal
from lamina.backends.cuda.elementwise.shape import _constant, plain_layout, row_major
from lamina.backends.cuda.launch.indexing import (
    KernelSizes,
    Space,
    Strides,
    collapse,
    dense_layout,
    index_type,
    memory_order,
    offset_function,
)
from lamina.backends.cuda.launch.program import (
    VECTOR,
    Argument,
    Bindable,
    Launch,
    Place,
    Program,
    Table,
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
from lamina.ops.primitives.reduce import ArgMax, ArgMin, Reduce
from lamina.runtime import Device
from lamina.spec import DType, Layout, Policy, Spec

#: Blocks that keep a multiprocessor busy; with fewer outputs, the elements of each are split over blocks.
ENOUGH = 8
#: Elements that a thread should add up by itself before another row of threads pays.
_ALONE = 4


@dataclass(frozen=True)
class Kind:
    """One kind of reduction in C: the map on each element, the combination of two, the neutral element."""

    combine: str
    neutral: float
    pre: str = "(v)"
    post: str = "(v)"


def _kind(name: str, accumulator: str) -> Kind:
    root = "sqrtf(v)" if accumulator == "f32" else "sqrt(v)"
    mean = f"((v) / ({accumulator})WHOLE)"
    infinity = float("inf")
    return {
        "sum": Kind("Sum", 0),
        "mean": Kind("Sum", 0, post=mean),
        "prod": Kind("Product", 1),
        "max": Kind("Larger", -infinity),
        "min": Kind("Smaller", infinity),
        "norm1": Kind("Sum", 0, pre="magnitude(v)"),
        "norm2": Kind("Sum", 0, pre="((v) * (v))", post=root),
        "amax": Kind("Larger", 0, pre="magnitude(v)"),
        "mul_no_zeros": Kind("Product", 1, pre=f"((v) == 0 ? ({accumulator})1 : (v))"),
    }[name]


def _neutral(kind: Kind, dtype: DType, accumulator: str) -> str:
    """The neutral element in C; the smallest or largest integer where there is no infinity."""
    if dtype.kind in "iu" and abs(kind.neutral) == float("inf"):
        limits = np.iinfo(dtype.numpy)
        value = limits.min if kind.neutral < 0 else limits.max
        return f"(({accumulator})({value + 1}LL - 1))" if value < 0 else f"(({accumulator}){value}LL)"
    return literal(kind.neutral, accumulator)


def _accumulator(op: str, dtype: DType) -> str:
    if dtype.kind in "iub":
        return "i64" if op in ("sum", "prod") else c_type(dtype)
    return c_type(dtype.compute)


def reduction_text(op: Reduce, dtype: DType, out: DType) -> str:
    """A, F, NEUTRAL, PRE(v) and POST(v) of a reduction of elements of a dtype to results of another; no mean."""
    accumulator = _accumulator(op.kind, dtype)
    kind = _kind(op.kind, accumulator)
    neutral = _neutral(kind, dtype if accumulator != "i64" else out, accumulator)
    text = f"typedef {accumulator} A;\ntypedef {kind.combine} F;\n#define NEUTRAL {neutral}\n"
    return f"{text}#define PRE(v) {kind.pre}\n#define POST(v) {kind.post}\n"


# ------------------------------------------------------------------------------------------------- one stage


@dataclass(frozen=True)
class ReducedOperand:
    """An operand of the element expression. type: of its elements, in C. place: of its memory."""

    type: str
    itemsize: int
    place: Place


@dataclass(frozen=True)
class Stage:
    """One pass: the element number r of output o, for each of `kept.count` outputs `reduced.count` of them.

    kept, reduced: row 0 of their strides is the layout of the reduced tensor, row i + 1 that of operand i. element:
        the body of the C function of e0, e1, … (one element of each operand) that gives one.
    """

    kept: Space
    reduced: Space
    operands: tuple[ReducedOperand, ...]
    element: str
    accumulator: str
    write: str
    kind: Kind
    neutral: str
    whole: int  # elements per result, over all splits
    enough: int  # blocks that keep the GPU busy
    stepwise: bool = False  # see `Program`

    @property
    def by_rows(self) -> bool:
        """Whether contiguous elements are reduced together."""
        inner = [abs(s) for s in self.reduced.strides[0] if s]
        outer = [abs(s) for s in self.kept.strides[0] if s]
        return self.kept.count == 1 or (bool(inner) and min(inner) < min(outer or [1 << 62]))

    @property
    def _along(self) -> Space:
        """The space along which accesses of several elements run."""
        return self.reduced if self.by_rows else self.kept

    def width(self, aligned: bool) -> int:
        """Elements per access."""
        width = VECTOR // max(o.itemsize for o in self.operands) if aligned else 1
        while width > 1 and not self._fits(width):
            width //= 2
        return width

    def _fits(self, width: int) -> bool:
        """Whether `width` elements are contiguous in every operand, or broadcast."""
        along, across = (self.reduced, self.kept) if self.by_rows else (self.kept, self.reduced)
        if along.sizes[-1] % width:
            return False
        for i, operand in enumerate(self.operands, 1):
            step, rest = along.strides[i][-1], (*along.strides[i][:-1], *across.strides[i])
            if step not in (0, 1) or (step and any(s % width for s in rest)):
                return False
            if step and operand.place.offset % (operand.itemsize * width):
                return False
        return True

    def splits(self, width: int) -> tuple[int, int]:
        """(elements per split, splits)."""
        count = self.reduced.count
        if self.by_rows:
            wanted = self.enough // max(1, self.kept.count)
            least = 256 * width * 4
        else:
            lanes, rows = self.lanes(width)
            wanted = self.enough // -(-self.kept.count // (lanes * width))
            least = rows * 8
        wanted = max(1, min(wanted, count // least))
        part = round_up(-(-count // wanted), width)
        return part, -(-count // part)

    def lanes(self, width: int) -> tuple[int, int]:
        """Threads along the outputs and rows of them, 256 in all.

        Few outputs are spread over more blocks, 128 bytes for each, so that fewer splits are left to combine. With
        few elements per output (heads that share keys, 2 to 8) there are no idle rows.
        """
        outputs, multiprocessors = self.kept.count, self.enough // ENOUGH
        most = 32 if outputs >= 32 * width * self.enough else 8
        while (
            most < 256
            and self.reduced.count <= _ALONE * (128 // most)
            and outputs >= 2 * most * width * multiprocessors
        ):
            most *= 2
        lanes = 1
        while lanes < most and lanes * width < outputs:
            lanes *= 2
        return lanes, 256 // lanes

    def launch(self, to: Place, aligned: bool) -> Launch:
        """The launch; results are partial when there are several splits."""
        width = self.width(aligned)
        part, splits = self.splits(width)
        sizes = KernelSizes(self._known(width))
        sizes.add(
            OUTPUTS=self.kept.count, COUNT=self.reduced.count, PART=part, SPLITS=splits, WHOLE=self.whole
        )
        written = self.write if splits == 1 else self.accumulator
        text = f"typedef {self._index()} Index;\ntypedef {self.accumulator} A;\ntypedef {written} R;\n"
        text += (
            f"typedef {self.kind.combine} F;\n#define POST(v) {self.kind.post if splits == 1 else '(v)'}\n"
        )
        text += constants(V=width, NEUTRAL=self.neutral) + self._reading(width, sizes)
        places: list[Argument] = [*(operand.place for operand in self.operands), to, Table(sizes.values)]
        if self.by_rows:
            group = 32 if self.reduced.count <= 1024 * width and splits == 1 else 256
            program = self._program("reduce_rows", text + constants(GROUP=group))
            return looping(program, self.kept.count * splits * group, places)
        lanes, rows = self.lanes(width)
        program = self._program("reduce_columns", text + constants(LANES=lanes, ROWS=rows))
        return Launch(program, (-(-self.kept.count // (lanes * width)), splits), (256,), tuple(places))

    def _program(self, name: str, text: str) -> Program:
        return Program(name, "elementwise/reduce.cu", text, self.stepwise)

    def _known(self, width: int) -> bool:
        """Whether sizes are constants. Offsets from run-time sizes cost a few more instructions: an access of 16
        bytes hides them, and they are not needed where a constant step leads from element to element.
        """
        whole = width * max(o.itemsize for o in self.operands) == VECTOR
        return self._index() != "i32" or not (whole or len(self.reduced.sizes) == 1)

    def _reading(self, width: int, sizes: KernelSizes) -> str:
        """The operands as kernel parameters, and the element expression."""
        numbers = range(len(self.operands))
        for i in numbers:
            sizes.add_offset(f"kept{i}", self.kept, i + 1)
            sizes.add_offset(f"reduced{i}", self.reduced, i + 1)
        text = sizes.text
        together = [self._along.strides[i + 1][-1] != 0 for i in numbers]
        types = [operand.type for operand in self.operands]
        accesses = [f"load<{width if together[i] else 1}>(at{i} + reduced{i}(r))" for i in numbers]
        taken = [f"p{i}.v[{'k' if together[i] else 0}]" for i in numbers]
        values = ", ".join(f"{types[i]} e{i}" for i in numbers)
        text += f"__device__ __forceinline__ A element({values}) {{ {self.element} }}\n"
        text += f"#define PARAMETERS {', '.join(f'const {types[i]} *in{i}' for i in numbers)}\n"
        text += f"#define LOCATE(o) {' '.join(f'const {types[i]} *at{i} = in{i} + kept{i}(o);' for i in numbers)}\n"
        text += f"#define LOAD(r) {' '.join(f'const auto p{i} = {accesses[i]};' for i in numbers)}\n"
        return f"{text}#define ELEMENT(k) element({', '.join(taken)})\n"

    def _index(self) -> str:
        reach = self.kept.reach + self.reduced.reach + self.kept.count * self.reduced.count
        return index_type(reach)

    def next(self, splits: int, partial: Place) -> Stage:
        """The stage that combines the partial results of this one."""
        outputs = self.kept.count
        by_rows = self.by_rows
        operand = ReducedOperand(self.accumulator, _SIZES[self.accumulator], partial)
        return replace(
            self,
            kept=Space((outputs,), ((splits if by_rows else 1,),) * 2),
            reduced=Space((splits,), ((1 if by_rows else outputs,),) * 2),
            operands=(operand,),
            element="return e0;",
        )


_SIZES = {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "bool": 1}


def stages(stage: Stage, to: Place, aligned: bool) -> list[Bindable]:
    """The launches of a reduction: one, or two through the workspace."""
    _, splits = stage.splits(stage.width(aligned))
    if splits == 1:
        return [stage.launch(to, aligned)]
    return [stage.launch(scratch(), aligned), _unsplit(stage.next(splits, scratch()), to)]


def _unsplit(stage: Stage, to: Place) -> Launch:
    """A launch that is never split: there are few partial results."""
    return _Whole(**{f: getattr(stage, f) for f in stage.__dataclass_fields__}).launch(to, True)


class _Whole(Stage):
    """A stage whose outputs are each made by one block."""

    def splits(self, width: int) -> tuple[int, int]:
        return self.reduced.count, 1


def workspace(stage: Stage) -> int:
    """Bytes for the partial results, whether addresses are aligned or not."""
    most = max(stage.splits(stage.width(aligned))[1] for aligned in (True, False))
    return 0 if most == 1 else most * stage.kept.count * _SIZES[stage.accumulator]


# ------------------------------------------------------------------------------------------------------ ops


def spaces(
    spec: Spec, axes: tuple[int, ...], others: Sequence[Strides] = ()
) -> tuple[Space, Space, tuple[int, ...]]:
    """Kept and reduced axes of a tensor as spaces, in memory order, and the kept axes in that order.

    others: strides of further operands over its shape: further rows of the spaces.
    """
    rows = [spec.physical.strides, *others]
    order = memory_order(spec.shape, rows[0])
    kept = tuple(a for a in order if a not in axes)
    reduced = tuple(a for a in order if a in axes)
    return collapse(spec.shape, rows, kept), collapse(spec.shape, rows, reduced), kept


def reduced_spec(out: Spec, kept: tuple[int, ...], keepdims: bool) -> Spec:
    """The result's spec: its axes in the memory order of the kept axes."""
    if keepdims:
        rest = tuple(a for a in range(out.ndim) if a not in kept)
        return full(out, dense_layout(out.shape, (*rest, *kept)))
    names = sorted(kept)
    order = tuple(names.index(a) for a in kept)
    return full(out, dense_layout(out.shape, order) if order else Layout(()))


def dense(spec: Spec) -> Spec:
    """The spec in its own layout if that is dense, else row-major."""
    given = plain_layout(spec)
    return given if given.tag is not None else row_major(spec)


@kernels(Reduce, source="kernel")
def reduce(op: Reduce, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """One of the kinds along axes, of a tensor or a part of one where it lies."""
    x = plain_layout(specs[0])
    operand, strides = ReducedOperand(c_type(x.dtype), x.dtype.itemsize, source()), x.physical.strides
    return reduction_plan(op, x, [x], [(operand, strides)], "widen(e0)", device, f"{op.name} {op.kind}")


def reduction_plan(
    op: Reduce,
    x: Spec,
    inputs: Sequence[Spec],
    operands: Sequence[tuple[ReducedOperand, Strides]],
    element: str,
    device: Device,
    label: str,
    body: str = "",
) -> Plan:
    """The plan of a reduction over computed elements.

    x: the spec of the reduced values, as if they were a tensor. operands: the operands of an element, with their
        strides over x. element: the value, in C, after the statements of `body`.
    """
    (out,) = op.infer(x)
    kept, inner, axes = spaces(x, op.axes, [strides for _, strides in operands])
    result = reduced_spec(out, axes, op.keepdims)
    if out.numel == 0:
        return kernel_plan(device, inputs, [result], [], label=label)
    accumulator = _accumulator(op.kind, x.dtype)
    kind = _kind(op.kind, accumulator)
    if x.numel == 0:
        value = float("nan") if op.kind == "mean" else kind.neutral
        flat = full(result, result.physical)
        return kernel_plan(device, inputs, [result], [_constant(flat, value, False)], label=label)
    stage = Stage(
        kept,
        inner,
        tuple(operand for operand, _ in operands),
        f"{body} const auto v = {element}; return (A){kind.pre};",
        accumulator,
        c_type(out.dtype),
        kind,
        _neutral(kind, x.dtype if accumulator != "i64" else out.dtype, accumulator),
        prod(x.shape[a] for a in op.axes),
        ENOUGH * device.machine.multiprocessors,
        stepwise=bool(body),
    )
    return kernel_plan(
        device,
        inputs,
        [result],
        stages(stage, target(), True),
        label=label,
        workspace=workspace(stage),
        plain=lambda: tuple(stages(stage, target(), False)),
    )


#: Elements that a lane should process before lanes share a group.
_SEARCHED = 8


@kernels(ArgMax, ArgMin, source="kernel")
def arg_reduce(op: ArgMax, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The index of the largest or smallest element along an axis."""
    (out,) = op.infer(*specs)
    x = dense(specs[0])
    axis = op.axis % x.ndim
    kept, inner, axes = spaces(x, (axis,))
    result = reduced_spec(out, axes, False)
    if out.numel == 0:
        return kernel_plan(device, [x], [result], [], label=op.name)
    lanes = 1
    while lanes < 32 and x.physical.strides[axis] == 1 and x.shape[axis] > _SEARCHED * lanes:
        lanes *= 2
    index = index_type(kept.reach + inner.reach)
    text = f"typedef {index} Index;\ntypedef {c_type(x.dtype)} T;\ntypedef Wide<T>::type A;\n"
    text += constants(
        OUTPUTS=kept.count, COUNT=inner.count, ARG=lanes, ARG_ORDER="<" if isinstance(op, ArgMin) else ">"
    )
    text += offset_function("kept", kept) + offset_function("reduced", inner)
    program = Program("arg_reduce", "elementwise/reduce.cu", text)
    launch = looping(program, kept.count * lanes, (source(), target()))
    return kernel_plan(device, [x], [result], [launch], label=op.name)
