"""Autoregressive text generation, token by token, by one compiled program and a cache of fixed size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakKeyDictionary, ref

import numpy as np

from lamina import jitting
from lamina.nn.module import evaluating
from lamina.spec import ShapeError

Array = np.ndarray[Any, Any]


class Continues(Protocol):
    """A language model that decodes with a cache, such as `nn.GPT2LMHeadModel`."""

    def empty_cache(self, batch: int, length: int) -> Any:
        """An empty cache for `length` tokens of `batch` texts."""

    def continued(self, input_ids: Any, cache: Any, position: Any) -> tuple[Any, Any]:
        """Next-token logits (B, L, V) for each of input_ids (B, L) from `position` on, and the cache."""


def generate(
    net: Any,
    prompt: Any,
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int = 0,
) -> Array:
    """The prompt, integers (B, L), and max_new_tokens tokens after it: int64 (B, L + max_new_tokens).

    net: a `Continues`; it runs in inference mode, on the device of its parameters. temperature: 0 takes the likeliest
        token each time (greedy), else tokens are drawn from softmax(logits / temperature). top_k: samples only from
        the k likeliest. seed: of the sampling. Two programs are compiled, for the prompt and for a token, which later
        calls with equal numbers of texts, tokens and new tokens reuse. Raises TypeError, ShapeError, ValueError.
    """
    if missing := [n for n in ("empty_cache", "continued") if not callable(getattr(net, n, None))]:
        raise TypeError(
            f"generate: net has no {missing[0]}, got {type(net).__name__}; it must be a `Continues`"
        )
    given = np.asarray(prompt)
    if given.size and given.dtype.kind not in "iu":
        raise TypeError(f"generate: prompt must be whole numbers, got {given.dtype}")
    tokens = given.astype(np.int64)
    if tokens.ndim != 2 or 0 in tokens.shape:
        raise ShapeError(f"generate: prompt must be (B, L) with a token at least, got shape {tokens.shape}")
    if max_new_tokens < 1 or not temperature >= 0 or (top_k is not None and top_k < 1):
        raise ValueError(
            "generate: needs max_new_tokens and top_k of at least 1 and a temperature of at least 0, "
            f"got {max_new_tokens}, {top_k} and {temperature}"
        )
    rng, step = np.random.default_rng(seed), _step_of(net)
    found, given = [tokens], tokens
    with evaluating(net):
        cache = net.empty_cache(tokens.shape[0], tokens.shape[1] + max_new_tokens)
        for _ in range(max_new_tokens):
            position = sum(part.shape[1] for part in found) - given.shape[1]
            logits, cache = step(given, cache, np.array(position))
            given = _chosen(logits[:, -1].numpy().astype(np.float64), temperature, top_k, rng)
            found.append(given)
    return np.concatenate(found, 1)


#: The compiled step of each network that has generated text.
_steps: WeakKeyDictionary[Any, Callable[..., Any]] = WeakKeyDictionary()


def _step_of(net: Any) -> Callable[..., Any]:
    """Its `continued`, compiled; kept as long as the network is."""
    found = _steps.get(net)
    if found is None:
        there = ref(net)

        def continued(input_ids: Any, cache: Any, position: Any) -> Any:
            known = there()
            assert known is not None, "who calls has the network"
            return known.continued(input_ids, cache, position)

        found = _steps[net] = jitting.jit(continued)
    return found


def _chosen(logits: Array, temperature: float, top_k: int | None, rng: np.random.Generator) -> Array:
    """A token for each row of logits (B, V): (B, 1)."""
    if temperature == 0:
        likeliest: Array = logits.argmax(1, keepdims=True)
        return likeliest
    if top_k is not None and top_k < logits.shape[1]:
        least = np.partition(logits, -top_k, axis=1)[:, -top_k, None]
        logits = np.where(logits < least, -np.inf, logits)
    # The argmax of logits plus Gumbel noise is a sample from their softmax.
    drawn: Array = (logits / temperature + rng.gumbel(size=logits.shape)).argmax(1, keepdims=True)
    return drawn
