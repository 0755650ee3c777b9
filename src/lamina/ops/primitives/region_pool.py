"""Maxima over irregularly spaced windows (adaptive and fractional pools), and max-unpooling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from lamina.ops.arguments import Sizes, checked
from lamina.ops.core import Arg, Array, BatchAxes, Op, Sample, bind, call, first_axis, operand
from lamina.ops.primitives.gather import GatherGrad, Scatter
from lamina.ops.primitives.pool import MaxPool, output_sizes, plane_index, unbatched
from lamina.ops.primitives.shape import cat, expand
from lamina.ops.primitives.window import per_axis, window
from lamina.spec import DTypeError, Shape, ShapeError, Spec, int32, int64


@dataclass(frozen=True)
class RegionMax(Op):
    """(x [N, C, *S], starts, stops) -> (y [N, C, *output], index int64 [N, C, *output]): maxima of windows.

    starts, stops: int64 [1 or N * C, sum(output)]: the bounds of the windows along each axis, concatenated, for all
    planes or per plane. A window must be inside and nonempty. index: the position of the first maximum in its plane,
    row-major; NaN counts as the largest value.
    """

    output: Shape
    arity = 3

    def infer(self, x: Spec, starts: Spec, stops: Spec) -> tuple[Spec, Spec]:
        self.check_float(x)
        if x.ndim != len(self.output) + 2 or not 1 <= len(self.output) <= 3:
            raise ShapeError(
                f"{self.name}: needs x of rank {len(self.output) + 2} for {self.output}, got {x}"
            )
        for bounds in (starts, stops):
            if bounds.dtype != int64:
                raise DTypeError(f"{self.name}: starts and stops must be int64, got {bounds}")
            if bounds.ndim != 2 or bounds.shape != (starts.shape[0], sum(self.output)):
                raise ShapeError(
                    f"{self.name}: starts and stops must be [planes, {sum(self.output)}], got {bounds}"
                )
        if starts.shape[0] not in (1, prod(x.shape[:2])):
            raise ShapeError(f"{self.name}: {starts} has windows neither for one plane nor for all of {x}")
        y = self.result((*x.shape[:2], *self.output), x.dtype)
        return y, Spec(y.shape, int64)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return first_axis(axes, 2, (0, 1)) if inputs[1].shape[0] == 1 else None

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (g, _), x, index = grads, inputs[0], outputs[1]
        if g is None:
            return None, None, None
        found = call(GatherGrad(2, prod(x.shape[2:])), _flat(g), _flat(index))
        return found.reshape(x.shape), None, None

    def reference(self, x: Array, starts: Array, stops: Array) -> tuple[Array, Array]:
        places = self._places(starts, stops, x.shape[2:])
        planes = x.reshape(prod(x.shape[:2]), prod(x.shape[2:]))
        shape = (len(planes), *places.shape[1:])
        if len(places) == 1:
            found = np.take(planes, places[0].reshape(-1), 1).reshape(shape)
        else:
            found = np.take_along_axis(planes, places.reshape(len(planes), -1), 1).reshape(shape)
        best = found.argmax(-1)[..., None]
        y = np.take_along_axis(found, best, -1)
        index = np.take_along_axis(np.broadcast_to(places, shape), best, -1)
        full = (*x.shape[:2], *self.output)
        return y.reshape(full), index.reshape(full)

    def _places(self, starts: Array, stops: Array, spatial: Shape) -> Array:
        """[planes, windows, most elements]: the elements of its plane in each window, padded with the last one."""
        cuts = np.cumsum((0, *self.output))
        flat = np.zeros((len(starts), 1, 1), np.int64)
        for a, n in enumerate(spatial):
            first, behind = (v[:, cuts[a] : cuts[a + 1]] for v in (starts, stops))
            most = int((behind - first).max(initial=1))
            along = np.minimum(first[..., None] + np.arange(most), behind[..., None] - 1)
            joined = flat[:, :, None, :, None] * n + along[:, None, :, None, :]
            flat = joined.reshape(len(starts), flat.shape[1] * along.shape[1], flat.shape[2] * most)
        return flat

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        cases: tuple[tuple[Shape, Shape], ...] = (
            ((2, 3, 7), (3,)), ((2, 3, 7, 5), (3, 4)), ((1, 2, 5, 4, 7), (2, 3, 4)), ((0, 3, 7), (2,)),
            ((1, 33, 9, 9), (4, 5)),
        )  # fmt: skip
        for x, output in cases:
            bounds = [_fixed(b) for b in adaptive_bounds(x[2:], output)]
            yield Sample.of(cls(output), Arg(x, distinct=True), *bounds)
        starts = np.array([[0, 3, 1, 2], [2, 4, 0, 3]])
        yield Sample.of(cls((2, 2)), Arg((2, 1, 6, 5), distinct=True), _fixed(starts), _fixed(starts + 2))


def _fixed(values: Array) -> Arg:
    flat = tuple(int(v) for v in values.ravel())
    return Arg(values.shape, int64, value=flat, differentiable=False)


def _flat(x: Any) -> Any:
    """[N, C, *S] -> [N, C, prod(S)]."""
    return x.reshape((*x.shape[:2], prod(x.shape[2:])))


def adaptive_bounds(spatial: Shape, output: Shape) -> tuple[Array, Array]:
    """Window i of o on an axis of n: the elements floor(i * n / o) … ceil((i + 1) * n / o) - 1; [1, sum(output)]."""
    steps = [(np.arange(o), n, o) for n, o in zip(spatial, output, strict=True)]
    starts = np.concatenate([i * n // o for i, n, o in steps])
    stops = np.concatenate([-(-(i + 1) * n // o) for i, n, o in steps])
    return starts[None], stops[None]


# Functions with the names and signatures of torch.nn.functional. All also take a single image [C, *spatial].


def _adaptive_max_pool(rank: int, input: Any, output_size: Any, return_indices: bool) -> Any:
    what = f"adaptive_max_pool{rank}d"
    x, single = unbatched(what, input, rank)
    sizes, spatial = output_sizes(what, x, output_size), x.shape[2:]
    if 0 in spatial:
        raise ShapeError(f"{what}: there is nothing to take the largest of in {x.spec}")
    if all(n % o == 0 for n, o in zip(spatial, sizes, strict=True)):
        kernel = tuple(n // o for n, o in zip(spatial, sizes, strict=True))
        win = window(what, kernel, kernel)
        y, offset = bind(MaxPool(kernel, win, True), x)
        found: tuple[Any, ...] = (y, plane_index(offset, kernel, win, spatial)) if return_indices else (y,)
    else:
        found = bind(RegionMax(sizes), x, *adaptive_bounds(spatial, sizes))
    given = tuple(v.squeeze(0) if single else v for v in found)
    return given if return_indices else given[0]


@checked
def adaptive_max_pool1d(
    input: Any, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Any:
    """`adaptive_max_pool2d` with one spatial axis."""
    return _adaptive_max_pool(1, input, output_size, return_indices)


@checked
def adaptive_max_pool1d_with_indices(
    input: Any, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Any:
    """`adaptive_max_pool1d` with return_indices, whatever that argument is, as torch's."""
    return _adaptive_max_pool(1, input, output_size, True)


@checked
def adaptive_max_pool2d(
    input: Any, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Any:
    """The largest elements of windows that divide the spatial axes into `output_size` parts; None keeps a size.

    As torch.nn.functional.adaptive_max_pool2d: windows overlap where the sizes do not divide. return_indices: also
    the position of each in its image, row-major over the spatial axes, in int64. Raises ShapeError, DTypeError.
    """
    return _adaptive_max_pool(2, input, output_size, return_indices)


@checked
def adaptive_max_pool2d_with_indices(
    input: Any, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Any:
    """`adaptive_max_pool2d` with return_indices, whatever that argument is, as torch's."""
    return _adaptive_max_pool(2, input, output_size, True)


@checked
def adaptive_max_pool3d(
    input: Any, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Any:
    """`adaptive_max_pool2d` with three spatial axes."""
    return _adaptive_max_pool(3, input, output_size, return_indices)


@checked
def adaptive_max_pool3d_with_indices(
    input: Any, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Any:
    """`adaptive_max_pool3d` with return_indices, whatever that argument is, as torch's."""
    return _adaptive_max_pool(3, input, output_size, True)


def _fractional_max_pool(
    rank: int,
    input: Any,
    kernel_size: Sizes,
    output_size: Sizes | None,
    output_ratio: float | Sequence[float] | None,
    return_indices: bool,
    samples: Any,
) -> Any:
    what = f"fractional_max_pool{rank}d"
    x, single = unbatched(what, input, rank)
    kernel = per_axis(what, "kernel_size", kernel_size, rank, 1)
    sizes = fractional_sizes(what, x.shape[2:], output_size, output_ratio)
    if any(o + k - 1 > n for n, k, o in zip(x.shape[2:], kernel, sizes, strict=True)):
        raise ShapeError(f"{what}: windows of {kernel} do not fit {sizes} times into {x.spec}")
    if samples is None:
        raise ValueError(
            f"{what}: _random_samples [N, C, {rank}] says where windows lie; draw it with ops.random_uniform, or use "
            f"nn.FractionalMaxPool{rank}d, which does"
        )
    drawn = operand(samples, what, "_random_samples")
    if drawn.shape != (*x.shape[:2], rank):
        raise ShapeError(f"{what}: _random_samples must be {(*x.shape[:2], rank)}, got {drawn.spec}")
    if drawn.dtype != x.dtype:
        raise DTypeError(f"{what}: _random_samples must be {x.dtype} as the input, got {drawn.spec}")
    flat = drawn.reshape((prod(x.shape[:2]), rank))
    order = (1, 0) if rank == 2 else (0, 1, 2)  # torch's order: for images, the columns' sample comes first
    axes = zip(order, x.shape[2:], kernel, sizes, strict=True)
    starts = cat([_spread(flat[:, a : a + 1], n, k, o) for a, n, k, o in axes], 1)
    reach = np.concatenate([np.full(o, k) for k, o in zip(kernel, sizes, strict=True)])
    y, index = bind(RegionMax(sizes), x, starts, starts + reach)
    found = tuple(v.squeeze(0) if single else v for v in ((y, index) if return_indices else (y,)))
    return found if return_indices else found[0]


def _spread(sample: Any, n: int, kernel: int, output: int) -> Any:
    """The starts of the windows of each plane: samples [P, 1] in [0, 1) -> int64 [P, output] (Graham 2015)."""
    last = n - kernel
    if output == 1:
        return (sample * 0.0).cast(int64) + last
    step, count = last / (output - 1), np.arange(output - 1, dtype=np.float64)
    moved = ((sample + count.astype(sample.dtype.numpy)) * step).cast(int64) - (sample * step).cast(int64)
    ends = expand((sample * 0.0).cast(int64) + last, (sample.shape[0], 1))
    return cat([moved, ends], 1).clamp(0, last)


def fractional_sizes(
    what: str, spatial: Shape, output_size: Sizes | None, output_ratio: float | Sequence[float] | None
) -> Shape:
    """The requested sizes, given in exactly one of two ways. Raises ValueError, ShapeError."""
    rank = len(spatial)
    if (output_size is None) == (output_ratio is None):
        raise ValueError(f"{what}: give output_size or output_ratio, got {output_size} and {output_ratio}")
    if output_ratio is None:
        assert output_size is not None
        return per_axis(what, "output_size", output_size, rank, 1)
    ratios = tuple(output_ratio) if isinstance(output_ratio, Sequence) else (output_ratio,) * rank
    if len(ratios) != rank or not all(0 < r < 1 for r in ratios):
        raise ValueError(f"{what}: output_ratio must be one number in (0, 1) or {rank}, got {output_ratio}")
    return tuple(max(int(n * r), 1) for n, r in zip(spatial, ratios, strict=True))


@checked
def fractional_max_pool2d(
    input: Any,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: Any = None,
) -> Any:
    """The largest elements of randomly placed windows, of input [N, C, H, W] or [C, H, W] (Graham 2015).

    output_size, output_ratio: the number of windows, or that as a fraction of the input's sizes; exactly one of the
    two. _random_samples: [N, C, 2] in [0, 1), of the input's dtype, which determine the windows of each plane; torch
    draws them by default. return_indices: also the position of each in its image, row-major, in int64. As
    torch.nn.functional.fractional_max_pool2d. Raises ShapeError, DTypeError, ValueError.
    """
    return _fractional_max_pool(
        2, input, kernel_size, output_size, output_ratio, return_indices, _random_samples
    )


@checked
def fractional_max_pool2d_with_indices(
    input: Any,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: Any = None,
) -> Any:
    """`fractional_max_pool2d` with return_indices, whatever that argument is, as torch's."""
    return _fractional_max_pool(2, input, kernel_size, output_size, output_ratio, True, _random_samples)


@checked
def fractional_max_pool3d(
    input: Any,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: Any = None,
) -> Any:
    """`fractional_max_pool2d` with three spatial axes; _random_samples: [N, C, 3]."""
    return _fractional_max_pool(
        3, input, kernel_size, output_size, output_ratio, return_indices, _random_samples
    )


@checked
def fractional_max_pool3d_with_indices(
    input: Any,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: Any = None,
) -> Any:
    """`fractional_max_pool3d` with return_indices, whatever that argument is, as torch's."""
    return _fractional_max_pool(3, input, kernel_size, output_size, output_ratio, True, _random_samples)


def _max_unpool(
    rank: int,
    input: Any,
    indices: Any,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    output_size: Sequence[int] | None,
) -> Any:
    what = f"max_unpool{rank}d"
    x, single = unbatched(what, input, rank)
    index = operand(indices, what, "indices")
    index = index.unsqueeze(0) if single else index
    if index.dtype not in (int32, int64):
        raise DTypeError(f"{what}: indices must be int32 or int64, got {index.spec}")
    if index.shape != x.shape:
        raise ShapeError(f"{what}: indices {index.spec} must have the shape of input {x.spec}")
    kernel = per_axis(what, "kernel_size", kernel_size, rank, 1)
    step = kernel if stride is None else per_axis(what, "stride", stride, rank, 1)
    around = per_axis(what, "padding", padding, rank, 0)
    sizes = _unpooled(what, x.shape[2:], kernel, step, around, output_size)
    zeros = expand(np.zeros((1, 1, 1), x.dtype.numpy), (*x.shape[:2], prod(sizes)))
    y = call(Scatter(2, "set"), zeros, _flat(index), _flat(x)).reshape((*x.shape[:2], *sizes))
    return y.squeeze(0) if single else y


def _unpooled(
    what: str, spatial: Shape, kernel: Shape, step: Shape, around: Shape, output_size: Sequence[int] | None
) -> Shape:
    """The requested sizes, checked against those that the pool would map to `spatial`. Raises ShapeError."""
    usual = [(n - 1) * s - 2 * p + k for n, k, s, p in zip(spatial, kernel, step, around, strict=True)]
    asked = tuple(usual if output_size is None else [int(n) for n in output_size][-len(spatial) :])
    if len(asked) != len(spatial) or any(n < 1 for n in asked):
        raise ShapeError(f"{what}: output_size must be {len(spatial)} sizes of at least 1, got {asked}")
    if any(not u - s < n < u + s for n, u, s in zip(asked, usual, step, strict=True)):
        raise ShapeError(f"{what}: output_size {asked} must lie within stride {step} of {tuple(usual)}")
    return asked


@checked
def max_unpool1d(
    input: Any,
    indices: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Any:
    """`max_unpool2d` with one spatial axis."""
    return _max_unpool(1, input, indices, kernel_size, stride, padding, output_size)


@checked
def max_unpool2d(
    input: Any,
    indices: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Any:
    """The elements of input [N, C, H, W] or [C, H, W] back at the indices from max_pool2d(return_indices=True).

    All else is 0; of several at one position the last counts. kernel_size, stride, padding: the pool's. output_size:
    the image's size, where several are possible. As torch.nn.functional.max_unpool2d. An index out of range is an
    IndexError on a CPU, and skipped on a GPU. Raises ShapeError, DTypeError.
    """
    return _max_unpool(2, input, indices, kernel_size, stride, padding, output_size)


@checked
def max_unpool3d(
    input: Any,
    indices: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Any:
    """`max_unpool2d` with three spatial axes."""
    return _max_unpool(3, input, indices, kernel_size, stride, padding, output_size)
