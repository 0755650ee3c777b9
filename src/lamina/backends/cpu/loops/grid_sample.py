"""Sampling of images at data-dependent positions, and its gradients.

Positions are processed in blocks: indices and weights of the taps are computed once, by the op's own formula, and
serve all channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from math import prod

import numpy as np

from lamina.backends import NoKernel, Plan
from lamina.backends.cpu.library import Location, at_input, at_output
from lamina.backends.cpu.loops.code import INDEX, Code, Elements, Scalar, fused, least, where
from lamina.backends.cpu.loops.kernel import LoopKernel
from lamina.backends.cpu.loops.table import loops, worthwhile
from lamina.ops.primitives.grid_sample import GridSample, GridSampleGrad, GridSampleGridGrad
from lamina.runtime import Device
from lamina.spec import DType, Policy, Shape, Spec, int32

GridOp = GridSample | GridSampleGrad | GridSampleGridGrad
#: Positions per block, and channels that a thread accumulates at a time.
_PLACES, _CHANNELS = 256, 8


@dataclass(frozen=True)
class SampleForm:
    """The specialization of a kernel: the formula, the sizes of the image, dtypes of images and grid."""

    op: GridOp
    spatial: Shape
    dtype: DType
    grid: DType


@loops(GridSample, source="loops")
def grid_sample(op: GridSample, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """Block by block of positions."""
    x, grid = (s.open.fixed for s in specs)
    y = op.infer(x, grid)[0].fixed
    work = 4 * worthwhile(op, [grid], [y])
    _computes(x)
    places = prod(y.shape[2:])
    blocks = -(-places // _PLACES)
    text = partial(_forward, SampleForm(op, x.shape[2:], x.dtype, grid.dtype))
    parameters: list[Location | int] = [at_input(0), at_input(1), at_output(), x.shape[1], places, blocks]
    kernel = LoopKernel(text, parameters, x.shape[0] * blocks, work)
    return Plan((x, grid), (y,), kernel, label="loops grid_sample")


@loops(GridSampleGrad, source="loops")
def grid_sample_grad(op: GridSampleGrad, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """A few channels at a time, position by position, in order."""
    g, grid = (s.open.fixed for s in specs)
    x = op.infer(g, grid)[0].fixed
    work = 4 * worthwhile(op, [g, grid], [x])
    _computes(x)
    chunks, wide = -(-g.shape[1] // _CHANNELS), x.dtype.compute
    apart = wide != x.dtype  # half types are accumulated in float32, in workspace
    text = partial(_by_image, SampleForm(op, op.shape, x.dtype, grid.dtype))
    sums = Location("workspace", 0) if apart else at_output()
    places = prod(g.shape[2:])
    numbers = [g.shape[1], places, -(-places // _PLACES), chunks]
    kernel = LoopKernel(
        text, [at_input(0), at_input(1), sums, at_output(), *numbers], x.shape[0] * chunks, work
    )
    workspace = x.numel * wide.itemsize if apart else 0
    return Plan((g, grid), (x,), kernel, workspace, label="loops grid_sample_grad")


@loops(GridSampleGridGrad, source="loops")
def grid_sample_grid_grad(
    op: GridSampleGridGrad, specs: Sequence[Spec], device: Device, policy: Policy
) -> Plan:
    """Block by block of positions."""
    g, x, grid = (s.open.fixed for s in specs)
    work = 4 * worthwhile(op, [g, x], [grid])
    _computes(x)
    places = prod(g.shape[2:])
    blocks = -(-places // _PLACES)
    text = partial(_by_grid, SampleForm(op, x.shape[2:], x.dtype, grid.dtype))
    inputs = [at_input(i) for i in range(3)]
    kernel = LoopKernel(text, [*inputs, at_output(), x.shape[1], places, blocks], x.shape[0] * blocks, work)
    return Plan((g, x, grid), (grid,), kernel, label="loops grid_sample_grid_grad")


def _computes(x: Spec) -> None:
    """Raise NoKernel for images with more elements than 32-bit indices can address."""
    if prod(x.shape[2:]) >= 1 << 31:
        raise NoKernel(f"cpu: {x} is left to NumPy")


class _TapBlock:
    """The taps of a block of positions: for each combination of taps the indices (-1: none) and weights."""

    def __init__(self, code: Code, problem: SampleForm, slopes: bool = False) -> None:
        self.code, self.problem = code, problem
        self.rank, self.wide = len(problem.spatial), problem.dtype.compute
        count = code.value(_PLACES, INDEX)
        taps = len(self._taps(code.value(0.0, problem.grid.compute.numpy), 0))
        self.combinations = list(product(range(taps), repeat=self.rank))
        self.at = [code.scratch(int32, count) for _ in self.combinations]
        self.weight = [code.scratch(self.wide, count) for _ in self.combinations]
        #: By axis and combination: the weight with the axis' derivative in place of its own weight.
        axes = range(self.rank if slopes else 0)
        self.slopes = [[code.scratch(self.wide, count) for _ in self.combinations] for _ in axes]

    def _taps(self, coordinate: Scalar, axis: int) -> list[tuple[Scalar, Scalar, Scalar]]:
        found = self.problem.op.each_tap(coordinate, self.problem.spatial[axis])
        code, kind = self.code, coordinate.dtype
        return [
            (code.value(place, kind), code.value(w, kind), code.value(dw, kind)) for place, w, dw in found
        ]

    def fill(self, grid: Elements, first: Scalar, width: Scalar) -> None:
        """Compute them from the grid's positions from `first` on."""
        with self.code.loop(0, width, independent=True) as p:
            start = (first + p) * self.rank
            taps = [self._taps(grid[start + (self.rank - 1 - a)], a) for a in range(self.rank)]
            for number, chosen in enumerate(self.combinations):
                self._combine(number, [taps[a][k] for a, k in enumerate(chosen)], p)

    def _combine(self, number: int, taps: Sequence[tuple[Scalar, Scalar, Scalar]], p: Scalar) -> None:
        flat, inside = self.code.value(0, np.dtype(np.int32)), self.code.value(True)
        for (place, _, _), n in zip(taps, self.problem.spatial, strict=True):
            there = (place >= 0) & (place < n)
            inside = inside & there
            flat = flat * np.int32(n) + where(there, place, 0).astype(np.int32)
        self.at[number][p] = where(inside, flat, -1)
        self.weight[number][p] = self._product([w for _, w, _ in taps])
        for axis, slopes in enumerate(self.slopes):
            slopes[number][p] = self._product([s if a == axis else w for a, (_, w, s) in enumerate(taps)])

    def _product(self, factors: Sequence[Scalar]) -> Scalar:
        found = factors[0]
        for factor in factors[1:]:
            found = found * factor
        return found.astype(self.wide.numpy)

    def element(self, x: Elements, base: Scalar, number: int, p: Scalar) -> Scalar:
        """The value of one tap of a position; 0 outside."""
        at = self.at[number][p]
        return where(at < 0, 0, x[base + np.maximum(at, 0)])


def _width(places: Scalar, begin: Scalar) -> Scalar:
    return least(places - begin, _PLACES)


@lru_cache(maxsize=64)
def _forward(problem: SampleForm) -> str:
    code = Code()
    x, grid, y = code.array(problem.dtype), code.array(problem.grid), code.array(problem.dtype)
    channels, places, blocks = code.sizes(3)
    first, last = code.share()
    block, size = _TapBlock(code, problem), prod(problem.spatial)
    with code.loop(first, last) as step:
        image, begin = code.quotient(step, blocks), code.remainder(step, blocks) * _PLACES
        width = _width(places, begin)
        block.fill(grid, image * places + begin, width)
        every = code.loop(image * channels, (image + 1) * channels)
        with every as c, code.loop(0, width, independent=True) as p:
            total = code.value(0, block.wide.numpy)
            for number in range(len(block.combinations)):
                total = fused(code, block.element(x, c * size, number, p), block.weight[number][p], total)
            y[c * places + begin + p] = total
    return code.text()


@lru_cache(maxsize=64)
def _by_image(problem: SampleForm) -> str:
    code, wide = Code(), problem.dtype.compute
    g, grid = code.array(problem.dtype), code.array(problem.grid)
    sums, dx = code.array(wide), code.array(problem.dtype)
    channels, places, blocks, chunks = code.sizes(4)
    first, last = code.share()
    block, size = _TapBlock(code, problem), prod(problem.spatial)
    with code.loop(first, last) as step:
        image, start = code.quotient(step, chunks), code.remainder(step, chunks) * _CHANNELS
        low = image * channels + start
        high = low + least(channels - start, _CHANNELS)
        with code.loop(low * size, high * size, independent=True) as i:
            sums[i] = 0
        with code.loop(0, blocks) as number_of_block:
            begin = number_of_block * _PLACES
            width = _width(places, begin)
            block.fill(grid, image * places + begin, width)
            with code.loop(low, high) as c, code.loop(0, width) as p:
                value = g[c * places + begin + p]
                for number in range(len(block.combinations)):
                    at = block.at[number][p]
                    with code.when(at >= 0):
                        to = c * size + at
                        sums[to] = fused(code, value, block.weight[number][p], sums[to])
        if wide != problem.dtype:
            with code.loop(low * size, high * size, independent=True) as i:
                dx[i] = sums[i]
    return code.text()


@lru_cache(maxsize=64)
def _by_grid(problem: SampleForm) -> str:
    code = Code()
    g, x = code.array(problem.dtype), code.array(problem.dtype)
    grid, dgrid = code.array(problem.grid), code.array(problem.grid)
    channels, places, blocks = code.sizes(3)
    first, last = code.share()
    block, size = _TapBlock(code, problem, slopes=True), prod(problem.spatial)
    both = [code.scratch(block.wide, code.value(_PLACES, INDEX)) for _ in block.combinations]
    with code.loop(first, last) as step:
        image, begin = code.quotient(step, blocks), code.remainder(step, blocks) * _PLACES
        width = _width(places, begin)
        block.fill(grid, image * places + begin, width)
        with code.loop(0, width, independent=True) as p:
            for total in both:
                total[p] = 0
        every = code.loop(image * channels, (image + 1) * channels)
        with every as c, code.loop(0, width, independent=True) as p:
            value = g[c * places + begin + p]
            for number, total in enumerate(both):
                total[p] = fused(code, value, block.element(x, c * size, number, p), total[p])
        with code.loop(0, width, independent=True) as p:
            for axis, slopes in enumerate(block.slopes):
                found = code.value(0, block.wide.numpy)
                for total, slope in zip(both, slopes, strict=True):
                    found = fused(code, total[p], slope[p], found)
                dgrid[(image * places + begin + p) * block.rank + (block.rank - 1 - axis)] = found
    return code.text()
