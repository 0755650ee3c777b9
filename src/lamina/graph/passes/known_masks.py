"""Attention whose bias is known as numbers: what a causal mask is made, and what it repeats.

Programs write masks out: a triangle of zeros with the least number of a type, or -inf, above it, once for each
sample. Kernels of causal attention skip what such a mask hides, and read no bias. What is made of constants alone
counts as known, since programs build masks of ranges and comparisons. A bias that is the same for all samples, heads
or rows has an axis of 1 there.
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

#: A bias of this much and below hides a score: float16's least number, and what scores of no network make up for.
_HIDDEN = -65504.0
#: Elements and steps that are computed of a bias, at most.
_MOST_ELEMENTS, _MOST_STEPS = 1 << 24, 64


def _known_mask(match: Match) -> Results | None:
    """Attention, or its gradient, with the least bias that does the same; None where that is the bias it has."""
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
    """What does the same as a bias: a causal mask, or a smaller bias, if it is not 0 all over."""

    is_causal: bool
    bias: tuple[Value, ...] = ()


def _least(value: Value, rows: int, columns: int, match: Match) -> _Least | None:
    """… of a bias, found once for all that read it; None where nothing is less, or its numbers are not known."""
    notes = match.rewriting.notes
    if (key := (_least, value, rows, columns)) not in notes:
        known = _known(value, match)
        notes[key] = None if known is None else _less(_once(known), rows, columns, value.spec.numel)
    found: _Least | None = notes[key]
    return found


def _less(bias: Array, rows: int, columns: int, size: int) -> _Least | None:
    """… as far as it has fewer elements than `size`."""
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


def _known(value: Value, match: Match) -> Array | None:
    """The numbers of a value that is made of constants alone, by few steps."""
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
