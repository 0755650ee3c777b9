"""Transformers (Vaswani et al. 2017): encoder and decoder layers, and stacks of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from lamina import ops
from lamina.nn import init
from lamina.nn.attention import Mask, MultiheadAttention
from lamina.nn.container import ModuleList
from lamina.nn.dropout import Dropout, by_samples
from lamina.nn.linear import Linear
from lamina.nn.module import Module, T
from lamina.nn.norm import LayerNorm
from lamina.ops.arguments import MOST_LAYERS, DTypeLike, whole
from lamina.ops.core import operand
from lamina.runtime import Device
from lamina.spec import DType, float32
from lamina.tensors import Tensor, tensor

_ACTIVATIONS: dict[str, Callable[..., Any]] = {"relu": ops.relu, "gelu": ops.gelu}


class _Layer(Module):
    """Attention and a feed-forward network, each with a residual connection and a normalization.

    The normalization follows each sum, or with norm_first precedes each sublayer. activation: "relu", "gelu" or a
    function. Sequences are (L, B, E), or (B, L, E) with batch_first.
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
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        name = type(self).__name__
        if isinstance(activation, str) and activation not in _ACTIVATIONS:
            raise ValueError(f"{name}: activation must be 'relu', 'gelu' or a function, got {activation!r}")
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
        self.to(device, dtype)

    #: Sublayers with a residual connection.
    _norms = 2

    @property
    def d_model(self) -> int:
        """E, the feature size of the sequences."""
        return self.linear1.in_features

    @property
    def nhead(self) -> int:
        """The number of attention heads."""
        return self.self_attn.num_heads

    @property
    def dim_feedforward(self) -> int:
        """The width between the two linear layers."""
        return self.linear1.out_features

    @property
    def batch_first(self) -> bool:
        """Whether sequences are (B, L, E)."""
        return self.self_attn.batch_first

    def _part(self, number: int, x: T, function: Callable[[T], T]) -> T:
        """x + function(x) with dropout, and the normalization before or after."""
        norm, dropout = (getattr(self, f"{name}{number}") for name in ("norm", "dropout"))
        y: T
        if self.norm_first:
            y = x + self._dropped(dropout, function(norm(x)))
        else:
            y = norm(x + self._dropped(dropout, function(x)))
        return y

    def _dropped(self, dropout: Dropout, x: T) -> T:
        y: T = by_samples(dropout, x, 0 if self.batch_first or x.ndim < 3 else 1)
        return y

    def _feed_forward(self, x: T) -> T:
        hidden: T = self.activation(self.linear1(x))
        return self.linear2(self._dropped(self.dropout, hidden))


class TransformerEncoderLayer(_Layer):
    """Self-attention, then a feed-forward network."""

    def forward(
        self, src: T, src_mask: Mask = None, src_key_padding_mask: Mask = None, is_causal: bool = False
    ) -> T:
        """src (L, B, E), masks as in `MultiheadAttention` -> the same shape."""

        def attend(x: T) -> T:
            return self.self_attn(x, x, x, src_key_padding_mask, False, src_mask, True, is_causal)[0]

        x: T = operand(src)
        return self._part(2, self._part(1, x, attend), self._feed_forward)


class TransformerDecoderLayer(_Layer):
    """Self-attention, then cross-attention to the encoder's output, then a feed-forward network."""

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
        """tgt (L, B, E), memory (S, B, E), masks as in `MultiheadAttention` -> the shape of tgt."""

        def attend(x: T) -> T:
            return self.self_attn(x, x, x, tgt_key_padding_mask, False, tgt_mask, True, tgt_is_causal)[0]

        def look(x: T) -> T:
            masks = (memory_key_padding_mask, False, memory_mask, True, memory_is_causal)
            return self.multihead_attn(x, memory, memory, *masks)[0]

        x: T = operand(tgt)
        return self._part(3, self._part(2, self._part(1, x, attend), look), self._feed_forward)


class _Stack(Module):
    """A stack of copies of a layer, with separate but equally initialized parameters, and optionally a normalization.

    layer: any module with the call signature of the library's own; it is copied, and is not itself part of the stack.
    """

    def __init__(self, layer: Module, num_layers: int, norm: Module | None = None) -> None:
        self.num_layers = whole(type(self).__name__, "num_layers", num_layers, most=MOST_LAYERS)
        self.layers = ModuleList(copy.deepcopy(layer) for _ in range(self.num_layers))
        self.norm = norm

    @property
    def _first(self) -> Module:
        """The first layer, which has the current configuration of the stack."""
        return self.layers[0]


class TransformerEncoder(_Stack):
    """A stack of num_layers encoder layers, then norm.

    enable_nested_tensor, mask_check: select code paths in torch; without effect here.
    """

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__(encoder_layer, num_layers, norm)

    #: If set, torch's stack skips padded rows of a batch in inference; here they are computed.
    enable_nested_tensor = False
    encoder_layer = _Stack._first

    def forward(
        self, src: T, mask: Mask = None, src_key_padding_mask: Mask = None, is_causal: bool = False
    ) -> T:
        """src (L, B, E) -> the same shape; masks as in `MultiheadAttention`, for every layer."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(_Stack):
    """A stack of num_layers decoder layers, then norm."""

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__(decoder_layer, num_layers, norm)

    decoder_layer = _Stack._first

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
        """tgt (L, B, E), memory (S, B, E) -> as tgt; masks as in `TransformerDecoderLayer`, for every layer."""
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks, tgt_is_causal, memory_is_causal)
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """An encoder and a decoder, each of layers and a normalization; weights from Xavier's uniform distribution.

    custom_encoder, custom_decoder: modules with the same call signatures, as replacements.
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Any], Any] = "relu",
        custom_encoder: Module | None = None,
        custom_decoder: Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        self.d_model, self.nhead, self.batch_first = d_model, nhead, bool(batch_first)
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
        self.encoder: Module = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*options),
            num_encoder_layers,
            LayerNorm(d_model, layer_norm_eps, bias=bias),
        )
        self.decoder: Module = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*options),
            num_decoder_layers,
            LayerNorm(d_model, layer_norm_eps, bias=bias),
        )
        for parameter in self.parameters():
            if parameter.ndim > 1:
                init.xavier_uniform_(parameter)
        self.to(device, dtype)

    @property
    def custom_encoder(self) -> Module:
        """The encoder, custom or not."""
        return self.encoder

    @property
    def custom_decoder(self) -> Module:
        """The decoder, custom or not."""
        return self.decoder

    @staticmethod
    def generate_square_subsequent_mask(
        sz: int, device: Device | str | None = None, dtype: DType | str = float32
    ) -> Tensor:
        """The causal mask [sz, sz], added to scores: row i attends to the columns up to i: 0 there, else -inf."""
        ahead = np.triu(np.full((sz, sz), -np.inf), 1)
        return tensor(ahead, dtype, "cpu" if device is None else device)

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
        memory = self.encoder(
            src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal
        )
        y: T = self.decoder(
            tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )  # fmt: skip
        return y
