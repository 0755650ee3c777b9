"""Scaled dot-product attention as products with fused steps, one image of the batch after the other.

The weights of one image, [H, S, T], stay in the caches between the products. The statistics come for free from two
maxima: the largest weight of a row is exp(largest score - statistic).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from lamina import onednn
from lamina.backends import Call, NoKernel, Plan, Run
from lamina.backends.cpu.library import Bind, Chain, Held, Location, at_input, at_output, attempt, kernels
from lamina.onednn import ARG, Attributes, Binary, Eltwise, MemoryDesc, PostOp, PrimitiveDesc
from lamina.onednn import post_op_argument as operand_of
from lamina.ops.primitives.attention import Attention, AttentionGrad
from lamina.runtime import Device, host_array
from lamina.spec import Policy, Shape, Spec, float32

_WIDTH = float32.itemsize


@kernels(Attention, source="onednn")
def attention(op: Attention, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """(o, stats) from q, k and v; all row-major."""
    inputs = _plain(specs, 3)
    outputs = [s.fixed for s in op.infer(*inputs)]
    q, k, v = (s.shape for s in inputs)
    chain, sizes = Chain(inputs, outputs), _Sizes(q, k)
    scores = chain.temporary(prod(sizes.scores) * _WIDTH)
    row = chain.temporary(prod(sizes.rows) * _WIDTH)
    into = _product(q, k, steps=sizes.steps(op), transpose_b=True)
    soft = onednn.softmax_forward(*(MemoryDesc(sizes.scores),) * 2, 3, prop="inference")
    largest = onednn.reduction("max", MemoryDesc(sizes.scores), MemoryDesc(sizes.rows))
    out = _product(sizes.scores, v)
    for b in range(q[0]):
        here = [at_input(i).at(b * prod(s[1:]) * _WIDTH) for i, s in enumerate((q, k, v))]
        _run(chain, into, here[0], here[1], scores, sizes.operands(op))
        if op.stats:
            stats = at_output(1).at(b * prod(sizes.rows) * _WIDTH)
            _apply(chain, largest, scores, stats)
        _apply(chain, soft, scores, scores)
        if op.stats:
            _apply(chain, largest, scores, row)
            chain.call(_less_log(stats, row, prod(sizes.rows)))
        _run(chain, out, scores, here[2], at_output().at(b * prod((*q[1:3], v[3])) * _WIDTH))
    return chain.plan()


@kernels(AttentionGrad, source="onednn")
def attention_grad(op: AttentionGrad, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """(dq, dk, dv) from q, k, v, o, stats and do; all row-major."""
    inputs = _plain(specs, 6)
    outputs = [s.fixed for s in op.infer(*inputs)]
    q, k, v = (s.shape for s in inputs[:3])
    chain, sizes = Chain(inputs, outputs), _Sizes(q, k)
    weights, slopes = (chain.temporary(prod(sizes.scores) * _WIDTH) for _ in range(2))
    totals = chain.temporary(q[0] * prod(sizes.rows) * _WIDTH)
    chain.call(_row_sums(totals, inputs[3].shape))
    lines = prod(sizes.rows)  # the scores as a matrix: 4 axes have no fast kernel
    row, square = MemoryDesc((lines, 1)), MemoryDesc((lines, sizes.scores[3]))
    into, back = (
        _product(q, k, steps=sizes.steps(op), transpose_b=True),
        _product(inputs[5].shape, v, transpose_b=True),
    )
    again = _less(square, row, (Eltwise("exp"),))
    slope = _less(square, row, (Binary("mul", square), Eltwise("linear", op.scale)))
    dq, dk = _product(sizes.scores, k), _product(sizes.scores, q, transpose_a=True)
    dv = _product(sizes.scores, inputs[5].shape, transpose_a=True)
    for b in range(q[0]):
        here = [at_input(i).at(b * prod(s.shape[1:]) * _WIDTH) for i, s in enumerate(inputs)]
        there = [at_output(i).at(b * prod(s.shape[1:]) * _WIDTH) for i, s in enumerate(outputs)]
        _run(chain, into, here[0], here[1], weights, sizes.operands(op))
        _combine(chain, again, weights, here[4], {})
        _run(chain, back, here[5], here[2], slopes)
        total = totals.at(b * prod(sizes.rows) * _WIDTH)
        _combine(chain, slope, slopes, total, {operand_of(0): weights})
        _run(chain, dq, slopes, here[1], there[0])
        _run(chain, dk, slopes, here[0], there[1])
        _run(chain, dv, weights, here[5], there[2])
    return chain.plan()


class _Sizes:
    """Shapes for one image: the scores [1, H, S, T], the rows [1, H, S, 1]; and the causal mask [1, 1, S, T]."""

    def __init__(self, q: Shape, k: Shape) -> None:
        self.scores, self.rows = (1, q[1], q[2], k[2]), (1, q[1], q[2], 1)
        self.mask = (1, 1, q[2], k[2])

    def steps(self, op: Attention | AttentionGrad) -> tuple[PostOp, ...]:
        """What makes scores of products."""
        scaled = Eltwise("linear", op.scale)
        return (scaled, Binary("add", MemoryDesc(self.mask))) if op.causal else (scaled,)

    def operands(self, op: Attention | AttentionGrad) -> dict[int, Location | Held]:
        """The mask: 0 where a row sees a column, else -inf."""
        if not op.causal:
            return {}
        values = np.where(op.mask(*self.mask[2:]), 0, -np.inf).astype(np.float32)
        return {operand_of(1): Held(values)}


def _plain(specs: Sequence[Spec], count: int) -> list[Spec]:
    found = [s.open.fixed for s in specs]
    if len(found) > count:
        raise NoKernel("cpu: attention with a bias, whose rows may see nothing, is left to NumPy")
    if any(s.dtype != float32 or s.numel == 0 for s in found):
        raise NoKernel(f"cpu: attention of {found[0]} is left to NumPy")
    return found


def _product(
    a: Shape, b: Shape, *, steps: Sequence[PostOp] = (), transpose_a: bool = False, transpose_b: bool = False
) -> PrimitiveDesc:
    """The product of one image's matrices [1, H, ·, ·], either lying the other way round, then steps."""
    left, right = _matrices(a, transpose_a), _matrices(b, transpose_b)
    out = MemoryDesc((1, a[1], left.dims[2], right.dims[3]))
    attributes = Attributes(tuple(steps)) if steps else None
    made = attempt(lambda: onednn.matmul(left, right, out, attributes=attributes))
    if made is None:
        raise NoKernel(f"cpu: oneDNN has no kernel for attention's product of {left} and {right}")
    return made


def _less(square: MemoryDesc, row: MemoryDesc, steps: Sequence[PostOp]) -> PrimitiveDesc:
    """A matrix less one number per row, then steps; products have no such step."""
    made = attempt(lambda: onednn.binary("sub", square, row, square, attributes=Attributes(tuple(steps))))
    if made is None:
        raise NoKernel(f"cpu: oneDNN does not subtract {row} from {square}")
    return made


def _combine(
    chain: Chain, made: PrimitiveDesc, to: Location, row: Location, extra: dict[int, Location]
) -> None:
    given = {ARG.SRC_0: to, ARG.SRC_1: row, ARG.DST: to, **extra}
    chain.run(made, {key: (made.argument(key), place) for key, place in given.items()})


def _matrices(shape: Shape, transposed: bool) -> MemoryDesc:
    _, heads, rows, columns = shape
    whole = heads * rows * columns
    if transposed:
        return MemoryDesc((1, heads, columns, rows), strides=(whole, rows * columns, 1, columns))
    return MemoryDesc((1, heads, rows, columns), strides=(whole, rows * columns, columns, 1))


def _run(
    chain: Chain,
    made: PrimitiveDesc,
    a: Location,
    b: Location,
    out: Location,
    extra: dict[int, Location | Held] | dict[int, Location] | None = None,
) -> None:
    given: dict[int, Location | Held] = {ARG.SRC: a, ARG.WEIGHTS: b, ARG.DST: out, **(extra or {})}
    chain.run(made, {key: (made.argument(key), place) for key, place in given.items()})


def _apply(chain: Chain, made: PrimitiveDesc, source: Location, to: Location) -> None:
    chain.run(made, {ARG.SRC: (made.src, source), ARG.DST: (made.dst, to)})


def _less_log(stats: Location, largest: Location, count: int) -> Bind:
    """The largest score less the logarithm of the largest weight."""

    def bind(call: Call) -> Run:
        found, weight = (host_array(p.address(call), (count,), np.float32) for p in (stats, largest))

        def run() -> None:
            np.subtract(found, np.log(weight), out=found)

        return run

    return bind


def _row_sums(to: Location, shape: Shape) -> Bind:
    """The sum of o do over the features of each row."""

    def bind(call: Call) -> Run:
        o, g = (host_array(call.inputs[i], shape, np.float32) for i in (3, 5))
        out = host_array(to.address(call), shape[:3], np.float32)

        def run() -> None:
            np.einsum("bhsd,bhsd->bhs", o, g, out=out)

        return run

    return bind
