"""Complex tensors of PyTorch's graphs, as two real ones: results, gradients, state, writes, eagerly and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers import slow_but_every

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


#: Calls that take numbers beside complex tensors z, of which x are the parts; they are added, subtracted or written.
WITH_NUMBERS = """
2 + z; (2 - 1j) + z; 3 - z; 1j - z; z - (2 + 3j); z + 1.5
torch.add(z, 2 + 1j); torch.sub(z, 2j); torch.add(z, other=2j); torch.sub(z, other=2j); z.add(2j, alpha=2)
z.sub(2 - 1j, alpha=3); torch.rsub(z, 2j); torch.rsub(z, 2 - 1j, alpha=3); torch.rsub(z, other=2j)
z.clone().add_(2j); z.clone().sub_(2j); z.clone().fill_(1 - 2j); torch.fill(z, 3j); torch.fill(z, value=3j)
z.masked_fill(over, 2 - 1j); z.masked_fill(over, value=3); z.clone().masked_fill_(over, 2j)
torch.full((3, 4), 1 - 2j) + z; torch.full((3, 4), fill_value=2j) * z; torch.full_like(z, 2 - 1j)
torch.full_like(z, fill_value=2); z.new_full((2, 3), 1 - 2j); z.new_full((2, 3), fill_value=3)
F.pad(z, (1, 2), value=3.0); F.pad(z, (1, 2), "constant", 3.0); F.pad(z, (1, 2), mode="constant", value=2)
torch.where(over, z, 2j); torch.where(over, 3, z); torch.where(over, 2 - 1j, z); z.where(over, 2j)
2j * z; z * 3; z.clone().mul_(2j); 2 / z; (1 - 2j) / z; z / 2; z / (1 - 2j); z.clone().div_(2 - 1j); z.clone().div_(2)
"""
FUNCTIONS = """
torch.rsub(z, x[..., 0]); torch.rsub(z, z * 2); -z; +z; +x; z * x[..., 0]; z * z; z.clone().mul_(z)
torch.div(z, z + 1); x[..., 0] / z; z / x[..., 0].exp(); z.reciprocal(); z.clone().div_(z + 1)
z ** 0; z ** 1; z ** 2; z ** 3; z ** 4; z ** 5; z ** -1; z ** -2; z ** 0.5; z ** 2.5; torch.pow(z, 3); z.square()
z.sqrt(); z.exp(); z.log(); z.abs(); z.angle(); z.sgn(); torch.sgn(z * 0); z.conj(); z.conj_physical()
z ** at[0, :1]; z ** torch.arange(4); z ** -x[..., 0]; z ** z; x[..., 0].abs() ** z; 2 ** z; 2.5 ** z; (1 - 2j) ** z
z ** (2 - 1j); torch.pow(z[0], torch.arange(3)[:, None]); torch.pow(2j, x[..., 0]); z.rsqrt(); z.clone().pow_(2)
z.log2(); z.log10(); z.log1p(); z.sin(); z.cos(); z.sinh(); z.cosh(); z.tanh(); z.sigmoid()
z == z; z != z * x[..., 0]; z == 0; z == 2j; x[..., 0] == z; z.real + 0j == z
z.mH; z.mT; z.H; z.T; z.adjoint(); z.real; z.imag; torch.view_as_real(z)
torch.polar(x[..., 0].abs(), x[..., 1]); torch.complex(x[..., 0], x[..., 1])
z @ z.mH; torch.mm(z, z.T); torch.dot(z[0], z[1]); torch.mv(z, z[0]); torch.outer(z[0], z[1]); torch.kron(z, z[:2])
torch.einsum("ij,kj,lj->ikl", z, z, z); torch.tensordot(z, z, ([1], [1])); torch.bmm(z[None], z.T[None])
F.linear(z, z[:2]); F.linear(z, z[:2], z[0, :2])
torch.ones(3, 4, dtype=torch.cfloat) + z; torch.ones_like(z); z.new_ones((2, 3)); torch.eye(4, dtype=torch.cfloat)
torch.zeros_like(z); z.new_zeros((2,)); torch.zeros(3, 4, dtype=torch.cfloat)
z.to(torch.complex128); x[..., 0].to(torch.cfloat); z.cdouble(); x[..., 0].cfloat(); x[..., 0].type_as(z)
z.type(torch.complex128); z.sum(); z.sum(1); z.mean(0, keepdim=True); z.cumsum(1); z.trace(); torch.diag(z[0])
z.diagonal(); z.tril(); z.triu(1); z.flip(1); z.roll(1, 1); z.repeat(2, 1); z.tile(2); z.repeat_interleave(2, 1)
z.gather(1, at); z.scatter(1, at, z[:1, 2:]); z.scatter_add(1, at, z[:1, 2:]); z.index_add(0, at[0], z[1:])
z.index_copy(0, at[0], z[1:]); z.index_select(1, at[0]); z[at[0]]; torch.cat([z, x[..., 0]], 1); torch.stack([z, -z])
torch.hstack([z, z]); torch.vstack([z, z]); z.split(2, 1)[1]; z.chunk(2, 1)[0]; z.unbind(1)[2]
z.tensor_split(3, 1)[0]; z.expand(2, 3, 4); z.unsqueeze(0).squeeze(0); z.reshape(2, 6); z.view(12); z.flatten()
z.unflatten(1, (2, 2)); z.permute(1, 0); z.transpose(0, 1); z.movedim(0, 1); z.swapaxes(0, 1); z.narrow(1, 1, 2)
torch.fft.fft(z); torch.fft.fft(z, dim=0); torch.fft.fft(x[..., 0], 6, 0, "ortho"); torch.fft.ifft(z, norm="forward")
torch.fft.rfft(x[..., 0]); torch.fft.irfft(z); torch.fft.irfft(z, 5); torch.fft.fft2(z); torch.fft.ifft2(z, (2, 3))
torch.fft.rfft2(x[..., 0]); torch.fft.irfft2(z); torch.fft.fftn(z); torch.fft.fftn(z, (2,)); torch.fft.rfftn(x)
torch.fft.ifftn(z, dim=(0,)); torch.fft.irfftn(z, (3, 4)); torch.fft.fft(torch.arange(4)); torch.fft.fftshift(z)
torch.fft.ifftshift(z, 1); torch.fft.irfft(x[..., 0]); torch.fft.irfft2(x[..., 1], norm="ortho"); torch.fft.irfftn(x)
torch.fft.hfft(z); torch.fft.hfft(x[..., 0], 5, norm="ortho"); torch.fft.ihfft(x[..., 0]); torch.fft.ihfft(x, 3, 1)
"""


@pytest.mark.parametrize(
    "text",
    slow_but_every(2, [t.strip() for t in (WITH_NUMBERS + FUNCTIONS).replace("\n", ";").split(";") if t]),
)
def test_values_are_those_of_torch(text: str) -> None:
    import torch
    import torch.nn.functional as F

    from tests.helpers.torch_functions import agree

    own = eval("lambda z, x, over, at: " + text, {"torch": torch, "F": F})

    def f(x: torch.Tensor) -> torch.Tensor:
        y = own(torch.view_as_complex(x), x, x[..., 1] > 0, torch.tensor([[1, 0]]))
        return torch.view_as_real(y.resolve_conj()) if y.is_complex() else y

    agree(f, torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize(
    "statement",
    ["z += 2 - 1j", "z += 3", "z -= 2j", "z[:, 1] = 1 - 2j", "z[:, 1] = 3", "z[over] = 2j", "z *= 2j", "z *= 3",
     "z /= 1 - 2j", "z /= 2", "z += z * 2", "z -= x[..., 0]", "z *= x[..., 0]", "z /= z + 2"],
)  # fmt: skip
def test_writes_are_those_of_torch(statement: str) -> None:
    import torch

    from tests.helpers.torch_functions import agree

    def f(x: torch.Tensor) -> torch.Tensor:
        return made["f"](torch.view_as_complex(x).clone(), x, x[..., 1] > 0)

    made: Any = {}
    exec(f"def f(z, x, over):\n    {statement}\n    return z.real, z.imag", made)
    agree(f, torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0)))


def test_what_has_no_counterpart_is_said() -> None:
    import torch

    from lamina.convert.torch import TorchConversionError, from_torch

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tan(torch.fft.fft(x)).real

    with pytest.raises(TorchConversionError, match=r"aten\.tan\.default.*gives complex numbers"):
        from_torch(Net(), torch.randn(3, 4))
