"""Autoregressive text generation, token by token, by one compiled program and a cache of fixed size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from lamina.infer.choosing import TokenChoice
from lamina.infer.decoding import Continues, DecodingStep, step_of
from lamina.nn.module import evaluating
from lamina.spec import ShapeError

__all__ = ["Continues", "generate"]

Array = np.ndarray[Any, Any]


def generate(
    net: Any,
    prompt: Any,
    max_new_tokens: int,
    *,
    attention_mask: Any = None,
    decoder_input_ids: Any = None,
    do_sample: bool | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float = 1.0,
    min_new_tokens: int = 0,
    eos_token_id: int | Iterable[int] | None = None,
    pad_token_id: int | None = None,
    streamer: Any = None,
    seed: int = 0,
) -> Array:
    """The prompt, integers (B, L), and at most max_new_tokens tokens after it: int64 (B, L + n). Keywords are those
    of transformers' `generate`.

    net: a `Continues`: a model of `lamina.nn` that has a cache, or a converted causal language model of transformers;
        it runs in inference mode, on the device of its parameters.
    attention_mask: (B, L), 0 at the padding on the left of shorter prompts.
    decoder_input_ids: of a network with an encoder (T5, BART, Whisper), which reads the prompt (token numbers or
        features; padded on either side): the first tokens (B, M) of the texts, by default the decoder_start_token_id
        of net.generation_config. The result is int64 (B, M + n).
    do_sample: False takes the likeliest token each time (greedy), True draws from softmax(logits / temperature); by
        default draws if temperature is given and not 0. top_k: among the k likeliest only. top_p: among the fewest
        likeliest tokens whose probabilities sum to at least top_p. seed: of the draws.
    repetition_penalty: logits of tokens that the text has are divided by it if positive, else multiplied.
    eos_token_id: a token, or several, that ends a text; by default the one of net.generation_config, as converted
        models have it, or none; () is none. A text that has ended is filled with pad_token_id (by default the
        configuration's, or the first eos_token_id); when all have, generation stops. min_new_tokens: so many tokens
        at least come before the end.
    streamer: an object with put(tokens) and end(), such as transformers' TextStreamer, that receives the prompt
        (B, L) and then the tokens (B,) of each step as NumPy arrays; or a function of these tokens.

    Two programs are compiled, for the prompt and for a token, which later calls with equal numbers of texts, tokens
    and new tokens reuse. The cache is updated in place. Raises TypeError, ShapeError, ValueError.
    """
    if missing := [n for n in ("empty_cache", "continued") if not callable(getattr(net, n, None))]:
        raise TypeError(
            f"generate: net has no {missing[0]}, got {type(net).__name__}; it must be a `Continues`"
        )
    if max_new_tokens < 1:
        raise ValueError(f"generate: max_new_tokens must be at least 1, got {max_new_tokens}")
    encoder = (prompt, attention_mask) if getattr(net, "has_encoder", False) else None
    tokens = _whole_numbers(prompt if encoder is None else _begun(net, len(prompt), decoder_input_ids))
    masked = attention_mask is not None and encoder is None
    padding = _padding(attention_mask, tokens.shape) if masked else None
    drawn = temperature != 0 and (temperature is not None if do_sample is None else do_sample)
    heat = (1.0 if temperature is None else temperature) if drawn else 0.0
    stops = _stops(net, eos_token_id)
    choice = TokenChoice(heat, top_k, top_p, repetition_penalty, min_new_tokens, stops)
    fill = next((n for n in (pad_token_id, _known(net, "pad_token_id"), *stops) if n is not None), 0)
    put, end = _receiver(streamer)
    put(tokens)
    found, ended = [tokens], np.zeros(len(tokens), bool)
    batch, length = tokens.shape
    with evaluating(net), step_of(net, batch, length + max_new_tokens, padding, encoder) as step:
        for new in _chosen(step, tokens, max_new_tokens, choice, found, np.random.default_rng(seed)):
            new[ended] = fill
            found.append(new)
            put(new[:, 0])
            ended |= np.isin(new[:, 0], stops)
            if ended.all():
                break
    end()
    return np.concatenate(found, 1)


def _chosen(
    step: DecodingStep,
    tokens: Array,
    count: int,
    choice: TokenChoice,
    text: list[Array],
    rng: np.random.Generator,
) -> Iterator[Array]:
    """The tokens (B, 1) of each step. text: the parts of the text so far, to which the caller adds what it gets.

    The likeliest tokens go from one step to the next without a stop at the CPU: it reads them while the next step
    runs.
    """
    logits, likeliest = step(tokens)
    for made in range(count):
        if choice.plain:
            given = likeliest
            if made + 1 < count:
                logits, likeliest = step(given)
            yield given.numpy().copy()
            continue
        new = choice.tokens(logits.numpy().astype(np.float64), np.concatenate(text, 1), made, rng)
        yield new
        if made + 1 < count:
            logits, likeliest = step(text[-1])


def _begun(net: Any, batch: int, decoder_input_ids: Any) -> Any:
    """The first tokens (B, M) of texts that a decoder writes."""
    if decoder_input_ids is not None:
        return decoder_input_ids
    first = _known(net, "decoder_start_token_id")
    if first is None:
        raise ValueError(
            "generate: net.generation_config has no decoder_start_token_id: pass decoder_input_ids"
        )
    return np.full((batch, 1), first)


def _whole_numbers(prompt: Any) -> Array:
    given = np.asarray(prompt)
    if given.size and given.dtype.kind not in "iu":
        raise TypeError(f"generate: prompt must be whole numbers, got {given.dtype}")
    if given.ndim != 2 or 0 in given.shape:
        raise ShapeError(f"generate: prompt must be (B, L) with a token at least, got shape {given.shape}")
    return given.astype(np.int64)


def _padding(attention_mask: Any, shape: tuple[int, ...]) -> Array:
    """How many tokens (B,) are missing on the left."""
    mask = np.asarray(attention_mask) != 0
    if mask.shape != shape:
        raise ShapeError(f"generate: attention_mask must have the prompt's shape {shape}, got {mask.shape}")
    found: Array = (~mask).sum(1)
    if not (mask == (np.arange(shape[1]) >= found[:, None])).all() or (found == shape[1]).any():
        raise ValueError(
            "generate: attention_mask must be 0 on the left of a text and 1 from its first token on: pad shorter "
            "prompts on the left (padding_side='left')"
        )
    return found


def _stops(net: Any, eos_token_id: Any) -> tuple[int, ...]:
    given = _known(net, "eos_token_id") if eos_token_id is None else eos_token_id
    return () if given is None else tuple(int(x) for x in np.atleast_1d(np.asarray(given)))


def _known(net: Any, name: str) -> Any:
    """What a converted network's configuration says of its tokens."""
    return getattr(getattr(net, "generation_config", None), name, None)


def _receiver(streamer: Any) -> tuple[Callable[[Array], Any], Callable[[], Any]]:
    """The functions that receive tokens, and the end."""
    if streamer is None:
        return lambda tokens: None, lambda: None
    if callable(getattr(streamer, "put", None)) and callable(getattr(streamer, "end", None)):
        return streamer.put, streamer.end
    if callable(streamer):
        # the prompt has two axes, new tokens one
        return lambda tokens: streamer(tokens) if tokens.ndim == 1 else None, lambda: None
    raise TypeError(
        f"generate: streamer must be a function of tokens, or have put and end, got {type(streamer).__name__}"
    )
