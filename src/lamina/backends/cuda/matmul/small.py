"""Products of little work: globally pooled images, small layers, batches of short vectors, few features of heads.

Such a product is bound by the launch and a few memory latencies; kernels of cuDNN and cuBLASLt, made for large tiles,
take 4 to 17 microseconds. Here a block computes 32 x 32 elements, its warps split the sums, and the epilogue is
computed in the same kernel. Sizes are run-time arguments: all layers of a network share one program per epilogue,
where cuDNN compiles every size of a product with an epilogue for a second.

Matrices of a batch may lie anywhere (`Apart`), and their lines may begin at any element.
"""

from __future__ import annotations

from dataclasses import dataclass

from lamina.backends.cuda.cudnn_graphs.epilogue import Epilogue
from lamina.backends.cuda.cudnn_graphs.matmul import Product
from lamina.backends.cuda.launch.indexing import KernelSizes, broadcast_strides
from lamina.backends.cuda.launch.program import (
    Aligned,
    Argument,
    Launch,
    Place,
    Program,
    Table,
    c_type,
    constants,
    source,
)
from lamina.backends.cuda.matmul.finish import finish_text
from lamina.backends.cuda.select.formulations import Formulation
from lamina.spec import Spec, bfloat16, float16

#: The most elements read and written, the most multiplications (197 x 384 x 384 are faster by cuDNN and a separate
#: kernel for the epilogue, compute capability 9.0), and the longest sums: eight warps split them, 128 at a time.
_LITTLE, _MOST_PRODUCTS, _LONGEST = 1 << 20, 1 << 24, 1536
#: The longest sums of batches, whose matrices fill the machine. They may be twice the work: 12 x 196 x 64 x 196 takes
#: 9 microseconds (cuDNN 17), 8 x 19 x 3137 x 19 25 (cuBLASLt 46); 96 x 197 x 64 x 197 is faster by cuDNN.
_LONGEST_OF_BATCHES = 1 << 13
#: Rows and columns of a block; the most matrices; elements that indexes reach.
_TILE, _MOST_MATRICES, _REACH = 32, 65535, 1 << 31


@dataclass(frozen=True)
class SmallProduct:
    """c [batch, M, N] = a [batch, M, K] b [batch, K, N]. places: of a, b and c. axes: the result's for M and N."""

    product: Product
    places: tuple[Place, Place, Place]
    axes: tuple[int, int] = (-2, -1)

    def formulation(self, c: Spec, epilogue: Epilogue) -> Formulation | None:
        """The kernel; None for types without one, and for steps on batches."""
        p = self.product
        if c.dtype not in (float16, bfloat16) or not c.numel or not p.k or (p.batch > 1 and epilogue.steps):
            return None
        extras = epilogue.arranged(c.shape, c.physical)
        sizes = KernelSizes()
        sizes.add(M=p.m, N=p.n, K=p.k, C_BATCH=p.c_strides[0], C_M=p.c_strides[1], C_N=p.c_strides[2])
        sizes.add(A_LINE=p.a_line, B_LINE=p.b_line)
        sizes.add_offset("a_batch", p.a_batches)
        sizes.add_offset("b_batch", p.b_batches)
        for number, spec in enumerate(extras):
            strides = broadcast_strides(spec, c.shape)
            along = {f"X{number}_M": strides[self.axes[0]], f"X{number}_N": strides[self.axes[1]]}
            sizes.add(**along)
        text = f"typedef i32 Index;\ntypedef {c_type(c.dtype)} T;\ntypedef f32 A;\n{sizes.text}"
        text += constants(
            A_ALONG=int(not p.a_transposed), B_ALONG=int(p.b_transposed), EVEN=int(_has_pairs(p))
        )
        steps = [(f"X{i}_M", f"X{i}_N") for i in range(len(extras))]
        text += finish_text(c, epilogue, extras, ("C_M", "C_N"), steps, ", const Sizes &sizes")
        given = [source(epilogue.first + i) for i in range(len(extras))]
        grid = (-(-p.n // _TILE), -(-p.m // _TILE), p.batch)
        arguments: list[Argument] = [*self.places, *given, Table(sizes.values)]
        launch = Launch(Program("small_product", "matmul/small.cu", text), grid, (256,), tuple(arguments))
        return Formulation("small", steps=(Aligned(), launch))


def small_product(
    p: Product, places: tuple[Place, Place, Place], axes: tuple[int, int] = (-2, -1)
) -> SmallProduct | None:
    """The form of a product of little work, or of a batch of them, or None. places: of A, B and C. axes: M's and
    N's."""
    elements, products = p.m * p.k + p.k * p.n + p.m * p.n, p.m * p.n * p.k
    if p.batch == 1:
        fits = p.k <= _LONGEST and elements <= _LITTLE and products <= _MOST_PRODUCTS
    else:
        fits = 1 < p.batch <= _MOST_MATRICES and p.k <= _LONGEST_OF_BATCHES and p.reach < _REACH
        fits = fits and p.batch * elements <= 2 * _LITTLE and p.batch * products <= 2 * _MOST_PRODUCTS
    return SmallProduct(p, places, axes) if fits else None


def _has_pairs(p: Product) -> bool:
    """Whether pairs along K begin at even elements, and are whole, in each operand in which they are adjacent."""
    a = () if p.a_transposed else (p.a_line, *p.a_batches.strides[0])
    b = (p.b_line, *p.b_batches.strides[0]) if p.b_transposed else ()
    return p.k % 2 == 0 and all(distance % 2 == 0 for distance in (*a, *b))
