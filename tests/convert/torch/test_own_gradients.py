"""Functions with a gradient of their own that are given functions: their code is run, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import convert, optim

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = [
    pytest.mark.torch,
    pytest.mark.feature("F099"),
    pytest.mark.filterwarnings("ignore:.*runs call by call:UserWarning"),
]


class Integral(torch.autograd.Function):
    """The sum of a function at points between 0 and x, times the step; the gradient is the function at x (Leibniz),
    and for its parameters that of the sum."""

    @staticmethod
    def forward(ctx: Any, function: Any, x: Any, steps: int, *parameters: Any) -> Any:
        ctx.function, ctx.steps, ctx.count = function, steps, len(parameters)
        ctx.save_for_backward(x)
        return sum(function(x * (i + 0.5) / steps) for i in range(steps)) * x / steps

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,), (g,) = ctx.saved_tensors, grads
        parameters = tuple(ctx.function.parameters())
        with torch.enable_grad():
            held = x.detach()
            total = (
                sum(ctx.function(held * (i + 0.5) / ctx.steps) for i in range(ctx.steps)) * held / ctx.steps
            )
            found = torch.autograd.grad((total * g).sum(), parameters)
        return None, ctx.function(x) * g, None, *found


class Pair(torch.autograd.Function):
    """Two results, of which one is constant; written in the new style, and without zeros for missing gradients."""

    @staticmethod
    def forward(function: Any, x: Any) -> Any:
        return function(x), (x > 0).to(x.dtype), "words"

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[1], None)
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        assert ctx.needs_input_grad in [(False, True), (False, False)]  # with a derivative, and without

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, nothing = ctx.saved_tensors
        assert nothing is None
        assert grads[1] is None
        return None, grads[0] * 3 * x


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x.mul_(2)


class Net(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first = kind, nn.Linear(4, 3)
        self.inner = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3), nn.Softplus())

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        if self.kind == "integral":
            return Integral.apply(self.inner, y, 4, *self.inner.parameters())
        if self.kind == "pair":
            found, above, word = Pair.apply(torch.sin, y)
            assert word == "words"
            return found * above + self.inner(y)
        return Dirty.apply(torch.sin, y)


def loss(net: Any, x: Any) -> Any:
    y = net(x)
    return (y * y).sum()


@pytest.mark.parametrize("kind", ["integral", "pair"])
def test_values_and_gradients_are_pytorchs(kind: str) -> None:
    torch.manual_seed(0)
    net, x = Net(kind), torch.randn(6, 4)
    converted = convert.from_torch(net, share=False)
    np.testing.assert_allclose(converted(x).numpy(), net(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    value, gradients = lm.value_and_grad(loss)(converted, lm.tensor(x.numpy()))
    wanted = loss(net, x)
    wanted.backward()
    assert float(value) == pytest.approx(wanted.item(), rel=1e-5)
    for name, p in net.named_parameters():
        own = np.zeros_like(p.detach().numpy()) if p.grad is None else p.grad.numpy()
        np.testing.assert_allclose(gradients[name].numpy(), own, rtol=1e-4, atol=1e-5)


def test_a_training_step_is_pytorchs() -> None:
    torch.manual_seed(0)
    net = Net("integral")
    step = lm.train_step(
        convert.from_torch(net, share=False), lambda y, _: (y * y).mean(), optim.SGD(lr=0.1), device="cpu"
    )
    rule = torch.optim.SGD(net.parameters(), lr=0.1)
    for seed in range(3):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))
        rule.zero_grad()
        wanted = (net(x) ** 2).mean()
        wanted.backward()
        rule.step()
        assert float(step(x.numpy(), np.zeros(6))) == pytest.approx(wanted.item(), rel=1e-5)


def test_gradients_are_differentiated_once() -> None:
    converted = convert.from_torch(Net("pair"), share=False)

    def slope(x: Any) -> Any:
        return (lm.grad(lambda v: converted(v).sum())(x) ** 2).sum()

    with pytest.raises(
        TypeError, match="gradient of the autograd function Pair.* is differentiated only once"
    ):
        lm.grad(slope)(lm.ones((2, 4)))


def test_writes_into_arguments_are_refused() -> None:
    with pytest.raises(convert.TorchConversionError, match="Dirty writes into its arguments"):
        convert.from_torch(Net("dirty"))(torch.randn(6, 4))
    with pytest.raises(convert.TorchConversionError, match="Integral calls a function that it is given"):
        convert.from_torch(Net("integral"), torch.randn(6, 4), fullgraph=True)
