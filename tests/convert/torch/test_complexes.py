"""Complex tensors of PyTorch's graphs, as two real ones: results, gradients, state, writes, eagerly and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099", "F100")]

PROGRAMS: dict[str, Callable[[], tuple[Any, ...]]] = {}


def program(make: Callable[[], tuple[Any, ...]]) -> Callable[[], tuple[Any, ...]]:
    PROGRAMS[make.__name__] = make
    return make


@program
def rotary_positions() -> tuple[Any, ...]:
    """Angles in a complex buffer, as in Llama's own code."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Linear(8, 8)
            angles = torch.outer(torch.arange(16).float(), 10.0 ** -torch.arange(4).float())
            self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            z = torch.view_as_complex(self.q(x).float().reshape(*x.shape[:-1], -1, 2))
            return torch.view_as_real(z * self.turns[2 : 2 + x.shape[1]]).flatten(2).type_as(x)

    return Net(), torch.randn(2, 5, 8)


@program
def padded_spectra() -> tuple[Any, ...]:
    """A spectrum with more bands and frames around it, as in networks for sound."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(4, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            z = F.pad(torch.fft.rfft(x) * self.scale[:, :4], (1, 1), value=2.0)
            return torch.view_as_real(z + F.pad(z[:, 1:], (0, 1))).flatten(1)

    return Net(), torch.randn(4, 6)


@program
def spectral_convolution() -> tuple[Any, ...]:
    """Complex parameters, a spectrum that is written in parts, and its inverse."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.low = nn.Parameter(torch.randn(3, 2, 2, 2, dtype=torch.cfloat))
            self.high = nn.Parameter(torch.randn(3, 2, 2, 2, dtype=torch.cfloat))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            spectrum = torch.fft.rfft2(x, norm="ortho")
            out = torch.zeros(x.shape[0], 2, *spectrum.shape[2:], dtype=torch.cfloat)
            out[:, :, :2, :2] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :2, :2], self.low)
            out[:, :, -2:, :2] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -2:, :2], self.high)
            out[:, :1] *= 0.5
            return torch.fft.irfft2(out, s=x.shape[-2:], norm="ortho")

    return Net(), torch.randn(2, 3, 6, 7)


@program
def state_space_kernel() -> tuple[Any, ...]:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c, self.decay = nn.Parameter(torch.randn(3, 2, 2)), nn.Parameter(torch.rand(3, 2))
            self.turn = nn.Parameter(torch.rand(3, 2))

        def forward(self, u: torch.Tensor) -> torch.Tensor:
            n = u.shape[-1]
            a = -torch.exp(self.decay) + 1j * self.turn
            c = torch.view_as_complex(self.c) * (torch.exp(a) - 1.0) / a
            kernel = 2 * torch.einsum("hn,hnl->hl", c, torch.exp(a[..., None] * torch.arange(n))).real
            k, v = torch.fft.rfft(kernel, n=2 * n), torch.fft.rfft(u, n=2 * n)
            return torch.fft.irfft(k * v, n=2 * n)[..., :n]

    return Net(), torch.randn(2, 3, 9)


@program
def magnitudes_and_phases() -> tuple[Any, ...]:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mask = nn.Linear(9, 9)
            self.register_buffer("window", torch.hann_window(16))

        def forward(self, x: torch.Tensor) -> Any:
            z = torch.stft(x, 16, 4, window=self.window, return_complex=True)
            size = z.abs()
            gain = torch.sigmoid(self.mask(size.transpose(1, 2)).transpose(1, 2))
            y = torch.istft(gain * z, 16, 4, window=self.window, length=x.shape[-1])
            again = torch.istft(torch.polar(size * gain, z.angle()), 16, 4, window=self.window)
            return y, again, (z * z.conj()).real.mean(), torch.fft.fft(x).abs().log1p()

    return Net(), torch.randn(2, 40)


@program
def quotients_and_turned_matrices() -> tuple[Any, ...]:
    """By real tensors and by complex ones; matrices with their conjugates, and without."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> Any:
            z = torch.view_as_complex(self.line(x).reshape(2, 3, 3, 2))
            size = z.real.square() + 1.0
            return tuple(
                torch.view_as_real(y.contiguous())
                for y in (
                    z / size,
                    z / (z + 4.0),
                    size / (z + 4.0),
                    (z @ z.mH) / 2,
                    z.mT * z,
                    z[0].H + z[1].T,
                )
            )

    return Net(), torch.randn(2, 3, 6)


@program
def arithmetic() -> tuple[Any, ...]:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 4, dtype=torch.cfloat))
            self.line = nn.Linear(4, 3, dtype=torch.cfloat)
            self.register_buffer("kept", torch.ones(4, dtype=torch.cfloat))

        def forward(self, x: torch.Tensor) -> Any:
            z = torch.complex(x, x.flip(1)) @ self.w
            with torch.no_grad():
                self.kept.mul_(0.5).add_(z.mean(0), alpha=0.5)
            u = torch.cat([z / (z + 3 - 2j), z.reciprocal(), z**2, z.sqrt(), torch.log(z + 4), x], 1)
            u[:, 1] = 1j
            u[:, :2].mul_(2 - 1j)
            masked = u.masked_fill(x[:, :1] > 0, 0) - 1j * u.sum(1, keepdim=True)
            t = torch.where(x > 0, z, z.conj()).mT.H + self.kept
            shifted = torch.fft.ifft(torch.fft.fftshift(torch.fft.fftn(z), dim=-1)) * torch.fft.fftfreq(4)
            return (
                masked,
                t,
                self.line(z),
                shifted,
                torch.sgn(z).imag,
                z.to(torch.complex128).real,
                z.square().abs(),
            )

    return Net(), torch.randn(3, 4)


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_gradients_and_state_are_those_of_torch(name: str) -> None:
    import torch

    from lamina.convert.torch import check, from_torch

    torch.manual_seed(0)
    net, *inputs = PROGRAMS[name]()
    converted = from_torch(net, *inputs, share=False)
    assert list(converted.state_dict()) == list(net.state_dict())
    found = check(net, converted, *inputs)
    assert found.output < 1e-5, found
    assert found.gradient < 1e-4, found
    assert max(found.state.values(), default=0.0) < 1e-5, found


@pytest.mark.parametrize("name", PROGRAMS)
def test_compiled(name: str) -> None:
    import torch
    from torch.utils import _pytree as pytree

    from tests.helpers.torch_training import compiled

    found = []
    for run in (lambda net: net, compiled):
        torch.manual_seed(0)
        net, *inputs = PROGRAMS[name]()
        inputs = [x.requires_grad_() for x in inputs]
        results = pytree.tree_leaves(run(net)(*inputs))
        sum((torch.view_as_real(y) if y.is_complex() else y).square().sum() for y in results).backward()
        found.append([*results, *net.buffers(), *(p.grad for p in (*net.parameters(), *inputs))])
    for got, wanted in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4 * wanted.detach().abs().max().item())


def test_what_has_no_counterpart_is_said() -> None:
    import torch

    from lamina.convert.torch import TorchConversionError, from_torch

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(torch.fft.fft(x)).real

    with pytest.raises(TorchConversionError, match=r"aten\.tanh\.default.*gives complex numbers"):
        from_torch(Net(), torch.randn(3, 4))
