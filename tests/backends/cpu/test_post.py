"""Steps behind a head as oneDNN's post-ops."""

from __future__ import annotations

import numpy as np

import lamina as lm


def test_chains_longer_than_onednn_takes_are_several_kernels() -> None:
    """Sums over all parameters of a network, as penalties have them."""
    xs = [np.full(3, float(i), np.float32) for i in range(50)]
    total = lm.jit(lambda *parts: sum(parts[1:], parts[0]))(*xs)
    np.testing.assert_array_equal(total.numpy(), sum(xs))
