"""Layers that learn their sizes: what they become, from batched and single inputs, and what is refused."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn

#: Class, arguments, input's shape, the class that it becomes, its first argument.
CASES: list[tuple[type[nn.Module], tuple[Any, ...], tuple[int, ...], type[nn.Module], int]] = [
    (nn.LazyLinear, (4,), (2, 7, 5), nn.Linear, 5),
    (nn.LazyLinear, (4,), (5,), nn.Linear, 5),
    (nn.LazyConv1d, (4, 3), (2, 6, 9), nn.Conv1d, 6),
    (nn.LazyConv1d, (4, 3), (6, 9), nn.Conv1d, 6),
    (nn.LazyConv2d, (4, 3), (2, 5, 9, 8), nn.Conv2d, 5),
    (nn.LazyConv2d, (4, 3), (5, 9, 8), nn.Conv2d, 5),
    (nn.LazyConv3d, (4, 3), (2, 4, 4, 5, 6), nn.Conv3d, 4),
    (nn.LazyConv3d, (4, 3), (4, 4, 5, 6), nn.Conv3d, 4),
    (nn.LazyConvTranspose1d, (4, 3), (2, 6, 9), nn.ConvTranspose1d, 6),
    (nn.LazyConvTranspose1d, (4, 3), (6, 9), nn.ConvTranspose1d, 6),
    (nn.LazyConvTranspose2d, (4, 3), (2, 5, 9, 8), nn.ConvTranspose2d, 5),
    (nn.LazyConvTranspose2d, (4, 3), (5, 9, 8), nn.ConvTranspose2d, 5),
    (nn.LazyConvTranspose3d, (4, 3), (2, 4, 4, 5, 6), nn.ConvTranspose3d, 4),
    (nn.LazyConvTranspose3d, (4, 3), (4, 4, 5, 6), nn.ConvTranspose3d, 4),
    (nn.LazyBatchNorm1d, (), (4, 3), nn.BatchNorm1d, 3),
    (nn.LazyBatchNorm1d, (), (4, 3, 5), nn.BatchNorm1d, 3),
    (nn.LazyBatchNorm2d, (), (4, 3, 2, 2), nn.BatchNorm2d, 3),
    (nn.LazyBatchNorm3d, (), (4, 3, 2, 2, 2), nn.BatchNorm3d, 3),
    (nn.LazyInstanceNorm1d, (), (2, 3, 5), nn.InstanceNorm1d, 3),
    (nn.LazyInstanceNorm1d, (), (3, 5), nn.InstanceNorm1d, 3),
    (nn.LazyInstanceNorm2d, (), (2, 3, 5, 4), nn.InstanceNorm2d, 3),
    (nn.LazyInstanceNorm2d, (), (3, 5, 4), nn.InstanceNorm2d, 3),
    (nn.LazyInstanceNorm3d, (), (2, 3, 5, 4, 2), nn.InstanceNorm3d, 3),
    (nn.LazyInstanceNorm3d, (), (3, 5, 4, 2), nn.InstanceNorm3d, 3),
]


@pytest.mark.parametrize(("kind", "arguments", "shape", "becomes", "size"), CASES, ids=lambda x: str(x)[:40])
def test_it_becomes_the_layer_of_its_inputs_size(
    kind: Any, arguments: Any, shape: Any, becomes: Any, size: int
) -> None:
    x = lm.tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    nn.manual_seed(3)
    lazy = kind(*arguments)
    assert list(lazy.parameters()) == []
    y = lazy(x)
    nn.manual_seed(3)
    plain = becomes(size, *arguments)
    assert type(lazy) is becomes
    assert repr(lazy) == repr(plain)
    np.testing.assert_array_equal(y.numpy(), plain(x).numpy())
    assert {k: v.shape for k, v in lazy.state_dict().items()} == {
        k: v.shape for k, v in plain.state_dict().items()
    }
    np.testing.assert_array_equal(lazy.eval()(x).numpy(), plain.eval()(x).numpy())


def test_a_network_is_run_once_before_it_is_trained() -> None:
    lm.manual_seed(0)
    net = nn.Sequential(nn.LazyConv2d(4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3, bias=False))
    assert repr(net[3]) == "LazyLinear(3, bias=False)"
    x, y = np.ones((2, 3, 5, 5), np.float32), np.zeros(2, np.int64)
    with pytest.raises(
        RuntimeError, match="LazyConv2d has no parameters yet: call the network once on a tensor"
    ):
        lm.jit(net)(lm.tensor(x))
    net.eval()
    net(lm.tensor(x))
    assert net[3].weight.shape == (3, 100)
    assert not net[0].training
    step = lm.train_step(net, lm.ops.cross_entropy, lm.optim.SGD(0.1), device="cpu")
    assert np.isfinite(float(step(x, y)))
    with pytest.raises(lm.ShapeError, match=r"LazyLinear: needs an input with features, got f32\[\]"):
        nn.LazyLinear(3)(lm.tensor(np.float32(1)))


@pytest.mark.parametrize(("kind", "arguments", "shape", "becomes", "size"), CASES, ids=lambda x: str(x)[:40])
def test_it_becomes_the_layer_that_weights_are_of(
    kind: Any, arguments: Any, shape: Any, becomes: Any, size: int
) -> None:
    nn.manual_seed(3)
    net, plain = nn.Sequential(kind(*arguments)), nn.Sequential(becomes(size, *arguments))
    state = plain.state_dict()
    net.load_state_dict(state)
    assert type(net[0]) is (becomes if state else kind)
    if state:
        assert repr(net) == repr(plain)
        for name, x in net.state_dict().items():
            np.testing.assert_array_equal(x.numpy(), state[name].numpy())


def test_weights_of_groups_and_of_norms_without_weights() -> None:
    state = nn.Sequential(nn.Conv2d(6, 4, 3, groups=2), nn.BatchNorm2d(4, affine=False)).state_dict()
    net = nn.Sequential(nn.LazyConv2d(4, 3, groups=2), nn.LazyBatchNorm2d(affine=False))
    net.load_state_dict(state)
    assert (net[0].in_channels, net[1].num_features) == (6, 4)
    with pytest.raises(KeyError, match="unexpected 1.running_mean"):
        nn.Sequential(nn.LazyConv2d(4, 3, groups=2)).load_state_dict(state)


def test_what_it_does_not_have_yet() -> None:
    with pytest.raises(
        AttributeError, match=r"LazyLinear has no weight yet: call the network once on a tensor first"
    ):
        _ = nn.LazyLinear(2).weight
    with pytest.raises(AttributeError, match="LazyLinear has no attribute 'weigth'"):
        _ = nn.LazyLinear(2).weigth
