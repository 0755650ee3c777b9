"""Transformers (Vaswani et al. 2017): encoder and decoder layers, and stacks of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from lamina import ops
from lamina.nn import init
from lamina.nn.attention import Mask, MultiheadAttention
from lamina.nn.container import ModuleList
from lamina.nn.dropout import Dropout
from lamina.nn.linear import Linear
from lamina.nn.module import Module, T
from lamina.nn.norm import LayerNorm
from lamina.ops.core import operand

_ACTIVATIONS: dict[str, Callable[..., Any]] = {"relu": ops.relu, "gelu": ops.gelu}


class _Layer(Module):
    """Attention and a network of two linear layers, each with a residual around it and a normalization.

    The normalization follows each sum, or with norm_first in front of each part. activation: "relu", "gelu"
    or a function. Sequences are (L, B, E), or (B, L, E) with batch_first.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Any], Any] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
    ) -> None:
        name = type(self).__name__
        if isinstance(activation, str) and activation not in _ACTIVATIONS:
            raise ValueError(f"{name}: activation must be 'relu', 'gelu' or a function, got {activation!r}")
        self._arguments = (
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias,
        )  # fmt: skip
        self.activation = _ACTIVATIONS[activation] if isinstance(activation, str) else activation
        self.norm_first = bool(norm_first)
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first)
        if self._norms == 3:
            self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first)
        self.linear1 = Linear(d_model, dim_feedforward, bias)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias)
        for i in range(1, 1 + self._norms):
            self.add_module(f"norm{i}", LayerNorm(d_model, layer_norm_eps, bias=bias))
        for i in range(1, 1 + self._norms):
            self.add_module(f"dropout{i}", Dropout(dropout))

    #: Parts with a residual around them.
    _norms = 2

    def clone(self) -> Self:
        """A layer with parameters of its own, of the same values."""
        made = type(self)(*self._arguments)
        made.load_state_dict(self.state_dict())
        return made.train(self.training)

    def _part(self, number: int, x: T, function: Callable[[T], T]) -> T:
        """x + function(x) with dropout, and the normalization before or after."""
        norm, dropout = (getattr(self, f"{name}{number}") for name in ("norm", "dropout"))
        y: T = x + dropout(function(norm(x))) if self.norm_first else norm(x + dropout(function(x)))
        return y

    def _feed_forward(self, x: T) -> T:
        hidden: T = self.activation(self.linear1(x))
        return self.linear2(self.dropout(hidden))


class TransformerEncoderLayer(_Layer):
    """Attention of a sequence to itself, then two linear layers."""

    def forward(
        self, src: T, src_mask: Mask = None, src_key_padding_mask: Mask = None, is_causal: bool = False
    ) -> T:
        """src (L, B, E), masks as in `MultiheadAttention`; the same shape again."""

        def attend(x: T) -> T:
            return self.self_attn(x, x, x, src_key_padding_mask, False, src_mask, True, is_causal)[0]

        x: T = operand(src)
        return self._part(2, self._part(1, x, attend), self._feed_forward)


class TransformerDecoderLayer(_Layer):
    """Attention of a sequence to itself, then to the encoder's result, then two linear layers."""

    _norms = 3

    def forward(
        self,
        tgt: T,
        memory: T,
        tgt_mask: Mask = None,
        memory_mask: Mask = None,
        tgt_key_padding_mask: Mask = None,
        memory_key_padding_mask: Mask = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> T:
        """tgt (L, B, E), memory (S, B, E), masks as in `MultiheadAttention`; the shape of tgt again."""

        def attend(x: T) -> T:
            return self.self_attn(x, x, x, tgt_key_padding_mask, False, tgt_mask, True, tgt_is_causal)[0]

        def look(x: T) -> T:
            masks = (memory_key_padding_mask, False, memory_mask, True, memory_is_causal)
            return self.multihead_attn(x, memory, memory, *masks)[0]

        x: T = operand(tgt)
        return self._part(3, self._part(2, self._part(1, x, attend), look), self._feed_forward)


class _Stack(Module):
    """A layer several times, each with parameters of its own that start alike, and perhaps a normalization."""

    def __init__(self, layer: _Layer, num_layers: int, norm: Module | None = None) -> None:
        if num_layers < 1:
            raise ValueError(f"{type(self).__name__}: num_layers must be at least 1, got {num_layers}")
        self.layers = ModuleList(layer.clone() for _ in range(num_layers))
        self.num_layers = num_layers
        self.norm = norm


class TransformerEncoder(_Stack):
    """num_layers times an encoder layer, then norm."""

    def __init__(
        self, encoder_layer: TransformerEncoderLayer, num_layers: int, norm: Module | None = None
    ) -> None:
        super().__init__(encoder_layer, num_layers, norm)

    def forward(
        self, src: T, mask: Mask = None, src_key_padding_mask: Mask = None, is_causal: bool = False
    ) -> T:
        """src (L, B, E) -> the same shape; masks as in `MultiheadAttention`, for every layer."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(_Stack):
    """num_layers times a decoder layer, then norm."""

    def __init__(
        self, decoder_layer: TransformerDecoderLayer, num_layers: int, norm: Module | None = None
    ) -> None:
        super().__init__(decoder_layer, num_layers, norm)

    def forward(self, tgt: T, memory: T, *masks: Any, **options: Any) -> T:
        """tgt (L, B, E), memory (S, B, E) -> as tgt; masks as in `TransformerDecoderLayer`, for every layer."""
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks, **options)
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """An encoder and a decoder, each of layers and a normalization; weights from Xavier's uniform distribution."""

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Any], Any] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
    ) -> None:
        options = (
            d_model,
            nhead,
            dim_feedforward,
            dropout,
            activation,
            layer_norm_eps,
            batch_first,
            norm_first,
            bias,
        )
        encoder, decoder = TransformerEncoderLayer(*options), TransformerDecoderLayer(*options)
        norms = [LayerNorm(d_model, layer_norm_eps, bias=bias) for _ in range(2)]
        self.encoder = TransformerEncoder(encoder, num_encoder_layers, norms[0])
        self.decoder = TransformerDecoder(decoder, num_decoder_layers, norms[1])
        for parameter in self.parameters():
            if parameter.ndim > 1:
                init.xavier_uniform_(parameter)

    def forward(
        self,
        src: T,
        tgt: T,
        src_mask: Mask = None,
        tgt_mask: Mask = None,
        memory_mask: Mask = None,
        src_key_padding_mask: Mask = None,
        tgt_key_padding_mask: Mask = None,
        memory_key_padding_mask: Mask = None,
        src_is_causal: bool = False,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> T:
        """src (S, B, E), tgt (L, B, E) -> as tgt; masks as in `MultiheadAttention`."""
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        return self.decoder(
            tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask, tgt_is_causal,
            memory_is_causal,
        )  # fmt: skip
