"""Text generation of converted language models: a key-value cache of fixed size, and a step that continues a text.

The cache is the one that transformers makes for compiled programs (`StaticCache`). It is an argument of the network's
`forward` like any other object with tensors; its shapes are found by a run on tensors without data.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
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
    """A cache without its tensors. others: the leaves that are not tensors, by their leaf index."""

    structure: Structure
    others: tuple[tuple[int, Any], ...]


@dataclass
class DecodingCache:
    """The cache of a converted language model: transformers' object, opened, so that programs take it."""

    tensors: tuple[Any, ...]
    layout: CacheLayout

    @classmethod
    def of(cls, cache: Any) -> DecodingCache:
        """An object with tensors in attributes."""
        leaves, structure = flatten(cache, open_dataclasses=True, opens=is_container)
        others = tuple((i, x) for i, x in enumerate(leaves) if not is_tensor(x))
        return cls(tuple(x for x in leaves if is_tensor(x)), CacheLayout(structure, others))

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
            f"generate: {type(source).__name__}.forward takes no cache ({' or '.join(_CACHES)}), as the language models "
            "of transformers do"
        )

    def options(self, batch: int, places: Any, attention_mask: Any) -> Mapping[str, Any]:
        """The further arguments for tokens at `places` (L,), given a mask (batch, length) or None."""
        found: dict[str, Any] = {"use_cache": True}
        if "logits_to_keep" in self.takes:
            found["logits_to_keep"] = 1
        if attention_mask is not None:
            found["attention_mask"] = attention_mask
        if "position_ids" in self.takes:
            own = places.unsqueeze(0)
            if attention_mask is not None:  # a text begins behind its padding, which is on the left
                padding = ops.sum(ops.cast(ops.eq(attention_mask, 0), "int64"), 1, keepdim=True)
                own = ops.maximum(own - padding, 0)
            found["position_ids"] = ops.expand(own, (batch, places.shape[0]))
        return found


def empty_cache(source: torch.nn.Module, batch: int, length: int, device: Device) -> DecodingCache:
    """A zeroed cache for `length` tokens of `batch` texts. Raises TypeError for a network that takes none."""
    signature = DecodingSignature.of(source)
    found = DecodingCache.of(_filled(source, signature, batch, length))
    found.tensors = tuple(
        zeros(tuple(x.shape), dtype=str(x.dtype).removeprefix("torch."), device=device) for x in found.tensors
    )
    return found


def continued(
    net: Any, input_ids: Any, cache: DecodingCache, position: Any, attention_mask: Any
) -> tuple[Any, DecodingCache]:
    """Logits (B, 1 or L, V) for the tokens (B, L) from `position` on, and the cache; see `nn.GPT2Model.continued`."""
    signature = DecodingSignature.of(net.source)
    ids: Any = operand(input_ids)
    places = ops.cast(operand(position), "int64").reshape((1,)) + np.arange(ids.shape[1])
    options = signature.options(ids.shape[0], places, attention_mask)
    out = net(input_ids=ids, **options, **{signature.name: cache.object()})
    return out.logits, DecodingCache.of(getattr(out, signature.name))


def _filled(source: torch.nn.Module, signature: DecodingSignature, batch: int, length: int) -> Any:
    """transformers' cache, whose layers have made their tensors: without data, if the functions of the network know how,
    else by a run of it."""
    for mode in (FakeTensorMode(allow_non_fake_inputs=True), nullcontext()):
        cache = _static_cache(source, length)
        try:
            with EXPORTING, mode, torch.no_grad():
                source(
                    input_ids=torch.zeros(batch, 2, dtype=torch.int64),
                    use_cache=True,
                    **{signature.name: cache},
                )
                cache.reset()
        except (RuntimeError, NotImplementedError):
            if isinstance(mode, FakeTensorMode):
                continue
            raise
        return cache
    raise AssertionError("the second mode returns or raises")


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
