"""Reference implementations of the operations in NumPy float64: forward by the formula, gradients by hand.

Tensors are N, C, spatial. `test_reference.py` compares the gradients with finite differences.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Ints = Sequence[int]


# ----------------------------------------------------------------------------------------------- convolution
def _taps(window: Ints, stride: Ints, dilation: Ints, out: Ints) -> Any:
    """Every filter position with the corresponding slice of the padded input."""
    for tap in itertools.product(*map(range, window)):
        places = zip(tap, stride, dilation, out, strict=True)
        yield tap, tuple(slice(t * d, t * d + (o - 1) * s + 1, s) for t, s, d, o in places)


def _padded(x: Array, pad: Ints, value: float = 0.0) -> Array:
    return np.pad(x, [(0, 0), (0, 0), *((p, p) for p in pad)], constant_values=value)


def _cropped(x: Array, pad: Ints) -> Array:
    return x[
        (slice(None), slice(None), *(slice(p, size - p) for p, size in zip(pad, x.shape[2:], strict=True)))
    ]


def conv_shape(x: Ints, w: Ints, pad: Ints, stride: Ints, dilation: Ints) -> tuple[int, ...]:
    sizes = zip(x[2:], w[2:], pad, stride, dilation, strict=True)
    return (x[0], w[0], *(1 + (n + 2 * p - (k - 1) * d - 1) // s for n, k, p, s, d in sizes))


def _turned(w: Array, flip: bool) -> Array:
    return np.flip(w, axis=tuple(range(2, w.ndim))) if flip else w


def conv(
    x: Array, w: Array, pad: Ints, stride: Ints, dilation: Ints, groups: int = 1, flip: bool = False
) -> Array:
    """Cross-correlation, or convolution if `flip`."""
    shape, w = conv_shape(x.shape, w.shape, pad, stride, dilation), _turned(w, flip)
    y, padded = np.zeros(shape), _padded(x, pad)
    k, c = w.shape[0] // groups, w.shape[1]
    for g, (tap, place) in itertools.product(range(groups), _taps(w.shape[2:], stride, dilation, shape[2:])):
        part = padded[(slice(None), slice(g * c, (g + 1) * c), *place)]
        y[:, g * k : (g + 1) * k] += np.einsum(
            "nc...,kc->nk...", part, w[(slice(g * k, (g + 1) * k), slice(None), *tap)]
        )
    return y


def conv_data(
    dy: Array, w: Array, x: Ints, pad: Ints, stride: Ints, dilation: Ints, groups: int = 1, flip: bool = False
) -> Array:
    """Gradient of `conv` with respect to its input of shape `x`."""
    w = _turned(w, flip)
    dx = _padded(np.zeros(x), pad)
    k, c = w.shape[0] // groups, w.shape[1]
    for g, (tap, place) in itertools.product(
        range(groups), _taps(w.shape[2:], stride, dilation, dy.shape[2:])
    ):
        part = w[(slice(g * k, (g + 1) * k), slice(None), *tap)]
        dx[(slice(None), slice(g * c, (g + 1) * c), *place)] += np.einsum(
            "nk...,kc->nc...", dy[:, g * k : (g + 1) * k], part
        )
    return _cropped(dx, pad)


def conv_filter(
    x: Array, dy: Array, w: Ints, pad: Ints, stride: Ints, dilation: Ints, groups: int = 1, flip: bool = False
) -> Array:
    """Gradient of `conv` with respect to its filter of shape `w`."""
    dw, padded = np.zeros(w), _padded(x, pad)
    k, c = w[0] // groups, w[1]
    for g, (tap, place) in itertools.product(range(groups), _taps(w[2:], stride, dilation, dy.shape[2:])):
        part = padded[(slice(None), slice(g * c, (g + 1) * c), *place)]
        dw[(slice(g * k, (g + 1) * k), slice(None), *tap)] = np.einsum(
            "nks,ncs->kc",
            dy[:, g * k : (g + 1) * k].reshape(dy.shape[0], k, -1),
            part.reshape(part.shape[0], c, -1),
        )
    return _turned(dw, flip)


def columns(x: Array, w: Ints, pad: Ints, stride: Ints, dilation: Ints) -> Array:
    """im2col: N·P·Q rows of the C·R·S values under the filter."""
    shape, padded = conv_shape(x.shape, w, pad, stride, dilation), _padded(x, pad)
    taps = [
        padded[(slice(None), slice(None), *place)] for _, place in _taps(w[2:], stride, dilation, shape[2:])
    ]
    return (
        np.stack(taps, axis=2)
        .reshape(x.shape[0], x.shape[1] * len(taps), -1)
        .transpose(0, 2, 1)
        .reshape(-1, x.shape[1] * len(taps))
    )


# -------------------------------------------------------------------------------------------------- pointwise
def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


#: mode -> (f(x, coef), derivative)
ACTIVATIONS: dict[str, tuple[Callable[[Array, float], Array], Callable[[Array, float], Array]]] = {
    "sigmoid": (lambda x, a: _sigmoid(x), lambda x, a: _sigmoid(x) * (1 - _sigmoid(x))),
    "relu": (lambda x, a: np.maximum(x, 0), lambda x, a: (x > 0) * 1.0),
    "tanh": (lambda x, a: np.tanh(x), lambda x, a: 1 - np.tanh(x) ** 2),
    "clipped_relu": (lambda x, a: np.clip(x, 0, a), lambda x, a: ((x > 0) & (x < a)) * 1.0),
    "elu": (
        lambda x, a: np.where(x > 0, x, a * np.expm1(np.minimum(x, 0))),
        lambda x, a: np.where(x > 0, 1.0, a * np.exp(np.minimum(x, 0))),
    ),
    "swish": (
        lambda x, b: x * _sigmoid(b * x),
        lambda x, b: _sigmoid(b * x) * (1 + b * x * (1 - _sigmoid(b * x))),
    ),
}

OPS: dict[str, Callable[[Array, Array], Array]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "min": lambda a, b: np.minimum(a, b),
    "max": lambda a, b: np.maximum(a, b),
    "sqrt": lambda a, b: np.sqrt(a),
    "not": lambda a, b: 1 - a,
}

#: op -> reduction of an array over axes, kept with size 1
REDUCTIONS: dict[str, Callable[[Array, tuple[int, ...]], Array]] = {
    "add": lambda a, axes: a.sum(axes, keepdims=True),
    "mul": lambda a, axes: a.prod(axes, keepdims=True),
    "min": lambda a, axes: a.min(axes, keepdims=True),
    "max": lambda a, axes: a.max(axes, keepdims=True),
    "amax": lambda a, axes: np.abs(a).max(axes, keepdims=True),
    "avg": lambda a, axes: a.mean(axes, keepdims=True),
    "norm1": lambda a, axes: np.abs(a).sum(axes, keepdims=True),
    "norm2": lambda a, axes: np.sqrt((a * a).sum(axes, keepdims=True)),
    "mul_no_zeros": lambda a, axes: np.where(a == 0, 1, a).prod(axes, keepdims=True),
}


# ---------------------------------------------------------------------------------------------------- pooling
def _windows(x: Array, window: Ints, pad: Ints, stride: Ints, fill: float) -> tuple[Array, Array]:
    """(N, C, P, ..., taps) of values and of whether they are inside."""
    out = [1 + (n + 2 * p - k) // s for n, k, p, s in zip(x.shape[2:], window, pad, stride, strict=True)]
    found = []
    for values in (_padded(x, pad, fill), _padded(np.ones_like(x), pad, 0.0)):
        taps = _taps(window, stride, (1,) * len(window), out)
        found.append(np.stack([values[(slice(None), slice(None), *place)] for _, place in taps], axis=-1))
    return found[0], found[1]


def pool(mode: str, x: Array, window: Ints, pad: Ints, stride: Ints) -> Array:
    values, inside = _windows(x, window, pad, stride, -np.inf if mode.startswith("max") else 0.0)
    if mode.startswith("max"):
        return values.max(-1)
    whole = mode == "average_count_include_padding"
    return values.sum(-1) / (math.prod(window) if whole else inside.sum(-1))


def pool_gradient(mode: str, x: Array, dy: Array, window: Ints, pad: Ints, stride: Ints) -> Array:
    """Gradient with respect to x; among equal maxima the first gets all."""
    values, inside = _windows(x, window, pad, stride, -np.inf if mode.startswith("max") else 0.0)
    if mode.startswith("max"):
        share = np.zeros_like(values)
        np.put_along_axis(share, values.argmax(-1)[..., None], 1.0, axis=-1)
    else:
        whole = mode == "average_count_include_padding"
        share = inside / (math.prod(window) if whole else inside.sum(-1)[..., None])
    dx = _padded(np.zeros_like(x), pad)
    for i, (_, place) in enumerate(_taps(window, stride, (1,) * len(window), dy.shape[2:])):
        dx[(slice(None), slice(None), *place)] += dy * share[..., i]
    return _cropped(dx, pad)


# ---------------------------------------------------------------------------------------------------- softmax
def _softmax_axes(mode: str, x: Array) -> tuple[int, ...]:
    return (1,) if mode == "channel" else tuple(range(1, x.ndim))


def softmax(algorithm: str, mode: str, x: Array) -> Array:
    axes = _softmax_axes(mode, x)
    shifted = x - x.max(axes, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axes, keepdims=True))
    return logs if algorithm == "log" else np.exp(logs)


def softmax_gradient(algorithm: str, mode: str, y: Array, dy: Array) -> Array:
    axes = _softmax_axes(mode, y)
    if algorithm == "log":
        return dy - np.exp(y) * dy.sum(axes, keepdims=True)
    return y * (dy - (y * dy).sum(axes, keepdims=True))


# -------------------------------------------------------------------------------------------------- batch norm
def norm_axes(mode: str, x: Array) -> tuple[int, ...]:
    return (0,) if mode == "per_activation" else (0, *range(2, x.ndim))


def statistics(mode: str, x: Array, epsilon: float) -> tuple[Array, Array, Array, Array]:
    """Mean, biased variance, unbiased variance, 1 / sqrt(variance + epsilon), shaped as parameters."""
    axes = norm_axes(mode, x)
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    m = x.size / mean.size
    return mean, variance, variance * m / (m - 1), 1 / np.sqrt(variance + epsilon)


def batch_norm(mode: str, x: Array, scale: Array, bias: Array, epsilon: float) -> Array:
    mean, _, _, inv = statistics(mode, x, epsilon)
    return scale * (x - mean) * inv + bias


def batch_norm_gradient(
    mode: str, x: Array, dy: Array, scale: Array, epsilon: float
) -> tuple[Array, Array, Array]:
    """Gradients with respect to x, scale and bias."""
    axes, (mean, _, _, inv) = norm_axes(mode, x), statistics(mode, x, epsilon)
    hat = (x - mean) * inv
    dbias, dscale = dy.sum(axes, keepdims=True), (dy * hat).sum(axes, keepdims=True)
    m = x.size / mean.size
    return scale * inv * (dy - dbias / m - hat * dscale / m), dscale, dbias


# ------------------------------------------------------------------------------------------------------- LRN
def _channel_sums(v: Array, before: int, after: int) -> Array:
    """Sum over channels c - before to c + after."""
    padded = np.pad(v, [(0, 0), (before, after), *((0, 0),) * (v.ndim - 2)])
    return sum(padded[:, i : i + v.shape[1]] for i in range(before + after + 1))  # type: ignore[return-value]


def lrn(x: Array, n: int, alpha: float, beta: float, k: float) -> Array:
    before = (n - 1) // 2
    return x / (k + alpha / n * _channel_sums(x * x, before, n - 1 - before)) ** beta


def lrn_gradient(x: Array, dy: Array, n: int, alpha: float, beta: float, k: float) -> Array:
    before = (n - 1) // 2
    scale = k + alpha / n * _channel_sums(x * x, before, n - 1 - before)
    ahead = _channel_sums(dy * x * scale ** (-beta - 1), n - 1 - before, before)
    return dy * scale**-beta - 2 * alpha * beta / n * x * ahead


def _box_sums(v: Array, before: int, after: int) -> Array:
    """Sum over a square of positions of the same channel (2 spatial axes)."""
    padded = np.pad(v, [(0, 0), (0, 0), (before, after), (before, after)])
    h, w = v.shape[2:]
    span = range(before + after + 1)
    return sum(padded[:, :, i : i + h, j : j + w] for i in span for j in span)  # type: ignore[return-value]


def divisive(x: Array, means: Array, n: int, alpha: float, beta: float, k: float) -> Array:
    """x over the power of the window's squared deviations from the mean at its center."""
    return x / (k + alpha / n**2 * _deviations(x, means, n)[0]) ** beta


def _deviations(x: Array, means: Array, n: int) -> tuple[Array, Array]:
    """Sums over the window's positions j inside the image of (x[j] - means[i])**2, and of x[j] - means[i]."""
    span = ((n - 1) // 2, n - 1 - (n - 1) // 2)
    count, sums, squares = (_box_sums(v, *span) for v in (np.ones_like(x), x, x * x))
    return squares - 2 * means * sums + count * means**2, sums - count * means


def divisive_gradient(
    x: Array, means: Array, dy: Array, n: int, alpha: float, beta: float, k: float
) -> tuple[Array, Array]:
    """Gradients with respect to x and means."""
    before = (n - 1) // 2
    squares, deviations = _deviations(x, means, n)
    scale = k + alpha / n**2 * squares
    factor, per_window = 2 * alpha * beta / n**2, dy * x * scale ** (-beta - 1)
    ahead = [_box_sums(v, n - 1 - before, before) for v in (per_window, means * per_window)]
    return dy * scale**-beta - factor * (x * ahead[0] - ahead[1]), factor * per_window * deviations


# -------------------------------------------------------------------------------------------- spatial transformer
def grid(theta: Array, h: int, w: int) -> Array:
    """N×H×W×2 points, x first, from N×2×3 maps; corners are the centers of the corner pixels."""
    ys, xs = np.meshgrid(np.linspace(-1, 1, h), np.linspace(-1, 1, w), indexing="ij")
    return np.einsum("nij,hwj->nhwi", theta, np.stack([xs, ys, np.ones_like(xs)], -1))


def grid_gradient(dgrid: Array) -> Array:
    h, w = dgrid.shape[1:3]
    ys, xs = np.meshgrid(np.linspace(-1, 1, h), np.linspace(-1, 1, w), indexing="ij")
    return np.einsum("nhwi,hwj->nij", dgrid, np.stack([xs, ys, np.ones_like(xs)], -1))


def _corners(points: Array, h: int, w: int) -> Any:
    """For each corner of the pixel square around a point: row, column, inside, weight, its slopes in x and y."""
    px, py = (points[..., 0] + 1) * (w - 1) / 2, (points[..., 1] + 1) * (h - 1) / 2
    left, top = np.floor(px).astype(int), np.floor(py).astype(int)
    for dx, dy in itertools.product((0, 1), (0, 1)):
        fx, fy = 1 - np.abs(px - left - dx), 1 - np.abs(py - top - dy)
        row, column = top + dy, left + dx
        inside = (row >= 0) & (row < h) & (column >= 0) & (column < w)
        slope_x, slope_y = (2 * dx - 1) * fy * (w - 1) / 2, (2 * dy - 1) * fx * (h - 1) / 2
        yield row.clip(0, h - 1), column.clip(0, w - 1), inside, fx * fy, slope_x, slope_y


def sample(x: Array, points: Array) -> Array:
    """N×C×H×W sampled at N×P×Q×2 points, zeros outside."""
    n = np.arange(x.shape[0])[:, None, None]
    y = 0.0
    for row, column, inside, weight, _, _ in _corners(points, *x.shape[2:]):
        y = y + (x[n, :, row, column] * (inside * weight)[..., None]).transpose(0, 3, 1, 2)
    return np.asarray(y)


def sample_gradient(x: Array, points: Array, dy: Array) -> tuple[Array, Array]:
    """Gradients with respect to x and the points."""
    n = np.arange(x.shape[0])[:, None, None]
    dx, dpoints, last = np.zeros_like(x), np.zeros_like(points), dy.transpose(0, 2, 3, 1)
    for row, column, inside, weight, slope_x, slope_y in _corners(points, *x.shape[2:]):
        spread = last * (inside * weight)[..., None]
        np.add.at(dx.transpose(0, 2, 3, 1), (n, row, column), spread)
        along = (x[n, :, row, column] * last).sum(-1) * inside
        dpoints[..., 0] += along * slope_x
        dpoints[..., 1] += along * slope_y
    return dx, dpoints


# -------------------------------------------------------------------------------------------------------- CTC
def ctc(activations: Array, labels: Sequence[Ints], lengths: Ints) -> tuple[Array, Array]:
    """Costs and their gradients with respect to activations (T, N, A), blank 0 (Graves et al. 2006, in
    logarithms)."""
    logs = softmax("log", "channel", activations.transpose(0, 2, 1)).transpose(0, 2, 1)
    costs, gradients = np.zeros(len(labels)), np.zeros_like(activations)
    for i, (label, steps) in enumerate(zip(labels, lengths, strict=True)):
        path = [0, *(v for one in label for v in (one, 0))]
        emitted = logs[:steps, i][:, path]  # (steps, states)
        forward = _ctc_sums(emitted, path)
        backward = _ctc_sums(emitted[::-1, ::-1], path[::-1])[::-1, ::-1]
        total = np.logaddexp.reduce(forward[-1, -2:])
        costs[i] = -total
        occupied = np.exp(forward + backward - emitted - total)
        gradients[:steps, i] = np.exp(logs[:steps, i])
        for state, symbol in enumerate(path):
            gradients[:steps, i, symbol] -= occupied[:, state]
    return costs, gradients


def _ctc_sums(emitted: Array, path: Ints) -> Array:
    """Logarithm of the sum over all partial paths that end in each state at each step."""
    table = np.full(emitted.shape, -np.inf)
    table[0, :2] = emitted[0, :2]
    for t, s in itertools.product(range(1, len(emitted)), range(len(path))):
        reached = table[t - 1, s]
        if s > 0:
            reached = np.logaddexp(reached, table[t - 1, s - 1])
        if s > 1 and path[s] != 0 and path[s] != path[s - 2]:
            reached = np.logaddexp(reached, table[t - 1, s - 2])
        table[t, s] = reached + emitted[t, s]
    return table
