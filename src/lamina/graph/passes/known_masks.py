"""Attention whose bias is known at compile time: causal masks are recognized, and repetitions removed.

Programs write masks out: a triangle of zeros with the lowest number of a type, or -inf, above it, once per sample.
Kernels of causal attention skip the masked scores, and read no bias. Values computed from constants alone count as
known, since programs build masks from ranges and comparisons. A bias that is the same for all samples, heads or rows
gets an axis of 1 there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from lamina.backends.pattern import Results, made_by
from lamina.backends.reference import run_reference
from lamina.graph.ir.graph import Value, constant
from lamina.graph.passes.pattern import Match, RewriteRule
from lamina.ops.core import Array
from lamina.ops.primitives.attention import Attention, AttentionGrad

#: A bias of this much and below masks a score: float16's lowest number, which scores of no network make up for.
_HIDDEN = -65504.0
#: The most elements and steps for which a bias is computed.
_MOST_ELEMENTS, _MOST_STEPS = 1 << 24, 64


def _known_mask(match: Match) -> Results | None:
    """Attention, or its gradient, with the smallest equivalent bias; None where that is the bias it has."""
    node, operands = match.root, match.inputs(match.root)
    op = cast(Attention | AttentionGrad, node.op)
    count = 3 if isinstance(op, Attention) else 6
    bias, mask = op.parted(operands[count:])
    if not bias or (isinstance(op, AttentionGrad) and op.bias_grad and match.readers(node.outputs[3])):
        return None
    least = _least(bias[0], operands[0].shape[2], operands[1].shape[2], match)
    if least is None:
        return None
    changed: Any = replace(op, causal=op.causal or least.is_causal)
    if isinstance(changed, AttentionGrad):
        changed = replace(changed, bias_grad=False)
    made = match.apply(changed, *operands[:count], *least.bias, *mask, at=node)
    return dict(zip(node.outputs, made, strict=False))


class _Least(NamedTuple):
    """The equivalent of a bias: a causal mask, or a smaller bias unless it is 0 everywhere."""

    is_causal: bool
    bias: tuple[Value, ...] = ()


def _least(value: Value, rows: int, columns: int, match: Match) -> _Least | None:
    """The equivalent of a bias, found once for all its readers; None where nothing smaller exists, or the bias is
    unknown."""
    notes = match.rewriting.notes
    if (key := (_least, value, rows, columns)) not in notes:
        known = known_values(value, match)
        notes[key] = None if known is None else _less(_once(known), rows, columns, value.spec.numel)
    found: _Least | None = notes[key]
    return found


def _less(bias: Array, rows: int, columns: int, size: int) -> _Least | None:
    """The equivalent of a known bias, if it has fewer elements than `size`."""
    numbers, seen = bias.astype(np.float32, copy=False), np.tri(rows, columns, dtype=np.bool_)
    if not numbers.any():
        return _Least(is_causal=False)
    is_causal = numbers.shape == (1, 1, rows, columns) and not numbers[0, 0][seen].any()
    if is_causal and (numbers[0, 0][~seen] <= _HIDDEN).all():
        return _Least(is_causal=True)
    return _Least(False, (constant(bias),)) if bias.size < size else None


def _once(bias: Array) -> Array:
    """A bias with axes of 1 where it repeats itself."""
    for axis, size in enumerate(bias.shape):
        first = bias[(slice(None),) * axis + (slice(1),)]
        if size > 1 and np.array_equal(bias, np.broadcast_to(first, bias.shape)):
            bias = first
    return np.ascontiguousarray(bias)


def known_values(value: Value, match: Match) -> Array | None:
    """The values of a tensor that is computed from constants alone, in few steps."""
    found: dict[Value, Array | None] = {}
    left = [_MOST_STEPS]

    def numbers(v: Value) -> Array | None:
        if v not in found:
            found[v] = computed(v)
        return found[v]

    def computed(v: Value) -> Array | None:
        if v.constant is not None:
            return v.constant.numpy() if v.spec.numel <= _MOST_ELEMENTS else None
        left[0] -= 1
        if v.node is None or left[0] < 0 or v.node.op.effect != "pure":
            return None
        if any(y.spec.numel > _MOST_ELEMENTS for y in v.node.outputs):
            return None
        given = list[Array]()
        for x in match.inputs(v.node):
            if (array := numbers(x)) is None:
                return None
            given.append(array)
        return run_reference(v.node.op, given)[v.node.outputs.index(v)]

    return numbers(value)


KNOWN_MASKS = [RewriteRule("known mask", made_by(Attention | AttentionGrad), _known_mask)]
