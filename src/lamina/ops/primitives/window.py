"""Window: the geometry of a sliding kernel. One value for a family's forward and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from lamina.ops.core import Array
from lamina.spec import Shape, ShapeError, as_shape

Pairs = tuple[tuple[int, int], ...]
Padding = str | int | Sequence[int] | Sequence[tuple[int, int]]

#: Libraries take attributes as 32-bit integers.
LIMIT = 2**31 - 1
PADDINGS = ("valid", "half", "full", "same")


@dataclass(frozen=True)
class Window:
    """How a kernel slides over the spatial axes.

    stride, dilation: per spatial axis, >= 1. A dilation of d leaves d - 1 elements between two taps. padding: (lo,
    hi) per spatial axis, the number of elements implied before and after the axis. groups: channels are split into
    this many independent groups. flip: true convolution (the filter is mirrored) instead of cross-correlation.
    """

    stride: Shape
    padding: Pairs
    dilation: Shape
    groups: int = 1
    flip: bool = False

    def __post_init__(self) -> None:
        rank = len(self.stride)
        if not 1 <= rank <= 3 or len(self.padding) != rank or len(self.dilation) != rank:
            raise ShapeError(
                f"window: stride {self.stride}, padding {self.padding} and dilation {self.dilation} "
                "must name the same 1, 2 or 3 spatial axes"
            )
        _check("stride", self.stride, 1)
        _check("dilation", self.dilation, 1)
        _check("padding", [side for pair in self.padding for side in pair], 0)
        _check("groups", [self.groups], 1)

    def __str__(self) -> str:
        """Concise: attributes at their defaults are omitted."""
        parts = [f"stride={self.stride}", f"padding={self.padding}"]
        parts += [f"dilation={self.dilation}"] if any(d != 1 for d in self.dilation) else []
        parts += [f"groups={self.groups}"] if self.groups != 1 else []
        return f"[{', '.join(parts)}{', flip' if self.flip else ''}]".replace(" ", "")

    def repeated(self, size: int) -> Window:
        """The window for `size` times as many groups of channels."""
        return replace(self, groups=size * self.groups)

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.stride)

    def span(self, kernel: Shape) -> Shape:
        """The extent of the dilated kernel along each axis: dilation * (kernel - 1) + 1."""
        return tuple(d * (k - 1) + 1 for k, d in zip(kernel, self.dilation, strict=True))

    def output(self, spatial: Shape, kernel: Shape, what: str = "window") -> Shape:
        """The number of positions along each axis. Raises ShapeError if the kernel does not fit."""
        _check(f"{what}: kernel size", kernel, 1)
        sizes = []
        for axis, (n, span) in enumerate(zip(spatial, self.span(kernel), strict=True)):
            room = n + sum(self.padding[axis]) - span
            if room < 0:
                raise ShapeError(
                    f"{what}: a kernel of {kernel[axis]} with dilation {self.dilation[axis]} reaches over "
                    f"{span} elements, but spatial axis {axis} of {tuple(spatial)} has {n} with padding "
                    f"{self.padding[axis]}; pad more or take a smaller kernel"
                )
            sizes.append(room // self.stride[axis] + 1)
        return as_shape(sizes, f"{what}: output")

    def padded(self, spatial: Shape) -> Shape:
        """The spatial sizes with padding."""
        return tuple(n + lo + hi for n, (lo, hi) in zip(spatial, self.padding, strict=True))

    def unpadded(self, padded: Shape) -> Shape:
        """The spatial sizes without padding: the inverse of `padded`."""
        return tuple(n - lo - hi for n, (lo, hi) in zip(padded, self.padding, strict=True))

    # The basis of the NumPy references.

    def pad(self, x: Array, value: float = 0) -> Array:
        """x [N, C, *spatial], padded."""
        if not any(map(any, self.padding)):
            return x
        return np.pad(x, ((0, 0), (0, 0), *self.padding), constant_values=value)

    def crop(self, padded: Array) -> Array:
        """The inverse of `pad`: the part without padding."""
        sizes = padded.shape[2:]
        inner = (slice(lo, n - hi) for (lo, hi), n in zip(self.padding, sizes, strict=True))
        return padded[(slice(None), slice(None), *inner)]

    def taps(self, kernel: Shape, output: Shape) -> Iterator[tuple[slice, ...]]:
        """For each kernel element, row-major: the padded [N, C, *] elements under it, one per position."""
        for offset in product(*map(range, kernel)):
            space = (
                slice(o * d, o * d + (n - 1) * s + 1, s)
                for o, d, s, n in zip(offset, self.dilation, self.stride, output, strict=True)
            )
            yield (slice(None), slice(None), *space)

    def patches(self, padded: Array, kernel: Shape) -> Array:
        """A view [N, C, *output, *kernel] of padded [N, C, *spatial]: the elements under the kernel per position."""
        axes = tuple(range(2, padded.ndim))
        windows = np.lib.stride_tricks.sliding_window_view(padded, self.span(kernel), axes)
        every = (slice(None, None, s) for s in (*self.stride, *self.dilation))
        return windows[(slice(None), slice(None), *every)]


def window(
    what: str,
    kernel: Shape,
    stride: int | Iterable[int] = 1,
    padding: Padding = 0,
    dilation: int | Iterable[int] = 1,
    groups: int = 1,
    *,
    flip: bool = False,
) -> Window:
    """The Window for a kernel of the given spatial shape, from user-level arguments.

    padding: "valid" (none), "half" (half of the kernel's reach on both sides), "full" (every position that
    touches the input), "same" (output as large as the input; stride 1 only), an int, one int or one
    (lo, hi) pair per axis. Raises ShapeError.
    """
    simple = type(stride) is type(dilation) is type(groups) is int and type(padding) in (int, str)
    make: Callable[..., Window] = (
        _known if simple else _window
    )  # 1 == 1.0 == True: other types bypass the cache
    return make(what, kernel, stride, padding, dilation, groups, flip)


def _window(
    what: str,
    kernel: Shape,
    stride: int | Iterable[int],
    padding: Padding,
    dilation: int | Iterable[int],
    groups: int,
    flip: bool,
) -> Window:
    rank = len(kernel)
    dilations = per_axis(what, "dilation", dilation, rank, 1)
    strides = per_axis(what, "stride", stride, rank, 1)
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    pairs = _pairs(what, padding, spans, strides)
    if not isinstance(groups, int) or groups < 1:
        raise ShapeError(f"{what}: groups must be an int >= 1, got {groups!r}")
    return Window(strides, pairs, dilations, groups, flip)


_known = lru_cache(maxsize=1024)(_window)


def per_axis(what: str, name: str, value: int | Iterable[int], rank: int, least: int) -> Shape:
    """One int for all axes or one per axis, as a tuple. Raises ShapeError."""
    given: tuple[Any, ...] = (
        tuple(value) if isinstance(value, Iterable) and not isinstance(value, (str, bytes)) else (value,)
    )
    if len(given) == 1:
        given *= rank
    if len(given) != rank or not all(
        isinstance(v, (int, np.integer)) and not isinstance(v, bool) for v in given
    ):
        raise ShapeError(f"{what}: {name} must be one int or {rank} ints, got {value!r}")
    _check(f"{what}: {name}", given, least)
    return tuple(map(int, given))


def _pairs(what: str, padding: Padding, spans: Sequence[int], strides: Shape) -> Pairs:
    if isinstance(padding, str):
        return _named(what, padding, spans, strides)
    rank = len(spans)
    if isinstance(padding, Iterable) and any(isinstance(p, Iterable) for p in padding):
        given = [tuple(p) if isinstance(p, Iterable) else () for p in padding]
        if len(given) != rank or any(len(p) != 2 for p in given):
            raise ShapeError(
                f"{what}: padding must be one of {', '.join(PADDINGS)}, one int, {rank} ints "
                f"or {rank} (lo, hi) pairs, got {padding!r}"
            )
        lo = per_axis(what, "padding", [p[0] for p in given], rank, 0)
        hi = per_axis(what, "padding", [p[1] for p in given], rank, 0)
        return tuple(zip(lo, hi, strict=True))
    return tuple((p, p) for p in per_axis(what, "padding", padding, rank, 0))  # type: ignore[arg-type]


def _named(what: str, padding: str, spans: Sequence[int], strides: Shape) -> Pairs:
    if padding == "valid":
        return tuple((0, 0) for _ in spans)
    if padding == "half":
        return tuple((s // 2, s // 2) for s in spans)
    if padding == "full":
        return tuple((s - 1, s - 1) for s in spans)
    if padding == "same":
        if any(s != 1 for s in strides):
            raise ShapeError(f'{what}: padding "same" needs stride 1, got {strides}; use "half" or pairs')
        return tuple(((s - 1) // 2, s - 1 - (s - 1) // 2) for s in spans)
    raise ShapeError(f"{what}: padding must be one of {', '.join(PADDINGS)}, ints or pairs, got {padding!r}")


def _check(what: str, values: Iterable[int], least: int) -> None:
    given = tuple(values)
    if any(not least <= v <= LIMIT for v in given):
        raise ShapeError(f"{what} must be ints in [{least}, {LIMIT}], got {given}")
