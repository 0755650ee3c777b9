"""Language model layers of typical sizes in Lamina, which `plan_problems` plans in addition to whole networks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import lamina as lm
from lamina import nn, ops

#: (batch, length) of training steps.
BATCHES = ((8, 256), (16, 256), (32, 256), (16, 1024))


@dataclass(frozen=True)
class DecoderSize:
    """width: of the residual stream. heads: of queries, of keys. hidden: units of the feed-forward network.

    like: "llama" (RMS norm, gated SiLU, no biases), "qwen" (the same, biases for queries, keys and values), "gpt2"
    (layer norm, gelu's tanh form, biases, weights [in, out], one projection for queries, keys and values) or "neox"
    (that with weights [out, in]).
    """

    width: int
    heads: tuple[int, int]
    hidden: int
    like: str = "llama"

    def __str__(self) -> str:
        return f"{self.like}-{self.width}-{self.heads[0]}x{self.heads[1]}-{self.hidden}"


#: From models that fit one GPU for training to the layers of seven-billion-parameter models.
SIZES = (
    DecoderSize(512, (8, 4), 1376),
    DecoderSize(768, (12, 12), 2048),
    DecoderSize(1024, (16, 8), 2816),
    DecoderSize(2048, (32, 8), 5632),
    DecoderSize(4096, (32, 32), 11008),
    DecoderSize(576, (9, 3), 1536),
    DecoderSize(896, (14, 2), 4864, "qwen"),
    DecoderSize(1536, (12, 2), 8960, "qwen"),
    *(DecoderSize(w, (w // 64, w // 64), 4 * w, like) for like in ("gpt2", "neox") for w in (512, 768, 1024)),
    DecoderSize(1600, (25, 25), 6400, "gpt2"),
    DecoderSize(2048, (16, 16), 8192, "neox"),
    DecoderSize(384, (6, 6), 1536, "gpt2"),
)


class RowsLinear(nn.Module):
    """x W + b with W [in, out], for the rows of x as one matrix: transformers' Conv1D."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.weight = nn.Parameter(lm.zeros((inputs, outputs)))
        self.bias = nn.Parameter(lm.zeros(outputs))

    def forward(self, x: Any) -> Any:
        rows = ops.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return rows.reshape(*x.shape[:-1], -1)


class DecoderLayer(nn.Module):
    """A layer over vectors [N, S, width], normalized first: causal attention, then the feed-forward network."""

    def __init__(self, size: DecoderSize) -> None:
        self.size, width = size, size.width
        plain = size.like in ("llama", "qwen")
        queries, keys = size.heads
        self.dim = width // queries
        norm = nn.RMSNorm if plain else nn.LayerNorm
        self.norm1, self.norm2 = norm(width), norm(width)
        joint = (queries + 2 * keys) * self.dim
        parts = [width, keys * self.dim, keys * self.dim] if plain else [joint]
        self.project = nn.ModuleList(self._linear(width, n, bias=size.like != "llama") for n in parts)
        self.out = self._linear(width, width, bias=not plain)
        wide = [size.hidden] * (2 if plain else 1)
        self.up = nn.ModuleList(self._linear(width, n, bias=not plain) for n in wide)
        self.down = self._linear(size.hidden, width, bias=not plain)

    def _linear(self, inputs: int, outputs: int, bias: bool) -> nn.Module:
        if self.size.like == "gpt2":
            return RowsLinear(inputs, outputs)
        return nn.Linear(inputs, outputs, bias=bias)

    def _attention(self, x: Any) -> Any:
        n, s, _ = x.shape
        queries, keys = self.size.heads
        y = [project(x) for project in self.project]
        if len(y) == 1:
            y = list(ops.split(y[0], [queries * self.dim, keys * self.dim, keys * self.dim], dim=-1))
        q, k, v = (ops.transpose(part.reshape(n, s, -1, self.dim), 1, 2) for part in y)
        grouped = queries != keys
        found = ops.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return self.out(ops.transpose(found, 1, 2).reshape(n, s, -1))

    def forward(self, x: Any) -> Any:
        x = x + self._attention(self.norm1(x))
        first, *gate = (up(self.norm2(x)) for up in self.up)
        inner = ops.silu(first) * gate[0] if gate else ops.gelu(first, approximate="tanh")
        return x + self.down(inner)


def layers() -> Iterator[tuple[str, DecoderSize, tuple[int, int, int]]]:
    """Name, size and shape of the vectors."""
    for n, s in BATCHES:
        for size in SIZES:
            yield f"decoder {size}-{n}x{s}", size, (n, s, size.width)
