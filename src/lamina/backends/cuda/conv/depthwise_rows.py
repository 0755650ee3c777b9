"""Depthwise convolution that walks down the rows: filters of as many taps as registers hold.

Beyond nine taps (conv/depthwise.py) the filters of eight channels no longer fit into a thread's registers, and
rereading all rows of a window for each output row would cost as much as the arithmetic. Here a thread has one or two
channels, reads each row of its columns once, and keeps the sums of all output rows to which the row contributes (for
the filter gradient: the rows of g that it meets).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, prod

from lamina.backends.cuda.cudnn_graphs.conv import Direction, Operands, places_of
from lamina.backends.cuda.cudnn_graphs.epilogue import Vector
from lamina.backends.cuda.launch.indexing import index_type
from lamina.backends.cuda.launch.program import (
    Aligned,
    Launch,
    Number,
    Place,
    Program,
    c_type,
    constants,
    scratch,
    source,
)
from lamina.backends.cuda.select.formulations import Formulation
from lamina.ops.primitives.conv import Conv, ConvDataGrad, ConvFilterGrad
from lamina.runtime import Machine
from lamina.spec import Spec

#: Threads of a block.
_THREADS = 128
#: Registers of a thread beside its sums, filters and rows; and the extra ones beyond 24 columns, each with a mask
#: bit.
_OTHERS, _WIDE = 24, 48
#: The most columns in a row's bit mask; filter elements per thread that fit in shared memory.
_MOST_COLUMNS, _MOST_STAGED = 32, 192
#: Blocks per multiprocessor, and the estimated registers per thread up to which the compiler does not spill: the
#: limits are 128, 168 and 255.
_RESIDENT = {4: 114, 3: 168, 2: 232}
#: Approximate instruction counts: a memory access, the overhead of a step, and, once per block, an element of a
#: thread's filters.
_ACCESS, _STEP, _ONCE = 3, 24, 9


@dataclass(frozen=True)
class WalkAxis:
    """How one axis of the tensor read maps to one of the result: steps that read or write `stride` positions.

    first: the first position that step 0 reads. depth: the number of steps to whose results a position contributes.
    base: the tap of the first position read and the first written.
    """

    kernel: int
    stride: int
    first: int
    depth: int
    base: int

    @classmethod
    def of(cls, direction: Direction, kernel: int, stride: int, pad: int) -> WalkAxis:
        """Forward (the filter gradient is alike) or the data gradient, which reads g."""
        if direction is not ConvDataGrad:
            return cls(kernel, stride, -pad, -(-kernel // stride), 0)
        first = -(-(pad - kernel + 1) // stride)
        depth = (stride - 1 + pad) // stride + 1 - first
        return cls(kernel, stride, first, depth, pad - first * stride)


@dataclass(frozen=True)
class WalkTiling:
    """Channels and columns of the result per thread, blocks per multiprocessor, and the shape of the loops.

    read: columns of a row that a thread reads. strips: per row of the result. steps: groups of result rows per image;
        span: of these in one walk. depth: groups to which a row contributes. reads: steps that read rows of the
        image. instructions: per step, approximately.
    """

    width: int
    columns: int
    resident: int
    read: int
    strips: int
    steps: int
    span: int
    depth: int
    reads: int
    instructions: float

    @property
    def walks(self) -> int:
        """Walks per image."""
        return -(-self.steps // self.span)

    def time(self, o: Operands, multiprocessors: int) -> float:
        """Instructions that a multiprocessor issues; with few resident blocks memory latency is exposed."""
        own = self.width * prod(o.w.shape[2:])
        threads = o.x.shape[0] * self.strips * self.walks * (o.x.shape[1] // self.width)
        blocks = -(-threads // _THREADS)
        rounds = -(-blocks // (self.resident * multiprocessors))
        each = -(-blocks // multiprocessors) if rounds == 1 else rounds * self.resident
        steps = min(self.reads, self.span + self.depth - 1)
        waits = 1 + 1 / min(each, self.resident) ** 2
        return each * steps * self.instructions * waits + min(each, self.resident) * _ONCE * own


def takes_rows(direction: Direction, o: Operands) -> bool:
    """Whether filters, sums and a row fit into registers; operands satisfy `is_depthwise`."""
    taps = prod(o.w.shape[2:])
    strides = o.w.physical.strides
    packed = (strides[0], strides[2], strides[3]) == (taps, o.w.shape[3], 1)
    return packed and any(True for _ in _candidates(direction, o))


def rows_formulation(
    direction: Direction,
    o: Operands,
    vector: Vector | None,
    epilogue: str,
    machine: Machine,
) -> Formulation:
    """The own kernel of one direction. epilogue: the text of BIAS and `activated`."""
    tiling = _tiling(direction, o, machine.multiprocessors)
    if direction is ConvFilterGrad:
        return _filter_grad(o, tiling, machine)
    program = Program("depthwise_rows", "conv/depthwise_rows.cu", _text(direction, o, tiling, epilogue))
    x, w, y = places_of(direction)
    bias = w if vector is None or vector.bias is None else source(vector.bias)
    given, made = (x, y) if direction is Conv else (y, x)
    launch = Launch(
        program, (_blocks(o, tiling, machine.multiprocessors),), (_THREADS,), (given, w, bias, made)
    )
    return Formulation("depthwise", steps=(Aligned(), launch) if direction is Conv else (launch,))


# --------------------------------------------------------------------------------------------------------- tiling


def _candidates(direction: Direction, o: Operands) -> Iterator[WalkTiling]:
    """Tilings that fit, with one walk per image."""
    (kh, kw), (sh, sw) = o.w.shape[2:], o.window.stride
    back, grad = direction is ConvDataGrad, direction is ConvFilterGrad
    height, width = (o.x if back else o.y).shape[2:]
    rows = WalkAxis.of(direction, kh, sh, o.window.padding[0][0])
    overlap = WalkAxis.of(direction, kw, sw, o.window.padding[1][0]).depth - 1
    written, reads = (sh, o.y.shape[2]) if back else (1, -(-o.x.shape[2] // sh))
    for channels in (v for v in (1, 2) if o.x.shape[1] % v == 0):
        for columns in range(sw, _MOST_COLUMNS, sw) if back else range(1, _MOST_COLUMNS):
            read = columns // sw + overlap if back else (columns - 1) * sw + kw
            sums = columns * rows.depth * written
            registers = channels * (kh * kw + sums + read) + read + columns * grad + _OTHERS
            registers += (read // 2 if sh > 1 and not back else 0) + (_WIDE if read > 24 else 0)
            resident = next((n for n, most in _RESIDENT.items() if registers <= most), 0)
            if not resident or read > _MOST_COLUMNS or channels * kh * kw > _MOST_STAGED:
                continue
            moved = (1 if back else sh) * read + columns * (1 if grad else written)
            products = kh * kw * columns / (sw if back else 1)
            strips, steps = -(-width // columns), -(-height // written)
            cost = channels * (products + grad * sums) + (_ACCESS + channels) * moved + _STEP
            yield WalkTiling(channels, columns, resident, read, strips, steps, steps, rows.depth, reads, cost)


def _tiling(direction: Direction, o: Operands, multiprocessors: int) -> WalkTiling:
    """The fastest tiling, with the best length of walks: short ones fill the device, long ones reread few rows."""
    spans = {-(-one.steps // walks) for one in _candidates(direction, o) for walks in range(1, one.steps + 1)}
    found = [replace(one, span=span) for one in _candidates(direction, o) for span in spans]
    return min(found, key=lambda one: (one.time(o, multiprocessors), -one.span))


def _work(o: Operands, tiling: WalkTiling) -> int:
    """Walks per channel."""
    return o.x.shape[0] * tiling.strips * tiling.walks


def _blocks(o: Operands, tiling: WalkTiling, multiprocessors: int) -> int:
    """As many as are resident; their threads are a multiple of the channel chunks, so that each thread keeps its
    chunk."""
    chunks = o.x.shape[1] // tiling.width
    fewest = chunks // gcd(chunks, _THREADS)
    needed = -(-_work(o, tiling) * chunks // (_THREADS * fewest))
    return fewest * max(1, min(needed, tiling.resident * multiprocessors // fewest))


# ------------------------------------------------------------------------------------------------------- programs


def _common(o: Operands, tiling: WalkTiling) -> dict[str, int | str]:
    """Constants common to the kernels of all directions."""
    return {
        "V": tiling.width,
        "TW": tiling.columns,
        "RESIDENT": tiling.resident,
        "DEPTH": tiling.depth,
        "C": o.x.shape[1],
        "KH": o.w.shape[2],
        "KW": o.w.shape[3],
        "STRIPS": tiling.strips,
        "SPAN": tiling.span,
        "WALKS": tiling.walks,
        "WORK": _work(o, tiling),
    }


def _types(o: Operands) -> str:
    reach = max(spec.nbytes // spec.dtype.itemsize for spec in (o.x, o.y))
    return f"typedef {index_type(2 * reach)} Index;\ntypedef {c_type(o.x.dtype)} T;\n"


def _steps(prefix: str, given: Spec) -> dict[str, int]:
    """From one image, row and column of what is read to the next."""
    image, _, row, column = given.physical.strides
    return {f"{prefix}_IMAGE": image, f"{prefix}_ROW": row, f"{prefix}_COLUMN": column}


def _text(direction: Direction, o: Operands, tiling: WalkTiling, epilogue: str) -> str:
    """The constants of depthwise_rows.cu."""
    (sh, sw), back = o.window.stride, direction is ConvDataGrad
    (top, _), (left, _) = o.window.padding
    row = WalkAxis.of(direction, o.w.shape[2], sh, top)
    column = WalkAxis.of(direction, o.w.shape[3], sw, left)
    given, made = (o.y, o.x) if back else (o.x, o.y)
    read = 1 if back else sh
    numbers: dict[str, int | str | float] = {
        **_common(o, tiling),
        **{"THREADS": _THREADS, "STEPS": tiling.steps, "COLUMNS": tiling.read},
        **dict(zip(("IN_H", "IN_W"), given.shape[2:], strict=True)),
        **_steps("IN", given),
        **dict(zip(("OUT_H", "OUT_W"), made.shape[2:], strict=True)),
        **{"READ": read, "WRITTEN": sh if back else 1},
        **{"ENTERS": max(0, -row.first // read), "LEAVES": -(-(given.shape[2] - row.first) // read)},
        **{"ROW_FIRST": f"({row.first})", "COLUMN_FIRST": f"({column.first})"},
        **{"ROW_BASE": row.base, "ROW_STEP": f"({-sh if back else sh})"},
        **{"COLUMN_BASE": column.base, "COLUMN_READ": f"({-sw if back else 1})"},
        **{"COLUMN_WRITTEN": f"({1 if back else -sw})"},
        **{"COLUMN_UP": 1 if back else sw, "COLUMN_DOWN": sw if back else 1},
    }
    return _types(o) + constants(**numbers) + epilogue


def _bands(chunks: int) -> tuple[int, int]:
    """(chunks of channels, strips) of a block of the filter gradient: few idle threads, about a warp of channels."""

    def idle(across: int) -> tuple[float, int]:
        used = chunks / (-(-chunks // across) * across) * (_THREADS // across * across)
        return -used, abs(across - 32)

    across = min(range(1, min(chunks, _THREADS) + 1), key=idle)
    return across, _THREADS // across


def _filter_grad(o: Operands, tiling: WalkTiling, machine: Machine) -> Formulation:
    """The partial sums of all blocks, then their sum."""
    chunks = o.x.shape[1] // tiling.width
    across, lanes = _bands(chunks)
    bands = -(-chunks // across)
    slices = max(1, min(-(-_work(o, tiling) // lanes), tiling.resident * machine.multiprocessors // bands))
    (top, _), (left, _) = o.window.padding
    numbers: dict[str, int | str | float] = {
        **_common(o, tiling),
        **{"CT": across, "LANES": lanes, "BANDS": bands, "N": o.x.shape[0]},
        **dict(zip(("H", "W"), o.x.shape[2:], strict=True)),
        **_steps("X", o.x),
        **dict(zip(("OH", "OW"), o.y.shape[2:], strict=True)),
        "LEAVES": -(-(o.x.shape[2] + top) // o.window.stride[0]),
        **{"SH": o.window.stride[0], "SW": o.window.stride[1], "PH": top, "PW": left},
    }
    program = Program(
        "depthwise_rows_filter", "conv/depthwise_rows_filter.cu", _types(o) + constants(**numbers)
    )
    x, w, y = places_of(ConvFilterGrad)
    first = Launch(program, (slices * bands,), (across * lanes,), (x, y, scratch()))
    return Formulation("depthwise", steps=(first, filter_sum(o, slices, w)), scratch=slices * o.w.numel * 4)


def filter_sum(o: Operands, slices: int, w: Place) -> Launch:
    """The filter gradient from partial sums [slices, kh * kw, C] in float32 at the start of the workspace."""
    sizes, steps = (o.x.shape[1], *o.w.shape[2:]), o.w.physical.strides
    text = f"typedef {index_type(slices * o.w.numel)} Index;\ntypedef {c_type(o.w.dtype)} T;\n"
    program = Program("depthwise_filter_sum", "conv/depthwise_sum.cu", text)
    numbers = (Number(n, "i32") for n in (slices, *sizes, steps[0], *steps[2:]))
    return Launch(program, (-(-o.w.numel // 32),), (256,), (scratch(), w, *numbers))
