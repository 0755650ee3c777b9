"""Matrix products: cuDNN's matmul graph, and products as 1 x 1 convolutions, of which there are many more engines.

conv     a batch of one: x [M, K] times w [N, K]^T is a convolution with one place; a product with the second
         operand as it is, is a data gradient; with the first one transposed, a filter gradient
matmul   cuDNN's matmul (half types, and float32 where TF32 is allowed)
blas     cuBLASLt, where it is installed: a formulation for each of its best algorithms
padded   the same engines on copies of the operands with rows padded to 16 bytes ("padded-conv", ...)
tiled    an own kernel: any dtype, any strides, any batch

Matrices of a batch of little work are read where they lie, by own kernels: heads among the features of a projection,
parts of a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

from lamina.backends import NoKernel, Plan
from lamina.backends.cuda.cudnn_graphs.conv import Direction, Operands, conv_graph
from lamina.backends.cuda.cudnn_graphs.epilogue import NONE, Epilogue
from lamina.backends.cuda.cudnn_graphs.matmul import Apart, Product, matmul_graph
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.elementwise.shape import row_major
from lamina.backends.cuda.elementwise.unfused_epilogue import (
    beside_fused,
    pays_apart,
    unfused_formulation,
)
from lamina.backends.cuda.launch.indexing import collapse, index_type, offset_function
from lamina.backends.cuda.launch.program import (
    LOOPING,
    WORKSPACE_ALIGNMENT,
    Aligned,
    Fill,
    Launch,
    Place,
    Program,
    c_type,
    constants,
    kernel_plan,
    round_up,
    source,
    target,
)
from lamina.backends.cuda.matmul.cublaslt import cublaslt_formulations
from lamina.backends.cuda.matmul.few_rows import few_rows
from lamina.backends.cuda.matmul.padded import CopiedProduct, padded
from lamina.backends.cuda.matmul.small import small_product
from lamina.backends.cuda.registry import kernels
from lamina.backends.cuda.select.formulations import (
    Formulation,
    Problem,
    choose,
    nothing_to_do,
)
from lamina.cudnn import Graph
from lamina.ops.primitives.conv import Conv, ConvDataGrad, ConvFilterGrad
from lamina.ops.primitives.matmul import Matmul
from lamina.ops.primitives.window import Window
from lamina.runtime import Device
from lamina.spec import DType, Layout, Policy, Spec, bfloat16, contiguous, float16, float32

_POINT = Window((1, 1), ((0, 0), (0, 0)), (1, 1))
#: The places of the operands of a product and its result.
_PLACES = (source(0), source(1), target())
#: How many of cuBLASLt's algorithms for copied operands compete.
_MOST_COPIED = 2


@kernels(Matmul, source="cudnn")
def matmul(op: Matmul, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """(..., M, K) x (..., K, N), either operand perhaps transposed."""
    return matmul_plan(op, specs, NONE, device, policy)


def matmul_plan(
    op: Matmul, specs: Sequence[Spec], epilogue: Epilogue, device: Device, policy: Policy
) -> Plan:
    """The product with an epilogue."""
    op.infer(*specs[:2])
    a, b = specs[:2]
    epilogue = replace(epilogue, extras=tuple(e.open for e in epilogue.extras))
    dense = _dense_matrices(a), _dense_matrices(b)
    apart = _lines(a) or dense[0], _lines(b) or dense[1]
    if not epilogue.steps and _reads(product_of(op, *apart), a.dtype):
        return _cached(op, apart, epilogue, device, policy)
    try:
        return _cached(op, dense, epilogue, device, policy)
    except NoKernel:  # such as epilogues that only a product of row-major operands supports
        if not any(map(is_transposed, dense)):
            raise
    return _cached(op, (row_major(a), row_major(b)), epilogue, device, policy)


def _dense_matrices(spec: Spec) -> Spec:
    """An operand with its matrices one after another, each as it lies if that is column-major."""
    return full(spec, transposed_layout(spec)) if is_transposed(spec) else row_major(spec)


def _lines(spec: Spec) -> Spec | None:
    """An operand of which rows or columns can be read where they lie, but whose matrices are not dense; else None."""
    if (
        spec.layout is None
        or spec.layout.is_blocked
        or spec.overlaps
        or is_transposed(spec)
        or spec.numel == 0
    ):
        return None
    sizes, strides = spec.shape[-2:], spec.layout.strides[-2:]
    adjacent = any(n > 1 and s == 1 for n, s in zip(sizes, strides, strict=True))
    return None if spec.is_contiguous or 1 in sizes or not adjacent else spec


def _reads(p: Product, dtype: DType) -> bool:
    """Whether an own kernel reads operands that are not dense."""
    return p.is_apart and dtype in (float16, bfloat16) and small_product(p, _PLACES) is not None


def is_transposed(spec: Spec) -> bool:
    """Whether a matrix is column-major (a transposed view)."""
    if spec.layout is None or spec.numel == 0 or 1 in spec.shape[-2:]:
        return False
    rank = spec.ndim
    return spec.tag == "abcdefghij"[: rank - 2] + "abcdefghij"[rank - 1] + "abcdefghij"[rank - 2]


@lru_cache(maxsize=1024)
def _cached(
    op: Matmul,
    specs: tuple[Spec, Spec],
    epilogue: Epilogue,
    device: Device,
    policy: Policy,
) -> Plan:
    """The plan for operands in these layouts."""
    (out,) = op.infer(*(s.open for s in specs))
    a, b = specs
    product = product_of(op, a, b)
    c = full(out, transposed_layout(out) if product.c_transposed else contiguous(out.shape))
    extras = epilogue.arranged(c.shape, c.physical)
    if out.numel == 0:
        return nothing_to_do((a, b, *extras), (c,), device, op.name)
    if product.k == 0:
        if epilogue.steps:
            raise NoKernel(f"{op.name}: steps on a product over no elements are left to their own kernels")
        return kernel_plan(device, (a, b), (c,), [Fill(target(), 0, c.nbytes)], label=op.name)
    problem = matmul_problem(product, a, b, c, epilogue, policy, device)
    if epilogue.steps:

        def apart() -> Formulation:
            """The product, then its epilogue as a separate kernel."""
            head = _cached(op, specs, NONE, device, policy)
            return unfused_formulation(head, epilogue.steps, c, extras, epilogue.first)

        if not policy.named and pays_apart(problem, epilogue.steps, device, policy):
            problem = beside_fused(problem, apart(), epilogue.steps, device)
        else:
            problem = replace(problem, apart=apart)
    return choose(problem, device, policy)


def product_of(op: Matmul, a: Spec, b: Spec) -> Product:
    """The product of operands in their own layouts."""
    (out,) = op.infer(a.open, b.open)
    k = a.shape[-2 if op.transpose_a else -1]
    (a_columns, a_apart), (b_columns, b_apart) = _lie(a), _lie(b)
    transposed = op.transpose_a != a_columns, op.transpose_b != b_columns
    return Product(prod(out.shape[:-2]), out.shape[-2], out.shape[-1], k, *transposed, a_apart, b_apart)


def _lie(spec: Spec) -> tuple[bool, Apart | None]:
    """Whether an operand's matrices are column-major, and how they lie unless they are dense."""
    if _lines(spec) is None:
        return is_transposed(spec), None
    *outer, rows, columns = spec.physical.strides
    batches = spec.shape[:-2]
    space = collapse(batches, [outer], range(len(batches)))
    return columns != 1, Apart(space, rows if columns == 1 else columns)


def cudnn_multiplies(dtype: DType, policy: Policy) -> bool:
    """Whether cuDNN's matmul computes products of a type with the precision that the policy requires."""
    return dtype in (float16, bfloat16) or (dtype == float32 and policy.tf32)


def transposed_layout(spec: Spec) -> Layout:
    """Column-major within each matrix."""
    strides = list(contiguous(spec.shape).strides)
    strides[-1], strides[-2] = spec.shape[-2], 1
    return Layout(tuple(strides))


# --------------------------------------------------------------------------------------------------- problems


def matmul_problem(
    p: Product,
    a: Spec,
    b: Spec,
    c: Spec,
    epilogue: Epilogue,
    policy: Policy,
    device: Device | None = None,
) -> Problem:
    """The formulations to compute a product; cuBLASLt's only for a device that is there.

    Without timing cuDNN comes first for half types: its convolutions, unless the epilogue reads a matrix of the
    result's size, with which they take 1.2 times as long as its products. A weight gradient goes to cuBLASLt, which
    splits its long sums over blocks (2 to 50 times as fast for 6,000 to 400,000 rows, compute capability 9.0), and so
    do float32 and float64. If rows are no multiple of 16 bytes, and arithmetic outweighs the copies, the same on
    padded operands comes first; results for products with aligned rows say nothing about these, nor about those of
    few rows or little work, whose own kernels come first.
    """
    extras = epilogue.arranged(c.shape, c.physical)
    formulations = _engines(p, c, _PLACES, epilogue, policy, device)
    wide = None
    if device is not None and cudnn_multiplies(a.dtype, policy) and not p.is_apart:
        wide = padded(p, c, epilogue, device.machine, tf32=policy.tf32)
    first = wide is not None and wide.pays
    if wide is not None:
        copied = copied_formulations("padded", wide, c, policy, device)
        formulations = [*copied, *formulations] if first else [*formulations, *copied]
    form = " odd rows" if first else ""
    few = None if p.is_apart else few_rows(p, _PLACES)
    narrow = None if few is None or device is None else few.formulation(c, epilogue, device.machine)
    if few is not None and narrow is not None:
        formulations.insert(0 if few.pays else len(formulations), narrow)
        form = " few rows" if few.pays else form
    small = small_product(p, _PLACES)
    made = None if small is None else small.formulation(c, epilogue)
    if made is not None:
        formulations.insert(int(form == " few rows"), made)
        form = form if form == " few rows" else " small"
    plain = () if epilogue.steps else (tiled(p, a),)
    if plain:
        formulations.append(Formulation("tiled", steps=plain))
    steps = "".join(f" > {step}" for step in epilogue.steps)
    return Problem(
        key=f"matmul a={a} b={b} {p}{steps} {', '.join(map(str, extras))}".strip(),
        label="matmul" + ("+" + "+".join(s.name for s in epilogue.steps) if epilogue.steps else ""),
        inputs=(a, b, *extras),
        outputs=(c,),
        formulations=tuple(formulations),
        flops=p.flops,
        plain=plain,
        kind=f"matmul {p.a_transposed} {p.b_transposed} {p.c_transposed}{steps}{form}",
    )


def _engines(
    p: Product,
    c: Spec,
    places: tuple[Place, Place, Place],
    epilogue: Epilogue,
    policy: Policy,
    device: Device | None,
    around: CopiedProduct | None = None,
) -> list[Formulation]:
    """cuDNN's and cuBLASLt's formulations, best first.

    places: of A, B and C. around: kernels and scratch memory of a product of copies.
    """
    before, after, size = (around.before, around.after, around.scratch) if around else ((), (), 0)
    if p.is_apart:
        return []
    blas = cublaslt_formulations(
        p,
        c.dtype,
        places,
        device,
        policy,
        epilogue.vector(c.shape, -1),
        before=before,
        after=after,
        offset=round_up(size, WORKSPACE_ALIGNMENT),
    )
    graphs = []
    if cudnn_multiplies(c.dtype, policy):
        graphs.append(matmul_formulation(p, c, epilogue, places))
    if p.batch == 1 and _fits_conv(p, epilogue):
        whole = any(extra.shape == c.shape for extra in epilogue.extras)
        graphs.insert(len(graphs) if whole else 0, conv_formulation(p, c, epilogue, places))
    if around is not None:
        graphs = [replace(g, before=(Aligned(), *before), after=after, scratch=size) for g in graphs]
    half = c.dtype in (float16, bfloat16)
    return [*graphs, *blas] if half and not p.a_transposed else [*blas, *graphs]


def copied_formulations(
    name: str, made: CopiedProduct, c: Spec, policy: Policy, device: Device | None
) -> list[Formulation]:
    """The engines on copies; of cuBLASLt's algorithms the first ones. c: the final result of the product."""
    found = _engines(made.product, c, made.places, made.epilogue, policy, device, made)
    blas = [one for one in found if one.graph is None][_MOST_COPIED:]
    return [replace(one, name=f"{name}-{one.name}") for one in found if one not in blas]


def _fits_conv(p: Product, epilogue: Epilogue) -> bool:
    """An epilogue is supported only by a forward convolution, and its result must be row-major."""
    return not epilogue.steps or (p.b_transposed and not p.a_transposed)


def conv_formulation(
    p: Product, c: Spec, epilogue: Epilogue, lie: tuple[Place, Place, Place] = _PLACES
) -> Formulation:
    """The product as a convolution with one position, in the direction that fits the operands' layouts.

    lie: the places of A, B and C.
    """
    direction, o, places = as_convolution(p, c.dtype, lie)

    def graph() -> tuple[Graph, Mapping[int, Place]]:
        if not epilogue.steps:
            return conv_graph(direction, o, places)
        return conv_graph(direction, o, places, _in_channels(epilogue, c))

    return Formulation("conv", graph)


def _in_channels(epilogue: Epilogue, c: Spec) -> Epilogue:
    """The further operands [M, N] or [N] as [M, N, 1, 1]: columns are channels."""
    extras = []
    for spec in epilogue.arranged(c.shape, c.physical):
        sizes = (1,) * (2 - spec.ndim) + spec.shape
        extras.append(Spec((*sizes, 1, 1), spec.dtype))
    return replace(epilogue, extras=tuple(extras))


def as_convolution(
    p: Product, dtype: DType, lie: tuple[Place, Place, Place] = _PLACES
) -> tuple[Direction, Operands, tuple[Place, Place, Place]]:
    """(direction, operands, places of x, filter and y) of a product without a batch. lie: the places of A, B and
    C."""
    a, b, c = lie
    if p.c_transposed:  # C^T [N, M] = B [N, K] A [K, M]: the stored B and A, in this order
        return ConvDataGrad, _operands(p.n, p.m, p.k, dtype), (c, a, b)
    if p.a_transposed:  # dw [M, N] = sum over k of dy [k, M] x [k, N]
        return ConvFilterGrad, _operands(p.k, p.n, p.m, dtype), (b, c, a)
    if p.b_transposed:  # y [M, N] = x [M, K] w [N, K]^T
        return Conv, _operands(p.m, p.k, p.n, dtype), (a, b, c)
    return ConvDataGrad, _operands(p.m, p.n, p.k, dtype), (c, b, a)  # dx [M, N] = dy [M, K] w [K, N]


def _operands(images: int, channels: int, filters: int, dtype: DType) -> Operands:
    """x [images, channels, 1, 1], filter [filters, channels, 1, 1], y [images, filters, 1, 1], channels inside."""
    shapes = ((images, channels), (filters, channels), (images, filters))
    x, w, y = (
        Spec((rows, columns, 1, 1), dtype, Layout((columns, 1, columns, columns))) for rows, columns in shapes
    )
    return Operands(_POINT, x, w, y)


def matmul_formulation(
    p: Product, c: Spec, epilogue: Epilogue, places: tuple[Place, Place, Place] = _PLACES
) -> Formulation:
    """cuDNN's matmul graph. places: of A, B and C."""
    return Formulation("matmul", lambda: matmul_graph(p, c.dtype, places, epilogue, c))


def tiled(p: Product, a: Spec) -> Launch:
    """The own kernel."""
    names: dict[str, int | str | float] = {"M": p.m, "N": p.n, "K": p.k, "BATCH": p.batch}
    rows = (("A", "MK", p.a_strides[-2:]), ("B", "KN", p.b_strides[-2:]), ("C", "BMN", p.c_strides))
    for prefix, axes, strides in rows:
        names |= {f"{prefix}_{axis}": s for axis, s in zip(axes, strides, strict=True)}
    text = f"typedef {index_type(p.reach)} Index;\ntypedef {c_type(a.dtype)} T;\n{constants(**names)}"
    text += offset_function("a_batch", p.a_batches) + offset_function("b_batch", p.b_batches)
    tiles = -(-p.m // 64) * -(-p.n // 64) * p.batch
    return Launch(
        Program("matmul", "matmul/matmul.cu", text),
        (tiles,),
        (256,),
        (source(0), source(1), target()),
        waves=LOOPING,
    )
