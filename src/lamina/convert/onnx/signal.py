"""Windows, Fourier transforms and mel filters. Complex numbers have a last axis of size 2."""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.node import Array, OnnxNode, as_tensor, converts, require_bounded
from lamina.convert.onnx.proto import dtype_of

#: The terms of a window that is a sum of cosines: sum of (-1)^k a_k cos(2 pi k n / N).
WINDOWS = {
    "HannWindow": (0.5, 0.5),
    "HammingWindow": (25 / 46, 21 / 46),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}


@converts(*WINDOWS, known=(0,))
def window(node: OnnxNode) -> Any:
    """A window of a known size, periodic or symmetric."""
    size = int(node.number(0))
    require_bounded(str(node), 8 * size)
    around = size if node.get("periodic", 1) else size - 1
    phase = 2 * np.pi * np.arange(size) / max(around, 1)
    terms = ((-1) ** k * a * np.cos(k * phase) for k, a in enumerate(WINDOWS[node.operator]))
    return as_tensor(sum(terms), dtype_of(node.get("output_datatype", 1)))


@converts("MelWeightMatrix", known=(0, 1, 2, 3, 4))
def mel_weight_matrix(node: OnnxNode) -> Any:
    """[bins of the spectrum, mel bins]: triangles that are uniform on the mel scale (HTK's)."""
    bins, length, rate = (int(node.number(i)) for i in range(3))
    low, high = (2595 * np.log10(1 + float(node.number(i)) / 700) for i in (3, 4))
    spectrum = length // 2 + 1
    require_bounded(str(node), 8 * spectrum * bins)
    edges = 700 * (10 ** (np.arange(bins + 2) * (high - low) / (bins + 2) / 2595 + low / 2595) - 1)
    edge = ((length + 1) * edges // rate).astype(int)
    found = np.zeros((spectrum, bins))
    for i, (a, b, c) in enumerate(zip(edge, edge[1:], edge[2:], strict=False)):
        found[a:b, i] = (np.arange(a, b) - a) / max(b - a, 1)
        found[b:c, i] = (c - np.arange(b, c)) / max(c - b, 1)
        found[b, i] = 1
    return as_tensor(found, dtype_of(node.get("output_datatype", 1)))


def basis(size: int, used: int, inverse: bool) -> tuple[Array, Array]:
    """cos and sin [used, size] of the transform over `size` points, whose input is cropped or padded to that."""
    require_bounded("the basis of a Fourier transform", 8 * size * used)
    angle = 2 * np.pi * np.outer(np.arange(used), np.arange(size)) / size
    return np.cos(angle), np.sin(angle) if inverse else -np.sin(angle)


@converts("DFT", known=(1, 2))
def dft(node: OnnxNode) -> Any:
    """The discrete Fourier transform along an axis, by products with its basis."""
    x = node.input(0)
    axis = node.get("axis", 1) if node.opset < 20 else int(node.number(2, -2))
    axis %= x.ndim
    size = int(node.number(1, _points(node, x, axis)))
    onesided, inverse = bool(node.get("onesided", 0)), bool(node.get("inverse", 0))
    real, imaginary = x[..., 0], x[..., 1] if x.shape[-1] == 2 else None
    if onesided and inverse and imaginary is not None:
        real, imaginary = _mirrored(real, imaginary, axis, size)
    found = _transformed(real, imaginary, axis, size, inverse)
    if onesided and inverse:
        return found[0].unsqueeze(-1)
    kept = size // 2 + 1 if onesided else size
    cut = (slice(None),) * axis + (slice(0, kept),)
    return ops.stack([part[cut] for part in found], -1)


def _points(node: OnnxNode, x: Any, axis: int) -> int:
    """The default number of points of the transform."""
    both = node.get("onesided", 0) and node.get("inverse", 0)
    return 2 * (int(x.shape[axis]) - 1) if both else int(x.shape[axis])


def _mirrored(real: Any, imaginary: Any, axis: int, size: int) -> tuple[Any, Any]:
    """The whole spectrum of a real signal from its first half."""
    back = (slice(None),) * axis + (slice(1, size - size // 2),)
    return (
        ops.cat([real, ops.flip(real[back], axis)], axis),
        ops.cat([imaginary, ops.neg(ops.flip(imaginary[back], axis))], axis),
    )


def _transformed(real: Any, imaginary: Any, axis: int, size: int, inverse: bool) -> tuple[Any, Any]:
    used = min(real.shape[axis], size)
    cos, sin = (as_tensor(m / size if inverse else m, real.dtype) for m in basis(size, used, inverse))
    a = _product(real, cos, axis), _product(real, sin, axis)
    if imaginary is None:
        return a
    b = _product(imaginary, cos, axis), _product(imaginary, sin, axis)
    return ops.sub(a[0], b[1]), ops.add(a[1], b[0])


def _product(x: Any, m: Any, axis: int) -> Any:
    """x's axis (its first elements) times a matrix."""
    x = x[(slice(None),) * axis + (slice(0, m.shape[0]),)]
    last = x.ndim - 1
    return ops.transpose(ops.matmul(ops.transpose(x, axis, last), m), axis, last)


@converts("STFT", known=(1, 3))
def stft(node: OnnxNode) -> Any:
    """[B, frames, frequencies, 2]: the transform of strided windows."""
    x, step = node.input(0), int(node.number(1))
    weights = node.optional(2)
    size = int(node.number(3, weights.shape[0] if weights is not None else None))
    frames = (x.shape[1] - size) // step + 1
    place = np.arange(frames)[:, None] * step + np.arange(size)
    parts = ops.index_select(x, 1, as_tensor(place.reshape(-1)))
    parts = parts.reshape((x.shape[0], frames, size, *x.shape[2:]))
    real = parts[..., 0] if x.ndim == 3 else parts
    imaginary = parts[..., 1] if x.ndim == 3 and x.shape[2] == 2 else None
    if weights is not None:
        real = ops.mul(real, weights)
        imaginary = None if imaginary is None else ops.mul(imaginary, weights)
    found = _transformed(real, imaginary, 2, size, False)
    kept = size // 2 + 1 if node.get("onesided", 1) else size
    return ops.stack([part[:, :, :kept] for part in found], -1)
