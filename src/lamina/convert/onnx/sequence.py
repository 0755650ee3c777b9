"""Sequences and optional values: their lengths and presence are known at trace time."""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.node import Absent, OnnxNode, OnnxSequence, as_tensor, converts
from lamina.spec import bool_, int64

#: The absent optional value.
ABSENT = Absent()


def sequence(node: OnnxNode, index: int = 0) -> OnnxSequence:
    """An input that must be a sequence."""
    found = node.input(index)
    if not isinstance(found, OnnxSequence):
        raise node.error(f"input {index} must be a sequence, got {found!r}")
    return found


@converts("SequenceConstruct")
def sequence_construct(node: OnnxNode) -> Any:
    """The inputs as a sequence."""
    return OnnxSequence(node.inputs)


@converts("SequenceEmpty")
def sequence_empty(node: OnnxNode) -> Any:
    """An empty sequence."""
    return OnnxSequence()


@converts("SequenceAt", known=(1,))
def sequence_at(node: OnnxNode) -> Any:
    """The tensor at an index, which may be negative."""
    return (sequence(node)[int(node.number(1))],)


@converts("SequenceInsert", known=(2,))
def sequence_insert(node: OnnxNode) -> Any:
    """With a tensor inserted at an index (by default the end)."""
    held = sequence(node)
    at = int(node.number(2, len(held)))
    if not -len(held) <= at <= len(held):
        raise node.error(f"place {at} is outside of a sequence of {len(held)}")
    found = OnnxSequence(held)
    found.insert(at, node.input(1))
    return found


@converts("SequenceErase", known=(1,))
def sequence_erase(node: OnnxNode) -> Any:
    """Without the tensor at an index (by default the last)."""
    found = OnnxSequence(sequence(node))
    del found[int(node.number(1, -1))]
    return found


@converts("SequenceLength")
def sequence_length(node: OnnxNode) -> Any:
    """The length: a constant."""
    return as_tensor(np.array(len(sequence(node))), int64)


@converts("SplitToSequence", known=(1,))
def split_to_sequence(node: OnnxNode) -> Any:
    """Parts along an axis: of given sizes, of one size (the last one smaller), or single slices."""
    x, given, axis = node.input(0), node.known_or_none(1), node.get("axis", 0)
    total = x.shape[axis]
    each = 1 if given is None else int(given) if given.ndim == 0 else 0
    if given is not None and given.ndim:
        sizes = [int(n) for n in given]
    elif each > 0:
        sizes = [min(each, total - at) for at in range(0, total, each)]
    else:
        raise node.error(f"parts must have at least one element, got {each}")
    parts = list(ops.split(x, sizes, axis)) if sizes else []
    if given is None and not node.get("keepdims", 1):
        parts = [ops.squeeze(part, (axis,)) for part in parts]
    return OnnxSequence(parts)


@converts("ConcatFromSequence")
def concat_from_sequence(node: OnnxNode) -> Any:
    """The tensors concatenated along an axis, or stacked along a new one."""
    held, axis = list(sequence(node)), node.needed("axis")
    return ops.stack(held, axis) if node.get("new_axis", 0) else ops.cat(held, axis)


@converts("SequenceMap")
def sequence_map(node: OnnxNode) -> Any:
    """A body run for each index of the sequences; tensors beside them are the same for all."""
    body, count = node.needed("body"), len(sequence(node))
    made = [
        node.run_graph(body, [x[i] if isinstance(x, OnnxSequence) else x for x in node.inputs])
        for i in range(count)
    ]
    return tuple(OnnxSequence(run[k] for run in made) for k in range(len(body.outputs)))


@converts("Optional")
def optional(node: OnnxNode) -> Any:
    """The input, or the absent value."""
    return (ABSENT if node.optional(0) is None else node.input(0),)


@converts("OptionalHasElement")
def optional_has_element(node: OnnxNode) -> Any:
    """Whether the value is present: a constant."""
    there = node.optional(0) is not None and node.optional(0) is not ABSENT
    return as_tensor(np.array(there), bool_)


@converts("OptionalGetElement")
def optional_get_element(node: OnnxNode) -> Any:
    """The value, which must be present."""
    if node.input(0) is ABSENT:
        raise node.error("the optional value is absent")
    return (node.input(0),)
