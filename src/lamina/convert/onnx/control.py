"""Control flow that is resolved at trace time: branches are chosen, loops unrolled."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import nan
from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.node import OnnxNode, UnknownValueError, as_tensor, converts, numbers
from lamina.graph import Value
from lamina.graph.ir.call_numbers import numbers_now
from lamina.ops.core import Operand
from lamina.spec import ShapeError, Spec

#: The maximum number of recorded iterations of a loop whose end is not known at trace time.
_MOST_MASKED = 1000


@converts("If", known=(0,))
def branch(node: OnnxNode) -> Any:
    """The outputs of one of two subgraphs; of both, selected by the condition, if it is not known at trace time.

    Where that cannot be, since a branch cannot run on inputs of these shapes or the shapes of the results differ, it
    is the branch of the call that is recorded. Where there is no call, a branch that cannot run is left out.
    """
    if numbers(node.input(0)) is not None:
        return node.run_graph(node.needed("then_branch" if node.number(0) else "else_branch"), [])
    found: dict[bool, Any] = {}
    failed: dict[bool, ShapeError] = {}
    for truth, name in ((True, "then_branch"), (False, "else_branch")):
        try:
            found[truth] = node.run_graph(node.needed(name), [])
        except ShapeError as error:
            failed[truth] = error
    if not found:
        raise failed[True]
    condition = ops.reshape(node.input(0), ())
    selects = not failed and _are_alike(*found.values())
    if not selects and (now := numbers_now(condition)) is not None:
        truth = bool(now)
        if truth in failed:
            raise failed[truth]
        return found[truth]
    if not failed:
        return _chosen(node, condition, *found.values())
    return _without_branch(node, condition, found, failed)


def _chosen(node: OnnxNode, condition: Any, *given: Sequence[Any]) -> list[Any]:
    """The first or the second of two lists of values, selected by a condition. Raises UnknownValueError where their
    specs differ."""
    if not _are_alike(*given):
        raise node.unknown("the condition, for results of two shapes or without one,", node.input_names[0])
    return [a if a is b else ops.where(condition, a, b) for a, b in zip(*given, strict=True)]


def _are_alike(*given: Sequence[Any]) -> bool:
    """Whether two branches give tensors of the same specs."""
    pairs = list(zip(*given, strict=True))
    return all(isinstance(x, Operand) for pair in pairs for x in pair) and all(
        a.spec == b.spec for a, b in pairs
    )


def _without_branch(
    node: OnnxNode, condition: Any, found: dict[bool, Any], failed: dict[bool, ShapeError]
) -> list[Any]:
    """The results of the branch that can run: NaN if the condition selects the other. Raises its ShapeError where a
    result has no NaN."""
    ((truth, error),), (results,) = failed.items(), found.values()
    if not all(isinstance(x, Operand) and x.dtype.is_float for x in results):
        raise error
    warnings.warn(
        f"{node}: its {'then' if truth else 'else'}_branch cannot run on inputs of these shapes and is left out: if "
        f"the condition selects it, the results are NaN ({error})",
        stacklevel=2,
    )
    return [ops.where(condition if truth else ops.logical_not(condition), nan, x) for x in results]


@converts("Loop", known=(0, 1))
def loop(node: OnnxNode) -> Any:
    """A body iterated while its own condition holds: (carried values, the outputs of each iteration).

    A condition that is not known at trace time requires a known number of iterations: all of them are
    recorded, and those after the condition became false leave the carried values unchanged.
    """
    body, most = node.needed("body"), node.number(0)
    goes = node.input(1) if node.optional(1) is not None else as_tensor(np.array(True))
    carried, scanned = list(node.inputs[2:]), []
    count = 0
    while most is None or count < most:
        known = numbers(goes)
        if known is None:
            return _masked_loop(node, most, count, goes, carried)
        if known.size != 1:
            raise node.error(f"the condition must be one number, got shape {known.shape}")
        if not known.item():
            break
        made = node.run_graph(body, [as_tensor(np.array(count)), as_tensor(np.array(True)), *carried])
        goes, carried, each = made[0], made[1 : 1 + len(carried)], made[1 + len(carried) :]
        scanned.append(each)
        count += 1
    if not scanned:
        return [*carried, *_of_no_run(node, body, carried)]
    return [*carried, *(ops.stack(list(kind), 0) for kind in zip(*scanned, strict=True))]


def _masked_loop(node: OnnxNode, most: Any, count: int, goes: Any, carried: list[Any]) -> list[Any]:
    """The iterations from `count` on of a loop whose condition is known only at run time: it selects between values.

    Outputs per iteration would have as many rows as there were iterations: they are not supported if they are read.
    """
    body = node.needed("body")
    per_run = any(node.asks(i) for i in range(len(carried), len(node.outputs)))
    if most is None or most > _MOST_MASKED or per_run:
        why = "a result for each run" if per_run else f"more than {_MOST_MASKED} runs"
        raise node.unknown(f"with {why} the condition", body.outputs[0])
    goes = ops.reshape(goes, ())
    for i in range(count, int(most)):
        made = node.run_graph(body, [as_tensor(np.array(i)), goes, *carried])
        carried = _chosen(node, goes, made[1 : 1 + len(carried)], carried)
        goes = ops.logical_and(goes, ops.reshape(made[0], ()))
    return carried


def _of_no_run(node: OnnxNode, body: Any, carried: list[Any]) -> list[Any]:
    """The per-iteration outputs of a loop that never iterates: no rows, in the shape of its first iteration's."""
    if len(body.outputs) == 1 + len(carried):
        return []
    count, goes = as_tensor(np.array(0)), as_tensor(np.array(True))
    try:
        made = node.run_graph(body, [Value(count.spec), goes, *carried])
    except UnknownValueError:  # the count itself determines shapes
        made = node.run_graph(body, [count, goes, *carried])
    return [no_rows(x, 0) for x in made[1 + len(carried) :]]


def no_rows(x: Any, axis: int) -> Any:
    """An empty stack of values like x, along a new axis."""
    at = axis % (x.ndim + 1)
    return as_tensor(np.zeros((*x.shape[:at], 0, *x.shape[at:])), x.dtype)


@converts("Scan")
def scan(node: OnnxNode) -> Any:
    """A body iterated over slices of the scanned inputs: (the last states, the outputs stacked along an axis)."""
    if node.opset < 9:
        return _scan_of_batch(node)
    count = node.needed("num_scan_inputs")
    states, scanned = list(node.inputs[: len(node.inputs) - count]), node.inputs[len(node.inputs) - count :]
    axes = node.get("scan_input_axes", (0,) * count)
    back = node.get("scan_input_directions", (0,) * count)
    return _scanned(node, states, scanned, axes, back)


def _scan_of_batch(node: OnnxNode) -> Any:
    """Opset 8: a leading batch axis, for each sample of which the body runs; the first input are lengths."""
    if node.optional(0) is not None:
        raise node.error("lengths of samples are not read; use opset 9 or newer")
    given, count = node.inputs[1:], node.needed("num_scan_inputs")
    back = node.get("directions", (0,) * count)
    made = []
    for b in range(given[-1].shape[0]):
        own = [x[b] for x in given]
        made.append(_scanned(node, own[:-count], own[-count:], (0,) * count, back))
    return [ops.stack(list(kind), 0) for kind in zip(*made, strict=True)]


def _scanned(
    node: OnnxNode, states: Sequence[Any], scanned: Sequence[Any], axes: Sequence[int], back: Sequence[int]
) -> list[Any]:
    """The last states, and the outputs of each iteration."""
    body = node.needed("body")
    made: list[list[Any]] = []
    steps = scanned[0].shape[axes[0]]
    for t in range(steps):
        slices = [
            x[(slice(None),) * (a % x.ndim) + (steps - 1 - t if b else t,)]
            for x, a, b in zip(scanned, axes, back, strict=True)
        ]
        found = node.run_graph(body, [*states, *slices])
        states = found[: len(states)]
        made.append(found[len(states) :])
    count = len(body.outputs) - len(states)
    out_axes = node.get("scan_output_axes", (0,) * count)
    turned = node.get("scan_output_directions", (0,) * count)
    if not steps:
        slices = [_slice_of(x, a) for x, a in zip(scanned, axes, strict=True)]
        shown = node.run_graph(body, [*states, *slices])[len(states) :]
        return [*states, *(no_rows(x, a) for x, a in zip(shown, out_axes, strict=True))]
    return [*states, *(ops.stack(list(kind)[:: -1 if b else 1], a)
                       for kind, a, b in zip(zip(*made, strict=True), out_axes, turned, strict=True))]  # fmt: skip


def _slice_of(x: Any, axis: int) -> Value:
    """A traced placeholder for a slice of x along an axis of size 0."""
    kept = [n for a, n in enumerate(x.shape) if a != axis % x.ndim]
    return Value(Spec(tuple(kept), x.dtype))
