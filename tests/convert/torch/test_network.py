"""Networks with classes of your own as PyTorch's: results, gradients, states, modes, sizes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops

pytestmark = [pytest.mark.torch, pytest.mark.feature("F101", "B025")]

#: name -> a network and its inputs at one size and at another.
NETWORKS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...], tuple[Any, ...]]]] = {}


def network(make: Any) -> Any:
    NETWORKS[make.__name__] = make
    return make


def rand(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@network
def residual_with_statistics() -> Any:
    class Block(nn.Module):
        def __init__(self) -> None:
            self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
            self.norm = nn.BatchNorm2d(8, momentum=0.3)
            self.scale = nn.Parameter(np.full(8, 1.1, np.float32))
            self.head = nn.Linear(8, 5)
            self.register_buffer("mean", lm.tensor(np.zeros(8, np.float32)))
            self.register_buffer("shift", lm.tensor(np.full(8, 0.5, np.float32)), persistent=False)

        def forward(self, x: Any) -> Any:
            y = ops.relu(self.norm(self.conv(x))) * self.scale.reshape((8, 1, 1))
            y = ops.mean(ops.max_pool2d(y, 2), (2, 3))
            if self.training:
                self.mean = ops.stop_gradient(0.9 * self.mean + 0.1 * ops.mean(y, 0))
            return {"logits": self.head(y - self.mean + self.shift), "features": [y]}

    return Block(), (rand(4, 3, 8, 8),), (rand(6, 3, 8, 8),)


@network
def attention_of_any_length() -> Any:
    class Attention(nn.Module):
        def __init__(self) -> None:
            self.table = nn.Embedding(20, 12)
            self.position = nn.Embedding(30, 12)
            self.qkv = nn.Linear(12, 36)
            self.norm = nn.LayerNorm(12)
            self.out = nn.Linear(12, 20, bias=False)
            self.out.weight = self.table.weight

        def forward(self, ids: Any) -> Any:
            n, t = ids.shape
            x = self.table(ids) + self.position(lm.arange(t))
            q, k, v = ops.chunk(self.qkv(self.norm(x)).reshape((n, t, 3, 12)), 3, 2)
            q, k, v = (z.reshape((n, t, 3, 4)).transpose(1, 2) for z in (q, k, v))
            y = ops.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(x + y.transpose(1, 2).reshape((n, t, 12)))

    ids = np.random.default_rng(0).integers(0, 20, (3, 7))
    return Attention(), (ids,), (np.random.default_rng(1).integers(0, 20, (2, 9)),)


@network
def recurrent_in_a_tree() -> Any:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            self.first = nn.LSTM(4, 6, bidirectional=True)
            self.second = nn.GRU(12, 5)

        def forward(self, given: Any, weight: Any) -> Any:
            y, (h, _) = self.first(given["x"])
            y, _ = self.second(y)
            return (ops.softmax(y * weight, -1), h), given["bias"] + 1.0

    given = {"x": rand(5, 2, 4), "bias": rand(3)}
    return Recurrent(), (given, rand(5)), ({"x": rand(5, 2, 4), "bias": rand(3)}, rand(5))


@network
def a_gradient_of_its_own() -> Any:
    rule = lm.custom_vjp(lambda x: 2.0 * x)
    rule.defvjp(lambda x: (2.0 * x, x), lambda kept, g: (g * ops.sin(kept) * 3.0,))

    class Rule(nn.Module):
        def __init__(self) -> None:
            self.weight = nn.Parameter(rand(4))

        def forward(self, x: Any) -> Any:
            return ops.sum(rule(x * self.weight), 1)

    return Rule(), (rand(3, 4),), (rand(6, 4),)


@network
def sizes_in_numbers() -> Any:
    class Sizes(nn.Module):
        def __init__(self) -> None:
            self.up = nn.ConvTranspose2d(2, 3, 2, stride=2)

        def forward(self, x: Any) -> Any:
            y = ops.interpolate(self.up(x), size=(9, 7), mode="bilinear")
            flat = y.reshape((x.shape[0], -1))
            return ops.sum(flat, 0) / x.shape[0], ops.pad(y, (1, 2), mode="reflect")[:, :, ::2]

    return Sizes(), (rand(4, 2, 5, 5),), (rand(3, 2, 5, 5),)


def leaves(found: Any) -> list[Any]:
    return lm._tree.flatten(found)[0]


def as_torch(given: Any) -> Any:
    import torch

    found, nesting = lm._tree.flatten(given)
    return lm._tree.unflatten(nesting, [torch.from_numpy(np.asarray(x)) for x in found])


def apart(a: Any, b: Any) -> float:
    a, b = np.asarray(a if isinstance(a, np.ndarray) else a.numpy()), b.detach().numpy()
    assert a.shape == b.shape
    return float(np.abs(a - b).max(initial=0.0)) / max(1.0, float(np.abs(a).max(initial=0.0)))


def gradients(net: nn.Module, given: Any) -> dict[str, Any]:
    names, held = zip(*net.named_parameters(), strict=True)

    def loss(*values: Any) -> Any:
        found = leaves(nn.functional_call(net, dict(zip(names, values, strict=True)), given))
        return sum((ops.sum(y * y) for y in found[1:]), ops.sum(found[0] * found[0]))

    return dict(zip(names, lm.grad(loss, argnums=tuple(range(len(names))))(*held), strict=True))


#: Which axes of the inputs are free.
FREE: dict[str, Any] = {
    "attention_of_any_length": {"input_0": {0: "batch", 1: "time"}},
    "recurrent_in_a_tree": None,
}


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", NETWORKS)
def test_results_gradients_and_states(name: str, training: bool) -> None:
    from lamina.convert.torch import to_torch
    from lamina.convert.torch.network import WrittenNetwork

    net, given, other = NETWORKS[name]()
    net.train(training)
    module = to_torch(net, *given, dynamic=FREE.get(name, "batch"))
    assert isinstance(module, WrittenNetwork)
    assert list(module.state_dict()) == list(net.state_dict())
    for key, held in module.state_dict().items():
        assert held.numpy().tobytes() == np.asarray(net.state_dict()[key].numpy()).tobytes(), key
    for inputs in (other, given):
        wanted = gradients(copy.deepcopy(net), inputs)
        outputs = leaves(net(*inputs))
        found = leaves(module(*as_torch(inputs)))
        assert [apart(a, b) for a, b in zip(outputs, found, strict=True)] <= [1e-5] * len(outputs)
        module.zero_grad()
        terms = [(y * y).sum() for y in found]
        sum(terms[1:], terms[0]).backward()
        for key, p in module.named_parameters():
            assert apart(wanted[key], p.grad) < 1e-4, key
    for key, held in module.state_dict().items():
        assert apart(net.state_dict()[key], held) < 1e-5, key


def test_it_is_a_module_as_others_are() -> None:
    import torch

    from lamina.convert.torch import from_torch, to_torch

    net, given, other = NETWORKS["residual_with_statistics"]()
    module: Any = to_torch(net, *given, dynamic="batch").eval()
    wanted = module(*as_torch(other))["logits"]
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(x=as_torch(other)[0])["logits"], wanted)
    assert sorted(n for n, _ in module.named_modules()) == ["", "conv", "head", "norm"]
    assert "conv2d" in module.graphs[(False,) * 4].code
    assert module.double()(as_torch(other)[0].double())["logits"].dtype == torch.float64
    assert "Block(\n  (conv): Conv2d()" in str(module)
    back = from_torch(module.float(), *as_torch(given))
    np.testing.assert_allclose(
        back(*as_torch(given))["logits"].numpy(), net.eval()(*given)["logits"].numpy(), 1e-4, 1e-5
    )


def test_what_is_shared_stays_shared_and_what_is_frozen_frozen() -> None:
    from lamina.convert.torch import to_torch

    net: Any = NETWORKS["attention_of_any_length"]()[0]
    net.position.weight.requires_grad = False
    module: Any = to_torch(net, np.zeros((2, 7), np.int64))
    assert module.out.weight is module.table.weight
    assert not module.position.weight.requires_grad
    assert len(list(module.parameters())) == len(list(net.parameters()))


def test_dropout_drops_in_training_by_the_generator_of_torch() -> None:
    import torch

    from lamina.convert.torch import to_torch

    class Dropping(nn.Module):
        def __init__(self) -> None:
            self.drop = nn.Dropout(0.4)

        def forward(self, x: Any) -> Any:
            return ops.dropout(self.drop(x) * 1.0, 0.25, self.training)

    x = torch.ones(50, 40)
    module = to_torch(Dropping(), x).train()
    torch.manual_seed(0)
    y = module(x)
    assert abs(float((y != 0).double().mean()) - 0.6 * 0.75) < 0.05
    assert y[y != 0].unique().tolist() == pytest.approx([1 / 0.6 / 0.75])
    assert not torch.equal(module(x), y)
    torch.manual_seed(0)
    assert torch.equal(module(x), y)
    assert torch.equal(module.eval()(x), x)


def test_modes_of_single_modules() -> None:
    from lamina.convert.torch import to_torch

    net, given, _ = NETWORKS["residual_with_statistics"]()
    net.train()
    net.norm.eval()
    module: Any = to_torch(net, *given)
    assert not module.norm.training
    assert apart(net(*given)["logits"], module(*as_torch(given))["logits"]) < 1e-5
    assert module.norm.num_batches_tracked == 0
    module.norm.train()
    module.conv.eval()
    with pytest.raises(RuntimeError, match="Block: there are graphs for training, inference and the modes"):
        module(*as_torch(given))


def test_other_inputs_are_refused_by_their_names() -> None:
    import torch

    from lamina.convert.torch import to_torch

    net, given, _ = NETWORKS["recurrent_in_a_tree"]()
    module = to_torch(net, *given)
    tree, weight = as_torch(given)
    with pytest.raises(
        ValueError, match=r"input_0_x has shape \[6, 2, 4\], and the graph was made for \[5, 2, 4\]"
    ):
        module({**tree, "x": torch.zeros(6, 2, 4)}, weight)
    with pytest.raises(TypeError, match="Recurrent: takes inputs nested as"):
        module(tree["x"], weight)
    with pytest.raises(ValueError, match="to_torch: dynamic names"):
        to_torch(net, *given, dynamic={"x": {0: "time"}})


def test_what_torch_lacks_is_refused_with_its_line() -> None:
    from lamina.convert.torch import TorchConversionError, to_torch

    class Regions(nn.Module):
        def forward(self, x: Any, boxes: Any) -> Any:
            return ops.roi_align(x, boxes, 2)

    with pytest.raises(
        TorchConversionError, match=r"to_torch: roi_align\(.*test_network.py:\d+\): PyTorch itself"
    ):
        to_torch(Regions(), rand(1, 2, 6, 6), np.zeros((1, 5), np.float32))


def test_a_constant_of_no_known_size_is_refused() -> None:
    from lamina.convert.torch import TorchConversionError, to_torch

    class Table(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * np.sqrt(np.arange(x.shape[0], dtype=np.float32))[:, None]

    with pytest.raises(TorchConversionError, match="a constant of shape .* depends on a free axis"):
        to_torch(Table(), rand(3, 2), dynamic="batch")


def test_what_is_written_must_be_a_buffer() -> None:
    from lamina.convert.torch import TorchConversionError, to_torch

    class Writing(nn.Module):
        def __init__(self) -> None:
            self.held = [lm.tensor(np.zeros(2, np.float32))]

        def forward(self, x: Any) -> Any:
            self.held[0].copy_(ops.sum(x, 0))
            return x

    with pytest.raises(
        TorchConversionError, match="Writing writes to a tensor .* that is none of its buffers"
    ):
        to_torch(Writing(), rand(3, 2))


def test_a_part_computes_nothing_by_itself() -> None:
    import torch

    from lamina.convert.torch import to_torch

    net, given, _ = NETWORKS["residual_with_statistics"]()
    module: Any = to_torch(net, *given)
    with pytest.raises(TypeError, match="Conv2d is part of a network that was written as a graph"):
        module.conv(torch.zeros(1))
