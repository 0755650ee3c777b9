"""Products of few normalized rows: transformer layers on one sample, or on a few tokens.

Such a product takes little more than its launch, and so does the norm before it. Here the blocks of the product
normalize the rows that they read, without an intermediate result in memory. Tiles are as small as there are
multiprocessors for, each block has loads of all of K in flight, and its warps split the sums. The epilogue is
computed in the same kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from lamina.backends.cuda.cudnn_graphs.epilogue import Epilogue
from lamina.backends.cuda.cudnn_graphs.matmul import Product
from lamina.backends.cuda.launch.indexing import KernelSizes, broadcast_strides
from lamina.backends.cuda.launch.program import (
    Argument,
    Launch,
    Program,
    Table,
    c_type,
    constants,
    source,
    target,
)
from lamina.backends.cuda.matmul.finish import finish_text
from lamina.ops.primitives.norm import LayerNorm, RmsNorm
from lamina.runtime import Machine
from lamina.spec import Spec

#: Rows and columns of tiles, larger ones first.
_TILES = ((64, 64), (32, 64), (32, 32), (16, 32))
#: Elements of K that are copied at once; padding of their rows in shared memory; elements per access.
_PART, _PAD, _EIGHT = 128, 8, 8
#: The most bytes that all blocks read. A separate norm and cuDNN's product take 2.5 and 2.6 to 4 us (bfloat16, 8 to
#: 400 rows, compute capability 9.0), this kernel 2.5 and a third of one for each MiB that its blocks read.
_MOST_READ = 6 << 20


@dataclass(frozen=True)
class NormedProduct:
    """c [M, N] = norm(a) [M, K] b [K, N]: inputs a, scale, bias (of a layer norm), b; all row-major."""

    product: Product
    norm: LayerNorm | RmsNorm
    machine: Machine

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a block's tile: those with the fewest reads per multiprocessor; the larger of two
        equals."""
        return min(
            _TILES, key=lambda tile: ceil(self._blocks(tile) / self.machine.multiprocessors) * sum(tile)
        )

    def _blocks(self, tile: tuple[int, int]) -> int:
        tall, wide = tile
        return ceil(self.product.m / tall) * ceil(self.product.n / wide)

    @property
    def fits(self) -> bool:
        """Whether the kernel supports it."""
        p = self.product
        whole = p.k % _EIGHT == 0 and (p.b_transposed or p.n % _EIGHT == 0)
        some = p.batch == 1 and min(p.m, p.n, p.k) > 0 and not p.a_transposed
        return whole and some and self.shared <= self.machine.shared_memory

    @property
    def pays(self) -> bool:
        """Whether it is expected to be faster than a norm and a product."""
        return 2 * self.product.k * sum(self.tile) * self._blocks(self.tile) <= _MOST_READ

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a launch: for operands, and then for the sums of all warps."""
        tall, wide = self.tile
        along = wide * (_PART + _PAD) if self.product.b_transposed else _PART * (wide + _PAD)
        operands = 2 * ceil(self.product.k / _PART) * (tall * (_PART + _PAD) + along)
        sharing = 8 * 32 // wide
        return max(operands, sharing * tall * (wide + _PAD) * 4)

    def launch(self, c: Spec, scale: Spec, epilogue: Epilogue, *, aligned: bool) -> Launch:
        """The launch, with an epilogue. aligned: addresses are multiples of 16 bytes."""
        p, (tall, wide), small = self.product, self.tile, 1 + self.norm.centred
        extras = epilogue.arranged(c.shape, c.physical)
        sizes = KernelSizes()
        sizes.add(M=p.m, N=p.n, C_M=p.c_strides[1], C_N=p.c_strides[2])
        for number, spec in enumerate(extras):
            along_m, along_n = broadcast_strides(spec, c.shape)
            sizes.add(**{f"X{number}_M": along_m, f"X{number}_N": along_n})
        text = f"typedef i32 Index;\ntypedef {c_type(c.dtype)} T;\ntypedef {c_type(scale.dtype)} S;\ntypedef f32 A;\n"
        text += sizes.text + constants(TALL=tall, WIDE=wide, DEPTH=p.k, B_ALONG=int(p.b_transposed))
        text += constants(
            CENTRED=int(self.norm.centred), EPSILON=repr(self.norm.epsilon), CROOKED=int(not aligned)
        )
        steps = [(f"X{i}_M", f"X{i}_N") for i in range(len(extras))]
        text += finish_text(c, epilogue, extras, ("C_M", "C_N"), steps, ", const Sizes &sizes")
        given = [source(epilogue.first + i) for i in range(len(extras))]
        arguments: list[Argument] = [source(0), source(1), source(small), source(1 + small), target()]
        arguments += [*given, Table(sizes.values)]
        grid = (ceil(p.n / wide), ceil(p.m / tall))
        program = Program("normed_matmul", "matmul/normed_matmul.cu", text)
        return Launch(program, grid, (256,), tuple(arguments), self.shared)
