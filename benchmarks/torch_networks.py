"""Current networks in PyTorch: torchvision's own, others in idiomatic PyTorch.

The networks written here have the sizes and, except GPT-2's linear layers, the keys of the network of the same name
in `lamina.nn.models`. `NETWORKS` takes the sizes of a workload.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.workloads import Workload


def sizes(w: Workload) -> tuple[int, ...]:
    """The sizes of a workload's network, and the features of its input unless these are ids."""
    return w.size if w.takes_ids else (*w.size, w.shape[-1 if w.network == "conformer" else 1])


class DoubleConv(nn.Module):
    """3×3 convolution, batch norm and ReLU, twice."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(channels, filters, 3, padding=1, bias=False),
            nn.BatchNorm2d(filters),
            nn.ReLU(inplace=True),
            nn.Conv2d(filters, filters, 3, padding=1, bias=False),
            nn.BatchNorm2d(filters),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.double_conv(x)


class Down(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(channels, filters))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.maxpool_conv(x)


class Up(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(channels, channels // 2, 2, 2)
        self.conv = DoubleConv(channels, filters)

    def forward(self, below: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        return self.conv(torch.cat([kept, self.up(below)], 1))


class OutConv(nn.Module):
    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


class UNet(nn.Module):
    """Images (N, C, H, W), H and W multiples of 16, -> (N, classes, H, W)."""

    def __init__(self, classes: int, width: int, channels: int) -> None:
        super().__init__()
        wide = [width << level for level in range(5)]
        self.inc = DoubleConv(channels, width)
        self.down1, self.down2, self.down3, self.down4 = (Down(wide[i], wide[i + 1]) for i in range(4))
        self.up1, self.up2, self.up3, self.up4 = (Up(wide[4 - i], wide[3 - i]) for i in range(4))
        self.outc = OutConv(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = [self.inc(x)]
        for down in (self.down1, self.down2, self.down3, self.down4):
            levels.append(down(levels[-1]))
        y = levels.pop()
        for up in (self.up1, self.up2, self.up3, self.up4):
            y = up(y, levels.pop())
        return self.outc(y)


def _feed_forward(width: int, hidden: int) -> nn.Module:
    made = nn.Module()
    made.sequential = nn.Sequential(
        nn.LayerNorm(width),
        nn.Linear(width, hidden),
        nn.SiLU(),
        nn.Identity(),
        nn.Linear(hidden, width),
    )
    return made


class ConformerConvolution(nn.Module):
    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(width)
        self.sequential = nn.Sequential(
            nn.Conv1d(width, 2 * width, 1),
            nn.GLU(1),
            nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width),
            nn.BatchNorm1d(width),
            nn.SiLU(),
            nn.Conv1d(width, width, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.sequential(self.layer_norm(x).permute(1, 2, 0)).permute(2, 0, 1)


class ConformerLayer(nn.Module):
    """(T, N, E) -> the same shape, as torchaudio's without dropout and padding."""

    def __init__(self, heads: int, hidden: int, kernel: int, width: int) -> None:
        super().__init__()
        self.ffn1, self.ffn2 = _feed_forward(width, hidden), _feed_forward(width, hidden)
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.self_attn = nn.MultiheadAttention(width, heads)
        self.conv_module = ConformerConvolution(width, kernel)
        self.final_layer_norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.ffn1.sequential(x) * 0.5 + x
        y = self.self_attn_layer_norm(x)
        x = x + self.self_attn(y, y, y, need_weights=False)[0]
        x = x + self.conv_module(x)
        return self.final_layer_norm(self.ffn2.sequential(x) * 0.5 + x)


class GPT2Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, width = x.shape
        parts = self.attn["c_attn"](self.ln_1(x)).split(width, 2)
        q, k, v = (p.view(n, length, self.heads, width // self.heads).transpose(1, 2) for p in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn["c_proj"](y.transpose(1, 2).reshape(n, length, width))
        hidden = functional.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        return x + self.mlp["c_proj"](hidden)


class GPT2(nn.Module):
    """Token ids (N, S) -> logits (N, S, tokens), with tied embedding weights; no dropout."""

    def __init__(self, tokens: int, width: int, layers: int, heads: int, places: int = 1024) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(tokens, width),
                "wpe": nn.Embedding(places, width),
                "h": nn.ModuleList(GPT2Block(width, heads) for _ in range(layers)),
                "ln_f": nn.LayerNorm(width),
            }
        )
        self.lm_head = nn.Linear(width, tokens, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        part = self.transformer
        x = part["wte"](ids) + part["wpe"](torch.arange(ids.shape[1], device=ids.device))
        for block in part["h"]:
            x = block(x)
        return self.lm_head(part["ln_f"](x))


def _vision(name: str, classes: int, channels: int, **options: Any) -> nn.Module:
    """torchvision's network; `name` is that of its builder or class, and it takes images of three channels."""
    models = importlib.import_module("torchvision.models")
    assert channels == 3, channels
    made: nn.Module = getattr(models, name)(num_classes=classes, **options)
    return made


_VIT_S = {"image_size": 224, "patch_size": 16, "num_layers": 12, "num_heads": 6}
_VIT_S |= {"hidden_dim": 384, "mlp_dim": 1536}
_BUILDERS = ("efficientnet_b0", "convnext_tiny", "regnet_y_3_2gf", "swin_t", "densenet121")

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    **{name: partial(_vision, name) for name in _BUILDERS},
    "vit_s_16": partial(_vision, "VisionTransformer", **_VIT_S),
    "unet": UNet,
    "conformer": ConformerLayer,
    "gpt2": GPT2,
}
