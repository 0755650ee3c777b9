"""Which axis holds the samples of a batch: proven from the ops of a graph, not guessed from its shapes.

One program is traced for n samples and for N > n. Where both graphs are the same but for the number of samples, and
no op mixes samples (`Op.batch_axes`), the larger graph computes the smaller one: with arbitrary padding as the
samples n to N - 1, the first n samples of its outputs are those of the smaller one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from lamina.graph.ir.graph import Graph, Node, Value
from lamina.ops.core import BatchAxis, Op
from lamina.ops.primitives.shape import Expand
from lamina.spec import Shape, Spec


class Batch(NamedTuple):
    """The batch axis of each input (None: the same for all samples), and the numbers of samples."""

    axes: tuple[int | None, ...]
    small: int
    large: int


def batch_of(small: Sequence[Spec], large: Sequence[Spec]) -> Batch | None:
    """The batch in which two lists of inputs differ: one axis in each that differs, always from n to the same N > n.

    None if they differ in anything else, or in nothing.
    """
    axes: list[int | None] = []
    sizes: set[tuple[int, int]] = set()
    for a, b in zip(small, large, strict=True):
        if a.dtype != b.dtype or a.ndim != b.ndim:
            return None
        differ = [axis for axis in range(a.ndim) if a.shape[axis] != b.shape[axis]]
        if len(differ) > 1:
            return None
        axes += differ or [None]
        sizes |= {(a.shape[axis], b.shape[axis]) for axis in differ}
    if len(sizes) != 1:
        return None
    ((n, count),) = sizes
    return Batch(tuple(axes), n, count) if 0 < n < count else None


def output_axes(
    small: Graph, large: Graph, batch: Batch, *, anywhere: bool = False
) -> tuple[BatchAxis | None, ...] | None:
    """The batch axes of the outputs of both graphs if the large one computes the small one; else None.

    small, large: traces of one program. batch: the batch axes of their inputs.
    anywhere: the small graph's samples may be any consecutive ones of the large one's, not only the first.
    """
    if len(small.nodes) != len(large.nodes) or len(small.outputs) != len(large.outputs):
        return None
    return _AxisTracker(small, large, batch, anywhere).outputs()


class _AxisTracker:
    """Walks two graphs side by side: for each value of the small one its twin, and its batch axis."""

    def __init__(self, small: Graph, large: Graph, batch: Batch, anywhere: bool) -> None:
        self.small, self.large, self.n, self.count = small, large, batch.small, batch.large
        self.anywhere = anywhere
        self.twins: dict[Value, Value] = dict(zip(small.inputs, large.inputs, strict=True))
        self.axes: dict[Value, BatchAxis | None] = {
            v: None if axis is None else BatchAxis(axis)
            for v, axis in zip(small.inputs, batch.axes, strict=True)
        }

    def outputs(self) -> tuple[BatchAxis | None, ...] | None:
        for a, b in zip(self.small.nodes, self.large.nodes, strict=True):
            if not self.node(a, b):
                return None
        pairs = list(zip(self.small.outputs, self.large.outputs, strict=True))
        return tuple(self.axes[a] for a, _ in pairs) if all(self.matches(a, b) for a, b in pairs) else None

    def node(self, a: Node, b: Node) -> bool:
        """Whether b does for N samples what a does for n."""
        if len(a.inputs) != len(b.inputs) or not self.alike(a.op, b.op) or a.policy != b.policy:
            return False
        if not all(self.matches(x, y) for x, y in zip(a.inputs, b.inputs, strict=True)):
            return False
        given = [self.axes[x] for x in a.inputs]
        found = b.op.batch_axes([x.spec for x in b.inputs], given) if any(given) else self.unbatched(a, b)
        if found is None:
            return False
        for x, y, axis in zip(a.outputs, b.outputs, found, strict=True):
            if not self.fits(x.spec, y.spec, axis):
                return False
            self.twins[x], self.axes[x] = y, axis
        return True

    def unbatched(self, a: Node, b: Node) -> Sequence[BatchAxis | None]:
        """The axes of outputs that depend on no sample: none, unless they are expanded to all samples."""
        if isinstance(b.op, Expand):
            return [self.differing(a.outputs[0].spec, b.outputs[0].spec)]
        return [None] * len(b.outputs)

    def matches(self, a: Value, b: Value) -> bool:
        """Whether two values are twins; constants are compared when first visited."""
        if a in self.twins:
            return self.twins[a] is b
        if a.constant is None or b.constant is None or a.dtype != b.dtype:
            return False
        axis = None
        if a.constant is not b.constant:
            x, y = a.constant.numpy(), b.constant.numpy()
            axis = self.differing(a.spec, b.spec)
            if axis is not None:
                if self.anywhere and not _repeats(y, axis):
                    return False
                y = y[(slice(None),) * axis.axis + (slice(self.n * axis.size),)]
            if x.shape != y.shape or x.tobytes() != y.tobytes():
                return False
        self.twins[a], self.axes[a] = b, axis
        return True

    def differing(self, a: Spec, b: Spec) -> BatchAxis | None:
        """The axis along which b has N samples where a has n, if there is one."""
        if a.ndim != b.ndim:
            return None
        axes = [axis for axis in range(a.ndim) if a.shape[axis] != b.shape[axis]]
        if len(axes) != 1 or b.shape[axes[0]] % self.count:
            return None
        found = BatchAxis(axes[0], b.shape[axes[0]] // self.count)
        return found if self.fits(a, b, found) else None

    def fits(self, a: Spec, b: Spec, axis: BatchAxis | None) -> bool:
        """Whether the shapes are those of n and of N samples along this axis."""
        shape = list(b.shape)
        if axis is not None:
            if shape[axis.axis] != self.count * axis.size:
                return False
            shape[axis.axis] = self.n * axis.size
        return a.shape == tuple(shape) and a.dtype == b.dtype

    def alike(self, a: Op, b: Op) -> bool:
        """Whether two ops are equal except for sizes that count samples."""
        if type(a) is not type(b):
            return False
        return all(self.same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))

    def same(self, a: Any, b: Any) -> bool:
        return bool(a == b) or (_is_shape(a) and _is_shape(b) and self.scaled(a, b))

    def scaled(self, a: Shape, b: Shape) -> bool:
        """Whether sizes are equal, or count samples (a: n times something, b: N times the same)."""
        return len(a) == len(b) and all(
            x == y or x * self.count == y * self.n for x, y in zip(a, b, strict=True)
        )


def _repeats(x: np.ndarray[Any, Any], axis: BatchAxis) -> bool:
    """Whether all samples along an axis are equal."""
    samples = np.moveaxis(x, axis.axis, 0).reshape(-1, axis.size, *np.delete(x.shape, axis.axis))
    first = samples[0].tobytes()
    return all(s.tobytes() == first for s in samples)


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and all(type(x) is int for x in value)
