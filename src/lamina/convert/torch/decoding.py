"""Text generation of converted language models: a key-value cache of fixed size, and a step that continues a text.

The cache is the one that transformers makes for compiled programs (`StaticCache`). It is an argument of the network's
`forward` like any other object with tensors; its shapes are found by a run on tensors without data.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lamina import ops
from lamina._tree import Structure, flatten, unflatten
from lamina.convert.torch.exporting import EXPORTING, is_tensor
from lamina.convert.torch.objects import is_container
from lamina.ops.core import operand
from lamina.runtime import Device
from lamina.tensors import zeros

#: What `forward` of a language model calls its cache, in the order of transformers' versions, newest first.
_CACHES = ("cache", "past_key_values")


@dataclass(frozen=True)
class CacheLayout:
    """A cache without its tensors. others: the leaves that are not tensors, by their leaf index. length: the number
    of tokens."""

    structure: Structure
    others: tuple[tuple[int, Any], ...]
    length: int


@dataclass
class DecodingCache:
    """The cache of a converted language model: transformers' object, opened, so that programs take it."""

    tensors: tuple[Any, ...]
    layout: CacheLayout

    @classmethod
    def of(cls, cache: Any, length: int) -> DecodingCache:
        """An object with tensors in attributes."""
        leaves, structure = flatten(cache, open_dataclasses=True, opens=is_container)
        others = tuple((i, x) for i, x in enumerate(leaves) if not is_tensor(x))
        return cls(tuple(x for x in leaves if is_tensor(x)), CacheLayout(structure, others, length))

    def object(self) -> Any:
        """The object as `forward` takes it."""
        others, tensors = dict(self.layout.others), iter(self.tensors)
        count = len(others) + len(self.tensors)
        leaves = [others[i] if i in others else next(tensors) for i in range(count)]
        return unflatten(self.layout.structure, leaves)


@dataclass(frozen=True)
class DecodingSignature:
    """How a language model takes a cache. name: of the cache among forward's arguments; takes: all their names."""

    name: str
    takes: frozenset[str]

    @classmethod
    def of(cls, source: torch.nn.Module) -> DecodingSignature:
        """Of the outermost part of a network that has a configuration and takes a cache. Raises TypeError."""
        for part in source.modules():
            takes = frozenset(inspect.signature(part.forward).parameters)
            found = [n for n in _CACHES if n in takes]
            if found and hasattr(part, "config"):
                return cls(found[0], takes)
        raise TypeError(
            f"generate: {type(source).__name__}.forward takes no cache ({' or '.join(_CACHES)}), as the language "
            "models of transformers do"
        )

    def options(
        self, cache: Any, length: int, batch: int, places: Any, given: Any, encoded: Sequence[Any] = ()
    ) -> dict[str, Any]:
        """The further arguments for tokens at `places` (L,) and a cache of `length`. given: the mask (batch, length),
        or None. encoded: the encoder's results, and their mask if they have one."""
        found: dict[str, Any] = {"use_cache": True, self.name: cache}
        if "logits_to_keep" in self.takes:
            found["logits_to_keep"] = 1
        of_decoder = "decoder_" if encoded else ""
        if f"{of_decoder}attention_mask" in self.takes:
            found[f"{of_decoder}attention_mask"] = _mask_for(cache, length, batch, places, given)
        if encoded:
            found["encoder_outputs"] = (encoded[0],)
            found |= dict(zip(("attention_mask",), encoded[1:], strict=False))
        if f"{of_decoder}position_ids" in self.takes:
            own = places.unsqueeze(0)
            if given is not None:  # a text begins behind its padding, which is on the left
                padding = ops.sum(ops.cast(ops.eq(given, 0), "int64"), 1, keepdim=True)
                own = ops.maximum(own - padding, 0)
            found[f"{of_decoder}position_ids"] = ops.expand(own, (batch, places.shape[0]))
        return found


def _mask_for(cache: Any, length: int, batch: int, places: Any, given: Any) -> Any:
    """The mask as `forward` takes it: of all places of a cache of keys; of the prompt's tokens for recurrent layers.

    Without one some models would make one themselves, of as many places as there are tokens so far.
    """
    linear = [bool(x) for x in getattr(cache, "is_linear", ())]
    if not any(linear):
        return np.ones((batch, length), np.int64) if given is None else given
    if given is None or not all(linear):
        return given
    return ops.index_select(given, 1, places) if places.shape[0] > 1 else None


def has_encoder(source: torch.nn.Module) -> bool:
    """Whether a language model reads its prompt by an encoder of its own."""
    return bool(getattr(getattr(source, "config", None), "is_encoder_decoder", False))


def encoded(net: Any, inputs: Any, attention_mask: Any) -> tuple[Any, ...]:
    """The encoder's results (B, S, C), and their mask if there is one.

    The whole network is called for one token, of which a program keeps the encoder alone.
    """
    given: Any = operand(inputs)
    options = {
        net.source.main_input_name: given,
        "decoder_input_ids": np.zeros((given.shape[0], 1), np.int64),
    }
    if attention_mask is None:
        return (net(**options, use_cache=False).encoder_last_hidden_state,)
    mask = operand(attention_mask)
    return net(**options, attention_mask=mask, use_cache=False).encoder_last_hidden_state, mask


def empty_cache(
    source: torch.nn.Module, batch: int, length: int, device: Device, encoded: Sequence[Any] = ()
) -> DecodingCache:
    """A zeroed cache for `length` tokens of `batch` texts, given the encoder's results if there is one. Raises
    TypeError for a network that takes none."""
    signature = DecodingSignature.of(source)
    _require_static(source, signature)
    found = DecodingCache.of(_filled(source, signature, batch, length, encoded), length)
    found.tensors = tuple(
        zeros(tuple(x.shape), dtype=str(x.dtype).removeprefix("torch."), device=device) for x in found.tensors
    )
    return found


def continued(
    net: Any,
    input_ids: Any,
    cache: DecodingCache,
    position: Any,
    attention_mask: Any,
    encoded: Sequence[Any] = (),
) -> tuple[Any, DecodingCache]:
    """Logits (B, 1 or L, V) for the tokens (B, L) from `position` on, and the cache; see `nn.GPT2Model.continued`."""
    signature, length = DecodingSignature.of(net.source), cache.layout.length
    ids: Any = operand(input_ids)
    places = ops.cast(operand(position), "int64").reshape((1,)) + np.arange(ids.shape[1])
    options = signature.options(cache.object(), length, ids.shape[0], places, attention_mask, encoded)
    out = net(**{"decoder_input_ids" if encoded else "input_ids": ids}, **options)
    return out.logits, DecodingCache.of(getattr(out, signature.name), length)


def _filled(
    source: torch.nn.Module, signature: DecodingSignature, batch: int, length: int, encoded: Sequence[Any]
) -> Any:
    """transformers' cache, emptied, whose layers have made their tensors: without data, if the functions of the
    network know how, else by a run of it."""
    for mode in (FakeTensorMode(allow_non_fake_inputs=True), nullcontext()):
        cache = _static_cache(source, length)
        if encoded:
            rest = _static_cache(source, encoded[0].shape[1])
            cache = sys.modules["transformers"].EncoderDecoderCache(cache, rest)
        try:
            with EXPORTING, mode, torch.no_grad():
                ids = torch.zeros(batch, 2, dtype=torch.int64)
                _run(source, signature, ids, cache, encoded[0].shape if encoded else None)
                cache.reset()
        except Exception as error:
            failed = error
        else:
            return cache
    raise TypeError(
        f"generate: {type(source).__name__} does not run with transformers' cache of fixed size: {failed}"
    ) from failed


def _run(
    source: torch.nn.Module,
    signature: DecodingSignature,
    ids: torch.Tensor,
    cache: Any,
    encoded: tuple[int, ...] | None = None,
) -> torch.Tensor:
    """The logits of PyTorch's network. encoded: the shape of the encoder's results."""
    given: dict[str, Any] = {"use_cache": False}
    if cache is not None:
        given = {"use_cache": True, signature.name: cache}
    like = next(source.parameters())
    name = "input_ids" if encoded is None else "decoder_input_ids"
    if encoded is not None:
        given["encoder_outputs"] = (torch.zeros(encoded, dtype=like.dtype, device=like.device),)
    found: torch.Tensor = source(**{name: ids.to(like.device)}, **given).logits
    return found


def _require_static(source: torch.nn.Module, signature: DecodingSignature) -> None:
    """Raise TypeError if results with a cache of fixed size differ, which transformers does not exclude for models
    that it does not compile."""
    if any(getattr(part, "_can_compile_fullgraph", False) for part in source.modules()):
        return
    if has_encoder(source):
        raise TypeError(
            f"generate: transformers does not say that {type(source).__name__} runs with its cache of fixed size: "
            "generate in PyTorch (to_torch)"
        )
    ids, cache, training = torch.tensor([[1, 2, 3]]), _static_cache(source, 8), source.training
    try:
        with EXPORTING, torch.no_grad():
            source.eval()
            expected = _run(source, signature, ids, None)[:, -1]
            _run(source, signature, ids[:, :2], cache)
            found = _run(source, signature, ids[:, 2:], cache)[:, -1]
    finally:
        source.train(training)
    scale = expected.abs().max().clamp(min=1e-6)
    if not (found - expected).abs().max() < 0.01 * scale:
        raise TypeError(
            f"generate: {type(source).__name__} computes something else with transformers' cache of fixed size: "
            "generate in PyTorch (to_torch)"
        )


def _static_cache(source: torch.nn.Module, length: int) -> Any:
    """transformers' cache of fixed size. A layer that would keep a window of the last tokens keeps all of them: where
    it writes would depend on Python's numbers, and the mask selects the window as well."""
    library = sys.modules.get("transformers")
    if library is None:
        raise TypeError("generate: takes language models of transformers, which is not imported")
    cache = library.StaticCache(config=source.config, max_cache_len=length)
    whole = library.cache_utils.StaticLayer
    cache.layers = [
        whole(length) if isinstance(x, whole) and getattr(x, "is_sliding", False) else x for x in cache.layers
    ]
    return cache
