"""Conformer: torchaudio's keys, values and gradients of the same layers in PyTorch, lengths, training."""

from typing import Any

import numpy as np
import pytest

from lamina import nn, ops
from tests.helpers.nn.twins import check, learns, same_weights, shapes

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 11, 8)).astype(np.float32)
LENGTHS = np.array([11, 7, 4])


def pytorch(width: int, heads: int, ffn: int, layers: int, kernel: int, group_norm: bool, first: bool) -> Any:
    """The layers under torchaudio's names, without dropout."""
    import torch
    from torch.nn import Conv1d, LayerNorm, Linear, Module, ModuleList, Sequential, SiLU

    class Dense(Module):
        def __init__(self) -> None:
            super().__init__()
            none = torch.nn.Identity()
            self.sequential = Sequential(
                LayerNorm(width), Linear(width, ffn), SiLU(), none, Linear(ffn, width), none
            )

        def forward(self, x: Any) -> Any:
            return self.sequential(x)

    class Convolution(Module):
        def __init__(self) -> None:
            super().__init__()
            norm = torch.nn.GroupNorm(1, width) if group_norm else torch.nn.BatchNorm1d(width)
            middle = Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
            self.layer_norm = LayerNorm(width)
            self.sequential = Sequential(
                Conv1d(width, 2 * width, 1), torch.nn.GLU(1), middle, norm, SiLU(), Conv1d(width, width, 1)
            )

        def forward(self, x: Any) -> Any:
            return self.sequential(self.layer_norm(x).permute(1, 2, 0)).permute(2, 0, 1)

    class Layer(Module):
        def __init__(self) -> None:
            super().__init__()
            self.ffn1, self.ffn2, self.conv_module = Dense(), Dense(), Convolution()
            self.self_attn_layer_norm, self.final_layer_norm = LayerNorm(width), LayerNorm(width)
            self.self_attn = torch.nn.MultiheadAttention(width, heads)

        def forward(self, x: Any, mask: Any) -> Any:
            x = x + self.ffn1(x) / 2
            for part in ("conv", "attention") if first else ("attention", "conv"):
                y = self.self_attn_layer_norm(x)
                x = x + (self.conv_module(x) if part == "conv" else self.self_attn(y, y, y, mask)[0])
            return self.final_layer_norm(x + self.ffn2(x) / 2)

    class Conformer(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conformer_layers = ModuleList(Layer() for _ in range(layers))

        def forward(self, x: Any, lengths: Any) -> Any:
            mask = torch.arange(x.shape[1])[None] >= lengths[:, None]
            x = x.transpose(0, 1)
            for layer in self.conformer_layers:
                x = layer(x, mask)
            return x.transpose(0, 1)

    return Conformer()


@pytest.mark.feature("B021", "B022")
def test_keys_are_torchaudios() -> None:
    state = shapes(nn.Conformer(8, 2, 16, 2, 5).state_dict())
    assert len(state) == 2 * 33
    wanted = {
        "conformer_layers.0.ffn1.sequential.0.weight": (8,), "conformer_layers.0.ffn1.sequential.1.weight": (16, 8),
        "conformer_layers.1.ffn2.sequential.4.bias": (8,), "conformer_layers.0.self_attn_layer_norm.bias": (8,),
        "conformer_layers.0.self_attn.in_proj_weight": (24, 8), "conformer_layers.0.self_attn.out_proj.bias": (8,),
        "conformer_layers.0.conv_module.layer_norm.weight": (8,),
        "conformer_layers.0.conv_module.sequential.0.weight": (16, 8, 1),
        "conformer_layers.0.conv_module.sequential.2.weight": (8, 1, 5),
        "conformer_layers.0.conv_module.sequential.3.running_var": (8,),
        "conformer_layers.0.conv_module.sequential.5.bias": (8,),
        "conformer_layers.1.final_layer_norm.weight": (8,),
    }  # fmt: skip
    assert {key: state[key] for key in wanted} == wanted


@pytest.mark.torch
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(("group_norm", "first"), [(False, False), (True, True)])
def test_values_and_gradients_are_pytorchs(group_norm: bool, first: bool, train: bool) -> None:
    theirs = pytorch(8, 2, 16, 2, 5, group_norm, first).train(train)
    ours = nn.Conformer(8, 2, 16, 2, 5, use_group_norm=group_norm, convolution_first=first).train(train)
    same_weights(theirs, ours)
    check(theirs, ours, (X, LENGTHS), lambda found: found[0] if isinstance(found, tuple) else found)


def test_it_learns_to_spell() -> None:
    class Speech(nn.Module):
        def __init__(self) -> None:
            self.body, self.head = nn.Conformer(8, 2, 16, 1, 5, dropout=0.1), nn.Linear(8, 5)

        def forward(self, x: Any, lengths: Any) -> Any:
            return ops.log_softmax(self.head(self.body(x, lengths)[0]), 2)

    def loss(log_probs: Any, targets: Any) -> Any:
        return ops.ctc_loss(ops.transpose(log_probs, 0, 1), *targets)

    nn.manual_seed(0)
    labels, counts = np.array([[1, 2, 3], [4, 1, 0], [2, 0, 0]]), np.array([3, 2, 1])
    learns(Speech(), loss, (X, LENGTHS), (labels, LENGTHS, counts), 20)


def test_errors_say_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="depthwise_conv_kernel_size must be odd, got 4"):
        nn.Conformer(8, 2, 16, 1, 4)
