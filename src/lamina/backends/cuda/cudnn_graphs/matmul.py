"""A product of matrices as a value, and the cuDNN graph of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lamina.backends import NoKernel
from lamina.backends.cuda.cudnn_graphs.epilogue import NONE, Epilogue
from lamina.backends.cuda.launch.indexing import Space, Strides
from lamina.backends.cuda.launch.program import Place
from lamina.cudnn import Graph, Tensor
from lamina.spec import DType, Shape, Spec


@dataclass(frozen=True)
class Apart:
    """How the matrices of an operand lie that are not stored one after another, line by line: as heads are among the
    features of a projection.

    batch: the batch axes, and the elements from one matrix to the next along each. line: elements from one line to
        the next (rows, or the columns of a transposed operand).
    """

    batch: Space
    line: int


@dataclass(frozen=True)
class Product:
    """C [batch, M, N] = A [batch, M, K] B [batch, K, N].

    a_transposed, b_transposed: the operand is stored as its transpose. a_apart, b_apart: how its matrices lie, unless
        they are dense.
    """

    batch: int
    m: int
    n: int
    k: int
    a_transposed: bool
    b_transposed: bool
    a_apart: Apart | None = field(default=None, repr=False)  # the specs in a problem's key show it
    b_apart: Apart | None = field(default=None, repr=False)

    @property
    def is_apart(self) -> bool:
        """Whether the matrices of an operand are not dense."""
        return self.a_apart is not None or self.b_apart is not None

    @property
    def a_line(self) -> int:
        """Elements from one line of A to the next."""
        return self.a_apart.line if self.a_apart else self.m if self.a_transposed else self.k

    @property
    def b_line(self) -> int:
        """The same for B."""
        return self.b_apart.line if self.b_apart else self.k if self.b_transposed else self.n

    @property
    def a_batches(self) -> Space:
        """The batch axes of A, with the elements from one matrix to the next."""
        return self.a_apart.batch if self.a_apart else Space((self.batch,), ((self.m * self.k,),))

    @property
    def b_batches(self) -> Space:
        """The same for B."""
        return self.b_apart.batch if self.b_apart else Space((self.batch,), ((self.k * self.n,),))

    @property
    def a_strides(self) -> Strides:
        """Elements from one matrix (along each batch axis), row and column of A to the next."""
        return *self.a_batches.strides[0], *((1, self.a_line) if self.a_transposed else (self.a_line, 1))

    @property
    def b_strides(self) -> Strides:
        """The same for B."""
        return *self.b_batches.strides[0], *((1, self.b_line) if self.b_transposed else (self.b_line, 1))

    @property
    def c_strides(self) -> tuple[int, int, int]:
        """The same for C, which is dense, and row-major unless both operands are transposed."""
        return self.m * self.n, *((1, self.m) if self.c_transposed else (self.n, 1))

    @property
    def c_transposed(self) -> bool:
        """Whether both operands are transposed: C^T = B^T A^T on the stored operands, so that C is column-major."""
        return self.a_transposed and self.b_transposed

    @property
    def reach(self) -> int:
        """The largest distance of an element from the first one of its operand, and of the lines beside it."""
        a = self.a_batches.reach + self.a_line * max(self.m, self.k)
        b = self.b_batches.reach + self.b_line * max(self.k, self.n)
        return max(a, b, self.batch * self.m * self.n)

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.batch * self.m * self.n * self.k


def matmul_graph(
    p: Product, dtype: DType, places: Sequence[Place], epilogue: Epilogue = NONE, result: Spec | None = None
) -> tuple[Graph, Mapping[int, Place]]:
    """cuDNN's matmul, and the address of each uid.

    places: of A, B and C. result: the view of C for the epilogue; unused without one.
    """
    made, value, (left, right) = multiplied(p, dtype, virtual=bool(epilogue.steps))
    pointers = {left: places[0], right: places[1]}
    if result is None or not epilogue.steps:
        return made, {**pointers, value.uid: places[2]}
    out = made.tensor((p.batch, p.m, p.n), p.c_strides, dtype.name)
    pointers[out.uid] = places[2]
    return made, {**pointers, **epilogue.attach(made, value, out, result.shape, result.physical, matrices)}


def multiplied(p: Product, dtype: DType, *, virtual: bool) -> tuple[Graph, Tensor, tuple[int, int]]:
    """A graph with a product in it: the graph, the product, and the uids of A and B.

    virtual: the product is a value in float32 that further nodes read, not a tensor in memory.
    """
    made, name = Graph("float32"), dtype.name
    left = made.tensor((p.batch, p.m, p.k), p.a_strides, name)
    right = made.tensor((p.batch, p.k, p.n), p.b_strides, name)
    kind = "float32" if virtual else name
    value = made.tensor((p.batch, p.m, p.n), p.c_strides, kind, virtual=virtual)
    made.matmul(left, right, value)
    return made, value, (left.uid, right.uid)


def matrices(shape: Shape, strides: Shape) -> tuple[Shape, Shape]:
    """Sizes and strides of [M, N] as those of [1, M, N]. Raises NoKernel for a batch of matrices."""
    if len(shape) != 2:
        raise NoKernel("cuda fuses steps with products of two matrices only, not with batches of them")
    return (1, *shape), (max(n * s for n, s in zip(shape, strides, strict=True)), *strides)
