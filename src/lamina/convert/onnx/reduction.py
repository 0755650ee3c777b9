"""Reductions over axes, indices of extrema, cumulative ops and the largest elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.node import OnnxNode, as_tensor, converts
from lamina.spec import bool_, float64, uint8

Reduce = Callable[..., Any]


def _summed(f: Callable[[Any], Any], then: Callable[[Any], Any] | None = None) -> Reduce:
    """The sum of f(x), and a function of the sum; in x's dtype."""

    def run(x: Any, axes: tuple[int, ...], keep: bool) -> Any:
        total = ops.sum(f(x), axes, keep, dtype=x.dtype)
        return total if then is None else then(total)

    return run


def _prod(x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    for axis in sorted((a % x.ndim for a in axes), reverse=True):
        x = ops.prod(x, axis, keep, dtype=x.dtype)
    return x


def _extreme(f: Reduce) -> Reduce:
    """amax or amin; of booleans as of 0 and 1, of no elements the neutral number."""

    def run(x: Any, axes: tuple[int, ...], keep: bool) -> Any:
        if x.dtype == bool_:
            return ops.ne(f(ops.cast(x, uint8), axes, keep), 0)
        if any(x.shape[a] == 0 for a in axes):
            return _of_nothing(x, f is ops.amax, axes, keep)
        return f(x, axes, keep)

    return run


def _of_nothing(x: Any, largest: bool, axes: tuple[int, ...], keep: bool) -> Any:
    kind = x.dtype.numpy
    info = np.iinfo(kind) if x.dtype.kind in "iu" else None
    bound = (info.min if largest else info.max) if info else (-np.inf if largest else np.inf)
    named = {a % x.ndim for a in axes}
    shape = [1 if i in named else n for i, n in enumerate(x.shape) if keep or i not in named]
    return as_tensor(np.full(shape, bound, kind))


def _real(f: Reduce) -> Reduce:
    """f, whose results are not integers: for integers in float64, truncated towards zero."""

    def run(x: Any, axes: tuple[int, ...], keep: bool) -> Any:
        if x.dtype.is_float:
            return f(x, axes, keep)
        return ops.cast(f(ops.cast(x, float64), axes, keep), x.dtype)

    return run


REDUCTIONS: dict[str, Reduce] = {
    "ReduceSum": _summed(lambda x: x), "ReduceMean": _real(ops.mean), "ReduceMax": _extreme(ops.amax),
    "ReduceMin": _extreme(ops.amin), "ReduceProd": _prod, "ReduceL1": _summed(ops.abs),
    "ReduceL2": _real(_summed(ops.square, ops.sqrt)), "ReduceSumSquare": _summed(ops.square),
    "ReduceLogSum": _real(_summed(lambda x: x, ops.log)), "ReduceLogSumExp": _real(ops.logsumexp),
}  # fmt: skip


@converts(*REDUCTIONS, known=(1,))
def reduce(node: OnnxNode) -> Any:
    """Over the axes given as an attribute or an input, over all by default; with keepdims they are kept with
    size 1."""
    x, axes = node.input(0), node.integers(1, "axes")
    if not axes:
        if node.get("noop_with_empty_axes", 0):
            return REDUCTIONS[node.operator](x.unsqueeze(0), (0,), False)  # f of each element alone
        axes = tuple(range(x.ndim))
    if not axes:
        return REDUCTIONS[node.operator](x.unsqueeze(0), (0,), False)
    return REDUCTIONS[node.operator](x, tuple(a % x.ndim for a in axes), bool(node.get("keepdims", 1)))


@converts("ArgMax", "ArgMin")
def arg_extreme(node: OnnxNode) -> Any:
    """The index of the maximum (minimum) along an axis, int64; of equal elements the first, or the last."""
    x, keep = node.input(0), bool(node.get("keepdims", 1))
    axis = node.get("axis", 0) % x.ndim
    find = ops.argmax if node.operator == "ArgMax" else ops.argmin
    if not node.get("select_last_index", 0):
        return find(x, axis, keep)
    return ops.sub(x.shape[axis] - 1, find(ops.flip(x, axis), axis, keep))


@converts("CumSum", "CumProd", known=(1,))
def cumulative(node: OnnxNode) -> Any:
    """Cumulative sums or products along an axis, from either end, inclusive or exclusive."""
    x = node.input(0)
    axis = int(node.number(1)) % x.ndim
    run, neutral = (ops.cumsum, 0) if node.operator == "CumSum" else (ops.cumprod, 1)
    x = ops.flip(x, axis) if node.get("reverse", 0) else x
    found = ops.cast(run(x, axis), x.dtype)
    if node.get("exclusive", 0):
        first = ops.add(ops.mul(_first(x, axis), 0), neutral)
        found = ops.cat([first, _but_last(found, axis)], axis)
    return ops.flip(found, axis) if node.get("reverse", 0) else found


def _first(x: Any, axis: int) -> Any:
    return x[(slice(None),) * axis + (slice(0, 1),)]


def _but_last(x: Any, axis: int) -> Any:
    return x[(slice(None),) * axis + (slice(0, -1),)]


@converts("TopK", known=(1,))
def top_k(node: OnnxNode) -> Any:
    """The k largest (smallest) along an axis and their indices, int64."""
    count = node.integers(1, None) if node.opset >= 10 else (node.needed("k"),)
    (k,) = count or (0,)
    x, axis = node.input(0), node.get("axis", -1)
    values, indices = ops.topk(x, k, axis, bool(node.get("largest", 1)), bool(node.get("sorted", 1)))
    return values, indices


@converts("Hardmax")
def hardmax(node: OnnxNode) -> Any:
    """1 at the first maximum along an axis, 0 elsewhere; before opset 13 over all axes from it on."""
    x, axis = node.input(0), node.get("axis", 1 if node.opset < 13 else -1)
    if node.opset < 13:
        axis %= x.ndim
        flat = x.reshape((*x.shape[:axis], -1))
        return _hardmax(flat, axis).reshape(x.shape)
    return _hardmax(x, axis % x.ndim)


def _hardmax(x: Any, axis: int) -> Any:
    return ops.one_hot(ops.argmax(x, axis), x.shape[axis], dtype=x.dtype, dim=axis)
