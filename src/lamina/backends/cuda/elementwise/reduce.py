"""Reductions: over elements that lie together, over elements that lie apart, and in two stages when few remain.

Which kernel runs follows from memory: when the innermost axis is reduced, a warp or a block takes each output
(`reduce_rows`); when it is kept, threads run along the outputs and share the reduced elements among rows
(`reduce_columns`: the bias gradient). Sums of one call are always taken in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from lamina.backends import Plan
from lamina.backends.cuda.elementwise.pointwise import full, literal
from lamina.backends.cuda.elementwise.shape import _constant, _dense, plain_layout, row_major
from lamina.backends.cuda.launch.indexing import Space, collapse, index_type, memory_order, offset_function
from lamina.backends.cuda.launch.program import (
    VECTOR,
    Bindable,
    Launch,
    Place,
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
from lamina.ops.primitives.reduce import ArgMax, ArgMin, Reduce
from lamina.runtime import Device
from lamina.spec import DType, Layout, Policy, Spec

#: Blocks that keep a multiprocessor busy; with fewer outputs the elements of each are split among blocks.
ENOUGH = 8


@dataclass(frozen=True)
class Kind:
    """One kind of reduction as C: what is done to each element, how two are combined, the empty result."""

    combine: str
    neutral: float
    pre: str = "(v)"
    post: str = "(v)"


def _kind(name: str, count: int, accumulator: str) -> Kind:
    root = "sqrtf(v)" if accumulator == "f32" else "sqrt(v)"
    mean = f"((v) / ({accumulator}){count})"
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
    """The empty result as C; the smallest or largest integer where there is no infinity."""
    if dtype.kind in "iu" and abs(kind.neutral) == float("inf"):
        limits = np.iinfo(dtype.numpy)
        value = limits.min if kind.neutral < 0 else limits.max
        return f"(({accumulator})({value + 1}LL - 1))" if value < 0 else f"(({accumulator}){value}LL)"
    return literal(kind.neutral, accumulator)


def _accumulator(op: str, dtype: DType) -> str:
    if dtype.kind in "iub":
        return "i64" if op in ("sum", "prod") else c_type(dtype)
    return c_type(dtype.compute)


# ------------------------------------------------------------------------------------------------- one stage


@dataclass(frozen=True)
class Stage:
    """One pass: elements at kept(o) + reduced(r), for each of `kept.count` outputs `reduced.count` of them."""

    kept: Space
    reduced: Space
    read: str  # C type of the elements
    itemsize: int
    accumulator: str
    write: str
    kind: Kind
    neutral: str
    enough: int  # blocks that keep the GPU busy

    @property
    def by_rows(self) -> bool:
        """Whether neighbours in memory are reduced together."""
        inner = [abs(s) for s in self.reduced.strides[0] if s]
        outer = [abs(s) for s in self.kept.strides[0] if s]
        return self.kept.count == 1 or (bool(inner) and min(inner) < min(outer or [1 << 62]))

    def width(self, aligned: bool) -> int:
        """Elements per access."""
        width = VECTOR // self.itemsize if aligned else 1
        along, across = (self.reduced, self.kept) if self.by_rows else (self.kept, self.reduced)
        while width > 1:
            rest = (*along.strides[0][:-1], *across.strides[0])
            if (
                along.strides[0][-1] == 1
                and along.sizes[-1] % width == 0
                and all(s % width == 0 for s in rest)
            ):
                return width
            width //= 2
        return 1

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

        Few outputs are spread over more blocks, 128 bytes for each: fewer splits are then left to combine.
        """
        most = 32 if self.kept.count >= 32 * width * self.enough else 8
        lanes = 1
        while lanes < most and lanes * width < self.kept.count:
            lanes *= 2
        return lanes, 256 // lanes

    def launch(self, origin: Place, to: Place, aligned: bool) -> Launch:
        """The launch; results are partial when there are several splits."""
        width = self.width(aligned)
        part, splits = self.splits(width)
        text = f"typedef {self._index()} Index;\ntypedef {self.read} T;\ntypedef {self.accumulator} A;\n"
        text += (
            f"typedef {self.write if splits == 1 else self.accumulator} R;\ntypedef {self.kind.combine} F;\n"
        )
        text += f"#define PRE(v) {self.kind.pre}\n"
        text += f"#define POST(v) {self.kind.post if splits == 1 else '(v)'}\n"
        text += constants(
            V=width,
            OUTPUTS=self.kept.count,
            COUNT=self.reduced.count,
            PART=part,
            SPLITS=splits,
            NEUTRAL=self.neutral,
        )
        text += offset_function("kept", self.kept) + offset_function("reduced", self.reduced)
        if self.by_rows:
            group = 32 if self.reduced.count <= 1024 * width and splits == 1 else 256
            program = Program("reduce_rows", "elementwise/reduce.cu", text + constants(GROUP=group))
            return looping(program, self.kept.count * splits * group, (origin, to))
        lanes, rows = self.lanes(width)
        program = Program("reduce_columns", "elementwise/reduce.cu", text + constants(LANES=lanes, ROWS=rows))
        return Launch(program, (-(-self.kept.count // (lanes * width)), splits), (256,), (origin, to))

    def _index(self) -> str:
        reach = self.kept.reach + self.reduced.reach + self.kept.count * self.reduced.count
        return index_type(reach)

    def next(self, splits: int, write: str, itemsize: int) -> Stage:
        """The stage that combines the partial results of this one."""
        outputs = self.kept.count
        by_rows = self.by_rows
        kept = Space((outputs,), ((splits if by_rows else 1,),))
        reduced = Space((splits,), ((1 if by_rows else outputs,),))
        kind = replace(self.kind, pre="(v)")
        return replace(
            self, kept=kept, reduced=reduced, read=self.accumulator, itemsize=itemsize, write=write, kind=kind
        )


_SIZES = {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "bool": 1}


def stages(stage: Stage, origin: Place, to: Place, work: int, aligned: bool) -> list[Bindable]:
    """The launches of a reduction: one, or two through the workspace at byte `work`."""
    _, splits = stage.splits(stage.width(aligned))
    if splits == 1:
        return [stage.launch(origin, to, aligned)]
    second = stage.next(splits, stage.write, _SIZES[stage.accumulator])
    single = replace(second, kept=second.kept)
    return [stage.launch(origin, scratch(work), aligned), _unsplit(single, scratch(work), to)]


def _unsplit(stage: Stage, origin: Place, to: Place) -> Launch:
    """A launch that is never split: there are few partial results."""
    return _Whole(**{f: getattr(stage, f) for f in stage.__dataclass_fields__}).launch(origin, to, True)


class _Whole(Stage):
    """A stage whose outputs are each made by one block."""

    def splits(self, width: int) -> tuple[int, int]:
        return self.reduced.count, 1


def workspace(stage: Stage) -> int:
    """Bytes for the partial results, whether addresses are aligned or not."""
    most = max(stage.splits(stage.width(aligned))[1] for aligned in (True, False))
    return 0 if most == 1 else most * stage.kept.count * _SIZES[stage.accumulator]


# ------------------------------------------------------------------------------------------------------ ops


def spaces(spec: Spec, axes: tuple[int, ...]) -> tuple[Space, Space, tuple[int, ...]]:
    """Kept and reduced axes of a tensor as spaces, in memory order, and the kept axes in that order."""
    strides = spec.physical.strides
    order = memory_order(spec.shape, strides)
    kept = tuple(a for a in order if a not in axes)
    reduced = tuple(a for a in order if a in axes)
    return collapse(spec.shape, [strides], kept), collapse(spec.shape, [strides], reduced), kept


def reduced_spec(out: Spec, kept: tuple[int, ...], keepdims: bool) -> Spec:
    """The result's spec: its axes in the order that the kept axes have in memory."""
    if keepdims:
        rest = tuple(a for a in range(out.ndim) if a not in kept)
        return full(out, _dense(out.shape, (*rest, *kept)))
    names = sorted(kept)
    order = tuple(names.index(a) for a in kept)
    return full(out, _dense(out.shape, order) if order else Layout(()))


def dense(spec: Spec) -> Spec:
    """The spec where it lies if that is without gaps, else row-major."""
    given = plain_layout(spec)
    return given if given.tag is not None else row_major(spec)


@kernels(Reduce, source="kernel")
def reduce(op: Reduce, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """One of the kinds along axes."""
    (out,) = op.infer(*specs)
    x = dense(specs[0])
    kept, inner, axes = spaces(x, op.axes)
    result = reduced_spec(out, axes, op.keepdims)
    label = f"{op.name} {op.kind}"
    if out.numel == 0:
        return kernel_plan(device, [x], [result], [], label=label)
    count = prod(x.shape[a] for a in op.axes)
    accumulator = _accumulator(op.kind, x.dtype)
    kind = _kind(op.kind, count, accumulator)
    if x.numel == 0:
        value = float("nan") if op.kind == "mean" else kind.neutral
        flat = full(result, result.physical)
        return kernel_plan(device, [x], [result], [_constant(flat, value, False)], label=label)
    stage = Stage(
        kept,
        inner,
        c_type(x.dtype),
        x.dtype.itemsize,
        accumulator,
        c_type(out.dtype),
        kind,
        _neutral(kind, x.dtype if accumulator != "i64" else out.dtype, accumulator),
        ENOUGH * device.machine.multiprocessors,
    )
    return kernel_plan(
        device,
        [x],
        [result],
        stages(stage, source(), target(), 0, True),
        label=label,
        workspace=workspace(stage),
        plain=lambda: tuple(stages(stage, source(), target(), 0, False)),
    )


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
    lanes = 32 if x.physical.strides[axis] == 1 and x.shape[axis] > 8 else 1
    index = index_type(kept.reach + inner.reach)
    text = f"typedef {index} Index;\ntypedef {c_type(x.dtype)} T;\ntypedef Wide<T>::type A;\n"
    text += constants(
        OUTPUTS=kept.count, COUNT=inner.count, ARG=lanes, ARG_ORDER="<" if isinstance(op, ArgMin) else ">"
    )
    text += offset_function("kept", kept) + offset_function("reduced", inner)
    program = Program("arg_reduce", "elementwise/reduce.cu", text)
    launch = looping(program, kept.count * lanes, (source(), target()))
    return kernel_plan(device, [x], [result], [launch], label=op.name)
