"""Products of matrices whose rows are no multiple of 16 bytes: copied to scratch memory with longer rows first.

Loads for tensor cores move 16 bytes, so that rows of odd length are read element by element, at a fifth of the rate
or less (compute capability 9.0, bfloat16). Any of M, N and K that is the row length of an operand or the result is
rounded up to a multiple of 16 bytes. Padding is zero in both operands along K, so that NaN and infinities do not
spread; rows and columns of the result beyond the real ones are not copied back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from lamina.backends.cuda.cudnn_graphs.epilogue import NONE, Epilogue
from lamina.backends.cuda.cudnn_graphs.matmul import Product
from lamina.backends.cuda.elementwise.loop import KernelOperand, Statement, elementwise
from lamina.backends.cuda.elementwise.pointwise import chain_values
from lamina.backends.cuda.launch.indexing import broadcast_strides, index_type, memory_order
from lamina.backends.cuda.launch.program import (
    VECTOR,
    WORKSPACE_ALIGNMENT,
    Bindable,
    Launch,
    Place,
    Program,
    bits_type,
    constants,
    looping,
    round_up,
    scratch,
    source,
    target,
    wide_type,
)
from lamina.runtime import Machine
from lamina.spec import DType, Shape, Spec, contiguous

#: The slowdown of a product whose rows tensor cores cannot read 16 bytes at a time.
_SLOWDOWN = 5.0
#: Products with less arithmetic take a few microseconds either way: no copies compete.
_SMALL = 1e8

#: A stored matrix: number and length of its rows.
Sides = tuple[int, int]


@dataclass(frozen=True)
class CopiedProduct:
    """A product of copies of operands, as of padded ones.

    product: its sizes. places: of its A, B and C. epilogue: the remaining steps; before, after: kernels around it.
        scratch: bytes of workspace that these take. pays: whether it is expected to be faster.
    """

    product: Product
    places: tuple[Place, Place, Place]
    epilogue: Epilogue
    before: tuple[Bindable, ...]
    after: tuple[Bindable, ...]
    scratch: int
    pays: bool


def with_whole_rows(p: Product, dtype: DType) -> Product:
    """The product with every row's length rounded up to a multiple of 16 bytes."""
    chunk = VECTOR // dtype.itemsize
    m, n, k = (round_up(size, chunk) for size in (p.m, p.n, p.k))
    return replace(
        p,
        m=m if p.a_transposed else p.m,
        n=p.n if p.b_transposed and p.a_transposed else n,
        k=p.k if p.a_transposed and not p.b_transposed else k,
    )


def padded(
    p: Product, c: Spec, epilogue: Epilogue, machine: Machine, *, tf32: bool = False
) -> CopiedProduct | None:
    """The product on padded operands, or None where rows are aligned already or it cannot pay.

    c: the result. tf32: whether tensor cores multiply float32.
    """
    dtype, q = c.dtype, with_whole_rows(p, c.dtype)
    if q == p or p.flops < _SMALL or q.flops > _SLOWDOWN * p.flops:
        return None
    places, size, moved = [source(0), source(1), target()], 0, 0
    pairs = list(zip(_sides(p), _sides(q), strict=True))
    for number, (own, wide) in enumerate(pairs):
        if own != wide:
            places[number] = scratch(size)
            size += round_up(p.batch * prod(wide) * dtype.itemsize, WORKSPACE_ALIGNMENT)
            moved += p.batch * (prod(own) + prod(wide)) * dtype.itemsize
    before = [
        repack(p.batch, *pairs[i], dtype, source(i), places[i]) for i in (0, 1) if pairs[i][0] != pairs[i][1]
    ]
    turned = pairs[2][0] != pairs[2][1]
    after = [_back(q, pairs[2], c, epilogue, places[2])] if turned else []
    rate = machine.rate(dtype.name, tf32=tf32)
    around = moved / machine.bandwidth + (len(before) + len(after)) * machine.launch_seconds
    return CopiedProduct(
        q,
        (places[0], places[1], places[2]),
        NONE if turned else epilogue,
        tuple(before),
        tuple(after),
        size,
        around + q.flops / rate < _SLOWDOWN * p.flops / rate,
    )


def _sides(p: Product) -> tuple[Sides, Sides, Sides]:
    """The stored A, B and C."""
    a, b, c = (p.m, p.k), (p.k, p.n), (p.m, p.n)
    return (
        a[::-1] if p.a_transposed else a,
        b[::-1] if p.b_transposed else b,
        c[::-1] if p.c_transposed else c,
    )


def repack(batch: int, own: Sides, wide: Sides, dtype: DType, origin: Place, to: Place) -> Launch:
    """The launch that copies `batch` matrices to others of different sizes, zero-padded.

    The addresses must be multiples of 16.
    """
    width = VECTOR // dtype.itemsize
    reach = batch * max(prod(own), prod(wide)) + width
    numbers = constants(V=width, BATCH=batch, FROM_ROWS=own[0], FROM=own[1], TO_ROWS=wide[0], TO=wide[1])
    text = f"typedef {index_type(reach)} Index;\ntypedef {bits_type(dtype)} T;\n{numbers}"
    chunks = -(-batch * prod(wide) // width)
    return looping(Program("repack", "matmul/repack.cu", text), chunks, (origin, to), each=4)


def _back(q: Product, pair: tuple[Sides, Sides], c: Spec, epilogue: Epilogue, place: Place) -> Launch:
    """The launch that copies the result back, and applies the epilogue."""
    own, wide = pair
    if not epilogue.steps:
        return repack(q.batch, wide, own, c.dtype, place, target())
    strides = c.physical.strides
    extras = epilogue.arranged(c.shape, c.physical)
    body = chain_values(epilogue.steps, c, Statement("a0", wide_type(c.dtype), ""), extras, 1)
    operands = [KernelOperand(c.dtype, _strides(q, c.shape), place)]
    operands += [
        KernelOperand(s.dtype, broadcast_strides(s, c.shape), source(i))
        for i, s in enumerate(extras, epilogue.first)
    ]
    written = KernelOperand(c.dtype, strides, target())
    return elementwise(c.shape, memory_order(c.shape, strides), operands, [written], body, [body[-1].name])


def _strides(q: Product, shape: Shape) -> Shape:
    """The strides of the padded result along the result's axes."""
    lead = contiguous((*shape[:-2], q.m, q.n)).strides[:-2]
    return (*lead, *q.c_strides[1:])
