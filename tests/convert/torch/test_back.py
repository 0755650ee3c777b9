"""Lamina networks as PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F101", "B025")]


def same_bits(network: Any, module: Any) -> None:
    state = network.state_dict()
    assert list(state) == list(module.state_dict())
    for name, held in module.state_dict().items():
        assert np.asarray(state[name].numpy()).tobytes() == held.contiguous().numpy().tobytes(), name


def test_there_and_back_to_the_bit() -> None:
    import torch
    from torch import nn

    import lamina as lm
    from lamina.convert.torch import from_torch, to_torch

    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 2)).train()
    x = torch.randn(8, 3, 6, 6)
    converted = from_torch(net, x)
    before = [p.clone() for p in net.parameters()]
    step = lm.train_step(converted, lm.nn.CrossEntropyLoss(), lm.optim.SGD(lr=0.1))
    step(x.numpy(), np.arange(8) % 2)
    back = to_torch(converted)
    same_bits(converted, back)
    assert type(back) is type(net)
    assert not any(torch.equal(a, b) for a, b in zip(before[:1], back.parameters(), strict=False))
    np.testing.assert_allclose(
        converted.eval()(x).numpy(), back.eval()(x).detach().numpy(), rtol=1e-4, atol=1e-5
    )


LAYERS = {
    "Sequential": lambda nn: nn.Sequential(
        nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2)
    ),
    "Conv2d": lambda nn: nn.Conv2d(6, 8, 3, stride=2, padding=1, groups=2, bias=False),
    "BatchNorm1d": lambda nn: nn.BatchNorm1d(6, eps=1e-3, momentum=0.2),
    "LayerNorm": lambda nn: nn.LayerNorm(6, elementwise_affine=False),
    "GroupNorm": lambda nn: nn.GroupNorm(3, 6),
    "LSTM": lambda nn: nn.LSTM(6, 4, num_layers=2, bidirectional=True, batch_first=True),
    "GRU": lambda nn: nn.GRU(6, 4, bias=False),
    "Embedding": lambda nn: nn.Embedding(5, 6),
    "MultiheadAttention": lambda nn: nn.MultiheadAttention(6, 2, bias=False),
    "ConvTranspose2d": lambda nn: nn.ConvTranspose2d(6, 4, 2, stride=2),
    "MultiheadAttention, longer keys": lambda nn: nn.MultiheadAttention(6, 2, bias=False, add_bias_kv=True),
    "TransformerEncoderLayer": lambda nn: nn.TransformerEncoderLayer(
        6, 2, 8, bias=False, layer_norm_eps=1e-3
    ),
    "MaxPool2d": lambda nn: nn.MaxPool2d(3, 2, 1),
}


def test_complex_parameters_and_buffers_come_back() -> None:
    import torch

    import lamina as lm
    from lamina.convert.torch import from_torch, to_torch

    class Modes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3, 4, dtype=torch.complex64))
            self.register_buffer("turn", torch.polar(torch.ones(4), torch.arange(4.0)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.weight * self.turn).real.sum(-1)

    net, x = Modes(), torch.randn(2, 3, 4)
    wanted = net(x).detach()
    converted = from_torch(net, x, share=False)
    module = to_torch(converted)
    torch.testing.assert_close(module(x), wanted, rtol=0, atol=0)
    assert [(v.shape, v.dtype) for v in module.state_dict().values()] == [
        (v.shape, v.dtype) for v in net.state_dict().values()
    ]
    step = lm.train_step(converted, lambda y, _: lm.ops.mean(lm.ops.square(y)), lm.optim.SGD(lr=0.1))
    losses = [float(step(x.numpy())) for _ in range(3)]
    trained = to_torch(converted)
    assert trained(x).square().mean().item() < losses[-1] < losses[0]


@pytest.mark.parametrize("name", LAYERS)
def test_layers_become_those_of_torch(name: str) -> None:
    import lamina as lm
    from lamina.convert.torch import to_torch

    network = LAYERS[name](lm.nn)
    module = to_torch(network)
    assert type(module).__name__ == name.partition(",")[0]
    same_bits(network, module)
    if name == "Conv2d":
        assert (module.stride, module.padding, module.groups) == ((2, 2), (1, 1), 2)
    if name == "BatchNorm1d":
        assert (module.eps, module.momentum) == (1e-3, 0.2)


def test_a_class_of_the_users_own_is_refused_by_its_path() -> None:
    import lamina as lm
    from lamina.convert.torch import TorchConversionError, to_torch

    class Mine(lm.nn.Module):
        def forward(self, x: Any) -> Any:
            return x

    with pytest.raises(TorchConversionError, match="to_torch: 1 is a Mine, which torch.nn does not have"):
        to_torch(lm.nn.Sequential(lm.nn.ReLU(), Mine()))


def test_what_is_shared_stays_shared() -> None:
    import lamina as lm
    from lamina.convert.torch import to_torch

    layer, table = lm.nn.Linear(3, 3), lm.nn.Embedding(5, 3)
    network = lm.nn.Sequential(table, layer, lm.nn.Tanh(), layer, lm.nn.Linear(3, 5, bias=False))
    network[4].weight = table.weight
    module: Any = to_torch(network)
    assert module[1] is module[3]
    assert module[4].weight is module[0].weight
    same_bits(network, module)


@pytest.mark.parametrize("first", [False, True])
def test_transformers_compute_the_same(first: bool) -> None:
    import torch

    import lamina as lm
    from lamina.convert.torch import to_torch

    options = {"batch_first": True, "norm_first": first, "layer_norm_eps": 1e-3}
    network = lm.nn.Transformer(8, 2, 2, 1, 12, 0.3, lm.ops.silu if first else "gelu", **options)
    network.encoder.layers[1].dropout1.p = 0.7
    module: Any = to_torch(network.eval())
    same_bits(network, module)
    assert module.encoder.layers[1].dropout1.p == 0.7
    assert [layer.dropout.p for layer in module.encoder.layers] == [0.3, 0.3]
    assert (module.d_model, module.nhead, module.batch_first) == (8, 2, True)
    src, tgt = torch.randn(3, 5, 8), torch.randn(3, 4, 8)
    padding = torch.arange(5) >= torch.tensor([[5], [3], [4]])
    wanted = network(src.numpy(), tgt.numpy(), src_key_padding_mask=padding.numpy())
    found = module(src, tgt, src_key_padding_mask=padding)
    np.testing.assert_allclose(found.detach().numpy(), wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_a_function_that_torch_lacks_is_refused_by_its_name() -> None:
    import lamina as lm
    from lamina.convert.torch import TorchConversionError, to_torch

    def cubed(x: Any) -> Any:
        return x * x * x

    layer = lm.nn.TransformerEncoderLayer(4, 2, 8, activation=cubed)
    with pytest.raises(
        TorchConversionError, match="to_torch: 0.activation is cubed, a function that torch.nn.func"
    ):
        to_torch(lm.nn.Sequential(layer))


def test_a_state_with_more_than_tensors() -> None:
    import torch

    from lamina.convert.torch import from_torch, to_torch

    class Inner(torch.nn.Linear):
        def get_extra_state(self) -> Any:
            return torch.ones(2)

        def set_extra_state(self, state: Any) -> None:
            pass

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner(3, 2)

        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            return super().state_dict(*args, **kwargs) | {"settings": {"width": 2}}

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    net, x = Net(), torch.randn(4, 3)
    back = to_torch(from_torch(net, x))
    torch.testing.assert_close(back(x), net(x))
