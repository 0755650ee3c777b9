"""Short-time Fourier transforms, windows and mel filters.

There are no complex dtypes: a complex number is a last axis of size two, real and imaginary part, as in
torch.view_as_real.

A transform is one convolution with the Fourier basis. With a hop of H the signal is split into blocks of H samples,
which are the channels, and a frame is R = ceil(N / H) consecutive blocks: a filter of R taps. Frames are thus never
copied, and the inverse's overlap-add is the transposed convolution. On a CPU long frames are copied and pass through
a fast transform each. On a GPU a kernel transforms frames where they lie, if their size has small prime factors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from lamina.ops.arguments import DTypeLike, checked, within
from lamina.ops.core import (
    Array,
    BatchAxes,
    DeviceLike,
    Op,
    Sample,
    call,
    first_axis,
    floating,
    listing,
    operand,
)
from lamina.ops.primitives.conv import conv1d, conv_transpose1d
from lamina.ops.primitives.dft import half, widened
from lamina.ops.primitives.matmul import matmul
from lamina.ops.primitives.shape import cat, pad, stack
from lamina.spec import DType, DTypeError, ShapeError, Spec, as_dtype, float32

# ---------------------------------------------------------------------------------------------------------- windows


def _cosines(length: int, periodic: bool, *weights: float) -> Array:
    """weights[0] - weights[1] cos(a) + weights[2] cos(2 a) - …, with a once around the circle."""
    angle = 2 * np.pi * _unit(length, periodic)
    found: Array = sum(((-1) ** k * w * np.cos(k * angle) for k, w in enumerate(weights)), np.zeros(length))
    return found


def _unit(length: int, periodic: bool) -> Array:
    """0 … 1: without the end point if the window is periodic."""
    return np.arange(length) / max(length if periodic else length - 1, 1)


def _window(values: Array, dtype: DTypeLike, device: Any) -> Any:
    kind = as_dtype(dtype)
    if not kind.is_float:
        raise DTypeError(f"window: dtype must be a float, got {kind}")
    made = operand((values if len(values) != 1 else np.ones(1)).astype(kind.numpy))
    return made if device is None else made.to(device)


@checked
def hann_window(
    window_length: int,
    periodic: bool = True,
    *,
    dtype: DTypeLike = float32,
    device: DeviceLike | str | None = None,
) -> Any:
    """The Hann window, 0.5 - 0.5 cos, as torch.hann_window: [window_length].

    periodic: one period, for transforms; else symmetric. Raises ValueError for a negative length.
    """
    within("hann_window", "window_length", window_length, 0)
    return _window(_cosines(window_length, periodic, 0.5, 0.5), dtype, device)


@checked
def hamming_window(
    window_length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    *,
    dtype: DTypeLike = float32,
    device: DeviceLike | str | None = None,
) -> Any:
    """The Hamming window, alpha - beta cos, as torch.hamming_window; see `hann_window`."""
    within("hamming_window", "window_length", window_length, 0)
    return _window(_cosines(window_length, periodic, alpha, beta), dtype, device)


@checked
def blackman_window(
    window_length: int,
    periodic: bool = True,
    *,
    dtype: DTypeLike = float32,
    device: DeviceLike | str | None = None,
) -> Any:
    """The Blackman window, 0.42 - 0.5 cos a + 0.08 cos 2 a, as torch.blackman_window; see `hann_window`."""
    within("blackman_window", "window_length", window_length, 0)
    return _window(_cosines(window_length, periodic, 0.42, 0.5, 0.08), dtype, device)


@checked
def bartlett_window(
    window_length: int,
    periodic: bool = True,
    *,
    dtype: DTypeLike = float32,
    device: DeviceLike | str | None = None,
) -> Any:
    """The Bartlett window, a triangle, as torch.bartlett_window; see `hann_window`."""
    within("bartlett_window", "window_length", window_length, 0)
    return _window(1 - np.abs(2 * _unit(window_length, periodic) - 1), dtype, device)


@checked
def kaiser_window(
    window_length: int,
    periodic: bool = True,
    beta: float = 12.0,
    *,
    dtype: DTypeLike = float32,
    device: DeviceLike | str | None = None,
) -> Any:
    """The Kaiser window, I0(beta sqrt(1 - t²)) / I0(beta), as torch.kaiser_window; see `hann_window`."""
    within("kaiser_window", "window_length", window_length, 0)
    t = 2 * _unit(window_length, periodic) - 1
    return _window(np.i0(beta * np.sqrt(1 - t * t)) / np.i0(beta), dtype, device)


# -------------------------------------------------------------------------------------------------------- transforms

#: Frame size from which, on a CPU, a fast transform per frame is quicker than one product with the whole basis, whose
#: cost grows with the square; and the most blocks that such a frame is assembled from.
_FAST, _MOST_TAPS = 1024, 8
#: The most points of a fast transform by a block of a GPU's threads: twice in 48 KiB, as pairs of float64.
_MOST_POINTS = 1536


class _Frames(NamedTuple):
    """The framing of a signal: frames of `size` samples, one every `hop`; `bins` frequencies each."""

    what: str
    size: int
    hop: int
    bins: int

    @property
    def taps(self) -> int:
        """The number of blocks of `hop` samples that a frame spans."""
        return -(-self.size // self.hop)

    def length(self, frames: int) -> int:
        """The number of samples from the start of the first frame to the end of the last."""
        return self.size + self.hop * (frames - 1)

    def filters(self, basis: Any) -> Any:
        """basis [O, size] as convolution filters [O, hop, taps] over blocks."""
        more = self.taps * self.hop - self.size
        whole = pad(operand(basis), (0, more)) if more else operand(basis)
        return whole.reshape((-1, self.taps, self.hop)).permute((0, 2, 1))

    def basis(self, dtype: DType, scale: float) -> Array:
        """[2 bins, size]: the cosines, then the negative sines."""
        return _basis(self.size, self.bins, dtype, scale)


@lru_cache(maxsize=8)
def _basis(size: int, bins: int, dtype: DType, scale: float) -> Array:
    """Cached, read-only: this many sines cost more than a transform."""
    angle = (2 * np.pi / size) * (np.outer(np.arange(bins), np.arange(size)) % size)
    table = np.concatenate([np.cos(angle), -np.sin(angle)])
    table[np.abs(table) < 1 / (4 * size)] = 0  # at half turns: zero parts determine the signs of phases
    found: Array = (scale * table).astype(dtype.numpy)
    found.flags.writeable = False
    return found


def _frames(what: str, n_fft: int, hop: int | None, onesided: bool | None) -> _Frames:
    within(what, "n_fft", n_fft, 1)
    step = n_fft // 4 if hop is None else hop
    within(what, "hop_length", step, 1)
    return _Frames(what, n_fft, step, n_fft if onesided is False else n_fft // 2 + 1)


def _windowed(what: str, window: Any, win_length: int | None, n_fft: int, dtype: DType) -> Any:
    """The window, centered in n_fft samples."""
    length = n_fft if win_length is None else win_length
    within(what, "win_length", length, 1, n_fft)
    if window is None:
        found = np.ones(length, dtype.numpy)
    else:
        found = operand(window, what, "window")
        if found.shape != (length,):
            raise ShapeError(
                f"{what}: window must be of shape ({length},), the win_length (n_fft unless given), got {found.spec}"
            )
        found = found if found.dtype == dtype else found.cast(dtype)
    before = (n_fft - length) // 2
    if length == n_fft:
        return found
    sides = (before, n_fft - length - before)
    return np.pad(found, sides) if isinstance(found, np.ndarray) else pad(found, sides)


def _no_complex(what: str, return_complex: bool | None) -> None:
    if return_complex:
        raise DTypeError(
            f"{what}: there are no complex dtypes; leave return_complex out: complex numbers are a last axis "
            "(real, imaginary), as torch.view_as_real gives"
        )


@checked
def stft(
    input: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    pad_mode: Literal["constant", "reflect", "replicate", "circular"] = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
) -> Any:
    """The short-time Fourier transform of input [B, L] or [L], as torch.stft: [B, F, T, 2], (real, imaginary).

    Frame t is centered at sample t * hop_length (n_fft // 4 by default), or with center=False starts there, and is
    multiplied by the window (ones by default; one shorter than n_fft is centered). F is n_fft // 2 + 1, with
    onesided=False n_fft. pad_mode: the padding beyond the ends of the signal. normalized: divided by √n_fft.
    Differentiable in input and window. return_complex: only None or False.

    Raises ShapeError for a signal shorter than a frame, DTypeError, ValueError.
    """
    _no_complex("stft", return_complex)
    x = floating(input, "stft")
    if x.ndim not in (1, 2):
        raise ShapeError(f"stft: input must be [L] or [B, L], got {x.spec}")
    frames, what = _frames("stft", n_fft, hop_length, onesided), ("stft", window, win_length, n_fft)
    wide = x if x.ndim == 2 else x.unsqueeze(0)
    if center:
        wide = pad(wide, (n_fft // 2, n_fft // 2), pad_mode)
    length = wide.shape[1]
    if length < n_fft:
        raise ShapeError(f"stft: a frame of n_fft={n_fft} samples is longer than the signal {x.spec}")
    count = 1 + (length - n_fft) // frames.hop
    if n_fft >= _FAST and x.device.kind == "cpu" and frames.bins != n_fft:
        weights = None if window is None and win_length in (None, n_fft) else _windowed(*what, x.dtype)
        y = _by_products(wide, frames, count, weights, n_fft**-0.5 if normalized else 1.0)
        return y if x.ndim == 2 else y.squeeze(0)
    weights, scale = _windowed(*what, x.dtype), n_fft**-0.5 if normalized else 1.0
    if x.device.kind == "cuda" and frames.bins != n_fft and fast_factors(n_fft):
        y = call(ShortTimeSpectra(n_fft, frames.hop, scale), wide, weights).permute((0, 2, 1, 3))
    else:
        y = _by_one_product(wide, frames, count, weights, scale)
    return y if x.ndim == 2 else y.squeeze(0)


def _by_one_product(x: Any, frames: _Frames, count: int, weights: Any, scale: float) -> Any:
    """[B, F, T, 2] of x [B, L]: a convolution with the whole basis."""
    batch, length = x.shape
    used = (count - 1 + frames.taps) * frames.hop
    blocks = pad(x, (0, used - length)).reshape((batch, count - 1 + frames.taps, frames.hop))
    y = conv1d(blocks.permute((0, 2, 1)), frames.filters(weights * frames.basis(x.dtype, scale)))
    return y.reshape((batch, 2, frames.bins, count)).permute((0, 2, 3, 1))


def fast_factors(size: int) -> tuple[int, ...]:
    """The factors, at most 13 each, of a fast transform of `size` samples in pairs (one by one if `size` is odd).

    None where there are other prime factors, and for more points than a block of a GPU's threads holds.
    """
    rest, found = size // 2 if size % 2 == 0 else size, []
    if rest > _MOST_POINTS:
        return ()
    for factor in (13, 11, 7, 5, 4, 3, 2):
        while rest % factor == 0:
            found.append(factor)
            rest //= factor
    return tuple(found) if rest == 1 else ()


@dataclass(frozen=True)
class ShortTimeSpectra(Op):
    """(x [B, L], weights [size]) -> [B, T, size // 2 + 1, 2]: the half spectrum of each frame of `size` samples, one
    every `hop`, times the weights and `scale`; real and imaginary part.
    """

    size: int
    hop: int
    scale: float = 1.0
    arity = 2

    def infer(self, x: Spec, weights: Spec) -> tuple[Spec]:
        self.check_float(x, weights)
        if self.size < 1 or self.hop < 1:
            raise ShapeError(f"{self.name}: size and hop must be >= 1, got {self.size} and {self.hop}")
        if x.ndim != 2 or x.shape[1] < self.size or weights.shape != (self.size,):
            raise ShapeError(
                f"{self.name}: needs signals [B, L] of at least {self.size} samples and weights [{self.size}], "
                f"got {listing((x, weights))}"
            )
        count = 1 + (x.shape[1] - self.size) // self.hop
        return (self.result((x.shape[0], count, self.size // 2 + 1, 2), x.dtype),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return first_axis(axes)

    @property
    def frames(self) -> _Frames:
        """The framing."""
        return _Frames(self.name, self.size, self.hop, self.size // 2 + 1)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """The frames' gradients: overlap-added for x, and times the samples for the weights."""
        (x, weights), g, frames = inputs, grads[0], self.frames
        (batch, length), count = x.shape, g.shape[1]
        basis = frames.basis(x.dtype, self.scale)
        columns = g.permute((0, 3, 2, 1)).reshape((batch, len(basis), count))
        dx = _overlapped(frames, columns, weights * basis, 0, length)
        dx = pad(dx, (0, length - dx.shape[1]))
        samples = _cut(x[:, : frames.length(count)], frames, count)
        return dx, (matmul(columns.permute((0, 2, 1)), basis) * samples).sum((0, 1))

    def composed(self, x: Any, weights: Any) -> Sequence[Any]:
        """A convolution with the whole basis."""
        count = 1 + (x.shape[1] - self.size) // self.hop
        return (_by_one_product(x, self.frames, count, weights, self.scale).permute((0, 2, 1, 3)),)

    def reference(self, x: Array, weights: Array) -> tuple[Array]:
        frames = np.lib.stride_tricks.sliding_window_view(x, self.size, 1)[:, :: self.hop]
        wide = np.float64 if x.dtype == np.float64 else np.float32
        found = np.fft.rfft(frames.astype(wide) * weights.astype(wide), axis=-1) * self.scale
        return (np.stack([found.real, found.imag], -1).astype(x.dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for batch, length, size, hop in (
            (2, 30, 8, 3),
            (1, 25, 9, 9),
            (3, 12, 12, 1),
            (2, 70, 26, 40),
            (1, 3, 1, 2),
        ):
            yield Sample.of(cls(size, hop, 0.5 if size == 9 else 1.0), (batch, length), (size,))


def _by_products(x: Any, frames: _Frames, count: int, weights: Any, scale: float) -> Any:
    """[B, F, T, 2] of x [B, L]: each frame, copied, through the products of a fast transform."""
    cut = _cut(x, frames, count)
    cut = widened(cut if weights is None else cut * weights)
    found = stack(half(cut, scale), -1).permute((0, 2, 1, 3))
    return found if found.dtype == x.dtype else found.cast(x.dtype)


def _cut(x: Any, frames: _Frames, count: int) -> Any:
    """The frames [B, count, size] of x [B, L]: those of few blocks are assembled from contiguous blocks."""
    if frames.taps > _MOST_TAPS:
        return x.unfold(-1, frames.size, frames.hop)
    blocks = count - 1 + frames.taps
    whole = pad(x, (0, blocks * frames.hop - x.shape[1])).reshape((x.shape[0], blocks, frames.hop))
    side_by_side = cat([whole[:, r : r + count] for r in range(frames.taps)], -1)
    return side_by_side[..., : frames.size]


@checked
def istft(
    input: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Any:
    """The signal [B, L] or [L] whose `stft` is input [B, F, T, 2] or [F, T, 2], as torch.istft.

    The least squares estimate (Griffin & Lim 1984): the overlap-added windowed frames, divided by the overlap-added
    squared windows. Arguments as in `stft` (onesided: by default unless F is n_fft); length: of the result, by
    default that of T frames. The result is NaN where no window reaches, which torch rejects; without a window that is
    a ValueError. After the last frame it is 0.
    """
    _no_complex("istft", return_complex)
    x = floating(input, "istft")
    frames = _frames("istft", n_fft, hop_length, True)
    whole = onesided is False or (onesided is None and x.ndim > 2 and x.shape[-3] == n_fft)
    bins = n_fft if whole else frames.bins
    if x.ndim not in (3, 4) or x.shape[-1] != 2 or x.shape[-3] != bins or not x.shape[-2]:
        raise ShapeError(
            f"istft: input must be [F, T, 2] or [B, F, T, 2] of F = {bins} frequencies and one frame or more, "
            f"got {x.spec}"
        )
    x = x[..., : frames.bins, :, :]  # the rest are their conjugates
    wide = x if x.ndim == 4 else x.unsqueeze(0)
    batch, count = wide.shape[0], wide.shape[2]
    first = n_fft // 2 if center else 0
    last = frames.length(count) - first if length is None else first + length
    within("istft", "length", last - first, 1)
    weights = _windowed("istft", window, win_length, n_fft, x.dtype)
    basis = frames.basis(x.dtype, (n_fft**0.5 if normalized else 1.0) / n_fft)
    k = np.arange(frames.bins)  # most frequencies also stand for their conjugates
    times = np.where((k == 0) | (2 * k == n_fft), 1, 2).astype(x.dtype.numpy)
    basis = basis * np.tile(times, 2)[:, None]
    columns = wide.permute((0, 3, 1, 2)).reshape((batch, 2 * frames.bins, count))
    y = _overlapped(frames, columns, weights * basis, first, last)
    ones, squares = np.ones((1, 1, count), x.dtype.numpy), (weights * weights).reshape((1, n_fft))
    envelope = _overlapped(frames, operand(ones), squares, first, last)
    if window is None and frames.hop > frames.size and last > n_fft:
        raise ValueError(f"istft: frames of {n_fft} samples every {frames.hop} leave gaps")
    y = y / envelope
    y = pad(y, (0, last - first - y.shape[1]))
    return y if x.ndim == 4 else y.squeeze(0)


def _overlapped(frames: _Frames, columns: Any, basis: Any, first: int, last: int) -> Any:
    """[B, S]: the frames of columns [B, O, T] in basis [O, size], overlap-added: samples first … last."""
    blocks = conv_transpose1d(columns, frames.filters(basis))
    whole = blocks.permute((0, 2, 1)).reshape((columns.shape[0], -1))
    return whole[:, first : min(last, frames.length(columns.shape[2]))]


# ------------------------------------------------------------------------------------------------------ mel scale


@checked
def melscale_fbanks(
    n_freqs: int,
    f_min: float,
    f_max: float,
    n_mels: int,
    sample_rate: int,
    norm: Literal["slaney"] | None = None,
    mel_scale: Literal["htk", "slaney"] = "htk",
    *,
    dtype: DTypeLike = float32,
    device: DeviceLike | str | None = None,
) -> Any:
    """Triangular filters [n_freqs, n_mels], equally wide in mel, as torchaudio.functional.melscale_fbanks.

    spectrogram [..., T, n_freqs] @ filters is a mel spectrogram. mel_scale: O'Shaughnessy's formula ("htk") or
    Slaney's, linear up to 1 kHz. norm="slaney": each filter has unit area. Raises ValueError for frequencies out of
    order.
    """
    for name, value in (("n_freqs", n_freqs), ("n_mels", n_mels), ("sample_rate", sample_rate)):
        within("melscale_fbanks", name, value, 1)
    if not 0 <= f_min < f_max:
        raise ValueError(f"melscale_fbanks: needs 0 <= f_min < f_max, got {f_min} and {f_max}")
    to_mel, from_mel = _MEL[mel_scale]
    points = from_mel(np.linspace(to_mel(np.float64(f_min)), to_mel(np.float64(f_max)), n_mels + 2))
    frequency = np.linspace(0, sample_rate // 2, n_freqs)
    slopes = points[None, :] - frequency[:, None]
    rising, falling = -slopes[:, :-2] / np.diff(points)[:-1], slopes[:, 2:] / np.diff(points)[1:]
    filters = np.maximum(np.minimum(rising, falling), 0)
    if norm is not None:
        filters = filters * (2 / (points[2:] - points[:-2]))
    made = operand(filters.astype(as_dtype(dtype).numpy))
    return made if device is None else made.to(device)


#: Slaney's scale: the mels at 1 kHz, linear up to there; the logarithmic step above.
_KNEE, _STEP = 15.0, math.log(6.4) / 27.0


def _slaney_to_mel(f: Array) -> Array:
    above = _KNEE + np.log(np.maximum(f, 1000.0) / 1000.0) / _STEP
    return np.where(f < 1000.0, f * 3 / 200.0, above)


def _slaney_from_mel(mel: Array) -> Array:
    return np.where(mel < _KNEE, mel * 200.0 / 3, 1000.0 * np.exp(_STEP * (mel - _KNEE)))


_MEL: dict[str, Any] = {
    "htk": (lambda f: 2595 * np.log10(1 + f / 700), lambda m: 700 * (10 ** (m / 2595) - 1)),
    "slaney": (_slaney_to_mel, _slaney_from_mel),
}
