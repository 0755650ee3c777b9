"""Scaled dot-product attention as products with fused steps, one sample of the batch after the other.

The weights of one sample, [H, S, T], stay in the caches between the products. The statistics follow from two maxima:
the largest weight of a row is exp(largest score - statistic). Half types are computed on copies in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from lamina import onednn
from lamina.backends import Call, NoKernel, Plan, Run
from lamina.backends.cpu.library import Bind, Chain, Held, Location, at_input, at_output, attempt, kernels
from lamina.backends.cpu.loops import attention as rows
from lamina.backends.cpu.loops import compiler
from lamina.backends.cpu.widened import HALF
from lamina.onednn import ARG, Attributes, Binary, Eltwise, MemoryDesc, PostOp, PrimitiveDesc
from lamina.onednn import post_op_argument as operand_of
from lamina.ops.core import Op
from lamina.ops.primitives.attention import COARSE, Attention, AttentionGrad
from lamina.ops.primitives.cast import Cast
from lamina.runtime import Device, host_array
from lamina.spec import Policy, Shape, Spec, float32

_WIDTH = float32.itemsize
#: Upper bound of the value that oneDNN's maximum gives for a row of -inf.
_LOWEST = np.finfo(np.float32).min


@kernels(Attention, source="onednn")
def attention(op: Attention, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """(o, stats) from q, k, v and perhaps a bias; all row-major."""
    if specs[0].dtype in HALF:
        return _widened(op, specs, device, policy)
    inputs = _plain(specs)
    outputs = [s.fixed for s in op.infer(*inputs)]
    q, k, v, *more = (s.shape for s in inputs)
    bias, _ = op.parted(more)
    chain, sizes = Chain(inputs, outputs), _Sizes(q, k, bias)
    scores = chain.temporary(prod(sizes.scores) * _WIDTH)
    if compiler.available():
        return _by_rows(op, chain, sizes, scores)
    _drops_nothing(op)
    row, top = (chain.temporary(prod(sizes.rows) * _WIDTH) for _ in range(2))
    into = _product(q, k, steps=sizes.steps(op), transpose_b=True)
    soft = onednn.softmax_forward(*(MemoryDesc(sizes.scores),) * 2, 3, prop="inference")
    largest = _largest(sizes)
    out = _product(sizes.scores, v)
    for b in range(q[0]):
        here = [at_input(i).at(b * prod(s[1:]) * _WIDTH) for i, s in enumerate((q, k, v))]
        _run(chain, into, here[0], here[1], scores, sizes.operands(op, 3, b))
        stats = at_output(1).at(b * prod(sizes.rows) * _WIDTH) if op.stats else top
        if op.stats or bias:
            _apply(chain, largest, scores, stats)
        _apply(chain, soft, scores, scores)
        if bias:
            chain.call(_blind_rows(stats, scores, sizes.scores))
        if op.stats:
            _apply(chain, largest, scores, row)
            chain.call(_less_log(stats, row, prod(sizes.rows)))
        _run(chain, out, scores, here[2], at_output().at(b * prod((*q[1:3], v[3])) * _WIDTH))
    return chain.plan()


@kernels(AttentionGrad, source="onednn")
def attention_grad(op: AttentionGrad, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """(dq, dk, dv, dbias) from q, k, v, o, stats, do and perhaps a bias; all row-major."""
    if specs[0].dtype in HALF:
        return _widened(op, specs, device, policy)
    inputs = _plain(specs)
    outputs = [s.fixed for s in op.infer(*inputs)]
    q, k, v = (s.shape for s in inputs[:3])
    bias, _ = op.parted([s.shape for s in inputs[6:]])
    chain, sizes = Chain(inputs, outputs), _Sizes(q, k, bias)
    weights, slopes = (chain.temporary(prod(sizes.scores) * _WIDTH) for _ in range(2))
    if compiler.available():
        return _grad_by_rows(op, chain, sizes, weights, slopes)
    _drops_nothing(op)
    totals = chain.temporary(q[0] * prod(sizes.rows) * _WIDTH)
    chain.call(_row_sums(totals, inputs[3].shape))
    lines = prod(sizes.rows)  # the scores as a matrix: oneDNN has no fast kernel for 4 axes
    row, square = MemoryDesc((lines, 1)), MemoryDesc((lines, sizes.scores[3]))
    into, back = (
        _product(q, k, steps=sizes.steps(op), transpose_b=True),
        _product(inputs[5].shape, v, transpose_b=True),
    )
    again = _less(square, row, (Eltwise("exp"),))
    slope = _less(square, row, (Binary("mul", square),))
    dq, dk, dv = _gradients(op, sizes, q, k, inputs[5].shape)
    for b in range(q[0]):
        here = [at_input(i).at(b * prod(s.shape[1:]) * _WIDTH) for i, s in enumerate(inputs[:6])]
        there = [at_output(i).at(b * prod(s.shape[1:]) * _WIDTH) for i, s in enumerate(outputs[:3])]
        _run(chain, into, here[0], here[1], weights, sizes.operands(op, 6, b))
        _combine(chain, again, weights, here[4], {})
        chain.call(_divided(weights, here[4], sizes.scores))
        _run(chain, back, here[5], here[2], slopes)
        total = totals.at(b * prod(sizes.rows) * _WIDTH)
        _combine(chain, slope, slopes, total, {operand_of(0): weights})
        _run(chain, dq, slopes, here[1], there[0])
        _run(chain, dk, slopes, here[0], there[1])
        _run(chain, dv, weights, here[5], there[2])
        if len(outputs) > 3:
            chain.call(_added_up(slopes, sizes.scores, bias[0], b))
    return chain.plan()


def _widened(op: Attention | AttentionGrad, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """The plan in float32, between casts of the half-type operands.

    The gradient subtracts the row sums of do * o, for which an o rounded to a half type is too coarse: it is
    recomputed.
    """
    given = [s.open.fixed for s in specs]
    made, wide = [s.fixed for s in op.infer(*given)], [_wide(s) for s in given]
    chain = Chain(given, made)

    def step(op: Op, read: Sequence[Spec], inputs: Sequence[Location], outputs: Sequence[Location]) -> Plan:
        plan = kernels.plan(op, read, device, policy)
        chain.follow(plan, inputs, outputs)
        return plan

    def place(spec: Spec, own: Location) -> Location:
        return own if spec.dtype == float32 else chain.temporary(_wide(spec).nbytes)

    places = [place(s, at_input(i)) for i, s in enumerate(given)]
    results = [place(s, at_output(i)) for i, s in enumerate(made)]
    again = 3 if isinstance(op, AttentionGrad) else None
    for i, spec in enumerate(given):
        if spec.dtype in HALF and i != again:
            step(Cast(float32), [spec], [at_input(i)], [places[i]])
    if again is not None:
        forward = Attention(op.scale, op.causal, keep=op.keep)
        step(forward, [*wide[:3], *wide[6:]], [*places[:3], *places[6:]], [places[again]])
    inner = step(op, wide, places, results)
    for i, spec in enumerate(made):
        if spec.dtype in HALF:
            step(Cast(spec.dtype), [_wide(spec)], [results[i]], [at_output(i)])
    return chain.plan(f"{inner.label} in float32")


def _wide(spec: Spec) -> Spec:
    return Spec(spec.shape, float32).fixed


def _by_rows(op: Attention, chain: Chain, sizes: _Sizes, scores: Location) -> Plan:
    """With one generated kernel between the products."""
    q, k, v = (s.shape for s in chain.inputs[:3])
    into, out = _product(q, k, transpose_b=True), _product(sizes.scores, v)
    for b in range(q[0]):
        here = [at_input(i).at(b * prod(s[1:]) * _WIDTH) for i, s in enumerate((q, k, v))]
        stats = at_output(1).at(b * prod(sizes.rows) * _WIDTH) if op.stats else None
        _run(chain, into, here[0], here[1], scores)
        chain.call(rows.weights(sizes.of_image(op, 3, b), scores, stats))
        _run(chain, out, scores, here[2], at_output().at(b * prod((*q[1:3], v[3])) * _WIDTH))
    return chain.plan()


def _grad_by_rows(
    op: AttentionGrad, chain: Chain, sizes: _Sizes, weights: Location, slopes: Location
) -> Plan:
    """With one generated kernel between the products."""
    q, k, v, o, _, g = (s.shape for s in chain.inputs[:6])
    into, back = _product(q, k, transpose_b=True), _product(g, v, transpose_b=True)
    products = _gradients(op, sizes, q, k, g)
    for b in range(q[0]):
        here = [at_input(i).at(b * prod(s.shape[1:]) * _WIDTH) for i, s in enumerate(chain.inputs[:6])]
        there = [at_output(i).at(b * prod(s.shape[1:]) * _WIDTH) for i, s in enumerate(chain.outputs[:3])]
        _run(chain, into, here[0], here[1], weights)
        _run(chain, back, here[5], here[2], slopes)
        known = (here[4], here[3], here[5])
        chain.call(rows.slopes(sizes.of_image(op, 6, b), weights, slopes, known, o[3]))
        pairs = (slopes, here[1]), (slopes, here[0]), (weights, here[5])
        for made, pair, to in zip(products, pairs, there, strict=True):
            _run(chain, made, *pair, to)
        if len(chain.outputs) > 3:
            chain.call(_added_up(slopes, sizes.scores, sizes.bias[0], b))
    return chain.plan()


def _gradients(op: AttentionGrad, sizes: _Sizes, q: Shape, k: Shape, g: Shape) -> list[PrimitiveDesc]:
    """The products that give dq and dk from the scores' gradient, and dv from the weights."""
    scaled = (Eltwise("linear", op.scale),)
    return [
        _product(sizes.scores, k, steps=scaled),
        _product(sizes.scores, q, steps=scaled, transpose_a=True),
        _product(sizes.scores, g, transpose_a=True),
    ]


class _Sizes:
    """Shapes for one image: the scores [1, H, S, T], the rows [1, H, S, 1]; and the causal mask [1, 1, S, T]."""

    def __init__(self, q: Shape, k: Shape, bias: Sequence[Shape]) -> None:
        self.scores, self.rows = (1, q[1], q[2], k[2]), (1, q[1], q[2], 1)
        self.mask, self.bias = (1, 1, q[2], k[2]), bias

    def steps(self, op: Attention | AttentionGrad) -> tuple[PostOp, ...]:
        """The post-ops that turn products into scores."""
        added = [self.mask] * op.causal + [(1, *shape[1:]) for shape in self.bias]
        return (Eltwise("linear", op.scale), *(Binary("add", MemoryDesc(shape)) for shape in added))

    def of_image(self, op: Attention | AttentionGrad, place: int, image: int) -> rows.ScoreShape:
        """A sample's scores for generated kernels; the bias is input `place`, the mask the next one."""
        bias, mask = None, None
        for shape in self.bias:
            own = image * prod(shape[1:]) * _WIDTH if shape[0] > 1 else 0
            bias = (at_input(place).at(own), shape)
        if op.keep < 1:
            mask = at_input(place + len(self.bias)).at(image * prod(self.scores) * _WIDTH), op.growth
        return rows.ScoreShape(self.scores, op.scale, op.causal, bias, mask)

    def operands(self, op: Attention | AttentionGrad, place: int, image: int) -> dict[int, Location | Held]:
        """The causal mask, 0 where a row sees a column, else -inf; and this sample's part of the bias, input
        `place`."""
        found: list[Location | Held] = []
        if op.causal:
            found.append(Held(np.where(op.mask(*self.mask[2:]), 0, -np.inf).astype(np.float32)))
        for shape in self.bias:
            own = image * prod(shape[1:]) * _WIDTH if shape[0] > 1 else 0
            found.append(at_input(place).at(own))
        return {operand_of(1 + i): what for i, what in enumerate(found)}


def _drops_nothing(op: Attention | AttentionGrad) -> None:
    """Raise NoKernel for dropout of the weights: post-ops alone cannot apply it."""
    if op.keep < 1:
        raise NoKernel(f"cpu: without generated loops {op} is left to NumPy")


def _largest(sizes: _Sizes) -> PrimitiveDesc:
    """The largest score of each row; for rows of one score, which oneDNN does not reduce, a copy."""
    scores, rows = MemoryDesc(sizes.scores), MemoryDesc(sizes.rows)
    if sizes.scores == sizes.rows:
        return onednn.eltwise_forward("linear", scores, rows, alpha=1.0, prop="inference")
    return onednn.reduction("max", scores, rows)


def _plain(specs: Sequence[Spec]) -> list[Spec]:
    found = [s.open.fixed for s in specs]
    if any(s.dtype != float32 or s.numel == 0 for s in found):
        raise NoKernel(f"cpu: attention of {found[0]} is left to NumPy")
    return found


def _product(
    a: Shape, b: Shape, *, steps: Sequence[PostOp] = (), transpose_a: bool = False, transpose_b: bool = False
) -> PrimitiveDesc:
    """The product of one sample's matrices [1, H, ·, ·], each possibly transposed, then post-ops."""
    left, right = _matrices(a, transpose_a), _matrices(b, transpose_b)
    out = MemoryDesc((1, a[1], left.dims[2], right.dims[3]))
    attributes = Attributes(tuple(steps)) if steps else None
    made = attempt(lambda: onednn.matmul(left, right, out, attributes=attributes))
    if made is None:
        raise NoKernel(f"cpu: oneDNN has no kernel for attention's product of {left} and {right}")
    return made


def _less(square: MemoryDesc, row: MemoryDesc, steps: Sequence[PostOp]) -> PrimitiveDesc:
    """A matrix minus one number per row, then post-ops; matmul has no such post-op."""
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
    """The largest score minus the logarithm of the largest weight."""

    def bind(call: Call) -> Run:
        found, weight = (host_array(p.address(call), (count,), np.float32) for p in (stats, largest))

        def run() -> None:
            blind = found <= _LOWEST
            weight[blind] = 1
            np.subtract(found, np.log(weight), out=found)
            found[blind] = np.inf

        return run

    return bind


def _blind_rows(largest: Location, weights: Location, shape: Shape) -> Bind:
    """Set weights to zero in the rows whose largest score is -inf."""

    def bind(call: Call) -> Run:
        top = host_array(largest.address(call), shape[:3], np.float32)
        rows = host_array(weights.address(call), shape, np.float32)

        def run() -> None:
            blind = top <= _LOWEST
            if blind.any():
                rows[blind] = 0

        return run

    return bind


def _divided(weights: Location, stats: Location, shape: Shape) -> Bind:
    """Divide the weights of rows with coarse statistics by their sum."""

    def bind(call: Call) -> Run:
        rows = host_array(weights.address(call), shape, np.float32)
        known = host_array(stats.address(call), shape[:3], np.float32)

        def run() -> None:
            coarse = np.isfinite(known) & (np.abs(known) >= COARSE)
            if coarse.any():
                rows[coarse] /= rows[coarse].sum(1, keepdims=True)

        return run

    return bind


def _added_up(slopes: Location, shape: Shape, bias: Shape, image: int) -> Bind:
    """The gradient of the bias, over all samples or for this one: the sum over its axes of size 1."""
    axes = tuple(i for i in (1, 2, 3) if bias[i] == 1 != shape[i])

    def bind(call: Call) -> Run:
        given = host_array(slopes.address(call), shape, np.float32)
        whole = host_array(call.outputs[3], bias, np.float32)
        own = image if bias[0] > 1 else 0
        out = whole[own : own + 1]

        def run() -> None:
            found = given.sum(axes, keepdims=True) if axes else given
            if image and bias[0] == 1:
                np.add(out, found, out=out)
            else:
                np.copyto(out, found)

        return run

    return bind


def _row_sums(to: Location, shape: Shape) -> Bind:
    """The sum of o * do over the features of each row."""

    def bind(call: Call) -> Run:
        o, g = (host_array(call.inputs[i], shape, np.float32) for i in (3, 5))
        out = host_array(to.address(call), shape[:3], np.float32)

        def run() -> None:
            np.einsum("bhsd,bhsd->bhs", o, g, out=out)

        return run

    return bind
