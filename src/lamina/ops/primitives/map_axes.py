"""MapAxes: linear maps along several axes at once, the basis of interpolation, padding modes and patches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lamina.ops.core import Array, BatchAxes, Op, Sample, call, first_axis
from lamina.ops.primitives.axis_map import AxisMap
from lamina.spec import DTYPES, FLOATS, DTypeError, Shape, ShapeError, Spec

#: The most axes that one op maps; `mapped` applies several ops beyond that.
MOST_AXES = 3


@dataclass(frozen=True)
class MapAxes(Op):
    """y = x with an `AxisMap` applied along each axis that has one (None: the axis is unchanged).

    Its gradient is itself with the transposed maps: sums in a fixed order, on every backend. Non-float dtypes are
    supported by maps that only move elements.
    """

    maps: tuple[AxisMap | None, ...]
    dtypes = DTYPES

    def infer(self, x: Spec) -> tuple[Spec]:
        self.check_float(x)
        if len(self.maps) != x.ndim:
            raise ShapeError(f"{self.name}: one map (or None) per axis, got {len(self.maps)} for {x}")
        for axis, (m, n) in enumerate(zip(self.maps, x.shape, strict=True)):
            if m is not None and m.source != n:
                raise ShapeError(f"{self.name}: {m} reads an axis of {m.source}, axis {axis} of {x} has {n}")
        if not x.dtype.is_float and not self.moves:
            floats = ", ".join(map(str, FLOATS))
            raise DTypeError(
                f"{self.name}: dtype {x.dtype} cannot be averaged, {floats} can; cast with ops.cast"
            )
        shape = tuple(n if m is None else m.target for m, n in zip(self.maps, x.shape, strict=True))
        return (self.result(shape, x.dtype),)

    @property
    def moves(self) -> bool:
        """Whether every result is a copy of one element of x."""
        return all(m is None or m.table.moves for m in self.maps)

    @property
    def axes(self) -> tuple[int, ...]:
        """The mapped axes."""
        return tuple(axis for axis, m in enumerate(self.maps) if m is not None)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return first_axis(axes, allowed=[a for a, m in enumerate(self.maps) if m is None])

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (call(MapAxes(tuple(m and m.adjoint for m in self.maps)), grads[0]),)

    def reference(self, x: Array) -> tuple[Array]:
        """Axis by axis, starting with those that shrink most."""
        for axis in sorted(self.axes, key=self._growth):
            found = self.maps[axis]
            x = x if found is None else found.table.apply(x, axis)
        return (x,)

    def _growth(self, axis: int) -> float:
        found = self.maps[axis]
        return found.target / max(found.source, 1) if found else 1.0

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for maps, shape in _CASES:
            yield Sample.of(cls(maps), shape, dtypes=FLOATS)
        for maps, shape in _CASES[1:8]:
            back = tuple(m and m.adjoint for m in maps)
            read = tuple(n if m is None else m.source for m, n in zip(back, shape, strict=True))
            yield Sample.of(cls(back), read, dtypes=FLOATS)
        yield Sample.of(cls((None, AxisMap("reflect", 5, 9, (3,)))), (3, 5), dtypes=DTYPES)


_CASES: tuple[tuple[tuple[AxisMap | None, ...], Shape], ...] = (
    ((None, None, AxisMap("nearest", 3, 7, (3 / 7,)), AxisMap("nearest-exact", 5, 4, (1.25,))), (2, 3, 3, 5)),
    ((None, None, AxisMap("linear", 4, 7, (4 / 7, 0)), AxisMap("linear", 3, 8, (2 / 7, 1))), (2, 5, 4, 3)),
    ((None, None, AxisMap("cubic", 4, 6, (4 / 6, 0)), AxisMap("cubic", 5, 3, (2, 1))), (1, 2, 4, 5)),
    (
        (None, None, AxisMap("linear-antialias", 17, 4, (4.25, 0)), AxisMap("cubic-antialias", 15, 4, (3.75, 0))),
        (1, 3, 17, 15),
    ),
    ((None, None, AxisMap("area", 7, 3), None, AxisMap("cells", 5, 6, (2,))), (1, 2, 7, 2, 5)),
    ((None, None, AxisMap("replicate", 3, 60, (2,)), AxisMap("circular", 4, 9, (3,))), (1, 2, 3, 4)),
    ((None, None, AxisMap("patches", 5, 9, (3, 2, 1, 1)), AxisMap("patches", 4, 6, (2, 1, 0, 1))), (2, 16, 5, 4)),
    ((AxisMap("linear", 3, 5, (0.6, 0)), None, AxisMap("reflect", 4, 7, (1,))), (3, 2, 4)),
    (
        (None, *(AxisMap("linear", n, 2 * n, (0.5, 0)) for n in (2, 3, 2))),
        (3, 2, 3, 2),
    ),
    ((None, AxisMap("linear", 4, 6, (4 / 6, 0))), (0, 4)),
    ((None, AxisMap("area", 4, 0)), (2, 4)),
    ((AxisMap("linear", 40, 300, (40 / 300, 0)),), (40,)),
)  # fmt: skip


def mapped(x: Any, maps: Sequence[AxisMap | None]) -> Any:
    """x with the maps applied, by as many ops as needed; a copy of x if there are none."""
    found = [(axis, m) for axis, m in enumerate(maps) if m is not None]
    for first in range(0, len(found), MOST_AXES):
        some = dict(found[first : first + MOST_AXES])
        x = call(MapAxes(tuple(some.get(axis) for axis in range(x.ndim))), x)
    return x if found else x.clone()
