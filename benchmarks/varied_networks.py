"""Networks of many kinds, smaller than in their papers: points, rays, tables, signals, volumes, generators.

Each ends in ten numbers a sample, so that `benchmarks.torch_backend` trains all of them alike.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class PointNet(nn.Module):
    """Points [N, 3, P]: the same layers on every point, then a maximum over all of them (Qi, 2017)."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b in pairwise((3, 64, 64, 64, 128, 1024)):
            layers += [nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU()]
        self.points = nn.Sequential(*layers)
        dense = [nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, 10)]
        self.head = nn.Sequential(*dense)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.points(x).max(2).values)


class Residual(nn.Module):
    """x plus a tenth of two convolutions of it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.last = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        return x + 0.1 * self.last(functional.relu(self.first(x)))


class Edsr(nn.Module):
    """Images upscaled by two, without norms (Lim, 2017), and ten numbers from their mean."""

    def __init__(self, channels: int = 64, blocks: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        body = [Residual(channels) for _ in range(blocks)]
        self.body = nn.Sequential(*body, nn.Conv2d(channels, channels, 3, padding=1))
        larger = nn.Conv2d(channels, 4 * channels, 3, padding=1), nn.PixelShuffle(2)
        self.enlarge = nn.Sequential(*larger, nn.Conv2d(channels, 3, 3, padding=1))
        self.head = nn.Linear(3, 10)

    def forward(self, x: Tensor) -> Any:
        first = self.first(x)
        return self.head(self.enlarge(first + self.body(first)).mean((2, 3)))


class DcGan(nn.Module):
    """Noise [N, 100, 1, 1] to images of 64 x 64, with a discriminator (Radford, 2016)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        made: list[nn.Module] = []
        for i, (a, b) in enumerate(pairwise((100, 8 * width, 4 * width, 2 * width, width))):
            stride, padding = (2, 1) if i else (1, 0)
            made += [
                nn.ConvTranspose2d(a, b, 4, stride, padding, bias=False),
                nn.BatchNorm2d(b),
                nn.ReLU(True),
            ]
        self.generator = nn.Sequential(*made, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())
        judged: list[nn.Module] = []
        for i, (a, b) in enumerate(pairwise((3, width, 2 * width, 4 * width, 8 * width))):
            norm = nn.BatchNorm2d(b) if i else nn.Identity()
            judged += [nn.Conv2d(a, b, 4, 2, 1, bias=False), norm, nn.LeakyReLU(0.2, True)]
        self.judge = nn.Sequential(*judged, nn.Conv2d(8 * width, 10, 4, 1, 0, bias=False))

    def forward(self, x: Tensor) -> Any:
        return self.judge(self.generator(x)).flatten(1)


class Nerf(nn.Module):
    """Positions [N, 3], as sines and cosines of ten frequencies, through eight layers (Mildenhall, 2020)."""

    frequencies: Tensor

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.first = nn.ModuleList([nn.Linear(width if i else 63, width) for i in range(5)])
        self.last = nn.ModuleList([nn.Linear(width if i else width + 63, width) for i in range(3)])
        self.head = nn.Linear(width, 10)
        self.register_buffer("frequencies", 2.0 ** torch.arange(10))

    def forward(self, x: Tensor) -> Any:
        angles = (x[..., None] * self.frequencies).flatten(-2)
        given = torch.cat([x, angles.sin(), angles.cos()], -1)
        y = given
        for layer in self.first:
            y = functional.relu(layer(y))
        y = torch.cat([y, given], -1)
        for layer in self.last:
            y = functional.relu(layer(y))
        return self.head(y)


class Dlrm(nn.Module):
    """Rows of 26 tables and a dense vector, with pairwise products (Naumov, 2019). Ids [N, 26]; thirteen of them
    also serve as the dense features."""

    rows: Tensor
    columns: Tensor

    def __init__(self, fields: int = 26, words: int = 10000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(words, width) for _ in range(fields)])
        self.bottom = dense(13, 512, 256, width)
        self.top = nn.Sequential(dense(width + (fields + 1) * fields // 2, 512, 256), nn.Linear(256, 10))
        rows, columns = torch.tril_indices(fields + 1, fields + 1, -1)
        self.register_buffer("rows", rows)
        self.register_buffer("columns", columns)

    def forward(self, words: Tensor) -> Any:
        first = self.bottom(torch.log1p(words[:, :13].float()))
        found = torch.stack([first, *[table(words[:, k]) for k, table in enumerate(self.tables)]], 1)
        products = torch.bmm(found, found.transpose(1, 2))[:, self.rows, self.columns]
        return self.top(torch.cat([first, products], 1))


def dense(*sizes: int) -> nn.Sequential:
    """Linear layers, each with a ReLU."""
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers)


class PatchTst(nn.Module):
    """Series [N, C, 512] in patches of 16, each channel through the same encoder (Nie, 2023)."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(16, width), nn.Parameter(torch.zeros(1, 63, width))
        layer = nn.TransformerEncoderLayer(width, 16, 256, 0.2, "gelu", batch_first=True)
        self.body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(63 * width, 10)

    def forward(self, x: Tensor) -> Any:
        n, channels, _ = x.shape
        x = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)
        patches = x.unfold(-1, 16, 8).reshape(n * channels, 63, 16)
        y = self.body(self.embed(patches) + self.place)
        return self.head(y.reshape(n, channels, -1)).mean(1)


def volumes(given: int, filters: int) -> nn.Sequential:
    """3-D convolution, instance norm and leaky ReLU, twice."""
    layers: list[nn.Module] = []
    for channels in (given, filters):
        norm = nn.InstanceNorm3d(filters, affine=True)
        layers += [nn.Conv3d(channels, filters, 3, padding=1), norm, nn.LeakyReLU(0.01)]
    return nn.Sequential(*layers)


class UNet3d(nn.Module):
    """Volumes [N, 1, D, H, W] on three scales (Cicek, 2016; norms as in nnU-Net), and their mean."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            [volumes(1, width), volumes(width, 2 * width), volumes(2 * width, 4 * width)]
        )
        wide = (4 * width, 2 * width), (2 * width, width)
        self.enlarge = nn.ModuleList([nn.ConvTranspose3d(a, b, 2, 2) for a, b in wide])
        self.up = nn.ModuleList([volumes(a, b) for a, b in wide])
        self.head = nn.Conv3d(width, 10, 1)

    def forward(self, x: Tensor) -> Any:
        one = self.down[0](x)
        two = self.down[1](functional.max_pool3d(one, 2))
        y = self.down[2](functional.max_pool3d(two, 2))
        for enlarge, up, beside in zip(self.enlarge, self.up, (two, one), strict=True):
            y = up(torch.cat([enlarge(y), beside], 1))
        return self.head(y).mean((2, 3, 4))


class Temporal(nn.Module):
    """Two causal dilated convolutions of a signal, with weight norm, and a residual connection."""

    def __init__(self, given: int, filters: int, dilation: int) -> None:
        super().__init__()
        normed, self.ahead = nn.utils.parametrizations.weight_norm, 2 * dilation
        sizes = (given, filters), (filters, filters)
        made = [nn.Conv1d(a, b, 3, padding=self.ahead, dilation=dilation) for a, b in sizes]
        self.convs = nn.ModuleList([normed(conv) for conv in made])
        self.skip = nn.Conv1d(given, filters, 1) if given != filters else nn.Identity()
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Any:
        y = x
        for conv in self.convs:
            y = self.drop(functional.relu(conv(y)[..., : -self.ahead].contiguous()))
        return functional.relu(y + self.skip(x))


class Tcn(nn.Module):
    """Signals [N, 25, T], with ten numbers from the last time step (Bai, 2018)."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.body = nn.Sequential(*[Temporal(width if i else 25, width, 2**i) for i in range(8)])
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(x)[..., -1])


class VqVae(nn.Module):
    """Images encoded by a learned codebook, and decoded (van den Oord, 2017); the codebook's loss is added."""

    def __init__(self, channels: int = 128, words: int = 512, width: int = 64) -> None:
        super().__init__()
        half = channels // 2
        first = nn.Conv2d(3, half, 4, 2, 1), nn.ReLU(), nn.Conv2d(half, channels, 4, 2, 1), nn.ReLU()
        same = nn.Conv2d(channels, channels, 3, 1, 1), Residual(channels), Residual(channels)
        self.encode = nn.Sequential(*first, *same, nn.Conv2d(channels, width, 1))
        self.book = nn.Embedding(words, width)
        same = nn.Conv2d(width, channels, 3, 1, 1), Residual(channels), Residual(channels)
        last = nn.ConvTranspose2d(channels, half, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(half, 10, 4, 2, 1)
        self.decode = nn.Sequential(*same, *last)

    def forward(self, x: Tensor) -> Any:
        z = self.encode(x)
        flat, book = z.permute(0, 2, 3, 1).reshape(-1, z.shape[1]), self.book.weight
        apart = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ book.t() + book.pow(2).sum(1)
        q = self.book(apart.argmin(1)).view(z.shape[0], z.shape[2], z.shape[3], -1).permute(0, 3, 1, 2)
        loss = (q - z.detach()).pow(2).mean() + 0.25 * (q.detach() - z).pow(2).mean()
        return self.decode(z + (q - z).detach()).mean((2, 3)) + loss


class LanguageLstm(nn.Module):
    """Token ids [N, T] through two LSTM layers (Zaremba, 2014, the medium one), with tied embeddings."""

    def __init__(self, words: int = 10000, width: int = 650) -> None:
        super().__init__()
        self.embed, self.drop = nn.Embedding(words, width), nn.Dropout(0.5)
        self.lstm = nn.LSTM(width, width, 2, dropout=0.5, batch_first=True)
        self.head = nn.Linear(width, words)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Any:
        y, _ = self.lstm(self.drop(self.embed(x)))
        return self.head(self.drop(y)).mean(1)


class Recognizer(nn.Module):
    """Lines of text [N, 1, 32, W]: convolutions, and two bidirectional LSTM layers along the line (Shi, 2015)."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b, norm, pool in (
            (1, 64, False, (2, 2)),
            (64, 128, False, (2, 2)),
            (128, 256, True, None),
            (256, 256, False, (2, 1)),
            (256, 512, True, None),
            (512, 512, False, (2, 1)),
        ):
            layers += [nn.Conv2d(a, b, 3, 1, 1), *[nn.BatchNorm2d(b)] * norm, nn.ReLU(True)]
            layers += [] if pool is None else [nn.MaxPool2d(pool)]
        self.look = nn.Sequential(*layers, nn.Conv2d(512, 512, (2, 1)), nn.BatchNorm2d(512), nn.ReLU(True))
        self.read = nn.LSTM(512, 256, 2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(512, 37)

    def forward(self, x: Tensor) -> Any:
        y, _ = self.read(self.look(x).squeeze(2).transpose(1, 2))
        return self.head(y).mean(1)


class Pooled(nn.Module):
    """A network, its output pooled to one vector per sample, and ten numbers from that."""

    def __init__(self, body: nn.Module, width: int, pick: Callable[..., Tensor]) -> None:
        super().__init__()
        self.body, self.head, self.pick = body, nn.Linear(width, 10), pick

    def forward(self, x: Tensor) -> Any:
        return self.head(self.pick(self.body(x)))


def whisper_encoder() -> nn.Module:
    """The encoder of Whisper's tiny size on log-mel spectra [N, 80, 3000] (transformers)."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    sizes = {"encoder_layers": 4, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536}
    config = WhisperConfig(d_model=384, **sizes)
    config._attn_implementation = "sdpa"
    return Pooled(WhisperEncoder(config), 384, lambda y: y[0].mean(1))


def clip_images() -> nn.Module:
    """CLIP's image encoder, patches of 16 and 12 layers of 384 (transformers)."""
    from transformers import CLIPVisionConfig, CLIPVisionModel

    sizes = {"intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 6}
    config = CLIPVisionConfig(hidden_size=384, patch_size=16, **sizes)
    return Pooled(CLIPVisionModel(config), 384, lambda y: y.pooler_output)
