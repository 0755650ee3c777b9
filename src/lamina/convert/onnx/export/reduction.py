"""Reductions, cumulative ops, sorting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lamina import ops
from lamina.convert.onnx.export.writer import OpExport, Written, composes, exports
from lamina.ops.primitives.reduce import ArgMax, ArgMin, Reduce
from lamina.ops.primitives.scan import Scan
from lamina.ops.primitives.search import SearchSorted
from lamina.ops.primitives.shape import pad_axes, slice_axis
from lamina.ops.primitives.sort import Sort
from lamina.spec import int64

OPERATORS = {
    "sum": "ReduceSum", "mean": "ReduceMean", "prod": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin",
    "norm1": "ReduceL1", "norm2": "ReduceL2", "amax": "ReduceMax", "mul_no_zeros": "ReduceProd",
}  # fmt: skip


@exports(Reduce)
def reduce(step: OpExport) -> Written:
    """The operator of the kind; sums and products of integers are int64."""
    kind, (x,) = step.op.kind, step.inputs
    if step.results[0].dtype != step.dtype:
        x = step.cast(x, step.results[0].dtype)
    if kind == "amax" or (not step.op.axes and kind in ("norm1", "norm2")):
        x = step.add("Abs", x)
    if kind == "mul_no_zeros":
        x = step.add("Where", step.add("Equal", x, step.constant(0)), step.constant(1), x)
    if not step.op.axes:
        return step.add("Identity", x)
    keep = int(step.op.keepdims)
    if step.opset >= 18 or kind == "sum":
        return step.add(OPERATORS[kind], x, step.ints(*step.op.axes), keepdims=keep)
    return step.add(OPERATORS[kind], x, axes=list(step.op.axes), keepdims=keep)


@exports(ArgMax, ArgMin)
def index_of_extremum(step: OpExport) -> Written:
    """ArgMax or ArgMin; of equal elements the first one."""
    operator = "ArgMin" if isinstance(step.op, ArgMin) else "ArgMax"
    return step.add(operator, *step.inputs, axis=step.op.axis, keepdims=0)


@exports(Sort)
def sort(step: OpExport) -> Written:
    """TopK of as many as are kept; of equal elements the first one."""
    count = step.sizes(lambda n: [n.op.count(n.inputs[0].spec)])
    return step.add_several("TopK", 2, step.inputs[0], count, largest=int(step.op.descending), sorted=1)


@exports(Scan)
def scan(step: OpExport) -> Written:
    """CumSum; other kinds by doubling, in log2 of the axis' size steps."""
    if step.op.kind == "sum":
        rank = step.specs[0].ndim
        return step.add("CumSum", step.inputs[0], step.constant(step.op.axis % rank, int64))
    return step.composed(_doubled)


_COMBINE: dict[str, tuple[Callable[[Any, Any], Any], float | None]] = {
    "prod": (lambda a, b: a * b, 1),
    "max": (ops.maximum, None),
    "min": (ops.minimum, None),
    "logsumexp": (ops.logaddexp, float("-inf")),
}


def _doubled(op: Scan, x: Any) -> Any:
    """y[i] combined with y[i - 1], y[i - 2], y[i - 4], …; positions before the first are ignored."""
    combine, nothing = _COMBINE[op.kind]
    axis, size, reach, dtype = op.axis % x.ndim, x.shape[op.axis], 1, x.dtype
    x = x.cast(dtype.compute) if dtype.is_float else x
    while reach < size:
        kept = slice_axis(x, axis, 0, size - reach)
        if nothing is None:  # the first elements again, which changes no extremum
            before = slice_axis(x, axis, 0, reach)
            moved = ops.cat([before, kept], axis)
        else:
            moved = pad_axes(kept, [(reach if a == axis else 0, 0) for a in range(x.ndim)], nothing)
        x, reach = combine(x, moved), 2 * reach
    return x.cast(dtype)


@composes(SearchSorted)
def search_sorted(op: SearchSorted, rows: Any, values: Any) -> Any:
    """How many elements of the row are smaller (or equal), counted by comparison with each."""
    a, b = rows.unsqueeze(1), values.unsqueeze(2)  # [R, 1, N], [R, M, 1]
    return ops.sum((a <= b if op.right else a < b).cast(int64), 2)
