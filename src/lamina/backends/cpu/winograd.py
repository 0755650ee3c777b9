"""Winograd's convolution in float32, as matrix products: fewer multiplications for 3x3 and 5x5 filters.

Tiles of m x m outputs are computed from 6 x 6 inputs (m = 7 - r for an r x r filter) at 36 products per channel
instead of r² m²: a fourth for 3x3, 0.36 for 5x5. The transforms are linear maps along one axis, written as
products with band matrices, so that every step is a matmul primitive on strided memory:

    X1[n, h, (v, j), c]    = Bw · x[n, h]                    v, j: tile and place in it along the width
    V [n, v, (u, i), j, c] = Bh · X1[n, :, v]                u, i: along the height
    M [n, v, u, (i, j), k] = V[..., (i, j), :] · U[(i, j)]   U = (G ⊗ G) w
    Z [n, (h), v, j, k]    = Ah · M[n, v]
    y [n, h, (w), k]       = Aw · Z[n, h]

Where the filters do not change between runs, U is computed once (`prepared`). The band matrices of long axes are
split (`bands`).

The gradient of x is the same with the filter rotated by 180 degrees; that of w transposes the last three steps.
Measured on AlexNet's layers, batch 16, 2 threads: 26 against 35 ms, 4.8 / 10.4, 7.6 / 17.0, 4.8 / 10.5. Results
differ from exact ones by 4e-6 of their size (root mean square; the direct algorithm: 4e-7), so integers are not exact
here; the policy algorithm="fallback" uses the direct algorithm.

A. Lavin, S. Gray: "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np

from lamina import onednn
from lamina.backends import NoKernel, Packed, Plan
from lamina.backends.cpu.library import Chain, Held, Location, at_input, at_output, attempt
from lamina.backends.cpu.post import Post
from lamina.backends.cpu.window import prefers_channels_last
from lamina.onednn import (
    ARG,
    Attributes,
    Binary,
    Eltwise,
    MemoryDesc,
    PostOp,
    PrimitiveDesc,
    post_op_argument,
)
from lamina.ops.core import Array, inferred
from lamina.ops.primitives.conv import Conv, ConvDataGrad, ConvFilterGrad
from lamina.ops.primitives.window import Window
from lamina.spec import Policy, Spec, float32

#: Inputs along one axis of a tile, and their square.
ALPHA, PLACES = 6, 36
#: Fewer multiplications than this, or fewer tiles, do not pay for the transforms.
LEAST_WORK, LEAST_TILES, LEAST_CHANNELS = 1 << 28, 64, 32
#: The least speedup over the direct algorithm, estimated.
LEAST_GAIN = 1.15
#: The same with precomputed filter transforms. They have four times as many bytes as 3x3 filters: with few tiles,
#: reading them dominates.
LEAST_WORK_PREPARED, LEAST_TILES_PREPARED = 1 << 24, 32
#: The transform matrices are split into parts of this many tiles, without the columns that are 0 throughout a part.
BAND_TILES = 7
#: Relative cost of a multiplication in the thin products of the transforms (measured on 17 layers of 13 to 112
#: pixels; the resulting gain is close to the measured one).
BAND_COST = 1.75
#: Images are processed together as far as their tiles fit into this many bytes: the last-level cache.
CHUNK = 16 << 20

#: Interpolation at 0, 1, -1, 2, -2 and infinity; the weights that make the input transform integral.
_POINTS = (0.0, 1.0, -1.0, 2.0, -2.0)
_WEIGHTS = (1 / 4, -1 / 6, -1 / 6, 1 / 24, 1 / 24)
_INPUT = np.array(
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ],
    np.float64,
)


# ------------------------------------------------------------------------------------------------- transforms
def filter_matrix(r: int) -> Array:
    """G [6, r]: a filter's values at the points."""
    rows = [[f * p**a for a in range(r)] for p, f in zip(_POINTS, _WEIGHTS, strict=True)]
    return np.array([*rows, [0.0] * (r - 1) + [1.0]])


def output_matrix(m: int) -> Array:
    """Aᵀ [m, 6]: the outputs of a tile from its products."""
    rows = [[p**a for p in _POINTS] + [float(a == m - 1)] for a in range(m)]
    return np.array(rows)


@dataclass(frozen=True)
class Axis:
    """One spatial axis: `size` inputs, `outputs` outputs, in tiles of m, with `lo` elements of padding before."""

    size: int
    outputs: int
    m: int
    lo: int

    @property
    def tiles(self) -> int:
        """How many tiles cover the outputs."""
        return -(-self.outputs // self.m)

    @lru_cache(maxsize=256)  # noqa: B019 - of sizes, which repeat from layer to layer and stay few
    def inputs(self) -> Array:
        """[tiles * 6, size]: every tile's transformed inputs."""
        band = np.zeros((self.tiles * ALPHA, self.size))
        for t in range(self.tiles):
            for j in range(ALPHA):
                at = t * self.m - self.lo + j
                if 0 <= at < self.size:
                    band[t * ALPHA : (t + 1) * ALPHA, at] = _INPUT[:, j]
        return band

    @lru_cache(maxsize=256)  # noqa: B019
    def results(self) -> Array:
        """[outputs, tiles * 6]: the outputs from every tile's products."""
        band, tile = np.zeros((self.outputs, self.tiles * ALPHA)), output_matrix(self.m)
        for at in range(self.outputs):
            t, a = divmod(at, self.m)
            band[at, t * ALPHA : (t + 1) * ALPHA] = tile[a]
        return band


@dataclass(frozen=True)
class Band:
    """A part of a band matrix with all nonzeros of its rows: rows from `row` on, columns from `column` on."""

    row: int
    column: int
    values: Array


def bands(matrix: Array, rows: int) -> list[Band]:
    """A band matrix in parts of `rows` rows, each without the columns that are 0 throughout; undivided where that
    saves less than a third of the multiplications: separate products are more calls, on operands with gaps."""
    found = []
    for row in range(0, len(matrix), rows):
        part = matrix[row : row + rows]
        used = np.flatnonzero(part.any(0))
        first, end = (int(used[0]), int(used[-1]) + 1) if used.size else (0, 1)
        found.append(Band(row, first, part[:, first:end]))
    saves = 3 * sum(band.values.size for band in found) < 2 * matrix.size
    return found if saves else [Band(0, 0, matrix)]


def _multiplications(matrix: Array, rows: int) -> int:
    """Multiplications of a product with one column, in parts of `rows` rows."""
    return sum(band.values.size for band in bands(matrix, rows))


@dataclass(frozen=True)
class WinogradConv:
    """Images [n, h, w, c] to [n, h', w', k] with r x r filters at stride 1."""

    n: int
    c: int
    k: int
    r: int
    high: Axis
    wide: Axis

    @classmethod
    def of(cls, window: Window, x: Spec, w: Spec, y: Spec) -> WinogradConv | None:
        """The convolution of x [N, C, H, W] with w [K, C, r, r], None where this algorithm does not fit or pay."""
        found = cls.fitting(window, x, w, y)
        return found if found is not None and found.pays else None

    @classmethod
    def fitting(cls, window: Window, x: Spec, w: Spec, y: Spec) -> WinogradConv | None:
        """The convolution of x [N, C, H, W] with w [K, C, r, r], None where this algorithm does not fit."""
        ones = (1,) * window.rank
        if window.rank != 2 or (window.stride, window.dilation) != (ones, ones):
            return None
        if window.groups != 1 or window.flip or x.dtype != float32 or not prefers_channels_last():
            return None
        r, other = w.shape[2:]
        if r != other or r not in (3, 5):
            return None
        axes = [Axis(x.shape[2 + a], y.shape[2 + a], 7 - r, window.padding[a][0]) for a in (0, 1)]
        return cls(x.shape[0], x.shape[1], w.shape[0], r, *axes)

    @property
    def tiles(self) -> int:
        """Tiles per image."""
        return self.high.tiles * self.wide.tiles

    @property
    def pays(self) -> bool:
        """Whether there is enough work, with little of it in partial tiles and in the transforms."""
        many = self.n * self.tiles >= LEAST_TILES and min(self.c, self.k) >= LEAST_CHANNELS
        return many and self.work >= LEAST_WORK and self.gain() >= LEAST_GAIN

    @property
    def pays_prepared(self) -> bool:
        """Whether it pays with precomputed filter transforms."""
        many = self.n * self.tiles >= LEAST_TILES_PREPARED and min(self.c, self.k) >= LEAST_CHANNELS
        return many and self.work >= LEAST_WORK_PREPARED and self.gain(prepared=True) >= LEAST_GAIN

    @property
    def work(self) -> int:
        """Multiplications of the direct algorithm."""
        return self.n * self.high.outputs * self.wide.outputs * self.c * self.k * self.r**2

    @property
    def filter_bytes(self) -> int:
        """Bytes of the filters' transforms."""
        return 4 * PLACES * self.c * self.k

    @property
    def saved(self) -> float:
        """How many times more multiplications the direct algorithm performs."""
        return self.r**2 * self.high.outputs * self.wide.outputs / (PLACES * self.tiles)

    def gain(self, prepared: bool = False) -> float:
        """The estimated speedup over the direct algorithm, by the multiplications of both.

        prepared: whether the filter transforms are precomputed; their share is 1 / n otherwise.
        """
        high, wide = self.high, self.wide
        across = wide.tiles * ALPHA
        up, down = (_multiplications(m, ALPHA * BAND_TILES) for m in (high.inputs(), wide.inputs()))
        spread = self.c * (high.size * down + across * up)
        up, down = (_multiplications(m, high.m * BAND_TILES) for m in (high.results(), wide.results()))
        gathered = self.k * (across * up + high.outputs * down)
        each = PLACES * self.c * self.k
        direct = self.r**2 * high.outputs * wide.outputs * self.c * self.k
        filters = 0.0 if prepared else each * self.r**2 / self.n
        return direct / (BAND_COST * (spread + gathered) + each * self.tiles + filters)

    @property
    def transposed(self) -> WinogradConv | None:
        """The same for the gradient of the images: from y back to x, with the filter rotated by 180 degrees."""
        axes = [Axis(a.outputs, a.size, a.m, self.r - 1 - a.lo) for a in (self.high, self.wide)]
        if min(a.lo for a in axes) < 0:
            return None
        found = WinogradConv(self.n, self.k, self.c, self.r, *axes)
        return found if found.pays else None

    @property
    def images(self) -> int:
        """Images processed together: a divisor of n."""
        each = 4 * PLACES * self.tiles * (self.c + self.k)
        return max(d for d in range(1, self.n + 1) if self.n % d == 0 and (d * each <= CHUNK or d == 1))

    def filters(self, transposed: bool = False) -> Array:
        """G ⊗ G [36, r * r], for a rotated filter with its columns reversed."""
        one = filter_matrix(self.r)
        both = np.kron(one, one)
        return both[:, ::-1] if transposed else both


# ------------------------------------------------------------------------------------------------------ steps
@dataclass(frozen=True)
class Matrix:
    """An operand of a product: its place, sizes and strides in elements."""

    place: Location | Held
    dims: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def desc(self) -> MemoryDesc:
        """Its descriptor."""
        return _strided(self.dims, self.strides)

    def within_one(self) -> Matrix:
        """The same with an additional leading axis of 1."""
        return Matrix(self.place, (1, *self.dims), (prod(self.dims), *self.strides))

    def rows(self, first: int, count: int) -> Matrix:
        """`count` of its rows (the last axis but one), from `first` on."""
        assert isinstance(self.place, Location)
        dims = (*self.dims[:-2], count, self.dims[-1])
        return Matrix(self.place.at(4 * first * self.strides[-2]), dims, self.strides)


@lru_cache(maxsize=4096)
def _strided(dims: tuple[int, ...], strides: tuple[int, ...]) -> MemoryDesc:
    return MemoryDesc(dims, strides=strides)


def plain(place: Location | Held, *dims: int) -> Matrix:
    """A row-major operand."""
    return Matrix(place, dims, tuple(prod(dims[i + 1 :]) for i in range(len(dims))))


def constant(values: Array, rank: int) -> Matrix:
    """A constant matrix held by the plan, the same for the whole batch."""
    held = np.ascontiguousarray(values, np.float32)
    return plain(Held(held), *(1,) * (rank - 2), *held.shape)


def _product(
    chain: Chain,
    a: Matrix,
    b: Matrix,
    c: Matrix,
    *,
    attributes: Attributes | None = None,
    extra: dict[int, tuple[MemoryDesc, Location | Held]] | None = None,
    bias: MemoryDesc | None = None,
) -> None:
    """Append c = a · b. Raises NoKernel."""
    if bias is None and attributes is None:
        made = _plain_product(a.desc, b.desc, c.desc)
    else:
        made = attempt(lambda: onednn.matmul(a.desc, b.desc, c.desc, bias=bias, attributes=attributes))
    if made is None:
        raise NoKernel(f"cpu: oneDNN has no product of {a.desc} and {b.desc}")
    operands = {ARG.SRC: (a.desc, a.place), ARG.WEIGHTS: (b.desc, b.place), ARG.DST: (c.desc, c.place)}
    chain.run(made, operands | (extra or {}))


def _banded(chain: Chain, matrix: Array, rows: int, source: Matrix, target: Matrix) -> None:
    """Append target = matrix · source, the matrix split into parts."""
    for band in bands(matrix, rows):
        high, wide = band.values.shape
        held = constant(band.values, len(source.dims))
        _product(chain, held, source.rows(band.column, wide), target.rows(band.row, high))


@lru_cache(maxsize=1024)
def _plain_product(a: MemoryDesc, b: MemoryDesc, c: MemoryDesc) -> PrimitiveDesc | None:
    """The product without fused steps, shared by layers of the same sizes."""
    return attempt(lambda: onednn.matmul(a, b, c))


def _spread(
    chain: Chain,
    high: Array,
    wide: Array,
    source: Location,
    n: int,
    c: int,
    middle: Location,
    target: Location,
) -> None:
    """target[n, v, (u, i), j, c] = high · (wide · source[n, h, w, c]): to the tiles along both axes."""
    (up, h), (across, w) = high.shape, wide.shape
    v, inner = across // ALPHA, ALPHA * c
    rows = ALPHA * BAND_TILES
    _banded(chain, wide, rows, plain(source, n * h, w, c), plain(middle, n * h, across, c))
    columns = Matrix(middle, (n, v, h, inner), (h * across * c, inner, across * c, 1))
    _banded(chain, high, rows, columns, plain(target, n, v, up, inner))


def _places(place: Location, rows: int, channels: int) -> Matrix:
    """The tiles [rows, 36, channels] as one matrix per place."""
    return Matrix(place, (PLACES, rows, channels), (channels, PLACES * channels, 1))


def _at_places(chain: Chain, v: Matrix, u: Matrix, m: Matrix) -> None:
    """Append m = v · u, a product at each place [36].

    With a leading axis of 1 oneDNN recognizes the strided places as a permuted layout, and generates a kernel for
    this product alone; else it compiles its general kernel, in 20 ms. Beyond the caches that one is faster.
    """
    small = 4 * sum(prod(x.dims) for x in (v, u, m)) <= CHUNK
    _product(chain, *([x.within_one() for x in (v, u, m)] if small else (v, u, m)))


def _transformed(chain: Chain, p: WinogradConv, filters: Array, w: Location, u: Location) -> None:
    """Append U [36, c, k] of w [r, r, c, k]."""
    columns = Matrix(w, (p.r**2, p.c * p.k), (p.c * p.k, 1))
    _product(chain, constant(filters, 2), columns, plain(u, PLACES, p.c * p.k))


def _convolve(
    chain: Chain, p: WinogradConv, u: Location, post: Post, extra: Sequence[Spec], y: Spec, first: int
) -> None:
    """Append y = x * w, x at input 0 channels-last, the filters' transforms U at u."""
    high, wide, n = p.high, p.wide, p.images
    rows = n * p.tiles
    x1 = chain.temporary(4 * n * high.size * wide.tiles * ALPHA * p.c)
    v = chain.temporary(4 * rows * PLACES * p.c)
    m = chain.temporary(4 * rows * PLACES * p.k)
    z = chain.temporary(4 * n * high.outputs * wide.tiles * ALPHA * p.k)
    for start in range(0, p.n, n):
        source = at_input(0).at(4 * start * high.size * wide.size * p.c)
        _spread(chain, high.inputs(), wide.inputs(), source, n, p.c, x1, v)
        _at_places(chain, _places(v, rows, p.c), plain(u, PLACES, p.c, p.k), _places(m, rows, p.k))
        _gather(chain, p, m, z, start, post, extra, y, first)


def _gather(
    chain: Chain,
    p: WinogradConv,
    m: Location,
    z: Location,
    start: int,
    post: Post,
    extra: Sequence[Spec],
    y: Spec,
    first: int,
) -> None:
    """Append the output transform, with the fused steps, for the images from `start` on."""
    high, wide, n = p.high, p.wide, p.images
    inner, across = ALPHA * p.k, wide.tiles * ALPHA * p.k
    tiles = plain(m, n, wide.tiles, high.tiles * ALPHA, inner)
    lines = Matrix(z, (n, wide.tiles, high.outputs, inner), (high.outputs * across, inner, across, 1))
    rows = high.m * BAND_TILES
    _banded(chain, high.results(), rows, tiles, lines)
    shape = (n * high.outputs, wide.outputs, p.k)
    offset = 4 * start * high.outputs * wide.outputs * p.k
    across_tiles = plain(z, n * high.outputs, wide.tiles * ALPHA, p.k)
    result = plain(at_output().at(offset), *shape)
    for band in bands(wide.results(), rows):
        count, used = band.values.shape
        ops: list[PostOp] = []
        operands: dict[int, tuple[MemoryDesc, Location | Held]] = {}
        for i, step in enumerate(post.steps):
            if isinstance(step, Eltwise):
                ops.append(step)
                continue
            function, index = step
            where = at_input(first + index)
            if extra[index].shape == y.shape:
                other = plain(where.at(offset), *shape).rows(band.row, count)
            else:
                other = plain(where, 1, 1, extra[index].numel)
            ops.append(Binary(function, other.desc))
            operands[post_op_argument(i)] = (other.desc, other.place)
        bias = MemoryDesc((1, 1, p.k)) if post.bias else None
        if bias is not None:
            operands[ARG.BIAS] = (bias, at_input(first))
        _product(
            chain,
            constant(band.values, 3),
            across_tiles.rows(band.column, used),
            result.rows(band.row, count),
            attributes=Attributes(ops) if ops else None,
            extra=operands,
            bias=bias,
        )


# ------------------------------------------------------------------------------------------------------ plans
def forward(
    op: Conv, specs: Sequence[Spec], post: Post, extra: Sequence[Spec], policy: Policy
) -> Plan | None:
    """Convolution with fused steps, None where the direct algorithm is preferred."""
    x, w = specs
    (y,) = inferred(op, x.open, w.open)
    problem = WinogradConv.of(op.window, x, w, y)
    if problem is None:
        return None
    y = y.with_tag("acdb")
    chain = Chain([x.with_tag("acdb"), w.with_tag("cdba"), *post.specs(y, extra)], [y])
    u = chain.temporary(problem.filter_bytes)
    try:
        _transformed(chain, problem, problem.filters(), at_input(1), u)
        _convolve(chain, problem, u, post, extra, y, 2)
    except NoKernel:
        return None
    return _within(policy, chain.plan("onednn winograd by matmul"), problem)


def prepared(
    op: Conv, specs: Sequence[Spec], post: Post, extra: Sequence[Spec], policy: Policy
) -> Packed | None:
    """`forward` on precomputed filter transforms, None where the other algorithm is preferred even then."""
    x, w = specs
    (y,) = inferred(op, x.open, w.open)
    problem = WinogradConv.fitting(op.window, x, w, y)
    if problem is None or not problem.pays_prepared:
        return None
    y, held = y.with_tag("acdb"), Spec((PLACES, problem.c, problem.k), float32).fixed
    pack = Chain([w.with_tag("cdba")], [held])
    chain = Chain([x.with_tag("acdb"), held, *post.specs(y, extra)], [y])
    try:
        _transformed(pack, problem, problem.filters(), at_input(0), at_output())
        _convolve(chain, problem, at_input(1), post, extra, y, 2)
    except NoKernel:
        return None
    plan = _within(policy, chain.plan("onednn winograd by matmul"), problem)
    return None if plan is None else Packed(1, pack.plan(), plan)


def data_grad(op: ConvDataGrad, specs: Sequence[Spec], policy: Policy) -> Plan | None:
    """dx from g, w: the convolution of g with the filter rotated by 180 degrees."""
    g, w = specs
    (x,) = inferred(op, g.open, w.open)
    problem = WinogradConv.of(op.window, x, w, g)
    transposed = problem.transposed if problem else None
    if transposed is None:
        return None
    dx = x.with_tag("acdb")
    chain = Chain([g.with_tag("acdb"), w.with_tag("cdab")], [dx])
    u = chain.temporary(transposed.filter_bytes)
    try:
        _transformed(chain, transposed, transposed.filters(transposed=True), at_input(1), u)
        _convolve(chain, transposed, u, Post(), (), dx, 2)
    except NoKernel:
        return None
    return _within(policy, chain.plan("onednn winograd by matmul"), transposed)


def filter_grad(op: ConvFilterGrad, specs: Sequence[Spec], policy: Policy) -> Plan | None:
    """dw from x, g: products summed over all tiles, dU = Vᵀ S, then dw = (G ⊗ G)ᵀ dU."""
    x, g = specs
    (w,) = inferred(op, x.open, g.open)
    p = WinogradConv.of(op.window, x, w, g)
    if p is None:
        return None
    dw = w.with_tag("cdba")
    chain = Chain([x.with_tag("acdb"), g.with_tag("acdb")], [dw])
    try:
        _accumulate(chain, p)
    except NoKernel:
        return None
    return _within(policy, chain.plan("onednn winograd by matmul"), p)


def _within(policy: Policy, plan: Plan, problem: WinogradConv) -> Plan | None:
    """The plan, unless the policy demands the direct algorithm or allows less workspace."""
    limit = policy.workspace_limit
    allowed = policy.algorithm != "fallback" and (limit is None or plan.workspace <= limit)
    return replace(plan, arithmetic=1 / problem.saved) if allowed else None


def _accumulate(chain: Chain, p: WinogradConv) -> None:
    high, wide, n = p.high, p.wide, p.images
    rows = n * p.tiles
    across = wide.tiles * ALPHA
    x1 = chain.temporary(4 * n * max(high.size * across * p.c, high.outputs * across * p.k))
    v = chain.temporary(4 * rows * PLACES * p.c)
    s = chain.temporary(4 * rows * PLACES * p.k)
    du = plain(chain.temporary(4 * PLACES * p.c * p.k), PLACES, p.c, p.k)
    for start in range(0, p.n, n):
        images = at_input(0).at(4 * start * high.size * wide.size * p.c)
        slopes = at_input(1).at(4 * start * high.outputs * wide.outputs * p.k)
        _spread(chain, high.inputs(), wide.inputs(), images, n, p.c, x1, v)
        _spread(chain, high.results().T, wide.results().T, slopes, n, p.k, x1, s)
        transposed = Matrix(v, (PLACES, p.c, rows), (p.c, 1, PLACES * p.c))
        more = Attributes([onednn.Sum(1.0)]) if start else None
        _product(chain, transposed, _places(s, rows, p.k), du, attributes=more)
    columns = plain(du.place, PLACES, p.c * p.k)
    _product(chain, constant(p.filters().T, 2), columns, plain(at_output(), p.r**2, p.c * p.k))
