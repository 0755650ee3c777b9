"""Sorting of rows: one launch for rows of a tile, and for longer ones whose elements are compared all-to-all; else
tiles and merges, or only tiles for the first few elements."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lamina.backends import Plan
from lamina.backends.cuda.launch.indexing import index_type
from lamina.backends.cuda.launch.program import (
    LOOPING,
    WORKSPACE_ALIGNMENT,
    Launch,
    Place,
    Program,
    c_type,
    constants,
    kernel_plan,
    round_up,
    scratch,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.sort import Sort
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec

#: The most pairs that a block sorts in shared memory.
TILE = 1024
#: The most elements kept per row for which discarding the rest tile by tile beats a full sort.
FEW = TILE // 4
#: The most comparisons for which one launch beats several dependent ones: some 20 us of 132 multiprocessors.
_MOST_COMPARED = 1 << 28
#: Keys that a block compares with at a time, and pairs that a warp ranks.
_CHUNK, _OWN = 4096, 4
_BLOCK_WARPS = 8


@dataclass(frozen=True)
class Rows:
    """The input: `rows` rows of `size` elements of a C type, with stride `inner` within a row.

    key: the C type of the keys; to_key: the C function from an element to its key.
    """

    rows: int
    size: int
    element: str
    key: str
    to_key: str
    inner: int = 1

    @property
    def pairs_bytes(self) -> tuple[int, int]:
        """Bytes of the keys and positions of all elements."""
        count = self.rows * self.size
        return (
            round_up(count * (8 if self.key == "u64" else 4), WORKSPACE_ALIGNMENT),
            round_up(count * 4, WORKSPACE_ALIGNMENT),
        )

    @property
    def are_counted(self) -> bool:
        """Whether elements are ranked by comparing all with all."""
        return self.size > TILE and self.inner == 1 and self.rows * self.size**2 <= _MOST_COMPARED


@dataclass(frozen=True)
class _SortPass:
    """One launch: tiles of `size` elements of a row, of which `width` are written, or (run > 0) a merge of runs."""

    size: int
    width: int
    keep: int = TILE
    run: int = 0


def sort_steps(
    given: Rows, keep: int, x: Place, wanted: tuple[Place, Place] | None
) -> tuple[list[Launch], int]:
    """The launches that sort rows at x, and the workspace they need from its start on.

    keep: pairs of each row in the result. wanted: the places of values and int64 positions; None leaves the pairs
        (see `sorted_pairs`) in the workspace.
    """
    buffers = _buffers(given)
    if given.are_counted:
        return [_counts(given, keep, x, wanted or buffers[0], wanted is not None)], 2 * sum(given.pairs_bytes)
    passes = _passes(given.size, keep)
    steps: list[Launch] = []
    read: tuple[Place, ...] = (x,)
    for number, step in enumerate(passes):
        last = number == len(passes) - 1
        final = last and wanted is not None
        write = wanted if final and wanted else buffers[(len(passes) - 1 - number) % 2]
        steps.append(_launch(given, step, number > 0, final, read, (x, *write)))
        read = write
    return steps, 2 * sum(given.pairs_bytes)


def sorted_pairs(given: Rows) -> tuple[Place, Place]:
    """Where `sort_steps` leaves keys and positions."""
    return _buffers(given)[0]


def _buffers(given: Rows) -> list[tuple[Place, Place]]:
    keys, places = given.pairs_bytes
    return [(scratch(start), scratch(start + keys)) for start in (0, keys + places)]


def _passes(size: int, keep: int) -> list[_SortPass]:
    found: list[_SortPass] = []
    if keep <= FEW:
        while size > TILE:
            whole, rest = divmod(size, TILE)
            width = whole * keep + min(rest, keep)
            found.append(_SortPass(size, width, keep))
            size = width
        return [*found, _SortPass(size, keep)]
    found.append(_SortPass(size, keep if size <= TILE else size))
    run = TILE
    while run < size:
        found.append(_SortPass(size, keep if 2 * run >= size else size, run=run))
        run *= 2
    return found


def _launch(
    given: Rows, step: _SortPass, pairs: bool, final: bool, read: tuple[Place, ...], write: tuple[Place, ...]
) -> Launch:
    merge = step.run > 0
    segment = min(TILE, 1 << max(step.size - 1, 0).bit_length())
    text = constants(
        **({"MERGE": 1} if merge else {"TILES": 1}), PAIRS=int(pairs), FINAL=int(final), TILE=TILE, SEGMENT=segment,
        KEEP=min(step.keep, segment), SIZE=step.size, WIDTH=step.width, LENGTH=given.size, ROWS=given.rows,
        RUN=max(step.run, 1), INNER=given.inner,
    )  # fmt: skip
    kind = index_type(given.rows * given.size + 2 * TILE * max(step.run // TILE, 1))
    text = f"typedef {kind} Index;\ntypedef {given.element} S;\ntypedef {given.key} Key;\n{text}"
    if not pairs:
        text += given.to_key
    tiles = given.rows * -(-step.size // (TILE if merge else segment))
    blocks = tiles if merge else -(-tiles // (TILE // segment))
    program = Program("sort_merge" if merge else "sort_tiles", "elementwise/sort.cu", text)
    return Launch(program, (blocks,), (256,), (*read, *write), waves=LOOPING)


def _counts(given: Rows, keep: int, x: Place, write: tuple[Place, Place], final: bool) -> Launch:
    """The launch that writes each pair at its rank, the count of pairs that come before it."""
    text = constants(
        COUNTS=1, PAIRS=0, FINAL=int(final), SIZE=given.size, WIDTH=keep, LENGTH=given.size, ROWS=given.rows,
        CHUNK=_CHUNK, OWN=_OWN,
    )  # fmt: skip
    kind = index_type(given.rows * given.size + _CHUNK)
    text = (
        f"typedef {kind} Index;\ntypedef {given.element} S;\ntypedef {given.key} Key;\n{text}{given.to_key}"
    )
    blocks = given.rows * -(-given.size // (_BLOCK_WARPS * _OWN))
    program = Program("sort_counts", "elementwise/sort.cu", text)
    return Launch(program, (blocks,), (32 * _BLOCK_WARPS,), (x, x, *write), waves=LOOPING)


def number_key(dtype: DType, descending: bool) -> tuple[str, str]:
    """(C type, C function) of a key in numeric order: -0 equals 0, NaN above all. For descending order all bits are
    inverted."""
    wide = dtype.itemsize == 8
    key = "u64" if wide else "u32"
    turn = "~" if descending else ""
    top = "0x8000000000000000ull" if wide else "0x80000000u"
    if dtype.is_float:
        bits = "(u64)__double_as_longlong(v)" if wide else "__float_as_uint(v)"
        body = (
            f"const {'f64' if wide else 'f32'} v = widen(x);\n"
            f"    const {key} bits = v == 0 ? 0 : {bits};\n"
            f"    const {key} found = v != v ? ~({key})0 : bits & {top} ? ~bits : bits | {top};\n"
        )
    else:
        flipped = f" ^ {top}" if dtype.kind == "i" else ""
        body = f"const {key} found = ({key})({'i64' if wide else 'i32'})x{flipped};\n"
    return key, f"__device__ __forceinline__ Key to_key(S x)\n{{\n    {body}    return {turn}found;\n}}\n"


@kernels(Sort, source="kernel")
def sort(op: Sort, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """Rows of a row-major tensor."""
    x = specs[0].open.fixed
    outputs = [y.fixed for y in op.infer(x)]
    if not outputs[0].numel:
        return kernel_plan(device, [x], outputs, [], label=op.name)
    key, to_key = number_key(x.dtype, op.descending)
    given = Rows(prod(x.shape[:-1]), x.shape[-1], c_type(x.dtype), key, to_key)
    steps, workspace = sort_steps(given, op.count(x), source(), (target(0), target(1)))
    return kernel_plan(
        device, [x], outputs, steps, label=op.name, workspace=workspace if len(steps) > 1 else 0
    )
