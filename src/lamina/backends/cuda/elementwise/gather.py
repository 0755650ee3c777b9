"""Gathers in accesses of up to 16 bytes; deterministic scatters, in which each element of the result searches for its
contributions.

Blocks of a scatter hold lines in shared memory if these fit, and entries claim their elements in order. Else a thread
owns an element of the result. If a line has few indices it checks each, or a warp does if that is fast; else the
indices are first sorted with their positions (stably), and it finds its own by bisection.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from lamina.backends import Plan
from lamina.backends.cuda.elementwise.shape import row_major
from lamina.backends.cuda.elementwise.sort import Rows, sort_steps, sorted_pairs
from lamina.backends.cuda.launch.indexing import Strides, collapse, index_type, offset_function
from lamina.backends.cuda.launch.program import (
    LOOPING,
    VECTOR,
    Argument,
    Launch,
    Place,
    Program,
    bits_type,
    c_type,
    constants,
    kernel_plan,
    looping,
    neutral,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.gather import Gather, GatherGrad, Scatter
from lamina.runtime import Device
from lamina.spec import Policy, Shape, Spec, contiguous

#: The most indices of a line that every thread checks; more are sorted.
FEW = 32
#: Checks of indices, over all elements, that take less time than sorting the indices.
LOOKS = 1 << 24
#: Entries per element from which a warp works on it, and the number of elements below which that pays.
MANY, SCARCE = 64, 1 << 16
#: Bytes of shared memory, and entries, of a block that holds lines; the fewest blocks for which that pays, the fewest
#: entries of a line, and the most entries per element: about so many rounds there are.
HELD, CLAIMS, LEAST_TILES, LEAST_CLAIMS, ROUNDS = 48 << 10, 2048, 16, 5, 4
_FILE = "elementwise/gather.cu"
_NAN = {
    "float64": "0x7ff8000000000000ull",
    "float32": "0x7fc00000",
    "float16": "0x7e00",
    "bfloat16": "0x7fc0",
}
_NUMBERS = {"set": 0, "add": 1, "mul": 2, "min": 3, "max": 4}
_MODES = ("set", "sum", "prod", "min", "max")


@kernels(Gather, source="kernel")
def gather(op: Gather, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """Row-major tensors; by single elements where an address is not aligned."""
    x, index = (row_major(s) for s in specs)
    y = op.infer(x, index)[0].fixed
    if not y.numel:
        return kernel_plan(device, [x, index], [y], [], label=op.name)
    along = index.physical.strides
    inner = prod(y.shape[op.axis + 1 :])
    together = inner if prod(index.shape[op.axis + 1 :]) == 1 else 1  # adjacent elements with a common index
    width = next(v for v in (16, 8, 4, 2, 1) if together % v == 0 and v * x.dtype.itemsize <= VECTOR)
    space = collapse(y.shape, [_without(x.physical.strides, op.axis), _repeated(index, along)], range(y.ndim))

    def launch(width: int) -> Launch:
        text = f"#define GATHER\ntypedef {index_type(max(x.numel, y.numel))} Index;\n"
        text += f"typedef {bits_type(x.dtype)} T;\ntypedef {c_type(index.dtype)} I;\n"
        text += constants(
            V=width, COUNT=y.numel // width, SIZE=x.shape[op.axis], STRIDE=x.physical.strides[op.axis],
            BAD=_NAN.get(x.dtype.name, "0"),
        )  # fmt: skip
        text += offset_function("x_at", space, 0) + offset_function("index_at", space, 1)
        return looping(Program("gather", _FILE, text), y.numel // width, (source(0), source(1), target()))

    plain = None if width == 1 else lambda: (launch(1),)
    return kernel_plan(device, [x, index], [y], [launch(width)], label=op.name, plain=plain)


def _without(strides: Strides, axis: int) -> Strides:
    return tuple(0 if a == axis else s for a, s in enumerate(strides))


def _repeated(spec: Spec, strides: Strides) -> Strides:
    """Strides with 0 along axes of size 1."""
    return tuple(0 if n == 1 else s for n, s in zip(spec.shape, strides, strict=True))


@kernels(Scatter, source="kernel")
def scatter(op: Scatter, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """Onto a row-major tensor, possibly in place."""
    x, index, given = (row_major(s) for s in specs)
    steps, workspace = _scatter(
        op.axis, _NUMBERS[op.mode], x, index, given, (source(0), source(1), source(2))
    )
    return kernel_plan(
        device, [x, index, given], [x], steps, label=op.name, workspace=workspace, aliases={0: 0}
    )


@kernels(GatherGrad, source="kernel")
def gather_grad(op: GatherGrad, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """Sums from zero on."""
    g, index = (row_major(s) for s in specs)
    y = op.infer(g, index)[0].fixed
    steps, workspace = _scatter(op.axis, 1, y, index, g, (None, source(1), source(0)))
    return kernel_plan(device, [g, index], [y], steps, label=op.name, workspace=workspace)


def _scatter(
    axis: int, mode: int, y: Spec, index: Spec, given: Spec, places: tuple[Place | None, Place, Place]
) -> tuple[list[Launch], int]:
    """The launches, and the workspace that they need; places: of x (None for zeros), index and source."""
    if not y.numel:
        return [], 0
    entries, size = index.shape[axis], y.shape[axis]
    text = _text(axis, mode, y, index, given, places[0] is not None)
    base, at_index, at_source = places[0] or target(), places[1], places[2]
    arguments: tuple[Argument, ...]
    tile = _tile(axis, y, index) if given.numel else None
    if tile is not None:
        lines, inner = y.numel // size, prod(y.shape[axis + 1 :])
        text += constants(INNER=inner, LINES=lines, TILE=tile)
        program = Program("scatter_claimed", _FILE, text)
        blocks, arguments = -(-lines // tile), (base, at_index, at_source, target())
        return [Launch(program, (blocks,), (256,), arguments, waves=LOOPING)], 0
    if entries <= FEW or not given.numel:
        program = Program("scatter_few", _FILE, text)
        return [looping(program, y.numel, (base, at_index, at_source, target()))], 0
    if mode and y.numel * entries <= LOOKS:
        program, blocks = Program("scatter_seen", _FILE, text), -(-y.numel // 8)
        return [Launch(program, (blocks,), (256,), (base, at_index, at_source, target()), waves=LOOPING)], 0
    rows = Rows(
        index.numel // entries,
        entries,
        c_type(index.dtype),
        "u32",
        _place_key(size),
        prod(index.shape[axis + 1 :]),
    )
    steps, workspace = sort_steps(rows, entries, at_index, None)
    arguments = (base, *sorted_pairs(rows), at_source, target())
    if mode and entries >= MANY * size and y.numel < SCARCE:
        program = Program("scatter_many", _FILE, text)
        return [*steps, Launch(program, (-(-y.numel // 8),), (256,), arguments, waves=LOOPING)], workspace
    return [*steps, looping(Program("scatter_sorted", _FILE, text), y.numel, arguments)], workspace


def _tile(axis: int, y: Spec, index: Spec) -> int | None:
    """The number of lines that a block holds in shared memory; None where that does not pay.

    Enough for its threads, and as many as read whole sectors of 32 bytes where lines are not contiguous.
    """
    entries, size, inner = index.shape[axis], y.shape[axis], prod(y.shape[axis + 1 :])
    lines, most = y.numel // size, max(size, entries)
    across = min(-(-32 // y.dtype.itemsize), inner)

    def fits(tile: int) -> bool:
        return tile * size * (y.dtype.compute.itemsize + 4) <= HELD and tile * entries <= CLAIMS

    tile = 1
    while 2 * tile * LEAST_TILES <= lines and (tile < across or 2 * tile * most <= 1024) and fits(2 * tile):
        tile *= 2
    pays = LEAST_CLAIMS <= entries <= ROUNDS * size and lines >= LEAST_TILES
    return tile if pays and tile >= across and fits(tile) else None


def _place_key(size: int) -> str:
    """The sort key: indices counted from the front; those out of range come last."""
    return (
        "__device__ __forceinline__ Key to_key(S x)\n{\n"
        f"    const i64 at = x < 0 ? (i64)x + {size} : (i64)x;\n"
        f"    return at >= 0 && at < {size} ? (u32)at : 0xfffffffeu;\n}}\n"
    )


def _text(axis: int, mode: int, y: Spec, index: Spec, given: Spec, has_base: bool) -> str:
    """Constants and functions of the scatter kernels."""
    along, step = _repeated(index, index.physical.strides), index.physical.strides[axis]
    lines: Shape = tuple(1 if a == axis else n for a, n in enumerate(index.shape))
    line = tuple(0 if n == 1 else s for n, s in zip(lines, contiguous(lines).strides, strict=True))
    position = tuple(int(a == axis) for a in range(y.ndim))
    rows = [position, _without(given.physical.strides, axis), _without(along, axis), line]
    space = collapse(y.shape, rows, range(y.ndim))
    reach = max(y.numel, index.numel, given.numel)
    text = f"#define SCATTER\ntypedef {index_type(reach)} Index;\ntypedef {c_type(y.dtype)} T;\n"
    text += f"typedef {c_type(index.dtype)} I;\n"
    text += constants(
        COUNT=y.numel, SIZE=y.shape[axis], ENTRIES=index.shape[axis], BASE=int(has_base), COMBINE=mode,
        SOURCE_STEP=given.physical.strides[axis], INDEX_STEP=step, NEUTRAL=neutral(_MODES[mode], y.dtype),
    )  # fmt: skip
    for number, name in enumerate(("position", "source_at", "index_at", "line_of")):
        text += offset_function(name, space, number)
    return text + _reaches(axis, y, given)


def _reaches(axis: int, y: Spec, given: Spec) -> str:
    """The C function that tells whether the source covers an element, ignoring the axis."""
    tests: Sequence[str] = [
        f"index / (Index){stride} % (Index){n} < {s}"
        for a, (n, s, stride) in enumerate(zip(y.shape, given.shape, y.physical.strides, strict=True))
        if a != axis and s < n
    ]
    return f"__device__ __forceinline__ bool has_source(Index index) {{ return {' && '.join(tests) or 'true'}; }}\n"
