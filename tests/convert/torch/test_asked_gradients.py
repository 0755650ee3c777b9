"""Gradients that a network asks PyTorch's autograd for within `forward`."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import convert, ops

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


def mlp(*sizes: int) -> Any:
    layers = [x for a, b in itertools.pairwise(sizes) for x in (torch.nn.Linear(a, b), torch.nn.Tanh())]
    return torch.nn.Sequential(*layers[:-1])


class Forces(torch.nn.Module):
    """The energy of particles at positions [N, 3], and its negative gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(3, 8, 1)

    def forward(self, at: Any) -> Any:
        at = at.requires_grad_(True)
        energy = self.net(at[:, None] - at[None]).sum() + at.pow(3).sum()
        return energy, -torch.autograd.grad(energy, at, create_graph=True)[0]


class InnerSteps(torch.nn.Module):
    """Predictions after steps of gradient descent from the parameters, which are trained through the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 6), torch.nn.Linear(6, 2)

    def forward(self, x: Any, y: Any, asked: Any) -> Any:
        def run(x: Any) -> Any:
            return torch.tanh(x @ own[0].T + own[1]) @ own[2].T + own[3]

        own = list(self.parameters())
        for _ in range(2):
            slopes = torch.autograd.grad((run(x) - y).square().mean(), own, create_graph=True)
            own = [p - 0.1 * g for p, g in zip(own, slopes, strict=True)]
        return run(asked)


class Residual(torch.nn.Module):
    """u_t + u u_x - 0.1 u_xx of a network u(x, t)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(2, 8, 1)

    def forward(self, x: Any, t: Any) -> Any:
        x, t = x.clone().requires_grad_(), t.detach().requires_grad_()
        u = self.net(torch.cat([x, t], 1))
        one = torch.ones_like(u)
        u_x = torch.autograd.grad(u, x, one, create_graph=True)[0]
        u_xx = torch.autograd.grad(u_x, x, grad_outputs=one, create_graph=True)[0]
        (u_t,) = torch.autograd.grad([u], [t], [one], create_graph=True)
        return u_t + u * u_x - 0.1 * u_xx


class Parts(torch.nn.Module):
    """Gradients with respect to a view, a copy and a view of all elements: of what is computed from each alone."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(3, 1)

    def forward(self, x: Any) -> Any:
        x = x.requires_grad_()
        left, right, whole = x[:, :3], x[:, 3:].clone(), x.view(x.shape)
        y = (self.net(left) * right).sum() + x.pow(4).sum() + whole.square().sum()
        return list(torch.autograd.grad(y, [left, right, whole], create_graph=True))


class Rows(torch.nn.Module):
    """A Jacobian: of all rows at once, and by torch.autograd.functional."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(3, 5, 2)

    def forward(self, x: Any) -> Any:
        x = x.requires_grad_()
        y = self.net(x)
        rows = torch.eye(2)[:, None].expand(2, x.shape[0], 2)
        (found,) = torch.autograd.grad(y, x, rows, is_grads_batched=True, create_graph=True)
        other = torch.autograd.functional.jacobian(lambda v: self.net(v).sum(0), x, create_graph=True)
        return found, other


class Images(torch.nn.Module):
    """Two steps down the slope of an energy of images, through a convolution and a norm."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.net = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.AvgPool2d(2), nn.Conv2d(4, 1, 2)
        )

    def forward(self, x: Any) -> Any:
        for _ in range(2):
            x = x.requires_grad_()
            x = x - 0.1 * torch.autograd.grad(self.net(x).sum(), [x], create_graph=True)[0]
        return x


SHAPES: dict[Callable[[], Any], list[tuple[int, ...]]] = {
    Forces: [(5, 3)], InnerSteps: [(6, 4), (6, 2), (3, 4)], Residual: [(7, 1), (7, 1)], Parts: [(2, 4)],
    Rows: [(4, 3)], Images: [(2, 3, 8, 8)],
}  # fmt: skip


def several(x: Any) -> list[Any]:
    return list(x) if isinstance(x, (tuple, list)) else [x]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("network", SHAPES, ids=lambda n: n.__name__)
def test_values_and_gradients_are_pytorchs(network: Callable[[], Any], compiled: bool) -> None:
    torch.manual_seed(0)
    source = network()
    given = [torch.randn(s) for s in SHAPES[network]]
    wanted = several(source(*(x.clone() for x in given)))
    weights = [np.cos(np.arange(y.numel(), dtype=np.float32)).reshape(y.shape) for y in wanted]
    total = sum((y * torch.from_numpy(w)).sum() for y, w in zip(wanted, weights, strict=True))
    slopes = torch.autograd.grad(total, list(source.parameters()), allow_unused=True)
    net, way = convert.from_torch(source), lm.jit if compiled else lambda f: f

    def loss(net: Any, *given: Any) -> Any:
        return sum((y * w).sum() for y, w in zip(several(net(*given)), weights, strict=True))

    tensors = [lm.tensor(x.numpy()) for x in given]
    for y, w in zip(several(way(lambda *xs: net(*xs))(*tensors)), wanted, strict=True):
        assert isinstance(y, lm.Tensor)
        np.testing.assert_allclose(y.numpy(), w.detach().numpy(), rtol=1e-5, atol=1e-6)
    found = way(lm.grad(loss))(net, *tensors)
    for (name, p), g in zip(source.named_parameters(), slopes, strict=True):
        g = torch.zeros_like(p) if g is None else g
        np.testing.assert_allclose(found[name].numpy(), g.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_step_trains_by_forces_and_the_network_goes_back() -> None:
    torch.manual_seed(0)
    source = Forces()
    net, at, wanted = convert.from_torch(copy.deepcopy(source)), ops.randn(5, 3), lm.ones(5, 3)
    step = lm.train_step(net, lambda found, y: ops.mse_loss(found[1], y), lm.optim.SGD(lr=0.01))
    losses = [step(at, wanted).item() for _ in range(3)]
    own = torch.optim.SGD(source.parameters(), lr=0.01)
    for loss in losses:
        found = torch.nn.functional.mse_loss(source(torch.from_numpy(at.numpy()))[1], torch.ones(5, 3))
        assert found.item() == pytest.approx(loss, rel=1e-5)
        own.zero_grad()
        found.backward()
        own.step()
    again = convert.to_torch(net, at)(torch.from_numpy(at.numpy()))[1]
    np.testing.assert_allclose(again.detach().numpy(), net(at)[1].numpy(), rtol=1e-5, atol=1e-6)


def test_without_create_graph_they_are_constants() -> None:
    class Kept(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(3, 4, 1)

        def forward(self, x: Any) -> Any:
            x = x.requires_grad_()
            with torch.no_grad():
                k = self.net(x)
            (g,) = torch.autograd.grad((self.net(x) * k).sum(), x)
            return g.sum() * self.net[0].bias

    torch.manual_seed(0)
    source, x = Kept(), torch.randn(2, 3)
    net = convert.from_torch(source)
    wanted = torch.autograd.grad(source(x).sum(), list(source.parameters()), allow_unused=True)
    found = lm.grad(lambda net: net(lm.tensor(x.detach().numpy())).sum())(net)
    for (name, p), g in zip(source.named_parameters(), wanted, strict=True):
        g = torch.zeros_like(p) if g is None else g
        np.testing.assert_allclose(found[name].numpy(), g.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


def test_what_outputs_do_not_depend_on() -> None:
    class Unused(torch.nn.Module):
        def __init__(self, allowed: bool) -> None:
            super().__init__()
            self.a, self.b, self.allowed = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1), allowed

        def forward(self, x: Any) -> Any:
            y = self.a(x).sum()
            return torch.autograd.grad(y, [self.a.weight, self.b.weight], allow_unused=self.allowed)

    x = torch.linspace(-1, 1, 6).reshape(2, 3)
    used, unused = convert.from_torch(Unused(True))(x)
    np.testing.assert_allclose(used.numpy(), x.sum(0, keepdim=True).numpy(), atol=1e-6)
    np.testing.assert_array_equal(unused.numpy(), np.zeros((1, 3)))
    with pytest.raises(
        convert.TorchConversionError, match=r"no output depends on inputs\[1\], f32\[1,3\].*allow_unused"
    ):
        convert.from_torch(Unused(False))(x)


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (
            lambda y, x: y.sum().backward() or x.grad,
            r"calls backward\(\).*use torch\.autograd\.grad.*torch\.compile",
        ),
        (lambda y, x: torch.autograd.grad(y, x)[0], r"for an output \(.*, 2\) without grad_outputs"),
    ],
)
def test_what_a_graph_does_not_hold_is_refused(ask: Callable[[Any, Any], Any], text: str) -> None:
    class Asks(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 2)

        def forward(self, x: Any) -> Any:
            x = x.detach().requires_grad_()
            return ask(self.layer(x), x)

    with pytest.raises(
        convert.TorchConversionError, match=rf"Asks: forward calls.*{text.removeprefix('calls ')}"
    ):
        convert.from_torch(Asks())(torch.ones(2, 3))


def test_a_part_that_stays_in_pytorch_may_ask() -> None:
    class Slope(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def forward(self, x: Any) -> Any:
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.layer(x).tanh().sum(), x, create_graph=True)[0]

    torch.manual_seed(0)
    source, x = torch.nn.Sequential(Slope(), torch.nn.Linear(3, 2)), torch.randn(4, 3)
    net = convert.from_torch(source, x, exclude=lambda part: isinstance(part, Slope))
    assert convert.check(source, net, x).gradient < 1e-6
