"""Discrete Fourier transforms, named and called as in torch.fft.

There are no complex dtypes: a complex number is a last axis of size two, real and imaginary part, as in
torch.view_as_real, and `dim` counts the axes before it. A real signal x is `stack((x, zeros_like(x)), -1)`; `rfft`
takes it directly.

Transforms are matrix products (`primitives.dft`), so they run and differentiate wherever products do. Half types are
computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from lamina._lazy import listing
from lamina.ops.arguments import DTypeLike, checked, within
from lamina.ops.core import Array, DeviceLike, floating, operand
from lamina.ops.primitives.arrange import roll
from lamina.ops.primitives.dft import Pair, dft, from_half, half, widened
from lamina.ops.primitives.shape import pad, stack, transpose
from lamina.spec import DTypeError, ShapeError, as_dtype, float32

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft", "irfft",
    "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip
__dir__ = listing(__all__)

Norm = Literal["forward", "backward", "ortho"]


# ------------------------------------------------------------------------------------------------------- one axis
@checked
def fft(input: Any, n: int | None = None, dim: int = -1, norm: Norm | None = None) -> Any:
    """The n-point transform of input [..., 2] along dim: sum over j of x[j] exp(-2 pi i j k / n). torch.fft.fft.

    n: the input is zero-padded or truncated at the end; norm: "backward" (None) scales the inverse by 1/n, "forward"
    this one, "ortho" both by 1/sqrt(n). Raises ShapeError unless the last axis has size two, ValueError, DTypeError.
    """
    return _along("fft", input, _sizes(n), (dim,), norm, -1)


@checked
def ifft(input: Any, n: int | None = None, dim: int = -1, norm: Norm | None = None) -> Any:
    """The inverse of `fft`. torch.fft.ifft."""
    return _along("ifft", input, _sizes(n), (dim,), norm, 1)


@checked
def rfft(input: Any, n: int | None = None, dim: int = -1, norm: Norm | None = None) -> Any:
    """The frequencies 0 … n // 2 of a real input's transform along dim: [..., 2], as torch.fft.rfft; see `fft`."""
    return _real_along("rfft", input, _sizes(n), (dim,), norm)


@checked
def irfft(input: Any, n: int | None = None, dim: int = -1, norm: Norm | None = None) -> Any:
    """The real signal of n points (by default 2 (K - 1)) of which input [..., K, ..., 2] is the `rfft`.
    torch.fft.irfft.
    """
    return _back_to_real("irfft", input, _sizes(n), (dim,), norm)


@checked
def hfft(input: Any, n: int | None = None, dim: int = -1, norm: Norm | None = None) -> Any:
    """The real transform of n points of a signal [..., 2] whose second half is the conjugate of the first.
    torch.fft.hfft.
    """
    re, im = _pair("hfft", input)
    return irfft(stack((re, -im), -1), n, dim, _turned(norm))


@checked
def ihfft(input: Any, n: int | None = None, dim: int = -1, norm: Norm | None = None) -> Any:
    """The inverse of `hfft`: [..., 2] of a real input. torch.fft.ihfft."""
    re, im = _parts(rfft(input, n, dim, _turned(norm)))
    return stack((re, -im), -1)


# ---------------------------------------------------------------------------------------------------- several axes
@checked
def fft2(
    input: Any, s: Sequence[int] | None = None, dim: Sequence[int] = (-2, -1), norm: Norm | None = None
) -> Any:
    """`fft` along two axes, of s points each. torch.fft.fft2."""
    return fftn(input, s, dim, norm)


@checked
def ifft2(
    input: Any, s: Sequence[int] | None = None, dim: Sequence[int] = (-2, -1), norm: Norm | None = None
) -> Any:
    """The inverse of `fft2`. torch.fft.ifft2."""
    return ifftn(input, s, dim, norm)


@checked
def rfft2(
    input: Any, s: Sequence[int] | None = None, dim: Sequence[int] = (-2, -1), norm: Norm | None = None
) -> Any:
    """`rfft` along the last axis of dim, then `fft` along the other. torch.fft.rfft2."""
    return rfftn(input, s, dim, norm)


@checked
def irfft2(
    input: Any, s: Sequence[int] | None = None, dim: Sequence[int] = (-2, -1), norm: Norm | None = None
) -> Any:
    """The inverse of `rfft2`: real. torch.fft.irfft2."""
    return irfftn(input, s, dim, norm)


@checked
def fftn(
    input: Any,
    s: Sequence[int] | None = None,
    dim: Sequence[int] | int | None = None,
    norm: Norm | None = None,
) -> Any:
    """`fft` along axes, by default all (the last ones if only s is given), of s points each. torch.fft.fftn."""
    return _along("fftn", input, s, _axes(input, s, dim, 1), norm, -1)


@checked
def ifftn(
    input: Any,
    s: Sequence[int] | None = None,
    dim: Sequence[int] | int | None = None,
    norm: Norm | None = None,
) -> Any:
    """The inverse of `fftn`. torch.fft.ifftn."""
    return _along("ifftn", input, s, _axes(input, s, dim, 1), norm, 1)


@checked
def rfftn(
    input: Any,
    s: Sequence[int] | None = None,
    dim: Sequence[int] | int | None = None,
    norm: Norm | None = None,
) -> Any:
    """`rfft` along the last of the axes, then `fft` along the others. torch.fft.rfftn."""
    return _real_along("rfftn", input, s, _axes(input, s, dim, 0), norm)


@checked
def irfftn(
    input: Any,
    s: Sequence[int] | None = None,
    dim: Sequence[int] | int | None = None,
    norm: Norm | None = None,
) -> Any:
    """The inverse of `rfftn`: real. torch.fft.irfftn."""
    return _back_to_real("irfftn", input, s, _axes(input, s, dim, 1), norm)


# ------------------------------------------------------------------------------------------------------ frequencies
@checked
def fftfreq(
    n: int, d: float = 1.0, *, dtype: DTypeLike = float32, device: DeviceLike | str | None = None
) -> Any:
    """The frequencies of an n-point `fft` with sample spacing d: [n], 0, 1, …, -2, -1 over n d. torch.fft.fftfreq."""
    within("fftfreq", "n", n, 1)
    return _frequencies(np.fft.fftfreq(n, d), dtype, device)


@checked
def rfftfreq(
    n: int, d: float = 1.0, *, dtype: DTypeLike = float32, device: DeviceLike | str | None = None
) -> Any:
    """The frequencies of `rfft`: [n // 2 + 1]. torch.fft.rfftfreq."""
    within("rfftfreq", "n", n, 1)
    return _frequencies(np.fft.rfftfreq(n, d), dtype, device)


@checked
def fftshift(input: Any, dim: Sequence[int] | int | None = None) -> Any:
    """Move frequency 0 to the middle of the axes, by default all. torch.fft.fftshift.

    For (real, imaginary) pairs pass dim: their last axis counts as one of the tensor's.
    """
    return _shifted("fftshift", input, dim, lambda n: n // 2)


@checked
def ifftshift(input: Any, dim: Sequence[int] | int | None = None) -> Any:
    """The inverse of `fftshift`. torch.fft.ifftshift."""
    return _shifted("ifftshift", input, dim, lambda n: (n + 1) // 2)


def _frequencies(values: Array, dtype: DTypeLike, device: Any) -> Any:
    kind = as_dtype(dtype)
    if not kind.is_float:
        raise DTypeError(f"fftfreq: dtype must be a float, got {kind}")
    made = operand(values.astype(kind.numpy))
    return made if device is None else made.to(device)


def _shifted(what: str, input: Any, dim: Sequence[int] | int | None, by: Callable[[int], int]) -> Any:
    x = operand(input, what)
    axes = tuple(range(x.ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    return roll(x, tuple(by(x.shape[_axis(what, a, x.ndim)]) for a in axes), axes) if axes else x


# --------------------------------------------------------------------------------------------------------- arguments
def _sizes(n: int | None) -> tuple[int, ...] | None:
    return None if n is None else (n,)


def _turned(norm: Norm | None) -> Norm:
    """The scaling mode of the inverse, for the forward transform."""
    turned: dict[Any, Norm] = {
        None: "forward",
        "backward": "forward",
        "forward": "backward",
        "ortho": "ortho",
    }
    return turned[norm]


def _scale(norm: Norm | None, n: int, inverse: bool) -> float:
    """The scale factor of one axis of n points."""
    if norm == "ortho":
        return math.sqrt(1 / n)
    return 1 / n if inverse == (norm != "forward") else 1.0


def _axis(what: str, dim: int, rank: int) -> int:
    within(what, "dim", dim, -rank, rank - 1)
    return dim % rank


def _axes(
    input: Any, s: Sequence[int] | None, dim: Sequence[int] | int | None, pairs: int
) -> tuple[int, ...]:
    """The axes of a multi-axis transform; `pairs` trailing axes hold real and imaginary part."""
    if dim is not None:
        return (dim,) if isinstance(dim, int) else tuple(dim)
    rank = operand(input).ndim - pairs
    return tuple(range(-rank if s is None else -len(s), 0))


def _pair(what: str, input: Any) -> Pair:
    x = floating(input, what)
    if x.ndim < 2 or x.shape[-1] != 2:
        raise ShapeError(
            f"{what}: needs complex numbers as [..., 2], real and imaginary part (torch.view_as_real), got {x.spec}; "
            "of real ones take rfft, or stack((x, zeros_like(x)), -1)"
        )
    return _parts(x)


def _parts(x: Any) -> Pair:
    return x[..., 0], x[..., 1]


def _points(what: str, s: Sequence[int] | None, axes: Sequence[int], shape: Sequence[int]) -> list[int]:
    """The number of points along each axis; -1 and None keep the axis' size."""
    if s is not None and len(s) != len(axes):
        raise ValueError(f"{what}: s and dim must be of the same length, got {tuple(s)} and {tuple(axes)}")
    if len({a % len(shape) for a in axes}) != len(axes) or not axes:
        raise ValueError(f"{what}: dim must name each axis once, and one at least, got {tuple(axes)}")
    found = [shape[a] if s is None or s[i] == -1 else s[i] for i, a in enumerate(axes)]
    for n in found:
        within(what, "the number of points", n, 1)
    return found


# --------------------------------------------------------------------------------------------------------- transforms
def transformed(
    what: str, z: Pair, s: Sequence[int] | None, dims: Sequence[int], norm: Norm | None, sign: int
) -> Pair:
    """Real and imaginary part (None: zero) of the transform along axes; sign: that of the exponent."""
    re, im = z
    axes = [_axis(what, d, re.ndim) for d in dims]
    kind = re.dtype
    z = widened(re), None if im is None else widened(im)
    for axis, n in zip(axes, _points(what, s, axes, re.shape), strict=True):
        z = _on_axis(z, axis, n, partial(dft, sign=sign, scale=_scale(norm, n, sign > 0)))
    return _as(z, kind)


def real_transformed(
    what: str, x: Any, s: Sequence[int] | None, dims: Sequence[int], norm: Norm | None
) -> Pair:
    """The first half of the real transform along the last of the axes, then the transform along the others."""
    axes = [_axis(what, d, x.ndim) for d in dims]
    sizes, kind = _points(what, s, axes, x.shape), x.dtype
    n = sizes[-1]
    z = _on_axis((widened(x), None), axes[-1], n, lambda z: half(z[0], _scale(norm, n, False)))
    return _as(transformed(what, z, sizes[:-1], axes[:-1], norm, -1) if axes[:-1] else z, kind)


def back_to_real(what: str, z: Pair, s: Sequence[int] | None, dims: Sequence[int], norm: Norm | None) -> Any:
    """The real signal of a half spectrum along the last of the axes, after the inverse along the others."""
    re, im = z
    axes = [_axis(what, d, re.ndim) for d in dims]
    last = 2 * (re.shape[axes[-1]] - 1) if s is None or s[-1] == -1 else s[-1]
    within(what, "the number of points", last, 1)
    kind = re.dtype
    z = widened(re), widened(im)
    if axes[:-1]:
        z = transformed(what, z, None if s is None else s[:-1], axes[:-1], norm, 1)
    made = _on_axis(
        z, axes[-1], last // 2 + 1, lambda z: (from_half(z, last, _scale(norm, last, True)), None)
    )
    return _as(made, kind)[0]


def _as(z: Pair, kind: Any) -> Pair:
    re, im = (None if part is None or part.dtype == kind else part.cast(kind) for part in z)
    return z[0] if re is None else re, z[1] if im is None else im


def _along(what: str, input: Any, s: Any, dims: Sequence[int], norm: Norm | None, sign: int) -> Any:
    return stack(transformed(what, _pair(what, input), s, dims, norm, sign), -1)


def _real_along(what: str, input: Any, s: Any, dims: Sequence[int], norm: Norm | None) -> Any:
    return stack(real_transformed(what, floating(input, what), s, dims, norm), -1)


def _back_to_real(what: str, input: Any, s: Any, dims: Sequence[int], norm: Norm | None) -> Any:
    return back_to_real(what, _pair(what, input), s, dims, norm)


def _on_axis(z: Pair, axis: int, n: int, transform: Callable[[Pair], Pair]) -> Pair:
    """Apply transform, which acts on the last axis, to another axis, of which n points count."""
    rank = z[0].ndim

    def there(part: Any) -> Any:
        part = part if axis == rank - 1 else transpose(part, axis, rank - 1)
        size = part.shape[-1]
        return part if size == n else part[..., :n] if size > n else pad(part, (0, n - size))

    def back(part: Any) -> Any:
        return part if axis == rank - 1 else transpose(part, axis, rank - 1)

    re, im = transform((there(z[0]), None if z[1] is None else there(z[1])))
    return back(re), None if im is None else back(im)
