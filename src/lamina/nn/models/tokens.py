"""Losses of networks that output token logits."""

from __future__ import annotations

from typing import Any

from lamina import ops
from lamina.ops.core import operand


def token_loss(logits: Any, labels: Any, *, ignore_index: int = -100, label_smoothing: float = 0.0) -> Any:
    """The mean cross entropy of logits (…, V) and integers (…); labels of ignore_index are ignored."""
    x = operand(logits)
    rows = x.reshape((-1, x.shape[-1]))
    targets = operand(labels).reshape((-1,))
    return ops.cross_entropy(rows, targets, ignore_index=ignore_index, label_smoothing=label_smoothing)


def next_token_loss(logits: Any, input_ids: Any, *, ignore_index: int = -100) -> Any:
    """`token_loss` of logits (B, L, V) for the token after each of input_ids (B, L): the last logits are unused."""
    return token_loss(operand(logits)[:, :-1], operand(input_ids)[:, 1:], ignore_index=ignore_index)
