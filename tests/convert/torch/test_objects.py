"""Objects that hold tensors: containers of their attributes as arguments and results, changed as PyTorch's are."""

from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


class Layer:
    """The keys of a layer: none at first."""

    def __init__(self) -> None:
        self.keys: Any = None

    def update(self, new: Any) -> Any:
        import torch

        self.keys = new if self.keys is None else torch.cat([self.keys, new], 1)
        return self.keys


class Cache:
    """The keys of all steps; a layer's appears with its first call. calls: how often it was asked."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.calls = 0

    def update(self, new: Any) -> Any:
        if not self.layers:
            self.layers.append(Layer())
        self.calls += 1
        return self.layers[0].update(new)


def decoder() -> Any:
    """Attention of each step to the keys so far. x: [N, T, 4]."""
    import torch
    from torch import nn

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.project = nn.Linear(4, 4)

        def forward(self, x: Any, cache: Any) -> Any:
            keys = cache.update(self.project(x))
            return (x @ keys.transpose(1, 2)).softmax(-1) @ keys, cache

    return Decoder()


def _steps(net: Any, cache: Any) -> list[Any]:
    import torch

    parts = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(1)).split([3, 1, 1], 1)
    return [net(x, cache)[0] for x in parts]


def test_a_cache_that_the_network_extends_is_extended() -> None:
    from lamina.convert.torch import from_torch

    source = decoder().requires_grad_(False)
    theirs, ours = Cache(), Cache()
    wanted, found = _steps(source, theirs), _steps(from_torch(source), ours)
    for y, w in zip(found, wanted, strict=True):
        np.testing.assert_allclose(y.numpy(), w.numpy(), rtol=1e-5, atol=1e-6)
    assert ours.calls == theirs.calls == 3
    np.testing.assert_allclose(
        ours.layers[0].keys.numpy(), theirs.layers[0].keys.numpy(), rtol=1e-5, atol=1e-6
    )


def test_a_cache_that_pytorch_filled_is_read_anew_by_each_call() -> None:
    import torch

    from lamina.convert.torch import from_torch

    source = decoder().requires_grad_(False)
    net, x = from_torch(source), torch.ones(2, 1, 4)
    theirs, ours = Cache(), Cache()
    for cache in (theirs, ours):
        source(torch.zeros(2, 3, 4), cache)
    for _ in range(3):
        np.testing.assert_allclose(
            net(x, ours)[0].numpy(), source(x, theirs)[0].numpy(), rtol=1e-5, atol=1e-6
        )
    ours.layers[0].keys *= 0  # of the same shape as before
    theirs.layers[0].keys *= 0
    np.testing.assert_allclose(net(x, ours)[0].numpy(), source(x, theirs)[0].numpy(), rtol=1e-5, atol=1e-6)


def test_the_cache_among_the_results_is_one_of_tensors() -> None:
    import torch

    from lamina.convert.torch import from_torch

    net = from_torch(decoder().requires_grad_(False))
    x = torch.ones(2, 1, 4)
    y, cache = net(x, Cache())
    again, cache = net(x, cache)
    assert type(cache) is Cache
    assert cache.layers[0].keys.shape == (2, 2, 4)
    np.testing.assert_allclose(again.numpy(), y.numpy(), rtol=1e-5)


def test_check_compares_the_tensors_of_objects_and_changes_none() -> None:
    import torch

    from lamina.convert.torch import check, from_torch

    source, cache = decoder(), Cache()
    parity = check(source, from_torch(source), torch.ones(2, 3, 4), cache)
    assert len(parity.outputs) == 2
    assert parity.output < 1e-5
    assert parity.gradient < 1e-5
    assert (cache.layers, cache.calls) == ([], 0)


def test_a_graph_holds_for_the_attributes_that_it_was_made_with() -> None:
    import torch
    from torch import nn

    from lamina.convert.torch import from_torch

    class Settings:
        scale = 1.0

    class Scaled(nn.Module):
        def forward(self, x: Any, settings: Any) -> Any:
            return x * settings.scale, settings

    net, settings, x = from_torch(Scaled()), Settings(), torch.ones(2)
    settings.scale = 2.0
    y, same = net(x, settings)
    assert y.numpy().tolist() == [2, 2]
    settings.scale = 3.0
    assert net(x, settings)[0].numpy().tolist() == [3, 3]
    assert type(same) is Settings


def test_distributions_are_results_of_tensors() -> None:
    import torch
    from torch import nn

    from lamina.convert.torch import from_torch

    class Policy(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.distributions.Normal(x, x.exp())

    found = from_torch(Policy())(torch.ones(3))
    np.testing.assert_allclose(found.scale.numpy(), np.exp(np.ones(3)), rtol=1e-6)


def test_what_is_a_container() -> None:
    import torch
    from torch import nn

    from lamina.convert.torch.objects import holds_tensors, is_container, objects

    node = Cache()
    node.layers.append(node)  # type: ignore[arg-type]  # a tree's node that holds itself
    whole: list[Any] = [
        node,
        Cache,
        nn.Linear(1, 1),
        len,
        torch.ones(1),
        np.ones(1),
        1,
        "a",
        None,
        [Cache()],
        {},
    ]
    assert not any(map(is_container, whole))
    assert is_container(Cache())
    assert not holds_tensors(Cache())
    cache = Cache()
    cache.update(torch.ones(1, 1))
    assert holds_tensors(cache)
    assert objects(((cache, [1, {"a": node}]), {"b": cache})) == [cache, cache]


@pytest.mark.parametrize("name", ["calls", "new"])
def test_changed_attributes_are_assigned(name: str) -> None:
    from lamina.convert.torch.objects import ObjectAttributes, assign

    given, other = Cache(), Cache()
    before = ObjectAttributes((given, other))
    assert before.changed() == {}
    setattr(given, name, 5)
    del given.layers
    target = Cache()
    assign((target, other), before.changed())
    assert vars(target) == vars(given)
    assert vars(other) == vars(Cache())
