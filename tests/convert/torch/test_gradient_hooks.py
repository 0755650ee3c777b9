"""Hooks on gradients within converted networks: of tensors, of modules, of parameters."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.feature("F099"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
]


def of_tensors() -> Any:
    """On what an in-place function made, which was read before, and on a part of it."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            y = self.first(x).mul_(2)
            z = self.second(y)
            y.register_hook(lambda grad: grad * 3)
            y.register_hook(lambda grad: grad.clamp(-0.5, 0.5))
            a, b = torch.tanh(y + z).chunk(2, 1)
            handle = a.register_hook(lambda grad: None)
            assert handle is not None
            return a * b + y[:, :2]

    return Net()


def of_modules() -> Any:
    """Of a module with two inputs and results that is called twice, and of the first one, whose input has none."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Any, y: Any) -> Any:
            return torch.tanh(self.linear(x)) * y, x + y

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.block = nn.Linear(4, 4), Block()

        def forward(self, x: Any) -> Any:
            h = self.first(x)
            for _ in range(2):
                h, g = self.block(h, h * 2)
            return h + g

    net = Net()
    net.block.register_full_backward_hook(
        lambda module, left, arrived: (left[0] * 2 + arrived[0].mean(), left[1])
    )
    net.block.register_full_backward_pre_hook(lambda module, arrived: (arrived[0] * 3, arrived[1]))
    net.first.register_full_backward_hook(lambda module, left, arrived: None)
    net.first.register_full_backward_pre_hook(lambda module, arrived: (arrived[0] - 0.1,))
    return net


def of_parameters() -> Any:
    """A weight of which half is trained."""
    import torch
    from torch import nn

    net, mask = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.tensor([1.0, 0, 1, 0])
    net[0].weight.register_hook(lambda grad: grad * mask)
    net[2].bias.register_hook(lambda grad: grad.clamp(-0.1, 0.1))
    net[2].bias.register_hook(lambda grad: None)
    return net


@pytest.mark.parametrize("make", [of_tensors, of_modules, of_parameters])
def test_gradients_are_those_of_torch(make: Any) -> None:
    """Eagerly, in copies, and in a compiled step, where a step of SGD shows the gradient."""
    import copy

    import numpy as np
    import torch

    import lamina as lm
    from lamina.convert.torch import check, from_torch

    torch.manual_seed(0)
    net, x, wanted = make(), torch.randn(3, 4), torch.randn(3, 2 if make is not of_modules else 4)
    converted = from_torch(net, x, share=False)
    for own in (net, copy.deepcopy(net)):  # a copy of a parameter has no hooks
        found = check(own, converted if own is net else from_torch(own, x), x)
        assert found.output < 1e-6, found
        assert found.gradient < 1e-5, found
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    step = lm.train_step(converted, lm.nn.MSELoss(), lm.optim.SGD(lr=1.0))
    step(x.numpy(), wanted.numpy())
    torch.nn.functional.mse_loss(net(x), wanted).backward()
    for name, p in net.named_parameters():
        np.testing.assert_allclose(
            converted.state_dict()[name].numpy(), (before[name] - p.grad).numpy(), rtol=1e-5, atol=1e-5
        )


def test_a_hook_that_is_removed_is_gone() -> None:
    import torch
    from torch import nn

    from lamina.convert.torch import check, from_torch

    net, x = nn.Linear(3, 2), torch.randn(4, 3)
    handle = net.weight.register_hook(lambda grad: grad * 0)
    converted = from_torch(net, x)
    assert check(net, converted, x).gradient < 1e-6
    handle.remove()
    assert check(net, converted, x).gradient < 1e-6


def test_hooks_without_a_graph_are_refused() -> None:
    import torch
    from torch import nn

    from lamina.convert.torch import TorchConversionError, from_torch

    class Net(nn.Module):
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.linear, self.kind = nn.Linear(3, 3), kind

        def forward(self, x: Any) -> Any:
            y = self.linear(x)
            if self.kind == "reads":
                y.register_hook(lambda grad: grad * x)
            else:
                self.linear.weight.register_hook(lambda grad: grad * 2)
            return y

    x = torch.randn(2, 3)
    with pytest.raises(
        TorchConversionError, match=r"reads tensors of the forward pass.*torch\.autograd\.Function"
    ):
        from_torch(Net("reads"), x, fullgraph=True)
    with pytest.raises(
        TorchConversionError, match=r"\(3, 3\) is a parameter.*register it once, outside of forward"
    ):
        from_torch(Net("parameter"), x, fullgraph=True)
    net = nn.Linear(3, 3)
    net.register_backward_hook(lambda module, left, arrived: None)
    with pytest.raises(TorchConversionError, match="register it by register_full_backward_hook"):
        from_torch(net, x, fullgraph=True)


@pytest.mark.parametrize("fails", [False, True])
def test_functions_of_torch_are_their_own_again_afterwards(fails: bool) -> None:
    import contextlib

    import torch
    from torch.utils.hooks import BackwardHook

    from lamina.convert.torch.gradient_hooks import gradient_hooks

    places = (
        (BackwardHook, "setup_input_hook"), (BackwardHook, "setup_output_hook"), (torch.Tensor, "register_hook"),
        (torch.nn.Module, "_maybe_warn_non_full_backward_hook"),
    )  # fmt: skip
    before = [owner.__dict__[name] for owner, name in places]
    with contextlib.suppress(KeyError), gradient_hooks(lambda name, rule, tensors: tensors):
        assert all(owner.__dict__[n] is not own for (owner, n), own in zip(places, before, strict=True))
        if fails:
            raise KeyError
    assert [owner.__dict__[name] for owner, name in places] == before
