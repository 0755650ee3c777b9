"""Linear maps along axes: one launch over all of them, or one for each if their rows are long."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from math import gcd, prod
from typing import NamedTuple

import numpy as np

from lamina.backends import Plan
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.launch.indexing import index_type
from lamina.backends.cuda.launch.program import (
    VECTOR,
    WORKSPACE_ALIGNMENT,
    Bindable,
    Copy,
    DeviceTable,
    Fill,
    Launch,
    Place,
    Program,
    Table,
    bits_type,
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
from lamina.ops.primitives.axis_map import AxisMap
from lamina.ops.primitives.map_axes import MOST_AXES, MapAxes
from lamina.runtime import Device
from lamina.spec import DType, Policy, Shape, Spec, channels_last

#: Average number of elements read per result beyond which the axes are mapped one after the other.
_MOST_TAPS = 20
#: Rows of other planes that a thread computes with the same weights, if there are enough threads.
_EACH, _THREADS = 4, 1 << 16
#: Adjacent rows of the last axis that a thread computes where these are adjacent in memory and read few elements,
#: which they share: images made twice as large take 44 µs for 67 (nearest), and 105 for 133 (linear), but 253 for 156
#: (cubic).
_ROWS, _FEW_TAPS = 4, 2


class AxesPass(NamedTuple):
    """One launch: the sizes in memory order, outermost first, and the map of each axis."""

    sizes: Shape
    maps: tuple[AxisMap | None, ...]

    @property
    def result(self) -> Shape:
        """The sizes after it."""
        return tuple(n if m is None else m.target for n, m in zip(self.sizes, self.maps, strict=True))


@kernels(MapAxes, source="kernel")
def map_axes(op: MapAxes, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The result in the memory order of x: row-major or channels last."""
    x, (y,) = specs[0].fixed, op.infer(*specs)
    last = x.ndim > 2 and x.layout == channels_last(x.shape)
    order = [0, *range(2, x.ndim), 1] if last else list(range(x.ndim))
    x, y = (full(s, channels_last(s.shape)) if last else s.open.fixed for s in (x, y))
    if y.numel == 0 or x.numel == 0 or not op.axes:
        steps: list[Bindable] = [Fill(target(), 0, y.nbytes)] if x.numel == 0 else []
        steps = [] if y.numel == 0 else steps or [Copy(target(), source(), y.nbytes)]
        return kernel_plan(device, [x], [y], steps, label=op.name)
    todo = _steps(AxesPass(tuple(x.shape[a] for a in order), tuple(op.maps[a] for a in order)), op.moves)
    wide = x.dtype.compute
    between = [round_up(prod(s.result) * wide.itemsize, WORKSPACE_ALIGNMENT) for s in todo[:-1]]
    kinds = [x.dtype, *[wide] * len(between), x.dtype]
    places = [source(), *(scratch(sum(between[:i])) for i in range(len(between))), target()]

    def launches(aligned: bool) -> tuple[Launch, ...]:
        ends = zip(todo, pairwise(kinds), pairwise(places), strict=True)
        return tuple(_launch(step, kind, place, op.moves, aligned) for step, kind, place in ends)

    return kernel_plan(
        device,
        [x],
        [y],
        launches(True),
        label=op.name,
        workspace=sum(between),
        plain=lambda: launches(False),
    )


def _steps(whole: AxesPass, moves: bool) -> list[AxesPass]:
    """All axes at once if few elements are read per result; else axis by axis, shrinking ones first."""
    mapped = [a for a, m in enumerate(whole.maps) if m is not None]
    taps = [_taps(m) for m in whole.maps if m is not None]
    if mapped[-1] - mapped[0] < MOST_AXES and (moves or len(taps) == 1 or prod(taps) <= _MOST_TAPS):
        return [whole]
    found, sizes = [], whole.sizes
    for axis in sorted(mapped, key=lambda a: whole.result[a] / whole.sizes[a]):
        step = AxesPass(sizes, tuple(m if a == axis else None for a, m in enumerate(whole.maps)))
        found.append(step)
        sizes = step.result
    return found


def _taps(axis: AxisMap) -> float:
    """The average number of elements that a row reads."""
    return len(axis.table.at) / max(axis.target, 1)


def _launch(
    step: AxesPass, kinds: tuple[DType, DType], places: tuple[Place, Place], moves: bool, aligned: bool
) -> Launch:
    """One launch over [outer, up to three axes, inner]; an axis between mapped ones gets the identity map."""
    mapped = [a for a, m in enumerate(step.maps) if m is not None]
    first, behind = mapped[0], mapped[-1] + 1
    outer, inner = prod(step.sizes[:first]), prod(step.sizes[behind:])
    inside = zip(step.maps[first:behind], step.sizes[first:behind], strict=True)
    maps = [m or AxisMap("identity", n, n) for m, n in inside]
    read, write = ([*(getattr(m, end) for m in maps), 1, 1][:MOST_AXES] for end in ("source", "target"))
    width = _width(inner, kinds) if aligned else 1
    shares = _taps(maps[-1]) <= _FEW_TAPS and maps[-1].target >= maps[-1].source
    rows = _width(gcd(maps[-1].target, _ROWS), kinds) if aligned and inner == 1 and shares else 1
    threads = outer * prod(write) * inner // width // rows
    each = _EACH if inner == 1 and outer >= _EACH and threads >= _EACH * _THREADS else 1
    wide = kinds[0].compute
    reach = max(outer * prod(read) * inner, outer * prod(write) * inner)
    text = f"typedef {index_type(reach)} Index;\ntypedef {c_type(wide)} A;\n"
    types = [bits_type(k) if moves else c_type(k) for k in kinds]
    text += f"typedef {types[0]} T;\ntypedef {types[1]} O;\n"
    text += constants(RANK=len(maps), EACH=each, ROWS=rows, V=width, MOVES=int(moves))
    tables = [place for m in maps for place in _table(m, wide.name)]
    tables += tables[:2] * (MOST_AXES - len(maps))
    sizes = Table((outer, inner, *write, *read))
    program = Program("map_axes", "sampling/map_axes.cu", text)
    work = -(-outer // each) * prod(write) * inner // width // rows
    return looping(program, work, (*places, sizes, *tables))


def _width(contiguous: int, kinds: tuple[DType, DType]) -> int:
    """Contiguous elements per thread: as many as 16 bytes hold, if that divides their number."""
    return gcd(contiguous, VECTOR // max(k.itemsize for k in kinds))


@lru_cache(maxsize=256)
def _table(axis: AxisMap, dtype: str) -> tuple[DeviceTable, DeviceTable]:
    """A map's rows and elements, and their weights."""
    found = axis.table
    rows = np.concatenate([found.start, found.at]).astype(np.int32)
    return DeviceTable(rows), DeviceTable(found.weight.astype(dtype))
