"""The next token of each text, from its logits: the likeliest or a draw, under transformers' rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TokenChoice:
    """How the next token is chosen. The rules apply in this order.

    repetition_penalty: logits of tokens that the text has are divided by it if positive, else multiplied.
    stops: tokens that end a text, which min_new_tokens forbids at first. temperature: 0 takes the likeliest token,
    else one is drawn from softmax(logits / temperature), among the top_k likeliest and the fewest tokens whose
    probabilities sum to at least top_p.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    stops: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        rules = (
            ("temperature", self.temperature >= 0, "at least 0"),
            ("top_k", self.top_k is None or self.top_k >= 1, "at least 1"),
            ("top_p", self.top_p is None or 0 < self.top_p <= 1, "in (0, 1]"),
            ("repetition_penalty", self.repetition_penalty > 0, "above 0"),
            ("min_new_tokens", self.min_new_tokens >= 0, "at least 0"),
        )
        for name, holds, wanted in rules:
            if not holds:
                raise ValueError(f"generate: {name} must be {wanted}, got {getattr(self, name)}")

    @property
    def plain(self) -> bool:
        """Whether it is the likeliest token of the logits as they are."""
        return (
            self.temperature == 0
            and self.repetition_penalty == 1
            and not (self.stops and self.min_new_tokens)
        )

    def tokens(self, logits: Array, text: Array, made: int, rng: np.random.Generator) -> Array:
        """A token for each row of logits (B, V), float64, after text (B, L) with `made` new tokens: (B, 1).

        The logits are overwritten.
        """
        if self.repetition_penalty != 1:
            own = np.take_along_axis(logits, text, 1)
            own = np.where(own < 0, own * self.repetition_penalty, own / self.repetition_penalty)
            np.put_along_axis(logits, text, own, 1)
        if made < self.min_new_tokens:
            logits[:, list(self.stops)] = -np.inf
        if self.temperature == 0:
            likeliest: Array = logits.argmax(1, keepdims=True)
            return likeliest
        # The argmax of logits plus Gumbel noise is a sample from their softmax.
        kept = self._kept(logits / self.temperature)
        drawn: Array = (kept + rng.gumbel(size=kept.shape)).argmax(1, keepdims=True)
        return drawn

    def _kept(self, logits: Array) -> Array:
        """The logits, -inf at tokens that are not among the likeliest."""
        if self.top_k is not None and self.top_k < logits.shape[1]:
            least = np.partition(logits, -self.top_k, axis=1)[:, -self.top_k, None]
            logits = np.where(logits < least, -np.inf, logits)
        if self.top_p is not None and self.top_p < 1:
            order = np.argsort(-logits, axis=1, kind="stable")
            ranked = np.take_along_axis(logits, order, 1)
            shares = np.exp(ranked - ranked[:, :1])
            before = shares.cumsum(1) - shares  # of the likelier tokens
            ranked[before >= self.top_p * shares.sum(1, keepdims=True)] = -np.inf
            np.put_along_axis(logits, order, ranked, 1)
        return logits
