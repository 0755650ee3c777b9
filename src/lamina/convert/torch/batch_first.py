"""PyTorch's multi-head attention computed batch first, where the sequences are stored so.

`torch.nn.functional.multi_head_attention_forward` takes (T, B, E); layers with batch_first transpose their (B, T, E)
for it and the result back. In that order each product, split and head is a copy; in memory order they are
views, and the three projections are one product, whose thirds attention reads in place.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

_whole = functional.multi_head_attention_forward
_SIGNATURE = inspect.signature(_whole)
#: Arguments that the attention below does not support.
_OTHERS = (
    "bias_k",
    "bias_v",
    "static_k",
    "static_v",
    "add_zero_attn",
    "use_separate_proj_weight",
    "need_weights",
)


def lies_batch_first(x: Any) -> bool:
    """Whether (T, B, E) is stored batch by batch in memory."""
    return isinstance(x, torch.Tensor) and x.ndim == 3 and bool(x.stride(1) > x.stride(0))


def is_plain(given: Mapping[str, Any]) -> bool:
    """Whether a call is self-attention of one sequence, without weights as a result and without appended keys."""
    return given["query"] is given["key"] is given["value"] and not any(
        given[n] is not None and given[n] is not False for n in _OTHERS
    )


def arguments(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """The arguments of a call of PyTorch's function, by name."""
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def multi_head_attention(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """PyTorch's function, computed in memory order where sequences are stored batch by batch."""
    given = arguments(*args, **kwargs)
    if is_plain(given) and lies_batch_first(given["query"]):
        return _attention(given), None
    result: tuple[torch.Tensor, torch.Tensor | None] = _whole(*args, **kwargs)
    return result


@contextmanager
def attention_batch_first() -> Iterator[None]:
    """Within the block PyTorch's function is replaced by `multi_head_attention`."""
    setattr(functional, "multi_head_attention_forward", multi_head_attention)  # noqa: B010 - it is a function
    try:
        yield
    finally:
        setattr(functional, "multi_head_attention_forward", _whole)  # noqa: B010


def _attention(given: dict[str, Any]) -> torch.Tensor:
    """(T, B, E) of the query (T, B, E), computed as (B, T, E)."""
    x, heads = given["query"].transpose(0, 1), given["num_heads"]
    batch, steps, width = x.shape
    parts = functional.linear(x, given["in_proj_weight"], given["in_proj_bias"]).chunk(3, -1)
    q, k, v = (part.reshape(batch, steps, heads, width // heads).transpose(1, 2) for part in parts)
    mask = _mask(given, q)
    drop = given["dropout_p"] if given["training"] else 0.0
    causal = bool(given["is_causal"]) and mask is None
    y = functional.scaled_dot_product_attention(q, k, v, mask, drop, causal)
    y = y.transpose(1, 2).reshape(batch, steps, width)
    y = functional.linear(y, given["out_proj_weight"], given["out_proj_bias"])
    return y.transpose(0, 1).contiguous()  # callers may take views of it; here that costs nothing


def _mask(given: dict[str, Any], q: torch.Tensor) -> torch.Tensor | None:
    """The term added to the scores (B, H, T, T), from masks that are true where attention is not allowed,
    or floats."""
    mask, padding = given["attn_mask"], given["key_padding_mask"]
    if given["is_causal"] and padding is None:
        mask = None  # as in PyTorch: the flag decides
    found = None if mask is None else _added(mask, q)
    if found is not None and found.ndim == 3:
        found = found.reshape(-1, q.shape[1], *found.shape[1:])
    if padding is not None:
        hidden = _added(padding, q)[:, None, None, :]
        found = hidden if found is None else found + hidden
    return found


def _added(mask: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    if mask.dtype != torch.bool:
        return mask.to(q.dtype)
    return torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, float("-inf"))
