"""Filter gradients as a product for each tap, whose long sums are split over blocks (filter_products.cu).

A filter gradient of few channels is small, but sums over all positions of all images: 128 x 3 x 128 elements over
131,072 positions where 16 sequences of 8,192 steps are convolved. Engines that give each block a tile of the result
leave most of a GPU idle, and those for dilated filters are slow at any size. Here as many blocks as fit split the
positions (split-K), and a tap is an offset. Sizes are run-time arguments: layers of all dilations share one kernel,
where cuDNN compiles each of them for a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lamina.backends.cuda.cudnn_graphs.conv import Direction, Operands, places_of
from lamina.backends.cuda.launch.indexing import KernelSizes
from lamina.backends.cuda.launch.program import (
    Launch,
    Number,
    Program,
    Table,
    c_type,
    constants,
    scratch,
)
from lamina.backends.cuda.select.formulations import Formulation
from lamina.ops.primitives.conv import ConvFilterGrad
from lamina.runtime import Machine
from lamina.spec import bfloat16, channels_last, float16

#: Elements of an access; positions per shared-memory stage, and number of stages.
_VECTOR, _TURN, _STAGES = 8, 32, 4
#: Filters or channels of a block, the fewest that suffice; registers for sums allow no more.
_BLOCK = (64, 128)
#: Blocks per multiprocessor, and the fewest stages per block.
_RESIDENT, _LEAST_TURNS = 2, 8


@dataclass(frozen=True)
class FilterProducts:
    """The split of the work over blocks."""

    o: Operands
    machine: Machine

    @property
    def filters(self) -> int:
        """Of a block."""
        return _BLOCK[self.o.w.shape[0] > _BLOCK[0]]

    @property
    def channels(self) -> int:
        """Of a block."""
        return _BLOCK[self.o.w.shape[1] > _BLOCK[0]]

    @property
    def tiles(self) -> tuple[int, int]:
        """Blocks along filters and channels."""
        return -(-self.o.w.shape[0] // self.filters), -(-self.o.w.shape[1] // self.channels)

    @property
    def results(self) -> int:
        """Blocks with different results."""
        return prod(self.tiles) * prod(self.o.w.shape[2:])

    @property
    def is_little(self) -> bool:
        """Whether engines that give each block a part of the result leave most of the GPU idle."""
        return self.results <= self.machine.multiprocessors

    @property
    def places(self) -> int:
        """Output positions of all images."""
        return self.o.y.numel // self.o.y.shape[1]

    @property
    def part(self) -> int:
        """Positions per block, in whole stages."""
        turns = -(-self.places // _TURN)
        slices = _RESIDENT * self.machine.multiprocessors // self.results
        return max(-(-turns // max(slices, 1)), min(_LEAST_TURNS, turns)) * _TURN

    @property
    def slices(self) -> int:
        """Blocks that share a sum."""
        return -(-self.places // self.part)

    @property
    def shared(self) -> int:
        """Bytes of shared memory of all stages."""
        return _STAGES * _TURN * (self.filters + self.channels + 2 * _VECTOR) * self.o.x.dtype.itemsize

    @property
    def scratch(self) -> int:
        """Bytes of the partial sums of all blocks."""
        return self.slices * self.o.w.numel * 4

    def text(self, sizes: KernelSizes) -> str:
        """The constants of filter_products.cu, and the kernel's sizes. A warp computes an eighth of a block's
        tile."""
        across = 2 if self.channels == _BLOCK[0] and self.filters == _BLOCK[1] else 4
        tiles = {"MT": self.filters // (8 // across) // 16, "NT": self.channels // across // 8}
        blocks = {"FILTERS": self.filters, "CHANNELS": self.channels, "AXES": self.o.window.rank}
        types = f"typedef i32 Index;\ntypedef {c_type(self.o.x.dtype)} T;\n"
        return types + constants(**blocks, **tiles) + sizes.text

    def sizes(self) -> KernelSizes:
        """The kernel's run-time arguments."""
        o, win, found = self.o, self.o.window, KernelSizes()
        (filters, channels, *taps), (step, _, *steps) = o.w.shape, o.x.physical.strides
        found.add(N_K=filters, N_C=channels, PLACES=self.places, PART=self.part, STEP_N=step)
        found.add(TILES_K=self.tiles[0], TILES_C=self.tiles[1])
        for a, (low, _) in enumerate(win.padding):
            own = {"OUT": o.y.shape[2 + a], "IN": o.x.shape[2 + a], "TAP": taps[a], "STEP": steps[a]}
            own |= {"STRIDE": win.stride[a], "DILATION": win.dilation[a], "LOW": low}
            found.add(**{f"{name}_{a}": size for name, size in own.items()})
            found.add_quotient(f"by_OUT_{a}", own["OUT"])
            found.add_quotient(f"by_TAP_{a}", own["TAP"])
        return found

    def formulation(self) -> Formulation:
        """The blocks' partial sums, then their sum."""
        x, w, y = places_of(ConvFilterGrad)
        sizes, count = self.sizes(), self.o.w.numel
        first = Launch(
            Program("filter_products", "conv/filter_products.cu", self.text(sizes)),
            (self.results, self.slices),
            (256,),
            (x, y, scratch(), Table(sizes.values)),
            self.shared,
        )
        added = Program("filter_products_sum", "conv/filter_products.cu", self.text(sizes))
        numbers = (Number(count, "i32"), Number(self.slices, "i32"))
        second = Launch(added, (-(-count // 32),), (256,), (scratch(), w, *numbers))
        return Formulation("products", steps=(first, second), scratch=self.scratch)


def filter_products(direction: Direction, o: Operands, machine: Machine) -> FilterProducts | None:
    """The form of a filter gradient, or None: for half types, channels last, without groups."""
    if direction is not ConvFilterGrad or o.x.dtype not in (float16, bfloat16) or not o.x.numel:
        return None
    if o.window.groups > 1 or o.window.flip or any(n % _VECTOR for n in o.w.shape[:2]):
        return None
    if any(spec.physical != channels_last(spec.shape) for spec in (o.x, o.w, o.y)):
        return None
    found = FilterProducts(o, machine)
    far = max(o.x.numel, o.y.numel, found.slices * o.w.numel)
    return found if found.shared <= machine.shared_memory and far < 2**31 else None
