"""Pooling. The index of a maximum is oneDNN's workspace: the row-major offset in the window, the first of ties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from lamina import onednn
from lamina.backends import NoKernel, Plan
from lamina.backends.cpu.guarded import guarded
from lamina.backends.cpu.library import (
    alike,
    at_input,
    at_output,
    attempt,
    computes,
    data_type,
    desc,
    kernels,
    single,
    spec_of,
)
from lamina.backends.cpu.window import channels_last_tag, sliding
from lamina.onednn import ARG, MemoryDesc, PrimitiveDesc
from lamina.ops.primitives.pool import AvgPool, AvgPoolGrad, MaxPool, MaxPoolGrad
from lamina.replay.guards import above_minus_infinity
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec, bfloat16, float16, int32

_AVERAGE = {"include": "avg_include_padding", "exclude": "avg_exclude_padding"}
Create = Callable[[MemoryDesc, MemoryDesc], PrimitiveDesc]


@kernels(MaxPool, source="onednn")
def max_pool(op: MaxPool, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """y, and the index, from x in the layout of x."""
    (x,) = specs
    computes(x)
    y, *rest = op.infer(x)
    prop = "training" if rest else "inference"

    def create(src: MemoryDesc, dst: MemoryDesc) -> PrimitiveDesc:
        return onednn.pooling_forward("max", src, dst, op.kernel, sliding(op.window), prop=prop)

    x, y, made = _laid_out(op, x, y, create)
    operands = {ARG.SRC: (desc(x), at_input(0)), ARG.DST: (desc(y), at_output(0))}
    outputs = [y]
    if rest:
        outputs.append(_index(made, y, rest[0].dtype))
        operands[ARG.WORKSPACE] = (made.workspace, at_output(1))
    return guarded(single(made, [x], outputs, operands), op, above_minus_infinity)


@kernels(MaxPoolGrad, source="onednn")
def max_pool_grad(op: MaxPoolGrad, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """dx from g and the index, in the layout of the index, which was written next to y."""
    g, index = specs
    computes(g)
    (x,) = op.infer(g.open, index.open)
    computes(x)
    like = index if index.layout is not None else g

    def create(dst: MemoryDesc, src: MemoryDesc) -> PrimitiveDesc:
        window = sliding(op.window)
        hint = onednn.pooling_forward("max", src, dst, op.kernel, window)
        return onednn.pooling_backward("max", src, dst, op.kernel, window, hint=hint)

    g, x, made = _laid_out(op, Spec(g.shape, g.dtype, like.layout), x, create)
    operands = {
        ARG.DIFF_DST: (desc(g), at_input(0)),
        ARG.WORKSPACE: (made.workspace, at_input(1)),
        ARG.DIFF_SRC: (desc(x), at_output()),
    }
    return single(made, [g, _index(made, g, index.dtype)], [x], operands)


@kernels(AvgPool, source="onednn")
def avg_pool(op: AvgPool, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """y from x in the layout of x. A sum is the average times the size of the kernel."""
    (x,) = specs
    computes(x)
    (y,) = op.infer(x)
    kind = _AVERAGE.get(op.mode, "avg_include_padding")
    post = (onednn.Eltwise("linear", float(prod(op.kernel))),) if op.mode == "sum" else ()

    def create(src: MemoryDesc, dst: MemoryDesc) -> PrimitiveDesc:
        attributes = onednn.Attributes(post) if post else None
        window = sliding(op.window)
        return onednn.pooling_forward(
            kind, src, dst, op.kernel, window, prop="inference", attributes=attributes
        )

    x, y, made = _laid_out(op, x, y, create)
    return single(made, [x], [y], {ARG.SRC: (desc(x), at_input(0)), ARG.DST: (desc(y), at_output())})


@kernels(AvgPoolGrad, source="onednn")
def avg_pool_grad(op: AvgPoolGrad, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """dx from g in the layout of g."""
    (g,) = specs
    computes(g)
    (x,) = op.infer(g)
    computes(x)
    if op.mode not in _AVERAGE:
        raise NoKernel(f"cpu: oneDNN has no gradient of {op.mode} pooling")
    kind = _AVERAGE[op.mode]

    def create(dst: MemoryDesc, src: MemoryDesc) -> PrimitiveDesc:
        window = sliding(op.window)
        hint = onednn.pooling_forward(kind, src, dst, op.kernel, window)
        return onednn.pooling_backward(kind, src, dst, op.kernel, window, hint=hint)

    g, x, made = _laid_out(op, g, x, create)
    return single(
        made, [g], [x], {ARG.DIFF_DST: (desc(g), at_input(0)), ARG.DIFF_SRC: (desc(x), at_output())}
    )


def _laid_out(
    op: MaxPool | MaxPoolGrad | AvgPool | AvgPoolGrad, given: Spec, other: Spec, create: Create
) -> tuple[Spec, Spec, PrimitiveDesc]:
    """Both tensors in the layout of `given`, or channels-last where that has none or oneDNN has no kernel.

    Its kernels for the latter compute channels side by side: the gradient of an average over a single one, which may
    take ten times as long as NumPy's, is left to that.
    """
    tried = [(given, alike(given, other))] if given.tag is not None and given.layout is not None else []
    last = channels_last_tag(given.ndim)  # of both: an image of one pixel does not tell its order from others
    if given.shape[1] > 1 or not isinstance(op, AvgPoolGrad):
        tried.append((given.with_tag(last), other.with_tag(last)))
    for first, second in tried:
        made = attempt(create, desc(first), desc(second))
        if made is not None:
            return first, second, made
    raise NoKernel(f"cpu: oneDNN has no kernel for {op} on {given}")


def _index(made: PrimitiveDesc, like: Spec, dtype: DType) -> Spec:
    """The spec of the workspace. Raises NoKernel where it is not one index of this type per element of y, and where
    it is int32 (kernels of 256 elements and more) beside a half type, which oneDNN (3.2) computes wrongly where the
    processor has instructions for it.
    """
    space = made.workspace
    if like.dtype in (bfloat16, float16) and dtype == int32:
        raise NoKernel(f"cpu: oneDNN has no right index of {like} in kernels of 256 elements and more")
    if space.data_type != data_type(dtype) or space.dims != like.shape:
        raise NoKernel(
            f"cpu: the workspace {space} of {made.implementation} is not an index like {like} in {dtype}"
        )
    return spec_of(space, dtype)
