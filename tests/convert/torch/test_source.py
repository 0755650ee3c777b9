"""Plain attributes of a PyTorch module, on which its graphs depend."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from operator import neg
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import infer, ops, optim

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


def scaled() -> Any:
    import torch
    from torch import nn

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(3, 3), nn.LeakyReLU(0.5))
            self.factor, self.calls, self.powers = 2.0, 0, [1, 2]
            self.last = torch.abs

        def forward(self, x: Any) -> Any:
            self.calls += 1
            y = self.inner(x) * self.factor
            return self.last(sum(y**n for n in self.powers))

    torch.manual_seed(0)
    return Scaled()


def callers(net: Any) -> dict[str, Callable[[Any], Any]]:
    jitted, predictor = lm.jit(net), infer.Predictor(net, device="cpu")
    step = lm.train_step(net, lambda y, _: ops.sum(y), optim.SGD(lr=0.0), device="cpu")
    return {"eager": net, "jit": jitted, "predictor": predictor, "step": lambda x: step(x, None)}


CHANGES: dict[str, Callable[[Any], Any]] = {
    "its own": lambda net: setattr(net, "factor", 3.0),
    "a part's": lambda net: setattr(net.get_submodule("inner.1"), "negative_slope", 0.1),
    "a function": lambda net: setattr(net, "last", neg),
    "element": lambda net: net.powers.append(3),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("how", ["eager", "jit", "predictor", "step"])
@pytest.mark.parametrize("on", ["source", "converted"])
def test_calls_follow_attributes(change: str, how: str, on: str) -> None:
    import torch

    from lamina.convert.torch import from_torch

    net, x = scaled(), np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    converted = from_torch(net, share=False)
    call = callers(converted)[how]
    before = np.asarray(call(x))
    CHANGES[change](net if on == "source" else converted)
    after, wanted = np.asarray(call(x)), net(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(after, wanted.sum() if how == "step" else wanted, rtol=1e-4, atol=1e-5)
    assert not np.allclose(before, after)


def test_graphs_are_made_once_for_the_same_attributes() -> None:
    """What forward itself counts is none, and copies have attributes of their own."""
    import torch

    from lamina.convert.torch import from_torch

    net, x = scaled(), torch.ones(4, 3)
    converted = from_torch(net, x)
    for factor in (2.0, 3.0, 2.0):
        converted.factor = factor
        net(x)
        converted(x)
    assert len(converted._graphs) == 2
    other = copy.deepcopy(converted)
    other.factor = 5.0
    assert (converted.factor, net.factor, other.factor) == (2.0, 2.0, 5.0)
    np.testing.assert_allclose(other(x).numpy(), other.source(x).detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize("how", ["eager", "jit", "predictor", "step"])
def test_a_part_that_was_exchanged_is_an_error(how: str) -> None:
    from torch import nn

    from lamina.convert.torch import TorchConversionError, from_torch

    net, x = scaled(), np.ones((4, 3), np.float32)
    converted = from_torch(net, share=False)
    call = callers(converted)[how]
    call(x)
    net.inner[0] = nn.Linear(3, 3)
    with pytest.raises(
        TorchConversionError, match=r"'inner\.0' of Scaled is another one.*convert the network again"
    ):
        call(x)


def test_a_parameter_that_was_exchanged_is_an_error() -> None:
    """Untied, merged or loaded by assignment: its values are elsewhere than those of the network."""
    import torch

    from lamina.convert.torch import TorchConversionError, from_torch

    net, x = torch.nn.Linear(3, 2), torch.ones(4, 3)
    converted = from_torch(net)
    step = lm.jit(converted)
    step(x), converted(x)
    net.load_state_dict(net.state_dict())
    step(x), converted(x)
    net.load_state_dict({n: p.clone() for n, p in net.state_dict().items()}, assign=True)
    for call in (converted, step):
        with pytest.raises(
            TorchConversionError, match=r"'weight' of Linear is another one.*convert the network"
        ):
            call(x)


@pytest.mark.parametrize("how", ["eager", "jit", "predictor", "step"])
def test_hooks_of_the_source_are_followed(how: str) -> None:
    import torch

    from lamina.convert.torch import from_torch

    net, x = scaled(), np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    call = callers(from_torch(net, share=False))[how]

    def require_same() -> None:
        wanted = net(torch.from_numpy(x)).detach().numpy()
        wanted = wanted.sum() if how == "step" else wanted
        np.testing.assert_allclose(np.asarray(call(x)), wanted, rtol=1e-4, atol=1e-5)

    require_same()
    first = net.inner[0].register_forward_hook(lambda module, given, result: 3 * result)
    require_same()
    net.register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    require_same()
    first.remove()
    require_same()


def test_hooks_that_forward_registers_are_those_of_each_graph() -> None:
    """A module that does so in its first call has one, however many graphs are made."""
    import torch
    from torch import nn

    from lamina.convert.torch import from_torch

    class Hooked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.ready = nn.Linear(3, 3), False

        def forward(self, x: Any) -> Any:
            if not self.ready:
                self.ready = True
                self.inner.register_forward_hook(lambda module, given, result: 2 * result)
            return self.inner(x)

    net = Hooked()
    converted, twin = from_torch(net), copy.deepcopy(net)
    for x in (torch.ones(4, 3), torch.ones(2, 5, 3), torch.ones(4, 3)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `ready` is carried
            found = converted(x).numpy()
        np.testing.assert_allclose(found, twin(x).detach().numpy(), rtol=1e-5)
    assert not net.inner._forward_hooks


def test_hooks_of_converted_parts_are_refused() -> None:
    """They would not be called; those of the whole network are."""
    from torch import nn

    from lamina.convert.torch import from_torch

    net = from_torch(nn.Sequential(nn.Linear(3, 2)))
    net.register_forward_hook(lambda module, given, result: 0 * result)
    assert (net(np.ones((4, 3), np.float32)).numpy() == 0).all()
    for method in ("register_forward_hook", "register_forward_pre_hook"):
        with pytest.raises(TypeError, match=f"{method}: Linear is part of a converted network.*source"):
            getattr(net.get_submodule("0"), method)(print)


def test_parameters_of_one_in_the_source_stay_one() -> None:
    """Graphs read it under one name: one that takes its place under another would not be used."""
    import torch
    from torch import nn

    from lamina.convert.torch import TorchConversionError, from_torch

    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    x, converted = torch.ones(2, 3), from_torch(net)
    converted(x)
    own = lm.nn.Parameter(lm.zeros((3, 3)))
    converted.get_submodule("1").weight = own
    with pytest.raises(TorchConversionError, match=r"0\.weight and 1\.weight are one parameter.*untie"):
        converted(x)
    converted.get_submodule("0").weight = own
    np.testing.assert_array_equal(converted(x).numpy(), np.tile(net[1].bias.detach().numpy(), (2, 1)))
    np.testing.assert_array_equal(copy.deepcopy(converted)(x).numpy(), converted(x).numpy())


def test_a_tuple_that_does_not_tell_its_length_is_a_setting() -> None:
    import torch

    from lamina.convert.torch import from_torch

    class Pair(tuple[Any, ...]):
        def __len__(self) -> int:
            raise NotImplementedError

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pairs = Pair([Pair([1, 2]), Pair([3, torch.ones(2)])])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            (one, other), (third, tensor) = self.pairs
            return x * one + other * third * tensor

    net, x = Net(), torch.randn(3, 2)
    converted = from_torch(net, x)
    np.testing.assert_allclose(converted(x.numpy()).numpy(), net(x).numpy(), rtol=1e-6)
