"""Sampling of images and volumes at data-dependent positions: grid_sample, affine_grid (Jaderberg et al. 2015)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np

from lamina.ops.arguments import checked
from lamina.ops.core import Arg, Array, BatchAxes, Op, Sample, call, listing, operand
from lamina.ops.primitives.elementary import round
from lamina.ops.primitives.gather import Gather
from lamina.ops.primitives.marker import stop_gradient
from lamina.ops.primitives.matmul import matmul
from lamina.ops.primitives.pointwise import where
from lamina.ops.primitives.shape import stack
from lamina.spec import Shape, ShapeError, Spec, int64

GridMode = Literal["bilinear", "nearest", "bicubic"]
GridPadding = Literal["zeros", "border", "reflection"]
#: Taps of each axis by mode.
TAPS = {"nearest": 1, "bilinear": 2, "bicubic": 4}
PADDINGS = ("zeros", "border", "reflection")
#: Elements from the first one beyond which positions, including NaN, are clamped.
FAR = 2.0**24
#: Keys' parameter of cubic interpolation, the same as torch's.
CUBIC = -0.75


class Taps(NamedTuple):
    """The elements (-1: none) that positions read along one axis, their weights, and the derivatives of the weights
    in the coordinate; each [taps, N, positions].
    """

    at: Array
    weight: Array
    slope: Array


@dataclass(frozen=True)
class _GridOp(Op):
    """mode: the interpolation. padding: the treatment of positions outside. align_corners: whether -1 and 1 are the
    centers of the corner elements, or the corners of the image.
    """

    mode: GridMode = "bilinear"
    padding: GridPadding = "zeros"
    align_corners: bool = False

    def check(self, x: Spec, grid: Spec) -> Shape:
        """The sampled shape [N, C, *O]. Raises ShapeError, DTypeError, ValueError."""
        self.check_float(x, grid)
        rank = x.ndim - 2
        fits = rank in (2, 3) and grid.ndim == x.ndim and grid.shape[-1] == rank
        if not fits or grid.shape[0] != x.shape[0]:
            raise ShapeError(
                f"{self.name}: needs images [N, C, H, W] and a grid [N, h, w, 2], or volumes [N, C, D, H, W] and "
                f"a grid [N, d, h, w, 3], got {listing((x, grid))}"
            )
        if 0 in x.shape[2:]:
            raise ShapeError(f"{self.name}: there is nothing to read in {x}")
        if self.mode not in TAPS or self.padding not in PADDINGS:
            raise ValueError(f"{self.name}: unknown mode {self.mode!r} or padding {self.padding!r}")
        if self.mode == "bicubic" and rank != 2:
            raise ShapeError(f"{self.name}: mode bicubic takes images [N, C, H, W], got {x}")
        return (*x.shape[:2], *grid.shape[1:-1])

    def taps(self, grid: Array, spatial: Shape) -> list[Taps]:
        """One per axis of the image; the grid's last axis lists them in reverse order."""
        flat = grid.reshape(len(grid), prod(grid.shape[1:-1]), grid.shape[-1])
        return [self._taps(flat[..., -1 - axis], n) for axis, n in enumerate(spatial)]

    def _taps(self, coordinate: Array, n: int) -> Taps:
        at, weight, slope = (np.stack(v) for v in zip(*self.each_tap(coordinate, n), strict=True))
        return Taps(_which(at, n), weight, slope)

    def each_tap(self, coordinate: Any, n: int) -> list[tuple[Any, Any, Any]]:
        """For each tap of an axis of n elements: the integer position (maybe outside), its weight and slope."""
        scale = (n - 1) / 2 if self.align_corners else n / 2
        place = (coordinate + 1) * scale - (0 if self.align_corners else 0.5)
        place = np.where(place > -FAR, np.minimum(place, FAR), -FAR)
        if self.mode == "bicubic":
            first = np.floor(place)
            taps = enumerate(_cubic_taps(place - first), -1)
            return [(self._inside(first + float(k), n)[0], w, slope * scale) for k, (w, slope) in taps]
        place, sign = self._inside(place, n)
        if self.mode == "nearest":
            return [(np.rint(place), np.ones_like(place), np.zeros_like(place))]
        first = np.floor(place)
        return [(first, first + 1 - place, -sign * scale), (first + 1, place - first, sign * scale)]

    def _inside(self, place: Any, n: int) -> tuple[Any, Any]:
        """Positions moved into the image by the padding mode, and the derivative of that."""
        sign = np.ones_like(place)
        if self.padding == "zeros":
            return place, sign
        if self.padding == "reflection":
            low, span = (0.0, n - 1.0) if self.align_corners else (-0.5, float(n))
            away = np.abs(place - low)
            turns = np.floor(away / (span or 1))
            extra, odd = away - turns * span, turns % 2 == 1
            sign = np.where((place < low) ^ odd, -sign, sign)
            place = np.where(odd, span - extra, extra) + low
        sign = np.where((place > 0) & (place < n - 1), sign, 0)
        return np.clip(place, 0, n - 1), sign


def _which(place: Array, n: int) -> Array:
    """Integer positions as indices; -1 outside."""
    return np.where((place >= 0) & (place < n), place, -1).astype(np.int64)


def _cubic_taps(t: Any) -> list[tuple[Any, Any]]:
    """Weights of the elements at -1, 0, 1 and 2 for offsets t in [0, 1), and their derivatives (Keys 1981)."""
    a = CUBIC

    def near(v: Any, sign: float) -> tuple[Any, Any]:
        return ((a + 2) * v - (a + 3)) * v * v + 1.0, (3 * (a + 2) * v - 2 * (a + 3)) * v * sign

    def far(v: Any, sign: float) -> tuple[Any, Any]:
        return ((a * v - 5 * a) * v + 8 * a) * v - 4 * a, ((3 * a * v - 10 * a) * v + 8 * a) * sign

    return [far(t + 1.0, 1.0), near(t, 1.0), near(1.0 - t, -1.0), far(2.0 - t, -1.0)]


def _places(taps: Sequence[Taps], spatial: Shape) -> Iterator[tuple[tuple[int, ...], Array]]:
    """For each combination of the axes' taps: which, and the elements [N, positions]; outside: their number."""
    for chosen in product(*(range(len(t.at)) for t in taps)):
        at = [t.at[k] for t, k in zip(taps, chosen, strict=True)]
        inside = np.logical_and.reduce([a >= 0 for a in at])
        flat = np.zeros_like(at[0])
        for a, n in zip(at, spatial, strict=True):
            flat = flat * n + a
        yield chosen, np.where(inside, flat, prod(spatial))


def _weight(taps: Sequence[Taps], chosen: Sequence[int]) -> Array:
    found: Array = np.multiply.reduce([t.weight[k] for t, k in zip(taps, chosen, strict=True)])
    return found


def _rows(x: Array) -> Array:
    """[N, C, *S] -> [N, prod(S) + 1, C]: a row of channels per element, and a row of zeros."""
    n, c = x.shape[:2]
    found = np.zeros((n, prod(x.shape[2:]) + 1, c), x.dtype)
    found[:, :-1] = x.reshape(n, c, prod(x.shape[2:])).transpose(0, 2, 1)
    return found


def _images(rows: Array, spatial: Shape) -> Array:
    """[N, positions, C] -> [N, C, *spatial]."""
    return np.ascontiguousarray(rows.transpose(0, 2, 1)).reshape(len(rows), rows.shape[2], *spatial)


@dataclass(frozen=True)
class GridSample(_GridOp):
    """(x [N, C, *S], grid [N, *O, r]) -> y [N, C, *O]: x sampled at the positions in grid, r = 2 or 3.

    grid[n, *o] = (x, y) or (x, y, z): the last axis first, with -1 and 1 the ends. Coordinates more than 2^24
    elements outside, and NaN, count as that far outside. A position that reads nothing gives 0.
    """

    arity = 2

    def infer(self, x: Spec, grid: Spec) -> tuple[Spec]:
        return (self.result(self.check(x, grid), x.dtype),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        x, grid = axes
        return (x,) if x is not None and x.axis == 0 and x == grid else None

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        x, grid = inputs
        options = (self.mode, self.padding, self.align_corners)
        by_x = call(GridSampleGrad(*options, x.shape[2:]), grads[0], grid)
        return by_x, call(GridSampleGridGrad(*options), grads[0], x, grid)

    def reference(self, x: Array, grid: Array) -> tuple[Array]:
        spatial, rows, taps = x.shape[2:], _rows(x), self.taps(grid, x.shape[2:])
        y = np.zeros((len(x), taps[0].at.shape[2], x.shape[1]), x.dtype)
        images = np.arange(len(x))[:, None]
        for chosen, flat in _places(taps, spatial):
            y += rows[images, flat] * _weight(taps, chosen)[..., None].astype(x.dtype)
        return (_images(y, grid.shape[1:-1]),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for options, x, grid in _CASES:
            yield Sample.of(cls(*options), x, _grid(grid))


@dataclass(frozen=True)
class GridSampleGrad(_GridOp):
    """(g [N, C, *O], grid [N, *O, r]) -> dx [N, C, *shape]: each g added to the elements that its position reads.

    On a GPU in fixed point: sums are bitwise reproducible in any order, and for a million positions accurate to 2^-38
    of the largest g. An element that receives a non-finite value is NaN there.
    """

    shape: Shape = ()  # spatial sizes of x
    arity = 2

    def infer(self, g: Spec, grid: Spec) -> tuple[Spec]:
        x = self.result((*g.shape[:2], *self.shape), g.dtype)
        if self.check(x, grid) != g.shape:
            raise ShapeError(f"{self.name}: g {g} does not fit the grid {grid}")
        return (x,)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        g, grid = axes
        return (g,) if g is not None and g.axis == 0 and g == grid else None

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """Linear in g; in the grid, the sum of dx * t equals that of g * GridSample(t)."""
        (t,), (g, grid) = grads, inputs
        options = (self.mode, self.padding, self.align_corners)
        return call(GridSample(*options), t, grid), call(GridSampleGridGrad(*options), g, t, grid)

    def reference(self, g: Array, grid: Array) -> tuple[Array]:
        taps = self.taps(grid, self.shape)
        n, c = g.shape[:2]
        given = g.reshape(n, c, prod(g.shape[2:])).transpose(0, 2, 1)
        rows = np.zeros((n * (prod(self.shape) + 1), c), g.dtype)
        first = np.arange(n)[:, None] * (prod(self.shape) + 1)
        for chosen, flat in _places(taps, self.shape):
            share = given * _weight(taps, chosen)[..., None].astype(g.dtype)
            add_rows(rows, (flat + first).reshape(-1), share.reshape(-1, c))
        return (_images(rows.reshape(n, prod(self.shape) + 1, c)[:, :-1], self.shape),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for options, x, grid in _CASES:
            yield Sample.of(cls(*options, x[2:]), (*x[:2], *grid[1:-1]), _grid(grid))


@dataclass(frozen=True)
class GridSampleGridGrad(_GridOp):
    """(g [N, C, *O], x [N, C, *S], grid [N, *O, r]) -> the grid's gradient; its own is that of its composed form."""

    arity = 3
    differentiable = False

    def infer(self, g: Spec, x: Spec, grid: Spec) -> tuple[Spec]:
        self.check_float(g, x)
        if self.check(x, grid) != g.shape:
            raise ShapeError(f"{self.name}: g {g} does not fit {listing((x, grid))}")
        return (grid.open,)

    def reference(self, g: Array, x: Array, grid: Array) -> tuple[Array]:
        spatial, rows, taps = x.shape[2:], _rows(x), self.taps(grid, x.shape[2:])
        given = g.reshape(*g.shape[:2], prod(g.shape[2:])).transpose(0, 2, 1)
        found = np.zeros((*given.shape[:2], len(spatial)), grid.dtype)
        images = np.arange(len(x))[:, None]
        for chosen, flat in _places(taps, spatial):
            both = np.where(flat < prod(spatial), (rows[images, flat] * given).sum(-1), 0)
            for axis in range(len(taps)):
                slopes = [t._replace(weight=t.slope) if a == axis else t for a, t in enumerate(taps)]
                found[..., -1 - axis] += both * _weight(slopes, chosen)
        return (found.reshape(grid.shape),)

    def composed(self, *inputs: Any) -> tuple[Any]:
        """By gathers and arithmetic, for second derivatives: the choice of elements has no derivative."""
        g, x, grid = inputs
        (n, c, *spatial), count = x.shape, prod(grid.shape[1:-1])
        flat, image = grid.reshape((n, count, len(spatial))), x.reshape((n, c, prod(spatial)))
        given = g.reshape((n, c, count))
        taps = [self._composed_taps(flat[..., len(spatial) - 1 - a], size) for a, size in enumerate(spatial)]
        slopes: list[Any] = [0.0] * len(spatial)
        for chosen in product(*map(range, map(len, taps))):
            read = [along[k] for along, k in zip(taps, chosen, strict=True)]
            place, inside = read[0][0] * 0, None
            for (at, *_), size in zip(read, spatial, strict=True):
                own = (at >= 0) & (at < size)
                place, inside = place * size + at, own if inside is None else inside & own
            index = where(inside, place, 0.0).cast(int64).unsqueeze(1)
            both = where(inside, (call(Gather(2), image, index) * given).sum(1), 0.0)
            for axis in range(len(spatial)):
                term = both
                for other, (_, weight, slope) in enumerate(read):
                    term = term * (slope if other == axis else weight)
                slopes[axis] = slopes[axis] + term
        return (stack(list(reversed(slopes)), -1).reshape(grid.shape),)

    def _composed_taps(self, coordinate: Any, n: int) -> list[tuple[Any, Any, Any]]:
        """Each tap of an axis: its integer position (without derivative), weight and slope; all [N, positions]."""
        scale = (n - 1) / 2 if self.align_corners else n / 2
        place = ((coordinate + 1.0) * scale - (0.0 if self.align_corners else 0.5)).clamp(-FAR, FAR)
        if self.mode == "bicubic":
            first = stop_gradient(place.floor())
            found = zip((-1.0, 0.0, 1.0, 2.0), _cubic_taps(place - first), strict=True)
            return [(self._composed_inside(first + k, n)[0], w, s * scale) for k, (w, s) in found]
        place, sign = self._composed_inside(place, n)
        if self.mode == "nearest":
            return [(stop_gradient(round(place)), place * 0.0 + 1.0, place * 0.0)]
        first = stop_gradient(place.floor())
        return [(first, first + 1.0 - place, sign * -scale), (first + 1.0, place - first, sign * scale)]

    def _composed_inside(self, place: Any, n: int) -> tuple[Any, Any]:
        """Like `_inside`; the sign has no derivative."""
        sign = stop_gradient(place * 0.0 + 1.0)
        if self.padding == "zeros":
            return place, sign
        if self.padding == "reflection":
            low, span = (0.0, n - 1.0) if self.align_corners else (-0.5, float(n))
            away = abs(place - low)
            turns = stop_gradient((away / (span or 1.0)).floor())
            odd = (turns - (turns * 0.5).floor() * 2.0) == 1.0
            extra = away - turns * span
            sign = where((place < low) != odd, -sign, sign)
            place = where(odd, extra * -1.0 + span, extra) + low
        sign = where((place > 0.0) & (place < n - 1.0), sign, 0.0)
        return place.clamp(0.0, n - 1.0), sign

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for options, x, grid in _CASES:
            yield Sample.of(cls(*options), (*x[:2], *grid[1:-1]), x, _grid(grid))


def add_rows(rows: Array, index: Array, values: Array) -> None:
    """rows[index[i]] += values[i], in the order of i: by sorting, because `np.add.at` is slow for rows."""
    if not len(index):
        return
    order = np.argsort(index, kind="stable")
    names = index[order]
    starts = np.flatnonzero(np.concatenate([[True], names[1:] != names[:-1]]))
    rows[names[starts]] += np.add.reduceat(values[order], starts, 0)


_Options = tuple[GridMode, GridPadding, bool]
_CASES: tuple[tuple[_Options, Shape, Shape], ...] = (
    (("bilinear", "zeros", False), (2, 3, 5, 6), (2, 4, 3, 2)),
    (("bilinear", "border", True), (1, 16, 4, 3), (1, 5, 7, 2)),
    (("bilinear", "reflection", False), (2, 2, 3, 7), (2, 40, 3, 2)),
    (("bilinear", "reflection", True), (2, 1, 3, 1), (2, 4, 3, 2)),
    (("nearest", "zeros", True), (2, 3, 5, 6), (2, 4, 3, 2)),
    (("nearest", "reflection", False), (1, 8, 5, 6), (1, 4, 3, 2)),
    (("bicubic", "zeros", False), (2, 3, 5, 6), (2, 4, 3, 2)),
    (("bicubic", "border", True), (1, 2, 5, 6), (1, 4, 3, 2)),
    (("bicubic", "reflection", False), (1, 8, 2, 6), (1, 4, 3, 2)),
    (("bilinear", "zeros", True), (2, 3, 3, 4, 5), (2, 2, 3, 2, 3)),
    (("bilinear", "reflection", False), (1, 8, 2, 3, 4), (1, 2, 2, 3, 3)),
    (("nearest", "border", False), (1, 2, 2, 3, 4), (1, 2, 2, 3, 3)),
    (("bilinear", "zeros", False), (0, 3, 5, 6), (0, 4, 3, 2)),
    (("bilinear", "zeros", False), (2, 3, 5, 6), (2, 0, 3, 2)),
)  # fmt: skip


def _grid(shape: Shape) -> Arg:
    return Arg(shape, low=-1.6, high=1.7)


@checked
def grid_sample(
    input: Any,
    grid: Any,
    mode: GridMode = "bilinear",
    padding_mode: GridPadding = "zeros",
    align_corners: bool | None = None,
) -> Any:
    """input [N, C, H, W] or [N, C, D, H, W] sampled at grid [N, *O, 2 or 3]: [N, C, *O]. torch's grid_sample.

    grid: (x, y) or (x, y, z) of each position, with -1 and 1 the ends: with align_corners the centers of the corner
    elements, else the corners of the image. mode: "nearest", "bilinear" (of eight elements in volumes), "bicubic"
    (images alone). padding_mode: what is read outside: zeros, the element at the border, or the image mirrored there.

    Differentiable in both to any order; the gradient is deterministic on every device. Raises ShapeError, DTypeError.
    """
    x, places = operand(input, "grid_sample"), operand(grid, "grid_sample", "grid")
    return call(GridSample(mode, padding_mode, bool(align_corners)), x, places)


@checked
def affine_grid(theta: Any, size: Sequence[int], align_corners: bool | None = None) -> Any:
    """The grid [N, H, W, 2] or [N, D, H, W, 3] of affine maps theta [N, 2, 3] or [N, 3, 4], for `grid_sample`.

    size: of the output images, (N, C, H, W) or (N, C, D, H, W). align_corners: as in `grid_sample`. As
    torch.nn.functional.affine_grid. Raises ShapeError, DTypeError.
    """
    maps, sizes = operand(theta, "affine_grid", "theta"), tuple(int(n) for n in size)
    rank = len(sizes) - 2
    if rank not in (2, 3) or maps.shape != (sizes[0], rank, rank + 1) or min(sizes) < 1:
        raise ShapeError(
            "affine_grid: needs theta [N, 2, 3] and a size (N, C, H, W), or theta [N, 3, 4] and (N, C, D, H, W), "
            f"all at least 1, got {maps.spec} and {sizes}"
        )
    axes = [_ends(n, bool(align_corners)) for n in sizes[2:]]
    along = np.meshgrid(*axes, indexing="ij")
    base = np.stack([*reversed(along), np.ones_like(along[0])], -1).reshape(1, -1, rank + 1)
    grid = matmul(base.astype(maps.dtype.numpy), maps.mT)
    return grid.reshape((sizes[0], *sizes[2:], rank))


def _ends(n: int, align_corners: bool) -> Array:
    """The coordinates of n elements of an axis from -1 to 1."""
    if n == 1:
        return np.zeros(1)
    return np.linspace(-1, 1, n) * (1 if align_corners else (n - 1) / n)
