"""Norms with per-sample statistics: group, layer and RMS norm, and their gradients.

A row is the set of elements with common statistics: [images * groups, channels of a group, elements of a channel].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from lamina.backends import NoKernel, Plan
from lamina.backends.cpu.library import ALIGNMENT, Location, at_input, at_output
from lamina.backends.cpu.loops.code import Code, Scalar, fused
from lamina.backends.cpu.loops.kernel import InOrder, LoopKernel
from lamina.backends.cpu.loops.table import loops, worthwhile
from lamina.ops.primitives.norm import (
    BatchNormInfer,
    Frame,
    GroupNorm,
    GroupNormGrad,
    LayerNorm,
    LayerNormGrad,
    RmsNorm,
    RmsNormGrad,
)
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec

#: The parts into which images are split where sums over all images would be as large as these.
_PARTS = 32


class NormRows(NamedTuple):
    """Images, groups of each, channels of a group, and contiguous elements of a channel."""

    images: int
    groups: int
    channels: int
    elements: int


def rows_of(frame: Frame) -> NormRows:
    """The rows of a frame: its statistics' axes first, then the channels, then the elements with a common scale."""
    groups = prod(frame.scale[: len(frame.stats)])
    channels = prod(frame.scale[a] for a in frame.axes)
    return NormRows(prod(frame.stats) // groups, groups, channels, frame.size // channels)


# ------------------------------------------------------------------------------------------------- known statistics


@loops(BatchNormInfer, source="loops")
def batch_norm_infer(op: BatchNormInfer, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """Channel by channel, of row-major x; steps after the norm are left to oneDNN."""
    if op.relu or op.residual:
        raise NoKernel(f"cpu: {op} is left to others")
    inputs = tuple(s.open.fixed for s in specs)
    x = inputs[0]
    work = worthwhile(op, [x], [x])
    epsilon = int(np.float64(op.epsilon).view(np.int64))
    text = partial(_channels, x.dtype)
    places = [*(at_input(i) for i in range(5)), at_output()]
    rows = x.shape[0] * x.shape[1]
    kernel = LoopKernel(text, [*places, epsilon, x.shape[1], prod(x.shape[2:])], rows, work)
    return Plan(inputs, (x,), kernel, aliases=dict(op.inplace), label=f"loops {op.name}")


@lru_cache(maxsize=64)
def _channels(dtype: DType) -> str:
    code, wide = Code(), dtype.compute
    x = code.array(dtype)
    scale, bias, mean, var = (code.array(wide) for _ in range(4))
    y = code.array(dtype)
    epsilon = code.bits(code.size(), np.float64).astype(wide.numpy)
    channels, elements = code.sizes(2)
    first, last = code.share()
    with code.loop(first, last) as row:
        c, base = code.remainder(row, channels), row * elements
        by, shift, middle = scale[c] / code.call("sqrt", (var[c] + epsilon,)), bias[c], mean[c]
        with code.loop(0, elements, independent=True) as i:
            y[base + i] = (x[base + i] - middle) * by + shift
    return code.text()


# ----------------------------------------------------------------------------------------------------------- forward


@loops(GroupNorm, LayerNorm, RmsNorm, source="loops")
def norm(op: GroupNorm | LayerNorm | RmsNorm, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """Row by row: the mean, the variance, the result."""
    inputs = tuple(s.open.fixed for s in specs)
    x, outputs = inputs[0], tuple(s.fixed for s in op.infer(*inputs))
    work = 3 * worthwhile(op, [x], [x])
    rows = rows_of(op.frame(x))
    text = partial(_forward, x.dtype, op.centred, rows.elements == 1)
    places = [*(at_input(i) for i in range(len(inputs))), *(at_output(i) for i in range(len(outputs)))]
    epsilon = int(np.float64(op.epsilon).view(np.int64))
    kernel = LoopKernel(text, [*places, epsilon, *rows[1:]], rows.images * rows.groups, work)
    aliases = {o: i for o, i in op.inplace.items() if inputs[i].same_memory(outputs[o])}
    return Plan(inputs, outputs, kernel, aliases=aliases, label=f"loops {op.name}")


@lru_cache(maxsize=64)
def _forward(dtype: DType, centred: bool, single: bool) -> str:
    code, wide = Code(), dtype.compute
    x, scale = code.array(dtype), code.array(wide)
    bias = code.array(wide) if centred else None
    y = code.array(dtype)
    means = code.array(wide) if centred else None
    rstds = code.array(wide)
    epsilon = code.bits(code.size(), np.float64).astype(wide.numpy)
    groups, channels, elements = code.sizes(3)
    first, last = code.share()
    size = channels * elements
    count = size.astype(wide.numpy)
    with code.loop(first, last) as row:
        base = row * size
        mean = _sum(code, wide, size, lambda i: x[base + i]) / count if means is not None else None

        def apart(value: Scalar) -> Scalar:
            return value if mean is None else value - mean

        total = _sum(code, wide, size, lambda i: np.square(apart(x[base + i])))
        rstd = 1 / np.sqrt(total / count + epsilon)
        if means is not None:
            means[row] = mean
        rstds[row] = rstd

        def result(i: Scalar, c: Scalar) -> Scalar:
            found = apart(x[i]) * (rstd * scale[c])
            return found if bias is None else found + bias[c]

        channel = code.remainder(row, groups) * channels
        if single:
            with code.loop(0, channels, independent=True) as c:
                y[base + c] = result(base + c, channel + c)
        else:
            with code.loop(0, channels) as c:
                slope, start = rstd * scale[channel + c], base + c * elements
                offset = None if bias is None else bias[channel + c]
                with code.loop(0, elements, independent=True) as i:
                    value = apart(x[start + i]) * slope
                    y[start + i] = value if offset is None else value + offset
    return code.text()


def _sum(code: Code, wide: DType, count: Scalar, term: Callable[[Scalar], Any]) -> Scalar:
    """The sum of `count` terms."""
    total = code.variable(0, wide.numpy)
    with code.loop(0, count) as i:
        total.add(term(i))
    return total.get()


# ---------------------------------------------------------------------------------------------------------- gradient


@loops(GroupNormGrad, LayerNormGrad, RmsNormGrad, source="loops")
def norm_grad(
    op: GroupNormGrad | LayerNormGrad | RmsNormGrad, specs: Sequence[Spec], device: Device, policy: Policy
) -> Plan:
    """Row by row, with sums for scale and bias per row, or per part of the images, which are added up at the end."""
    inputs = tuple(s.open.fixed for s in specs)
    x, outputs = inputs[1], tuple(s.fixed for s in op.infer(*inputs))
    work = 4 * worthwhile(op, [x, x], [x])
    rows = rows_of(op.frame(x))
    single, scales = rows.elements == 1, rows.groups * rows.channels
    parts = min(_PARTS, rows.images) if single else rows.images
    if parts == 0:
        raise NoKernel(f"cpu: {op} of {x} is left to NumPy")
    wide = x.dtype.compute
    sums = -(-parts * scales * wide.itemsize // ALIGNMENT) * ALIGNMENT
    partial_sums = [Location("workspace", k * sums) for k in range(1 + op.centred)]
    places = [*(at_input(i) for i in range(len(inputs))), at_output(0), *partial_sums]
    text = partial(_backward_single if single else _backward, x.dtype, op.centred)
    steps = parts if single else rows.images * rows.groups
    kernels = [LoopKernel(text, [*places, *rows, parts], steps, work)]
    for k, place in enumerate(partial_sums):
        kernels.append(
            LoopKernel(partial(_added, wide), [place, at_output(1 + k), parts, scales], 1, parts * scales)
        )
    aliases = {o: i for o, i in op.inplace.items() if inputs[i].same_memory(outputs[o])}
    return Plan(inputs, outputs, InOrder(kernels), sums * (1 + op.centred), aliases, label=f"loops {op.name}")


class _Gradient:
    """Common part of both forms of the gradient: parameters, and a row's statistics."""

    def __init__(self, dtype: DType, centred: bool) -> None:
        self.code, self.wide = Code(), dtype.compute
        code, wide = self.code, self.wide
        self.g, self.x, self.scale = code.array(dtype), code.array(dtype), code.array(wide)
        self.means = code.array(wide) if centred else None
        self.rstds, self.dx, self.dscale = code.array(wide), code.array(dtype), code.array(wide)
        self.dbias = code.array(wide) if centred else None
        self.images, self.groups, self.channels, self.elements, self.parts = code.sizes(5)

    def statistics(self, row: Scalar) -> tuple[Scalar | None, Scalar]:
        """The mean, if there is one, and 1 / the deviation."""
        return None if self.means is None else self.means[row], self.rstds[row]

    def normal(self, i: Scalar, mean: Scalar | None, rstd: Scalar) -> Scalar:
        """x normalized."""
        x = self.x[i]
        return (x if mean is None else x - mean) * rstd

    def by_x(
        self,
        i: Scalar,
        scale: Scalar,
        statistics: tuple[Scalar | None, Scalar],
        a: Scalar,
        b: Scalar,
    ) -> Scalar:
        """The gradient of x; a, b: means of g * scale, and of that times x normalized."""
        mean, rstd = statistics
        found = self.g[i] * scale - self.normal(i, mean, rstd) * b
        return (found if mean is None else found - a) * rstd


@lru_cache(maxsize=64)
def _backward(dtype: DType, centred: bool) -> str:
    """Channels of several elements: sums by channel and image."""
    f = _Gradient(dtype, centred)
    code = f.code
    first, last = code.share()
    count = (f.channels * f.elements).astype(f.wide.numpy)
    with code.loop(first, last) as row:
        base, channel = row * f.channels * f.elements, code.remainder(row, f.groups) * f.channels
        statistics = f.statistics(row)
        a, b = code.variable(0, f.wide.numpy), code.variable(0, f.wide.numpy)
        with code.loop(0, f.channels) as c:
            start = base + c * f.elements
            by_bias, by_scale = code.variable(0, f.wide.numpy), code.variable(0, f.wide.numpy)
            with code.loop(0, f.elements) as i:
                g = f.g[start + i]
                by_bias.add(g)
                by_scale.add(g * f.normal(start + i, *statistics))
            f.dscale[row * f.channels + c] = by_scale.get()
            if f.dbias is not None:
                f.dbias[row * f.channels + c] = by_bias.get()
            scale = f.scale[channel + c]
            a.set(fused(code, by_bias.get(), scale, a.get()))
            b.set(fused(code, by_scale.get(), scale, b.get()))
        means = a.get() / count, b.get() / count
        with code.loop(0, f.channels) as c:
            start, scale = base + c * f.elements, f.scale[channel + c]
            with code.loop(0, f.elements, independent=True) as i:
                f.dx[start + i] = f.by_x(start + i, scale, statistics, *means)
    return code.text()


@lru_cache(maxsize=64)
def _backward_single(dtype: DType, centred: bool) -> str:
    """Channels of one element: sums by channel and part of the images."""
    f = _Gradient(dtype, centred)
    code = f.code
    first, last = code.share()
    count, scales = f.channels.astype(f.wide.numpy), f.groups * f.channels
    with code.loop(first, last) as part:
        kept = [memory for memory in (f.dscale, f.dbias) if memory is not None]
        for memory in kept:
            with code.loop(0, scales, independent=True) as c:
                memory[part * scales + c] = 0
        begin, end = (code.quotient(f.images * (part + k), f.parts) for k in (0, 1))
        with code.loop(begin * f.groups, end * f.groups) as row:
            base, channel = row * f.channels, code.remainder(row, f.groups) * f.channels
            statistics = f.statistics(row)
            a, b = code.variable(0, f.wide.numpy), code.variable(0, f.wide.numpy)
            with code.loop(0, f.channels) as c:
                scaled = f.g[base + c] * f.scale[channel + c]
                a.add(scaled)
                b.add(scaled * f.normal(base + c, *statistics))
            means = a.get() / count, b.get() / count
            with code.loop(0, f.channels, independent=True) as c:
                g, to = f.g[base + c], part * scales + channel + c
                f.dscale[to] = fused(code, g, f.normal(base + c, *statistics), f.dscale[to])
                if f.dbias is not None:
                    f.dbias[to] = f.dbias[to] + g
                f.dx[base + c] = f.by_x(base + c, f.scale[channel + c], statistics, *means)
    return code.text()


@lru_cache(maxsize=16)
def _added(wide: DType) -> str:
    """y[c] = the sum of x[part, c]."""
    code = Code()
    x, y = code.array(wide), code.array(wide)
    parts, count = code.sizes(2)
    code.share()
    with code.loop(0, count, independent=True) as c:
        y[c] = 0
    with code.loop(0, parts) as part, code.loop(0, count, independent=True) as c:
        y[c] = y[c] + x[part * count + c]
    return code.text()
