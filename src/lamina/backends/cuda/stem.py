"""Convolutions over few channels by own tensor-core kernels that read the image as it lies (stem.cu)."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.backends.cuda.choice import Way
from lamina.backends.cuda.conv_graph import Direction, Operands, places_of
from lamina.backends.cuda.depthwise import epilogue_constants
from lamina.backends.cuda.epilogue import Vector
from lamina.backends.cuda.program import (
    WORKSPACE_ALIGNMENT,
    Aligned,
    Launch,
    Number,
    Program,
    c_type,
    constants,
    round_up,
    scratch,
    source,
)
from lamina.spec import bfloat16, channels_last, float16

_MOST_CHANNELS = 4
#: Filters come in groups of 32; the sums of so many fit into registers.
_FILTERS = range(32, 129, 32)
#: Bytes of shared memory that a block may declare, and that leave room for three blocks on a multiprocessor.
_SHARED, _SHARED_OF_THREE = 48 << 10, 34 << 10
#: Registers for sums in the filter gradient.
_SUMS = 160
_PROCESSORS = 132


@dataclass(frozen=True)
class Stem:
    """The sizes that the kernels are compiled for."""

    o: Operands

    @property
    def lead(self) -> int:
        """Elements before a window that are read with it, so that it begins at an even one."""
        return self.o.window.padding[1][0] * self.o.x.shape[1] % 2

    @property
    def run(self) -> int:
        """Elements per filter row, an even number."""
        return round_up(self.lead + self.o.w.shape[3] * self.o.x.shape[1], 2)

    @property
    def steps(self) -> int:
        """Products of 16 elements."""
        return -(-self.o.w.shape[2] * self.run // 16)

    @property
    def shift(self) -> int:
        """Where an image row begins in a shared one."""
        return round_up(self.o.window.padding[1][0] * self.o.x.shape[1] + self.lead, 8)

    @property
    def pitch(self) -> int:
        """Elements of a shared row."""
        channels, (_, _, _, width), win = self.o.x.shape[1], self.o.x.shape, self.o.window
        last = (self.o.y.shape[3] - 1) * win.stride[1] * channels + self.run
        reach = self.shift - win.padding[1][0] * channels - self.lead + last
        return round_up(max(self.shift + width * channels, reach), 8)

    def rows(self, height: int) -> int:
        """Bytes of the image rows of a tile of so many output rows."""
        return ((height - 1) * self.o.window.stride[0] + self.o.w.shape[2]) * self.pitch * 2

    @property
    def filter(self) -> int:
        """Bytes of the filter in the order in which lanes take it."""
        return self.steps * self.o.w.shape[0] // 8 * 256

    def places(self, height: int) -> int:
        """Bytes of the gradient's places of a tile, and of the table of their windows."""
        return round_up(height * self.o.y.shape[3], 16) * ((self.o.w.shape[0] + 8) * 2 + 4)

    def height(self, direction: Direction) -> int:
        """Output rows per tile with the least idle work that shared memory has room for; 0 where none fits."""
        rows, columns = self.o.y.shape[2:]
        forward = direction == "conv"
        fixed, limit = (self.filter, _SHARED) if forward else (0, _SHARED_OF_THREE)

        def fits(height: int) -> bool:
            return fixed + self.rows(height) + (0 if forward else self.places(height)) <= limit

        def work(height: int) -> int:
            return -(-rows // height) * round_up(height * columns, 128 if forward else 16)

        heights = [h for h in range(1, min(rows, 32) + 1) if fits(h)]
        return min(heights, key=lambda h: (work(h), -h), default=0)

    @property
    def groups(self) -> int:
        """Groups of 16 taps."""
        return -(-self.o.w.shape[2] * self.run // 16)

    @property
    def groups_per_warp(self) -> int:
        """In the filter gradient: as many as there are registers for, shared out evenly."""
        most = max(1, _SUMS // (self.o.w.shape[0] // 16 * 8))
        return -(-self.groups // -(-self.groups // most))

    @property
    def warps(self) -> int:
        """Of a block of the filter gradient."""
        return -(-self.groups // self.groups_per_warp)

    @property
    def fragments(self) -> int:
        """Sums that a block of the filter gradient leaves."""
        return self.warps * self.groups_per_warp * 2 * (self.o.w.shape[0] // 16) * 128

    def text(self, direction: Direction, vector: Vector) -> str:
        """The constants of stem.cu."""
        o, win = self.o, self.o.window
        row = o.x.shape[3] * o.x.shape[1]
        numbers: dict[str, int | str | float] = {
            **dict(zip(("N", "C", "H", "W"), o.x.shape, strict=True)),
            **dict(zip(("K", "_", "KH", "KW"), o.w.shape, strict=True)),
            **{"OH": o.y.shape[2], "OW": o.y.shape[3], "SH": win.stride[0], "SW": win.stride[1]},
            **{"PH": win.padding[0][0], "PW": win.padding[1][0], "LEAD": self.lead, "RUN": self.run},
            **{"STEPS": self.steps, "SHIFT": self.shift, "PITCH": self.pitch, "TH": self.height(direction)},
            "VX": next(v for v in (8, 4, 2, 1) if row % v == 0),
            **{f"W_{n}": s for n, s in zip("KCHW", o.w.physical.strides, strict=True)},
            **epilogue_constants(vector),
        }
        del numbers["_"]
        if direction == "conv_filter_grad":
            numbers |= {"COLS": self.warps, "NP": self.groups_per_warp}
        kind = "i32" if max(o.x.numel, o.y.numel) < 2**31 - 2**26 else "i64"
        return f"typedef {kind} Index;\ntypedef {c_type(o.x.dtype)} T;\n{constants(**numbers)}"


def is_stem(direction: Direction, o: Operands, vector: Vector | None) -> bool:
    """Whether the kernels take it: 2-D windows over few channels of a half type, without data gradient."""
    win, channels = o.window, o.x.shape[1]
    if direction == "conv_data_grad" or vector is None or vector.residual is not None:
        return False
    if vector.activation not in ("", "relu") or (direction != "conv" and vector != Vector()):
        return False
    if win.rank != 2 or win.groups > 1 or win.flip or max(win.dilation) > 1:
        return False
    half = o.x.dtype in (float16, bfloat16) and o.x.physical == channels_last(o.x.shape)
    sizes = channels <= _MOST_CHANNELS and o.w.shape[0] in _FILTERS and channels * win.stride[1] % 2 == 0
    return half and sizes and Stem(o).steps <= 16 and Stem(o).height(direction) > 0


def stem_way(direction: Direction, o: Operands, vector: Vector | None) -> Way:
    """The own kernels of one direction."""
    stem, vector = Stem(o), vector or Vector()
    text = stem.text(direction, vector)
    tiles = o.x.shape[0] * -(-o.y.shape[2] // stem.height(direction))
    warps = 4 if direction == "conv" else stem.warps
    blocks = min(tiles, _PROCESSORS * min(6, max(3, 9 // warps)))  # all run at the same time
    x, w, y = places_of(direction)
    if direction == "conv":
        bias = w if vector.bias is None else source(vector.bias)
        pack = Program("stem_filter", "stem.cu", text), (-(-stem.filter // 512),), (256,), (w, scratch())
        main = Program("stem", "stem.cu", text), (blocks,), (128,), (x, scratch(), bias, y)
        return Way("stem", steps=(Aligned(), Launch(*pack), Launch(*main)), scratch=stem.filter)
    size = round_up(blocks * stem.fragments * 4, WORKSPACE_ALIGNMENT)
    first = Program("stem_filter_grad", "stem.cu", text), (blocks,), (stem.warps * 32,), (x, y, scratch())
    total = scratch(), w, Number(blocks, "i32")
    second = Program("stem_filter_sum", "stem.cu", text), (stem.fragments // 32,), (256,), total
    return Way("stem", steps=(Launch(*first), Launch(*second)), scratch=size)
