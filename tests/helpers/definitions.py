"""Reference implementations of convolution and pooling, directly from their definitions.

Everything is float64, one kernel element at a time, sharing no code with the ops.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np

from lamina.ops.core import Array
from lamina.ops.primitives import Window
from lamina.spec import Shape


def _meetings(
    window: Window, kernel: Shape, output: Shape, space: Shape
) -> Iterator[tuple[tuple[slice, ...], Shape, tuple[slice, ...]]]:
    """(output positions, kernel element, the input elements that it is applied to) for all those inside."""
    for t in product(*map(range, kernel)):
        positions, elements = [], []
        for k, s, d, (lo, _), m, n in zip(
            t, window.stride, window.dilation, window.padding, output, space, strict=True
        ):
            met = [p for p in range(m) if 0 <= p * s + k * d - lo < n]
            if not met:
                break
            first = met[0] * s + k * d - lo
            positions.append(slice(met[0], met[-1] + 1))
            elements.append(slice(first, first + (len(met) - 1) * s + 1, s))
        else:
            yield tuple(positions), t, tuple(elements)


def _tap(window: Window, kernel: Shape, t: Shape) -> Shape:
    return tuple(k - 1 - i for k, i in zip(kernel, t, strict=True)) if window.flip else t


def _output(window: Window, kernel: Shape, space: Shape) -> Shape:
    sizes = []
    for axis, (n, k) in enumerate(zip(space, kernel, strict=True)):
        lo, hi = window.padding[axis]
        last = n + lo + hi - (window.dilation[axis] * (k - 1) + 1)
        sizes.append(len(range(0, last + 1, window.stride[axis])))
    return tuple(sizes)


def _mixed(seen: Array, taps: Array) -> Array:
    """Channels c of seen [N, c, *] summed to channels k with weights taps [k, c]."""
    return np.moveaxis(np.tensordot(taps, seen, (1, 1)), 0, 1)


def _product(left: Array, right: Array) -> Array:
    """The sum over samples and positions of left [N, k, *] times right [N, c, *]: [k, c]."""
    return np.einsum("nk...,nc...->kc", left, right, optimize=True)


def conv(window: Window, x: Array, w: Array) -> Array:
    kernel, space = w.shape[2:], x.shape[2:]
    output = _output(window, kernel, space)
    y = np.zeros((x.shape[0], w.shape[0], *output))
    c, k = w.shape[1], w.shape[0] // window.groups
    for o, t, i in _meetings(window, kernel, output, space):
        for g in range(window.groups):
            taps = w[(slice(g * k, (g + 1) * k), slice(None), *_tap(window, kernel, t))]
            seen = x[(slice(None), slice(g * c, (g + 1) * c), *i)]
            y[(slice(None), slice(g * k, (g + 1) * k), *o)] += _mixed(seen, taps)
    return y


def conv_data_grad(window: Window, g: Array, w: Array, space: Shape) -> Array:
    kernel = w.shape[2:]
    c, k = w.shape[1], w.shape[0] // window.groups
    dx = np.zeros((g.shape[0], c * window.groups, *space))
    for o, t, i in _meetings(window, kernel, g.shape[2:], space):
        for n in range(window.groups):
            taps = w[(slice(n * k, (n + 1) * k), slice(None), *_tap(window, kernel, t))]
            seen = g[(slice(None), slice(n * k, (n + 1) * k), *o)]
            dx[(slice(None), slice(n * c, (n + 1) * c), *i)] += _mixed(seen, taps.T)
    return dx


def conv_filter_grad(window: Window, x: Array, g: Array, kernel: Shape) -> Array:
    c, k = x.shape[1] // window.groups, g.shape[1] // window.groups
    dw = np.zeros((g.shape[1], c, *kernel))
    for o, t, i in _meetings(window, kernel, g.shape[2:], x.shape[2:]):
        for n in range(window.groups):
            left = g[(slice(None), slice(n * k, (n + 1) * k), *o)]
            right = x[(slice(None), slice(n * c, (n + 1) * c), *i)]
            dw[(slice(n * k, (n + 1) * k), slice(None), *_tap(window, kernel, t))] += _product(left, right)
    return dw


def max_pool(window: Window, kernel: Shape, x: Array) -> tuple[Array, Array]:
    """Maxima and the row-major offset of the first one in its window."""
    output = _output(window, kernel, x.shape[2:])
    y = np.full((*x.shape[:2], *output), -np.inf)
    index = np.zeros(y.shape, int)
    found = np.zeros(y.shape, bool)
    for o, t, i in _meetings(window, kernel, output, x.shape[2:]):
        place, value = (slice(None), slice(None), *o), x[(slice(None), slice(None), *i)]
        better = ~found[place] | (value > y[place])
        y[place] = np.where(better, value, y[place])
        index[place] = np.where(better, np.ravel_multi_index(t, kernel), index[place])
        found[place] = True
    return y, index


def max_pool_grad(window: Window, kernel: Shape, g: Array, index: Array, space: Shape) -> Array:
    dx = np.zeros((*g.shape[:2], *space))
    for o, t, i in _meetings(window, kernel, g.shape[2:], space):
        place = (slice(None), slice(None), *o)
        dx[(slice(None), slice(None), *i)] += g[place] * (index[place] == np.ravel_multi_index(t, kernel))
    return dx


def _divisors(window: Window, kernel: Shape, output: Shape, space: Shape, mode: str) -> Array:
    counts = np.zeros(output)
    for o, _, _ in _meetings(window, kernel, output, space):
        counts[o] += 1
    constant = {"include": float(np.prod(kernel)), "sum": 1.0}.get(mode)
    return np.maximum(counts, 1) if constant is None else np.full(output, constant)


def avg_pool(window: Window, kernel: Shape, x: Array, mode: str) -> Array:
    output = _output(window, kernel, x.shape[2:])
    y = np.zeros((*x.shape[:2], *output))
    for o, _, i in _meetings(window, kernel, output, x.shape[2:]):
        y[(slice(None), slice(None), *o)] += x[(slice(None), slice(None), *i)]
    return y / _divisors(window, kernel, output, x.shape[2:], mode)


def avg_pool_grad(window: Window, kernel: Shape, g: Array, mode: str, space: Shape) -> Array:
    share = g / _divisors(window, kernel, g.shape[2:], space, mode)
    dx = np.zeros((*g.shape[:2], *space))
    for o, _, i in _meetings(window, kernel, g.shape[2:], space):
        dx[(slice(None), slice(None), *i)] += share[(slice(None), slice(None), *o)]
    return dx
