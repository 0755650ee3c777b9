"""Losses of tokens."""

import numpy as np
import pytest

from lamina import nn, ops

RNG = np.random.default_rng(0)


def test_labels_of_no_token_do_not_count() -> None:
    logits, labels = (
        RNG.standard_normal((2, 3, 5)).astype(np.float32),
        np.array([[1, -100, 4], [-100, 0, -100]]),
    )
    kept = labels >= 0
    expected = ops.cross_entropy(logits[kept], labels[kept]).item()
    assert nn.token_loss(logits, labels).item() == pytest.approx(expected)


def test_each_token_is_asked_of_those_before_it() -> None:
    logits, ids = RNG.standard_normal((2, 4, 5)).astype(np.float32), RNG.integers(0, 5, (2, 4))
    expected = nn.token_loss(logits[:, :3], ids[:, 1:]).item()
    assert nn.next_token_loss(logits, ids).item() == pytest.approx(expected)
