"""The steps between the products of attention, row by row of the scores: bias, mask, softmax, and their gradient."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from lamina.backends.cpu.library import Location
from lamina.backends.cpu.loops.code import Code, Elements, Scalar, fused, least, where
from lamina.backends.cpu.loops.kernel import LoopKernel
from lamina.ops.primitives.attention import COARSE
from lamina.spec import Shape, float32


class ScoreShape(NamedTuple):
    """One sample's scores [1, H, S, T]: shape, the factor of products, whether rows see later columns, the bias
    (place and shape, whose axes may be 1), and the dropout mask, with the factor of kept weights."""

    shape: Shape
    scale: float
    causal: bool
    bias: tuple[Location, Shape] | None = None
    mask: tuple[Location, float] | None = None

    @property
    def lines(self) -> int:
        """The total number of rows."""
        return self.shape[1] * self.shape[2]

    @property
    def form(self) -> tuple[int | None, bool, bool]:
        """The specialization of a kernel: the column stride of the bias, None without one; `causal`; whether weights
        are dropped."""
        return None if self.bias is None else int(self.bias[1][3] > 1), self.causal, self.mask is not None

    def parameters(self, unused: Location) -> list[Location | int]:
        """The parameters in the order in which `_ScoreRows` takes them."""
        place, given = self.bias or (unused, (1, 1, 1, 1))
        strides = [given[2] * given[3], given[3]]
        mask, growth = self.mask or (unused, 1.0)
        factors = [int(np.float64(x).view(np.int64)) for x in (self.scale, growth)]
        steps = [s if n > 1 else 0 for s, n in zip(strides, given[1:3], strict=True)]
        return [place, mask, *factors, *self.shape[2:], *steps]


def weights(scores: ScoreShape, products: Location, stats: Location | None) -> LoopKernel:
    """In place: products become softmax(scale * products + bias); stats: the log-sum-exp of each row, if wanted.

    Rows that see nothing become zeros, their stats infinite.
    """
    text = partial(_weights, *scores.form, stats is not None)
    parameters = [products, stats or products, *scores.parameters(products)]
    return LoopKernel(text, parameters, scores.lines, 4 * scores.lines * scores.shape[3])


def slopes(
    scores: ScoreShape, products: Location, slope: Location, rows: Sequence[Location], width: int
) -> LoopKernel:
    """In place: products become weights, and `slope`, the gradient of the weights, becomes that of the scores.

    rows: the stats, and the result and its gradient, rows of `width`, whose dot product is subtracted from each
        slope.
    """
    text = partial(_slopes, *scores.form)
    parameters = [products, slope, *rows, width, *scores.parameters(products)]
    return LoopKernel(text, parameters, scores.lines, 4 * scores.lines * scores.shape[3])


class _ScoreRows:
    """The scores of a kernel."""

    def __init__(self, code: Code, products: Elements, step: int | None, causal: bool, drops: bool) -> None:
        self.code, self.products, self.step, self.causal, self.drops = code, products, step, causal, drops
        self.bias, self.mask = code.array(float32), code.array(float32)
        self.scale, self.growth = (code.bits(code.size(), np.float64).astype(np.float32) for _ in range(2))
        self.rows, self.columns, *self.steps = code.sizes(4)

    def within(self, row: Scalar) -> Scalar:
        """A row's number within its head."""
        return self.code.remainder(row, self.rows)

    def seen(self, row: Scalar) -> Scalar:
        """The number of columns that a row sees."""
        return least(self.within(row) + 1, self.columns) if self.causal else self.columns

    def bias_of(self, row: Scalar) -> Scalar:
        """The offset of the row's bias."""
        head = self.code.quotient(row, self.rows)
        return head * self.steps[0] + self.within(row) * self.steps[1]

    def kept(self, place: Scalar, value: Scalar) -> Scalar:
        """A weight, or its gradient, after dropout."""
        return value * (self.mask[place] * self.growth) if self.drops else value

    def score(self, row: Scalar, bias: Scalar, j: Scalar) -> Scalar:
        """A score from a product."""
        product = self.products[row * self.columns + j]
        if self.step is None:
            return product * self.scale
        return fused(self.code, product, self.scale, self.bias[bias + j * self.step])


@lru_cache(maxsize=16)
def _weights(step: int | None, causal: bool, drops: bool, wanted: bool) -> str:
    code = Code()
    x, stats = code.array(float32), code.array(float32)
    rows = _ScoreRows(code, x, step, causal, drops)
    first, last = code.share()
    with code.loop(first, last) as row:
        start, seen, bias = row * rows.columns, rows.seen(row), rows.bias_of(row)
        with code.loop(0, seen, independent=True) as j:
            x[start + j] = rows.score(row, bias, j)
        highest = code.variable(-np.inf, np.float32)
        with code.loop(0, seen) as j:
            highest.set(np.maximum(highest.get(), x[start + j]))
        top = where(code.call("isfinite", (highest.get(),)), highest.get(), 0.0)
        with code.loop(0, seen, independent=True) as j:
            x[start + j] = code.call("exp", (x[start + j] - top,))
        total = code.variable(0, np.float32)
        with code.loop(0, seen) as j:
            total.add(x[start + j])
        blind = total.get() == 0
        share = where(blind, 0.0, 1 / total.get())
        with code.loop(0, seen, independent=True) as j:
            x[start + j] = rows.kept(start + j, x[start + j] * share)
        with code.loop(seen, rows.columns, independent=True) as j:
            x[start + j] = 0
        if wanted:
            stats[row] = where(blind, np.inf, top + code.call("log", (total.get(),)))
    return code.text()


@lru_cache(maxsize=16)
def _slopes(step: int | None, causal: bool, drops: bool) -> str:
    code = Code()
    x, y, stats, o, g = (code.array(float32) for _ in range(5))
    width = code.size()
    rows = _ScoreRows(code, x, step, causal, drops)
    first, last = code.share()
    with code.loop(first, last) as row:
        start, seen, bias = row * rows.columns, rows.seen(row), rows.bias_of(row)
        total = code.variable(0, np.float32)
        with code.loop(row * width, (row + 1) * width) as d:
            total.add(o[d] * g[d])
        less = stats[row]
        whole = code.variable(0, np.float32)
        with code.loop(0, where(code.call("absolute", (less,)) >= COARSE, seen, 0)) as j:
            whole.add(code.call("exp", (rows.score(row, bias, j) - less,)))
        share = where(whole.get() > 0, 1 / whole.get(), 1.0)
        with code.loop(0, seen, independent=True) as j:
            weight = code.call("exp", (rows.score(row, bias, j) - less,)) * share
            x[start + j] = rows.kept(start + j, weight)
            y[start + j] = weight * (rows.kept(start + j, y[start + j]) - total.get())
        unseen = code.call("exp", (-np.inf - less,))  # 0, or NaN, which then propagates to all columns
        with code.loop(seen, rows.columns, independent=True) as j:
            x[start + j] = rows.kept(start + j, unseen)
            y[start + j] = unseen * (rows.kept(start + j, y[start + j]) - total.get())
    return code.text()
