"""Im2col and Col2im: windows as columns and columns summed into images, row by row of the last axis.

A padded row is in thread-local memory, so that no element has to be asked whether it is inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np

from lamina.backends import NoKernel, Plan
from lamina.backends.cpu.library import Held, Location, at_input, at_output
from lamina.backends.cpu.loops.code import INDEX, Code, Scalar
from lamina.backends.cpu.loops.kernel import LoopKernel
from lamina.backends.cpu.loops.rearrange import RAW
from lamina.backends.cpu.loops.table import loops, worthwhile
from lamina.ops.primitives.fold import Col2im, Im2col
from lamina.runtime import Device
from lamina.spec import DType, Policy, Shape, Spec

#: The most bytes of a padded row.
_OWN = 1 << 16


@loops(Im2col, source="loops")
def im2col(op: Im2col, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """A row of the image is padded once for all taps of the last axis."""
    x = specs[0].open.fixed
    return _plan(op, x, op.infer(x)[0].fixed, x.shape[2:], partial(_im2col, RAW[x.dtype.itemsize]))


@loops(Col2im, source="loops")
def col2im(op: Col2im, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """A row of the image is the sum of all taps, in the wider type of half types."""
    x = specs[0].open.fixed
    return _plan(op, x, op.infer(x)[0].fixed, op.size, partial(_col2im, x.dtype))


def _plan(op: Im2col | Col2im, x: Spec, y: Spec, image: Shape, text: Callable[[int], str]) -> Plan:
    """The kernel over planes. Its parameters are x, y, the elements of a padded row, and the axes'."""
    worthwhile(op, [x], [y])
    win = op.window
    row = win.padded(image)[-1]
    if not x.numel or row * x.dtype.compute.itemsize > _OWN:
        raise NoKernel(f"cpu: {op.name} holds a padded row, here of {row} elements")
    columns = y if isinstance(op, Im2col) else x
    parameters: list[Location | Held | int] = [at_input(0), at_output(), row]
    axes = zip(
        image, win.output(image, op.kernel), op.kernel, win.stride, win.padding, win.dilation, strict=True
    )
    for size, out, kernel, stride, (before, _), dilation in axes:
        parameters += [size, out, kernel, stride, before, dilation]
    planes = columns.shape[0] * columns.shape[1] // prod(op.kernel)
    kernel_loops = LoopKernel(partial(text, win.rank), parameters, planes, x.numel + y.numel)
    return Plan((x,), (y,), kernel_loops, label=f"loops {op.name}")


class _Axis:
    """The parameters of an axis."""

    def __init__(self, code: Code) -> None:
        self.size, self.out, self.kernel, self.stride, self.before, self.dilation = code.sizes(6)


class _Nest:
    """Nested loops over some axes, which count what they run over row-major."""

    def __init__(self, code: Code, stack: ExitStack) -> None:
        self.code, self.stack = code, stack

    def over(self, sizes: Sequence[Scalar], number: Scalar) -> tuple[list[Scalar], Scalar]:
        """The index along each axis, and `number` continued by them."""
        found = []
        for size in sizes:
            index = self.stack.enter_context(self.code.loop(0, size))
            found.append(index)
            number = number * size + index
        return found, number


@lru_cache(maxsize=64)
def _im2col(dtype: DType, rank: int) -> str:
    code = Code()
    x, y, width = code.array(dtype), code.array(dtype), code.size()
    axes = [_Axis(code) for _ in range(rank)]
    *lead, last = axes
    row = code.scratch(dtype, width)
    first, behind = code.share()
    with code.loop(0, width, independent=True) as i:
        row[i] = 0
    with code.loop(first, behind) as plane, ExitStack() as stack:
        nest = _Nest(code, stack)
        taps, tap = nest.over([a.kernel for a in lead], plane)
        places, place = nest.over([a.out for a in lead], code.value(0, INDEX))
        source, inside = plane, None
        for axis, k, o in zip(lead, taps, places, strict=True):
            at = k * axis.dilation + o * axis.stride - axis.before
            there = (at >= 0) & (at < axis.size)
            inside = there if inside is None else inside & there
            source = source * axis.size + at
        with nullcontext() if inside is None else code.when(inside):
            code.copy(row, last.before, x, source * last.size, last.size)
        if inside is not None:
            with (
                code.when(code.call("logical_not", (inside,))),
                code.loop(0, last.size, independent=True) as i,
            ):
                row[last.before + i] = 0
        with code.loop(0, last.kernel) as k:
            to = tap * last.kernel + k
            for axis in lead:
                to = to * axis.out
            to = (to + place) * last.out
            with code.loop(0, last.out, independent=True) as o:
                y[to + o] = row[k * last.dilation + o * last.stride]
    return code.text()


@lru_cache(maxsize=64)
def _col2im(dtype: DType, rank: int) -> str:
    code = Code()
    x, y, width = code.array(dtype), code.array(dtype), code.size()
    axes = [_Axis(code) for _ in range(rank)]
    *lead, last = axes
    row = code.scratch(dtype.compute, width)
    first, behind = code.share()
    with code.loop(first, behind) as plane, ExitStack() as rows:
        places, line = _Nest(code, rows).over([a.size for a in lead], plane)
        with code.loop(0, width, independent=True) as i:
            row[i] = 0
        with ExitStack() as stack:
            taps, tap = _Nest(code, stack).over([a.kernel for a in lead], plane)
            place = code.value(0, INDEX)
            for axis, k, at in zip(lead, taps, places, strict=True):
                ahead = at + axis.before - k * axis.dilation
                within: Any = np.maximum(ahead, 0)
                o = code.quotient(within, axis.stride)
                covers = (ahead >= 0) & (code.remainder(within, axis.stride) == 0) & (o < axis.out)
                stack.enter_context(code.when(covers))
                place = place * axis.out + o
            with code.loop(0, last.kernel) as k:
                start = tap * last.kernel + k
                for axis in lead:
                    start = start * axis.out
                start = (start + place) * last.out
                with code.loop(0, last.out, independent=True) as o:
                    to = k * last.dilation + o * last.stride
                    row[to] = row[to] + x[start + o]
        with code.loop(0, last.size, independent=True) as i:
            y[line * last.size + i] = row[last.before + i]
    return code.text()
