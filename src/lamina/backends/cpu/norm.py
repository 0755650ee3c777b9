"""Batch and layer norm by oneDNN, in the layout of x; statistics are finished in NumPy.

oneDNN keeps variances, ops keep rstd = 1 / sqrt(variance + epsilon): backward, its variance is 1 / rstd², and its
epsilon is next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from lamina import onednn
from lamina.backends import Call, NoKernel, Plan, Run
from lamina.backends.cpu.guarded import guarded
from lamina.backends.cpu.library import (
    Chain,
    Location,
    at_input,
    at_output,
    attempt,
    computes,
    desc,
    kernels,
)
from lamina.backends.cpu.loops import table
from lamina.backends.cpu.post import relu
from lamina.backends.cpu.window import channels_last_tag, prefers_channels_last
from lamina.backends.reference import by_numpy
from lamina.onednn import ARG, MemoryDesc, PrimitiveDesc
from lamina.ops.core import Op
from lamina.ops.primitives.norm import BatchNorm, BatchNormGrad, BatchNormInfer, LayerNorm, LayerNormGrad
from lamina.replay.guards import finite
from lamina.runtime import Device, host_array
from lamina.spec import Policy, Spec

#: Added to variances that are 1 / rstd²: those of a block's padding are 0, and 0 times their rstd must not be NaN.
_LEAST = 1e-30


def first_layout(
    op: Op, given: Sequence[Spec], create: Callable[[Spec], PrimitiveDesc]
) -> tuple[Spec, PrimitiveDesc]:
    """The first of the given layouts, or else channels last, in which oneDNN has a kernel, and that kernel.

    Without AVX-512 layouts with partly filled blocks are excluded: the kernels leave the padding of the result
    unwritten, which a convolution multiplies by zeros (NaN, possibly).
    """
    last = given[0].with_tag(channels_last_tag(given[0].ndim)) if given[0].ndim > 2 else given[0].open.fixed
    named = (s for s in given if s.layout is not None and s.tag is not None)
    fills = prefers_channels_last()
    for spec in (*(s for s in named if fills or s.nbytes == s.numel * s.dtype.itemsize), last):
        made = attempt(create, spec)
        if made is not None:
            return spec, made
    raise NoKernel(f"cpu: oneDNN has no kernel for {op} on {given[0]}")


def _vector(count: int) -> MemoryDesc:
    return MemoryDesc((count,), "f32")


def _array(place: Location, call: Call, count: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return host_array(place.address(call), (count,), np.float32)


def _activate(chain: Chain, x: Spec, op: BatchNorm | BatchNormInfer) -> None:
    """y + residual, perhaps with relu, or y clipped, in place; a relu alone runs in the norm's own primitive."""
    if op.residual:
        _add(chain, x, op)
    elif op.hi is not None:
        y = desc(x)
        made = onednn.eltwise_forward("clip_v2", y, y, beta=op.hi, prop="inference")
        chain.run(made, {ARG.SRC: (y, at_output()), ARG.DST: (y, at_output())})


def _add(chain: Chain, x: Spec, op: BatchNorm | BatchNormInfer) -> None:
    """y += residual, perhaps with relu, in place."""
    y = desc(x)
    attributes = onednn.Attributes(relu(op.hi)) if op.relu else None
    made = onednn.binary("add", y, y, y, attributes=attributes)
    operands = {ARG.SRC_0: (y, at_output()), ARG.SRC_1: (y, at_input(5)), ARG.DST: (y, at_output())}
    chain.run(made, operands)


@kernels(BatchNorm, source="onednn")
def batch_norm(op: BatchNorm, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """y and the statistics.

    relu without a residual gives 0 for NaN: a channel with NaN shows in its statistics, and NumPy then computes
    everything.
    """
    computes(specs[0])
    outs, fused = op.infer(*(s.open for s in specs)), op.relu and not op.residual and op.hi is None

    def create(x: Spec) -> PrimitiveDesc:
        return onednn.batch_normalization_forward(desc(x), desc(x), epsilon=op.epsilon, relu=fused)

    x, made = first_layout(op, [specs[0], *specs[5:]], create)
    channels, count = x.shape[1], x.numel // x.shape[1]
    small = [s.open.fixed for s in specs[1:5]]
    chain = Chain([x, *small, *([x] if op.residual else [])], [x, *(s.fixed for s in outs[1:])])
    variance, row = chain.temporary(channels * 4), _vector(channels)
    operands = {
        ARG.SRC: (desc(x), at_input(0)),
        ARG.SCALE: (row, at_input(1)),
        ARG.SHIFT: (row, at_input(2)),
        ARG.DST: (desc(x), at_output(0)),
        ARG.MEAN: (row, at_output(1)),
        ARG.VARIANCE: (row, variance),
    }
    if fused:
        operands[ARG.WORKSPACE] = (made.workspace, chain.temporary(made.workspace.nbytes))
    chain.run(made, operands)
    _activate(chain, x, op)
    inputs, results, loses = tuple(chain.inputs), tuple(chain.outputs), op.relu and not op.residual

    def statistics(call: Call) -> Run:
        again = by_numpy(op, inputs, results, call)
        scale, bias = (_array(at_input(i), call, channels) for i in (1, 2))
        mean, r, next_mean, next_var = (_array(at_output(i), call, channels) for i in (1, 2, 3, 4))
        old_mean, old_var = (_array(at_input(i), call, channels) for i in (3, 4))
        var, share = _array(variance, call, channels), op.momentum

        def run() -> None:
            if loses and not np.isfinite(mean + var + scale + bias).all():
                again()
                return
            r[:] = 1 / np.sqrt(var + op.epsilon)
            next_mean[:] = (1 - share) * old_mean + share * mean
            next_var[:] = (1 - share) * old_var + share * count / (count - 1) * var

        return run

    chain.call(statistics)
    return chain.plan(aliases={3: 3, 4: 4})


@kernels(BatchNormInfer, source="onednn")
def batch_norm_infer(op: BatchNormInfer, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """y from running statistics."""
    computes(specs[0])
    op.infer(*(s.open for s in specs))
    fused = op.relu and not op.residual and op.hi is None

    def create(x: Spec) -> PrimitiveDesc:
        return onednn.batch_normalization_forward(
            desc(x), desc(x), epsilon=op.epsilon, global_stats=True, relu=fused, prop="inference"
        )

    x, made = first_layout(op, [specs[0], *specs[5:]], create)
    plain = made.implementation.startswith("ncsp") and not (op.relu or op.residual)
    if plain and x.numel >= table.LEAST and table.answers(op):
        raise NoKernel(f"cpu: oneDNN has no generated code for {op} of row-major {x}")
    chain = Chain([x, *(s.open.fixed for s in specs[1:5]), *([x] if op.residual else [])], [x])
    chain.run(made, _given(x, at_input(0), at_output(), range(1, 5)))
    _activate(chain, x, op)
    plan = chain.plan(aliases={} if op.residual else {0: 0})
    return guarded(plan, op, finite) if op.relu and not op.residual else plan


def _given(
    x: Spec, src: Location, dst: Location, small: Sequence[int]
) -> dict[int, tuple[MemoryDesc, Location]]:
    """Operands of a forward pass with given statistics; `small`: inputs of scale, shift, mean and variance."""
    row = _vector(x.shape[1])
    names = (ARG.SCALE, ARG.SHIFT, ARG.MEAN, ARG.VARIANCE)
    found = {name: (row, at_input(i)) for name, i in zip(names, small, strict=True)}
    return {ARG.SRC: (desc(x), src), ARG.DST: (desc(x), dst), **found}


@kernels(BatchNormGrad, source="onednn")
def batch_norm_grad(op: BatchNormGrad, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """dx, dscale and dbias; under relu the gradient is masked first."""
    computes(specs[0])
    outs = op.infer(*(s.open for s in specs))
    frozen = not op.moving

    def forward(x: Spec) -> PrimitiveDesc:
        return onednn.batch_normalization_forward(desc(x), desc(x), epsilon=_LEAST, global_stats=frozen)

    def create(x: Spec) -> PrimitiveDesc:
        here = desc(x)
        return onednn.batch_normalization_backward(
            here, here, here, epsilon=_LEAST, hint=forward(x), global_stats=frozen
        )

    x, made = first_layout(op, [specs[1], specs[0]], create)
    channels, here, row = x.shape[1], desc(x), _vector(x.shape[1])
    inputs = [x, x, *(s.open.fixed for s in specs[2:5])]
    inputs += [x if op.residual else s.open.fixed for s in specs[5:]]
    chain = Chain(inputs, [x, *(s.fixed for s in outs[1:3]), *([x] if op.residual else [])])
    variance = chain.temporary(channels * 4)

    def squares(call: Call) -> Run:
        r, var = _array(at_input(4), call, channels), _array(variance, call, channels)

        def run() -> None:
            var[:] = 1 / np.square(r)
            var[var == 0] = np.nan  # of an infinite rstd

        return run

    chain.call(squares)
    masked = _masked(op, chain, x, variance) if op.relu else at_input(0)
    chain.run(
        made,
        {
            ARG.DIFF_DST: (here, masked),
            ARG.SRC: (here, at_input(1)),
            ARG.SCALE: (row, at_input(2)),
            ARG.MEAN: (row, at_input(3)),
            ARG.VARIANCE: (row, variance),
            ARG.DIFF_SRC: (here, at_output(0)),
            ARG.DIFF_SCALE: (row, at_output(1)),
            ARG.DIFF_SHIFT: (row, at_output(2)),
        },
    )
    return chain.plan()


def _masked(op: BatchNormGrad, chain: Chain, x: Spec, variance: Location) -> Location:
    """g where the output was positive: the output is given, or recomputed."""
    here, row = desc(x), _vector(x.shape[1])
    y, masked = at_input(5), at_output(3)
    if not op.residual:
        y, masked = chain.temporary(x.nbytes), at_output(0)
        made = onednn.batch_normalization_forward(
            here, here, epsilon=_LEAST, global_stats=True, prop="inference"
        )
        operands: Mapping[int, tuple[MemoryDesc, Location]] = {
            ARG.SRC: (here, at_input(1)),
            ARG.DST: (here, y),
            ARG.SCALE: (row, at_input(2)),
            ARG.SHIFT: (row, at_input(5)),
            ARG.MEAN: (row, at_input(3)),
            ARG.VARIANCE: (row, variance),
        }
        chain.run(made, operands)
    name, upper = "relu_use_dst_for_bwd" if op.hi is None else "clip_v2_use_dst_for_bwd", op.hi or 0.0
    hint = onednn.eltwise_forward(name, here, here, beta=upper)
    back = onednn.eltwise_backward(name, here, here, here, beta=upper, hint=hint)
    chain.run(back, {ARG.DIFF_DST: (here, at_input(0)), ARG.DST: (here, y), ARG.DIFF_SRC: (here, masked)})
    return masked


# ---------------------------------------------------------------------------------------------------- layer norm


def _rows(x: Spec, rank: int) -> tuple[Spec, MemoryDesc, int]:
    """x row-major, its rows as a matrix, and their length."""
    x, length = x.open.fixed, prod(x.shape[x.ndim - rank :])
    return x, desc(Spec((x.numel // length, length), x.dtype)), length


@kernels(LayerNorm, source="onednn")
def layer_norm(op: LayerNorm, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """y, mean and r, row by row."""
    computes(specs[0])
    outs = op.infer(*(s.open for s in specs))
    x, here, length = _rows(specs[0], op.rank)
    count = x.numel // length
    made = attempt(lambda: onednn.layer_normalization_forward(here, here, _vector(count), epsilon=op.epsilon))
    if made is None:
        raise NoKernel(f"cpu: oneDNN has no kernel for {op} on {x}")
    chain = Chain([x, *(s.open.fixed for s in specs[1:])], [s.fixed for s in outs])
    row, stats = _vector(length), _vector(count)
    variance = chain.temporary(count * 4)
    chain.run(
        made,
        {
            ARG.SRC: (here, at_input(0)),
            ARG.SCALE: (row, at_input(1)),
            ARG.SHIFT: (row, at_input(2)),
            ARG.DST: (here, at_output(0)),
            ARG.MEAN: (stats, at_output(1)),
            ARG.VARIANCE: (stats, variance),
        },
    )

    def finish(call: Call) -> Run:
        r, var = _array(at_output(2), call, count), _array(variance, call, count)
        epsilon, one = np.float32(op.epsilon), np.float32(1)

        def run() -> None:
            np.add(var, epsilon, out=r)
            np.sqrt(r, out=r)
            np.divide(one, r, out=r)

        return run

    chain.call(finish, warns=not np.float32(op.epsilon) > 0)
    return chain.plan()


@kernels(LayerNormGrad, source="onednn")
def layer_norm_grad(op: LayerNormGrad, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """dx, dscale and dbias."""
    computes(specs[0])
    outs = op.infer(*(s.open for s in specs))
    x, here, length = _rows(specs[1], op.rank)
    count = x.numel // length
    row, stats = _vector(length), _vector(count)
    hint = attempt(lambda: onednn.layer_normalization_forward(here, here, stats, epsilon=0.0))
    made = hint and attempt(
        lambda: onednn.layer_normalization_backward(here, here, here, stats, epsilon=0.0, hint=hint)
    )
    if made is None:
        raise NoKernel(f"cpu: oneDNN has no kernel for {op} on {x}")
    chain = Chain([x, x, *(s.open.fixed for s in specs[2:])], [s.fixed for s in outs])
    variance = chain.temporary(count * 4)

    def squares(call: Call) -> Run:
        r, var = _array(at_input(4), call, count), _array(variance, call, count)

        def run() -> None:
            var[:] = 1 / np.square(r)

        return run

    chain.call(squares)
    chain.run(
        made,
        {
            ARG.DIFF_DST: (here, at_input(0)),
            ARG.SRC: (here, at_input(1)),
            ARG.SCALE: (row, at_input(2)),
            ARG.SHIFT: (row, at_input(2)),  # required, but not read
            ARG.MEAN: (stats, at_input(3)),
            ARG.VARIANCE: (stats, variance),
            ARG.DIFF_SRC: (here, at_output(0)),
            ARG.DIFF_SCALE: (row, at_output(1)),
            ARG.DIFF_SHIFT: (row, at_output(2)),
        },
    )
    return chain.plan()
