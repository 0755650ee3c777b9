"""Products one of whose operands has few rows: a single sample or token, or a pooled image's channels.

Such a product is bound by reading its other operand. Tensor-core tiles of 64 and more columns leave most
multiprocessors idle, and pad the rows with zeros; here the sums are split over threads so that all of them read. The
epilogue is computed in the same kernel. In bfloat16 (compute capability 9.0) one row by 1152 x 48 takes 6
microseconds where cuDNN and cuBLASLt take 10 to 17, 3072 x 768 takes 5 to 6 (14 to 24), and 768 x 50264 29 (32 to
34).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lamina.backends.cuda.cudnn_graphs.epilogue import Epilogue
from lamina.backends.cuda.cudnn_graphs.matmul import Product
from lamina.backends.cuda.launch.indexing import broadcast_strides, index_type
from lamina.backends.cuda.launch.program import (
    VECTOR,
    Aligned,
    Launch,
    Place,
    Program,
    c_type,
    constants,
    source,
)
from lamina.backends.cuda.matmul.finish import finish_text
from lamina.backends.cuda.select.formulations import Formulation
from lamina.runtime import Machine
from lamina.spec import Spec, bfloat16, float16, float32

#: The most rows: each element of the other operand is used so often while the next ones are read.
MOST_ROWS = 4
#: Threads of a warp, and of blocks for contiguous columns; bytes of an access of these.
_WARP, _BLOCK, _NARROW = 32, 1024, 4
#: Accesses per lane from which a block shares a column, if there are few columns.
_MANY = 4
#: Elements of a sum that keep all threads busy; elements that are read in little more than a launch.
_LONG, _LITTLE = 256, 1 << 20
#: Multiplications from which tensor cores win (4 x 4096 by 4096 x 14336 takes 50 microseconds, and 46 there).
_MOST_PRODUCTS = 1 << 27


@dataclass(frozen=True)
class FewRows:
    """c [few, many] = rows [few, K] other, `other` being [many, K] or, not `along`, [K, many].

    places: of rows, the other operand and c. strides: of c. axes: the result's axes for few and many.
    """

    few: int
    many: int
    k: int
    along: bool
    places: tuple[Place, Place, Place]
    strides: tuple[int, int]
    axes: tuple[int, int]

    @property
    def pays(self) -> bool:
        """Whether it is expected to be fastest: sums are long enough for all threads, or there is little to read, and
        arithmetic takes no longer than reading."""
        read = self.many * self.k
        return (self.k >= _LONG or read <= _LITTLE) and self.few * read <= _MOST_PRODUCTS

    def formulation(self, c: Spec, epilogue: Epilogue, machine: Machine) -> Formulation | None:
        """The kernel; None for unsupported types, and where the rows' layout makes accesses too small."""
        if c.dtype not in (float16, bfloat16, float32) or not c.numel:
            return None
        width = self._width(c)
        if width * c.dtype.itemsize < _NARROW:
            return None
        how, blocks, block = (
            self._shared_by_group(width, machine) if self.along else self._shared_by_columns(width, machine)
        )
        extras = epilogue.arranged(c.shape, c.physical)
        reach = max(self.k * max(self.many, self.few), self.few * self.many)  # of operands and of c
        text = f"typedef {index_type(reach)} Index;\n"
        text += f"typedef {c_type(c.dtype)} T;\ntypedef Wide<T>::type A;\n"
        text += constants(M=self.few, N=self.many, K=self.k, V=width, **how)
        text += self._finish(c, epilogue, extras)
        rows, other, result = self.places
        places = (
            rows,
            other,
            result,
            *(source(i) for i in range(epilogue.first, epilogue.first + len(extras))),
        )
        launch = Launch(Program("few_rows", "matmul/few_rows.cu", text), (blocks,), (block,), places)
        return Formulation("few rows", steps=(Aligned(), launch))

    def _width(self, c: Spec) -> int:
        """Elements of the other operand in an access."""
        size, length = (VECTOR, self.k) if self.along else (_NARROW, self.many)
        width = size // c.dtype.itemsize
        while length % width:
            width //= 2
        return width

    def _shared_by_group(self, width: int, machine: Machine) -> tuple[dict[str, int], int, int]:
        """(constants, blocks, threads per block): a warp per column; a block if columns are few and long."""
        block = 256
        few = -(-self.many * _WARP // block) < machine.multiprocessors
        group = block if few and self.k > _MANY * _WARP * width else _WARP
        return {"GROUP": group}, -(-self.many * group // block), block

    def _shared_by_columns(self, width: int, machine: Machine) -> tuple[dict[str, int], int, int]:
        """The same for contiguous columns: fewer per block, down to 32 bytes, if blocks are few."""
        lanes = _WARP
        while lanes > 8 and -(-self.many // (lanes * width)) < machine.multiprocessors:
            lanes //= 2
        return {"LANES": lanes}, -(-self.many // (lanes * width)), _BLOCK

    def _finish(self, c: Spec, epilogue: Epilogue, extras: Sequence[Spec]) -> str:
        """The function that applies the epilogue to a sum and writes it."""
        strides = [broadcast_strides(spec, c.shape) for spec in extras]
        read = [(str(s[self.axes[0]]), str(s[self.axes[1]])) for s in strides]
        return finish_text(c, epilogue, extras, (str(self.strides[0]), str(self.strides[1])), read)


def few_rows(
    p: Product, places: tuple[Place, Place, Place], axes: tuple[int, int] = (-2, -1)
) -> FewRows | None:
    """The form of a product one of whose operands has few rows, or None. places: of A, B and C. axes: M's and N's."""
    a, b, c = places
    _, along_m, along_n = p.c_strides
    if p.batch > 1:
        return None
    if p.m <= MOST_ROWS and (p.m == 1 or not p.a_transposed):
        return FewRows(p.m, p.n, p.k, p.b_transposed, places, (along_m, along_n), axes)
    if p.n <= MOST_ROWS and (p.n == 1 or p.b_transposed):
        return FewRows(p.n, p.m, p.k, not p.a_transposed, (b, a, c), (along_n, along_m), axes[::-1])
    return None
