"""Convolutions over few channels by own tensor-core kernels that read the image in place (small_channels.cu)."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.backends.cuda.conv.depthwise import epilogue_text
from lamina.backends.cuda.cudnn_graphs.conv import Direction, Operands, places_of
from lamina.backends.cuda.cudnn_graphs.epilogue import Vector
from lamina.backends.cuda.launch.indexing import index_type
from lamina.backends.cuda.launch.program import (
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
from lamina.backends.cuda.select.formulations import Formulation
from lamina.ops.primitives.conv import Conv, ConvDataGrad, ConvFilterGrad
from lamina.runtime import Machine
from lamina.spec import bfloat16, channels_last, float16

_MOST_CHANNELS = 4
#: The numbers of filters that are supported, in whole accesses of a line of y.
_FILTERS = range(16, 129, 8)
#: Filters of a warp of the forward kernel, and of a matrix of the filter gradient; the rest are zeros.
_OF_WARP, _OF_MATRIX = 32, 16
#: The most products of 16 elements whose filters fit into a warp's registers.
_MOST_STEPS = 16
#: Registers that a thread needs besides sums and filters.
_OTHER = 56
#: Registers for sums in the filter gradient, and about how many warps its blocks have.
_SUMS, _WARPS = 160, 6
#: The most blocks resident on a multiprocessor.
_MOST_RESIDENT = 6


@dataclass(frozen=True)
class SmallChannels:
    """The sizes that the kernels are compiled for."""

    o: Operands
    machine: Machine

    @property
    def filters(self) -> int:
        """Filters, including the zero ones."""
        return round_up(self.o.w.shape[0], _OF_WARP)

    @property
    def lead(self) -> int:
        """Elements read before a window, so that it begins at an even one."""
        return self.o.window.padding[1][0] * self.o.x.shape[1] % 2

    @property
    def run(self) -> int:
        """Elements per filter row, an even number."""
        return round_up(self.lead + self.o.w.shape[3] * self.o.x.shape[1], 2)

    @property
    def eights(self) -> int:
        """Groups of eight elements that a filter row spans."""
        return -(-self.run // 8)

    @property
    def steps(self) -> int:
        """Products of 16 elements."""
        return -(-self.o.w.shape[2] * self.run // 16)

    @property
    def shift(self) -> int:
        """The offset of an image row in its shared-memory row."""
        return round_up(self.o.window.padding[1][0] * self.o.x.shape[1] + self.lead, 8)

    @property
    def pitch(self) -> int:
        """Elements of a shared row."""
        channels, (_, _, _, width), win = self.o.x.shape[1], self.o.x.shape, self.o.window
        last = (self.o.y.shape[3] - 1) * win.stride[1] * channels + self.eights * 8
        reach = self.shift - win.padding[1][0] * channels - self.lead + last
        return round_up(max(self.shift + width * channels, reach), 8)

    def text(self, vector: Vector, **more: int) -> str:
        """The constants of small_channels.cu."""
        o, win = self.o, self.o.window
        row = o.x.shape[3] * o.x.shape[1]
        numbers: dict[str, int | str | float] = {
            **dict(zip(("IMAGES", "C", "H", "W"), o.x.shape, strict=True)),
            **{"FILTERS": o.w.shape[0], "K": self.filters, "KH": o.w.shape[2], "KW": o.w.shape[3]},
            **{"OH": o.y.shape[2], "OW": o.y.shape[3], "SH": win.stride[0], "SW": win.stride[1]},
            **{"PH": win.padding[0][0], "PW": win.padding[1][0], "LEAD": self.lead, "RUN": self.run},
            **{"STEPS": self.steps, "SHIFT": self.shift, "PITCH": self.pitch},
            "VX": next(v for v in (8, 4, 2, 1) if row % v == 0),
            **{f"W_{n}": s for n, s in zip("KCHW", o.w.physical.strides, strict=True)},
            **more,
        }
        kind = index_type(max(o.x.numel, o.y.numel))
        types = f"typedef {kind} Index;\ntypedef {c_type(o.x.dtype)} T;\n"
        return types + constants(**numbers) + epilogue_text(vector, o.y)


def _resident(machine: Machine, warps: int, registers: int, shared: int) -> int:
    """Blocks that are resident on a multiprocessor."""
    by_registers = machine.registers // (warps * 32 * round_up(registers + _OTHER, 8))
    by_memory = machine.multiprocessor_shared_memory // (shared + machine.reserved_shared_memory)
    return max(1, min(by_registers, by_memory, _MOST_RESIDENT))


@dataclass(frozen=True)
class Forward(SmallChannels):
    """The split of the work: a warp has 32 filters and some of a tile's positions."""

    @property
    def groups(self) -> int:
        """Warps that divide a tile's positions among them."""
        return max(1, 128 // self.filters)

    @property
    def warps(self) -> int:
        """Of a block."""
        return self.groups * self.filters // _OF_WARP

    @property
    def filter(self) -> int:
        """Bytes of the filter in fragment order."""
        return self.steps * self.filters // 8 * 256

    def rows(self, height: int) -> int:
        """Image rows for a tile of `height` output rows."""
        return (height - 1) * self.o.window.stride[0] + self.o.w.shape[2]

    def shared(self, height: int) -> int:
        """Bytes of the image rows of two tiles, the present one and the next."""
        return 2 * self.rows(height) * self.pitch * 2

    def resident(self, height: int) -> int:
        """Blocks per multiprocessor. A step takes eight registers for filters and two for positions."""
        return _resident(self.machine, self.warps, self.steps * 10, self.shared(height))

    def blocks(self, height: int) -> int:
        """All run at the same time."""
        return min(self.tiles(height), self.machine.multiprocessors * self.resident(height))

    def tiles(self, height: int) -> int:
        """Of all images."""
        return self.o.x.shape[0] * -(-self.o.y.shape[2] // height)

    @property
    def height(self) -> int:
        """The fastest number of output rows per tile; 0 where not even one fits.

        The cost in units of a warp's product of 16 elements: multiplications and reads of a block's warp over the
        block's tiles, plus the load of the first tile, which is not overlapped.
        """

        def time(height: int) -> int:
            turns = -(-self.tiles(height) // self.blocks(height))
            products = (
                round_up(height * self.o.y.shape[3], 16 * self.groups) // (16 * self.groups) * self.steps
            )
            reads = self.rows(height)
            return turns * (products + 4 * reads) + 20 * reads

        heights = range(1, min(self.o.y.shape[2], 32) + 1)
        return min((h for h in heights if self.shared(h) <= self.machine.shared_memory), key=time, default=0)

    def formulation(self, vector: Vector) -> Formulation:
        """The filter in fragment order, then the product."""
        height = self.height
        shared, blocks = self.shared(height), self.blocks(height)
        text = self.text(vector, GROUPS=self.groups, RESIDENT=self.resident(height), TH=height)
        x, w, y = places_of(Conv)
        bias = w if vector.bias is None else source(vector.bias)
        pack = Launch(
            Program("stem_filter", "conv/small_channels.cu", text),
            (-(-self.filter // 512),),
            (256,),
            (w, scratch()),
        )
        arguments = (x, scratch(), bias, y)
        main = Launch(
            Program("stem", "conv/small_channels.cu", text), (blocks,), (self.warps * 32,), arguments, shared
        )
        return Formulation("stem", steps=(Aligned(), pack, main), scratch=self.filter)


@dataclass(frozen=True)
class FilterGrad(SmallChannels):
    """The split of the work: a warp computes all filters times some groups of eight elements."""

    @property
    def filters(self) -> int:
        """Filters, including the zero ones."""
        return round_up(self.o.w.shape[0], _OF_MATRIX)

    @property
    def spans(self) -> int:
        """Groups of eight elements of a window."""
        return self.o.w.shape[2] * self.eights

    @property
    def spans_per_warp(self) -> int:
        """As many as there are registers for, evenly divided."""
        most = max(1, _SUMS // (self.filters // 16 * 4))
        return -(-self.spans // -(-self.spans // most))

    @property
    def columns(self) -> int:
        """Warps that divide a window's groups of eight among them."""
        return -(-self.spans // self.spans_per_warp)

    @property
    def places(self) -> int:
        """Positions of an output row, in whole products."""
        return round_up(self.o.y.shape[3], 16)

    @property
    def groups(self) -> int:
        """Warps that divide a row's positions among them, evenly if possible."""
        turns = self.places // 16
        most = min(turns, max(1, _WARPS // self.columns))
        return -(-turns // -(-turns // most))

    @property
    def warps(self) -> int:
        """Of a block."""
        return self.columns * self.groups

    @property
    def fragments(self) -> int:
        """Partial sums of a block."""
        return self.columns * self.spans_per_warp * (self.filters // 16) * 128

    @property
    def shared(self) -> int:
        """Bytes of the windows of a row, of the image rows, of two rows of the gradient; at the end, of the sums."""
        line = (self.filters + 8) * 2
        work = self.spans * self.places * 16 + self.o.w.shape[2] * self.pitch * 2 + 2 * self.places * line
        return max(work, self.fragments * 4 if self.groups > 1 else 0)

    @property
    def resident(self) -> int:
        """Blocks per multiprocessor."""
        return _resident(self.machine, self.warps, self.spans_per_warp * self.filters // 4, self.shared)

    @property
    def blocks(self) -> int:
        """All run at the same time."""
        return min(self.o.x.shape[0] * self.o.y.shape[2], self.machine.multiprocessors * self.resident)

    def formulation(self) -> Formulation:
        """The blocks' partial sums, then their sum."""
        sizes = {"EIGHTS": self.eights, "COLS": self.columns, "NP": self.spans_per_warp}
        text = self.text(Vector(), GROUPS=self.groups, RESIDENT=self.resident, **sizes)
        x, w, y = places_of(ConvFilterGrad)
        first = Launch(
            Program("stem_filter_grad", "conv/small_channels.cu", text),
            (self.blocks,),
            (self.warps * 32,),
            (x, y, scratch()),
            self.shared,
        )
        total = scratch(), w, Number(self.blocks, "i32")
        second = Launch(
            Program("stem_filter_sum", "conv/small_channels.cu", text), (self.fragments // 32,), (256,), total
        )
        size = round_up(self.blocks * self.fragments * 4, WORKSPACE_ALIGNMENT)
        return Formulation("stem", steps=(first, second), scratch=size)


def takes_small_channels(direction: Direction, o: Operands, vector: Vector | None, machine: Machine) -> bool:
    """Whether the kernels support it: 2-D windows over few channels of a half type, without data gradient."""
    win, channels = o.window, o.x.shape[1]
    if direction is ConvDataGrad or vector is None or vector.residual is not None:
        return False
    if direction is not Conv and vector != Vector():
        return False
    if win.rank != 2 or win.groups > 1 or win.flip or max(win.dilation) > 1:
        return False
    half = o.x.dtype in (float16, bfloat16) and o.x.physical == channels_last(o.x.shape)
    sizes = channels <= _MOST_CHANNELS and o.w.shape[0] in _FILTERS and channels * win.stride[1] % 2 == 0
    if not half or not sizes or SmallChannels(o, machine).steps > _MOST_STEPS:
        return False
    if direction is Conv:
        return Forward(o, machine).height > 0
    return FilterGrad(o, machine).shared <= machine.shared_memory


def small_channels_formulation(
    direction: Direction, o: Operands, vector: Vector | None, machine: Machine
) -> Formulation:
    """The own kernels of one direction."""
    if direction is Conv:
        return Forward(o, machine).formulation(vector or Vector())
    return FilterGrad(o, machine).formulation()
