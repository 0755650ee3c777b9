"""Short-time Fourier transforms against the sum that defines them, their inverse, windows and mel filters."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.spec import DTypeError, ShapeError
from tests.helpers.functions import numerical
from tests.helpers.second_device import SECOND, known

RNG = np.random.default_rng(5)
#: n_fft, hop, win_length, length, center, pad_mode, normalized, onesided.
CASES = [
    (16, 4, None, 100, True, "reflect", False, None),
    (15, 4, 11, 97, True, "constant", True, None),
    (16, 20, 16, 97, False, "reflect", False, False),
    (7, 1, 5, 30, True, "circular", False, False),
    (12, None, 9, 41, True, "replicate", True, True),
    (8, 8, 8, 8, False, "reflect", False, None),
    (1, 1, 1, 5, True, "reflect", False, None),
]


def definition(
    x: Any, n: int, hop: int | None, window: Any, center: bool, mode: str, norm: bool, one: Any
) -> Any:
    """NumPy's transform of each frame, in float64."""
    hop = hop or n // 4
    if center:
        x = np.pad(x, ((0, 0), (n // 2, n // 2)), {"circular": "wrap", "replicate": "edge"}.get(mode, mode))
    before = (n - len(window)) // 2
    window = np.pad(window, (before, n - len(window) - before))
    frames = np.stack([x[:, s : s + n] * window for s in range(0, x.shape[1] - n + 1, hop)], 1)
    found = (np.fft.fft if one is False else np.fft.rfft)(frames) / (np.sqrt(n) if norm else 1)
    return np.stack([found.real, found.imag], -1).transpose(0, 2, 1, 3)


def drawn(case: Any) -> tuple[Any, Any]:
    n, _, win, length = case[:4]
    return RNG.standard_normal((2, length)), RNG.uniform(0.5, 1.5, win or n)


@pytest.fixture(params=[1, 1 << 30], ids=["fast", "convolution"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to transform frames of any size."""
    monkeypatch.setattr("lamina.ops.primitives.spectral._FAST", request.param)
    monkeypatch.setattr("lamina.ops.primitives.spectral._MOST_TAPS", 4)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_each_frame_is_the_transform_of_numpy(case: Any, dtype: Any) -> None:
    n, hop, win, _, center, mode, norm, one = case
    x, window = (a.astype(dtype) for a in drawn(case))
    wanted = definition(x.astype(np.float64), n, hop, window.astype(np.float64), center, mode, norm, one)
    found = ops.stft(lm.tensor(x), n, hop, win, lm.tensor(window), center, mode, norm, one)
    assert found.dtype.numpy == dtype
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-12 if dtype == np.float64 else 1e-5)
    single = ops.stft(lm.tensor(x[0]), n, hop, win, lm.tensor(window), center, mode, norm, one)
    np.testing.assert_allclose(single.numpy(), wanted[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", [c for c in CASES if c[1] is None or c[1] < c[0] or c[0] == 1], ids=str)
def test_the_inverse_gives_the_signal_back(case: Any) -> None:
    n, hop, win, length, center, mode, norm, one = case
    x, window = drawn(case)
    y = ops.stft(x, n, hop, win, window, center, mode, norm, one)
    back = ops.istft(y, n, hop, win, window, center, norm, one, length)
    held = min(length, n + (hop or n // 4) * (y.shape[2] - 1) - (n // 2 if center else 0))
    np.testing.assert_allclose(back.numpy()[:, :held], x[:, :held], atol=1e-10)
    assert back.shape == x.shape
    assert not back.numpy()[:, held:].any()
    one_signal = ops.istft(y[0], n, hop, win, window, center, norm, one, length)
    np.testing.assert_allclose(one_signal.numpy(), back.numpy()[0], atol=1e-12)


@pytest.mark.parametrize("size", [16, 400, 512])
def test_parts_that_are_zero_of_a_real_signal(size: int) -> None:
    """Of the constant and the highest frequency: a phase of π is not one of -π."""
    y = ops.stft(RNG.normal(size=(2, 3 * size)), size).numpy()
    assert (y[:, [0, -1], :, 1] == 0).all()
    assert not np.signbit(y[:, [0, -1], :, 1]).any()


def test_long_frames() -> None:
    x, window = RNG.standard_normal((2, 4000)), RNG.uniform(0.5, 1.5, 1100)
    wanted = definition(x, 1200, 300, window, True, "reflect", True, None)
    for f in (ops.stft, lm.jit(ops.stft)):
        found = f(lm.tensor(x), 1200, 300, 1100, lm.tensor(window), normalized=True)
        np.testing.assert_allclose(found.numpy(), wanted, atol=1e-11)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("win", [None, 6])
@pytest.mark.parametrize("dtypes", [("float32", "float64"), ("float64", "float32"), ("float32", "int64")])
def test_windows_are_brought_to_the_signals_type(dtypes: tuple[str, str], win: int | None) -> None:
    kind, other = dtypes
    x, window = RNG.standard_normal((2, 30)).astype(kind), RNG.uniform(1, 5, win or 8).astype(other)
    y = ops.stft(lm.tensor(x), 8, 2, win, lm.tensor(window))
    wanted = definition(x.astype(np.float64), 8, 2, window.astype(np.float64), True, "reflect", False, None)
    np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-4, atol=1e-4)
    back = ops.istft(y, 8, 2, win, lm.tensor(window))
    np.testing.assert_allclose(back.numpy(), x, rtol=1e-4, atol=1e-5)
    assert y.dtype.name == back.dtype.name == kind


@pytest.mark.usefixtures("way")
def test_gradients_of_signal_window_and_spectrum() -> None:
    x, window = RNG.standard_normal((2, 21)), RNG.uniform(0.5, 1.5, 8)
    scale = RNG.standard_normal((2, 5, 11, 2))

    def forward(x: Any, window: Any) -> Any:
        return (ops.stft(x, 8, 2, window=window) * scale).sum()

    def back(y: Any, window: Any) -> Any:
        return (ops.istft(y, 8, 2, window=window) ** 2).sum()

    for function, given in ((forward, (x, window)), (back, (scale, window))):
        found = lm.grad(function, (0, 1))(*map(lm.tensor, given))
        for g, wanted in zip(found, numerical(function, given), strict=True):
            np.testing.assert_allclose(g.numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_windows_are_their_formulas() -> None:
    n = np.arange(9) / 8
    wanted = {
        "hann": np.sin(np.pi * n) ** 2,
        "hamming": 0.54 - 0.46 * np.cos(2 * np.pi * n),
        "blackman": 0.42 - 0.5 * np.cos(2 * np.pi * n) + 0.08 * np.cos(4 * np.pi * n),
        "bartlett": 1 - np.abs(2 * n - 1),
        "kaiser": np.kaiser(9, 12.0),
    }
    for name, values in wanted.items():
        make = getattr(ops, f"{name}_window")
        np.testing.assert_allclose(make(9, False, dtype="float64").numpy(), values, atol=1e-12, err_msg=name)
        np.testing.assert_allclose(make(8, dtype="float64").numpy(), values[:-1], atol=1e-12, err_msg=name)
        assert (make(0).shape, make(1).tolist(), make(1, False).tolist()) == ((0,), [1.0], [1.0])
    assert ops.hann_window(4, dtype=lm.float16).dtype == lm.float16
    np.testing.assert_allclose(ops.hamming_window(8, True, 0.6, 0.4).numpy()[0], 0.2, rtol=1e-6)


@pytest.mark.parametrize("name", ["hann", "hamming", "blackman", "bartlett", "kaiser"])
def test_windows_and_filters_lie_where_they_are_asked_for(name: str) -> None:
    make = getattr(ops, f"{name}_window")
    with known():
        found = make(7, device=SECOND)
        filters = ops.melscale_fbanks(9, 0.0, 40.0, 3, 80, device=SECOND)
    assert found.device is filters.device is SECOND
    np.testing.assert_array_equal(found.numpy(), make(7).numpy())
    np.testing.assert_array_equal(filters.numpy(), ops.melscale_fbanks(9, 0.0, 40.0, 3, 80).numpy())
    assert make(7).device == filters.to("cpu").device == lm.Device("cpu")


def slaney(f: Any) -> Any:
    """Linear up to 1 kHz, then 27 steps for each factor of 6.4."""
    return np.where(f < 1000, f / 1000 * 15, 15 + 27 * np.log(f / 1000) / np.log(6.4))


MEL: dict[str, Any] = {"htk": lambda f: np.log(1 + f / 700), "slaney": slaney}


@pytest.mark.parametrize("scale", ["htk", "slaney"])
def test_mel_filters_are_triangles_that_overlap_by_half(scale: Any) -> None:
    filters = ops.melscale_fbanks(4001, 100.0, 3000.0, 10, 8000, mel_scale=scale, dtype="float64").numpy()
    assert filters.shape == (4001, 10)
    assert filters.min() == 0
    assert (filters.max(0) > 0.97).all()
    peaks = filters.argmax(0)
    inner = filters[peaks[0] : peaks[-1] + 1]
    np.testing.assert_allclose(inner.sum(1), 1, atol=1e-9)
    assert not filters[:100].any()
    assert not filters[3001:].any()
    steps = np.diff(MEL[scale](peaks.astype(np.float64)))
    np.testing.assert_allclose(steps, steps.mean(), rtol=0.02)
    areas = ops.melscale_fbanks(4001, 100.0, 3000.0, 10, 8000, "slaney", scale).numpy().sum(0)
    np.testing.assert_allclose(areas, 1, rtol=0.01)


def test_errors_name_what_is_wrong() -> None:
    x = lm.ones((2, 30))
    with pytest.raises(
        ShapeError, match=r"stft: a frame of n_fft=40 samples is longer than the signal f32\[2,30\]"
    ):
        ops.stft(x, 40, center=False)
    with pytest.raises(ShapeError, match=r"stft: window must be of shape \(8,\).*got f32\[7\]"):
        ops.stft(x, 8, window=lm.ones(7))
    with pytest.raises(ValueError, match=r"stft: win_length must be in \[1, 8\], got 9"):
        ops.stft(x, 8, win_length=9)
    with pytest.raises(ValueError, match=r"stft: hop_length must be >= 1, got 0"):
        ops.stft(x, 3)
    with pytest.raises(DTypeError, match="stft: there are no complex dtypes"):
        ops.stft(x, 8, return_complex=True)
    with pytest.raises(ShapeError, match=r"istft: input must be .* F = 5 frequencies"):
        ops.istft(lm.ones((6, 3, 2)), 8)
    with pytest.raises(ValueError, match="istft: frames of 4 samples every 9 leave gaps"):
        ops.istft(lm.ones((3, 3, 2)), 4, 9)
    for center in (True, False):
        assert ops.istft(lm.ones((3, 3, 2)), 4, 2, window=lm.ones(4), center=center, length=1).shape == (1,)
        with pytest.raises(ValueError, match="istft: length must be >= 1, got 0"):
            ops.istft(lm.ones((3, 3, 2)), 4, 2, center=center, length=0)
    with pytest.raises(ValueError, match="melscale_fbanks: needs 0 <= f_min < f_max, got 9.0 and 8.0"):
        ops.melscale_fbanks(10, 9.0, 8.0, 2, 100)
    with pytest.raises(ValueError, match="hann_window: window_length must be >= 0, got -1"):
        ops.hann_window(-1)
    with pytest.raises(DTypeError, match="window: dtype must be a float, got int64"):
        ops.hann_window(3, dtype="int64")


@pytest.mark.torch
@pytest.mark.parametrize("case", CASES[:5], ids=str)
def test_values_are_those_of_torch(case: Any) -> None:
    import torch

    n, hop, win, length, center, mode, norm, one = case
    x, window = drawn(case)
    theirs = torch.stft(
        torch.tensor(x), n, hop, win, torch.tensor(window), center, mode, norm, one, return_complex=True
    )
    mine = ops.stft(x, n, hop, win, window, center, mode, norm, one)
    np.testing.assert_allclose(mine.numpy(), torch.view_as_real(theirs).numpy(), atol=1e-12)
    for size in (None, length - 3) if (hop or 0) < n and win in (None, n) else ():
        wanted = torch.istft(theirs, n, hop, win, torch.tensor(window), center, norm, one, size)
        found = ops.istft(mine, n, hop, win, window, center, norm, one, size)
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), atol=1e-12)
    for name in ("hann", "hamming", "blackman", "bartlett", "kaiser"):
        for size in (0, 1, 2, 7, 8):
            for periodic in (True, False):
                wanted = getattr(torch, f"{name}_window")(size, periodic, dtype=torch.float64)
                found = getattr(ops, f"{name}_window")(size, periodic, dtype="float64")
                np.testing.assert_allclose(found.numpy(), wanted.numpy(), atol=1e-12)
