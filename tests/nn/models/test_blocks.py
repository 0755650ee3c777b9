"""Blocks of several families."""

import numpy as np
import pytest

import lamina as lm
from lamina import nn
from lamina.nn.models.blocks import (
    MLP,
    LayerNorm2d,
    SqueezeExcitation,
    StochasticDepth,
    conv_norm,
    divisible,
    relative_positions,
)


def test_channels_are_multiples() -> None:
    assert [divisible(n) for n in (3, 12, 83, 84, 100.5)] == [8, 16, 80, 88, 104]
    assert divisible(11) == 16, "8 would be less than nine tenths"
    assert divisible(3, 4, 12) == 12


def test_a_convolution_with_what_follows() -> None:
    keys = list(conv_norm(3, 8, 5, 2, dilation=2).state_dict())
    assert keys[:2] == ["0.weight", "1.weight"]
    assert [type(m) for m in conv_norm(3, 8, norm_layer=None)] == [nn.Conv2d, nn.ReLU]
    assert conv_norm(3, 8, norm_layer=None)[0].bias is not None
    assert conv_norm(3, 4, 5, 2, dilation=2)(np.zeros((1, 3, 9, 9), np.float32)).shape == (1, 4, 5, 5)


def test_squeeze_and_excitation_by_its_formula() -> None:
    net = SqueezeExcitation(4, 2).double()
    x = np.random.default_rng(0).standard_normal((2, 4, 3, 3))
    state = {key: value.numpy() for key, value in net.state_dict().items()}
    hidden = np.maximum(x.mean((2, 3)) @ state["fc1.weight"][..., 0, 0].T + state["fc1.bias"], 0)
    scale = 1 / (1 + np.exp(-(hidden @ state["fc2.weight"][..., 0, 0].T + state["fc2.bias"])))
    np.testing.assert_allclose(net(x).numpy(), x * scale[:, :, None, None], rtol=1e-12)


def test_layer_norm_of_channels() -> None:
    x = np.random.default_rng(0).standard_normal((2, 6, 3, 4))
    y = LayerNorm2d(6).double()(x).numpy()
    np.testing.assert_allclose(y.mean(1), 0, atol=1e-12)
    np.testing.assert_allclose(y.var(1), 1, atol=1e-3)


def test_linear_layers_have_torchvisions_keys() -> None:
    assert list(MLP(3, (5, 2), nn.GELU).state_dict()) == ["0.weight", "0.bias", "3.weight", "3.bias"]


class TestStochasticDepth:
    def test_samples_are_left_out_or_grown(self) -> None:
        nn.manual_seed(0)
        x = np.ones((4000, 2, 3), np.float32)
        y = StochasticDepth(0.2)(x).numpy()
        np.testing.assert_array_equal(y, np.broadcast_to(y[:, :1, :1], y.shape))
        kept = y[:, 0, 0]
        np.testing.assert_allclose(np.unique(kept), [0, 1.25])
        assert abs((kept == 0).mean() - 0.2) < 0.03

    def test_batches_are_left_out_as_a_whole(self) -> None:
        layer = StochasticDepth(0.5, "batch")
        seen = {tuple(np.unique(layer(np.ones((3, 2), np.float32)).numpy())) for _ in range(40)}
        assert seen == {(0.0,), (2.0,)}

    def test_inference_and_bounds(self) -> None:
        x = lm.ones(3, 2)
        assert StochasticDepth(0.0)(x) is x
        assert StochasticDepth(0.5).eval()(x) is x
        assert not StochasticDepth(1.0)(x).numpy().any()
        with pytest.raises(ValueError, match="p must be between 0 and 1, got 1.5"):
            StochasticDepth(1.5)
        with pytest.raises(ValueError, match="mode must be one of 'row', 'batch', got 'column'"):
            StochasticDepth(0.5, "column")  # type: ignore[arg-type]

    def test_a_compiled_step_draws_anew_each_time(self) -> None:
        class Net(nn.Module):
            def __init__(self) -> None:
                self.branch, self.last = StochasticDepth(0.5), nn.Linear(4, 2)

            def forward(self, x: lm.Tensor) -> lm.Tensor:
                return self.last(self.branch(x))

        nn.manual_seed(1)
        step = lm.train_step(Net(), lm.ops.cross_entropy, lm.optim.SGD(lr=0.0), device="cpu")
        x, labels = (
            np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32),
            np.array([0, 1, 0, 1]),
        )
        assert len({round(step(x, labels).item(), 6) for _ in range(8)}) > 3


def test_relative_positions_tell_differences_apart() -> None:
    table = relative_positions(2, 3)
    assert table.shape == (6, 6)
    assert table.max() == 3 * 5 - 1
    assert len(set(table.diagonal())) == 1
    assert table[0, 1] == table[1, 2] == table[3, 4]
