"""Initial values of recurrent layers; what they compute is in test_sequences.py."""

from typing import Any

import numpy as np
import pytest

from lamina import nn


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_weights_are_uniform_within_one_by_the_root_of_the_hidden_size(kind: Any) -> None:
    nn.manual_seed(0)
    layer = kind(60, 64, 2, bidirectional=True)
    for name, weight in layer.named_parameters():
        values = weight.numpy()
        assert np.abs(values).max() <= 1 / 8, name
        if values.ndim == 2:
            assert np.abs(values).max() > 0.99 / 8
            assert values.std() == pytest.approx(1 / 8 / np.sqrt(3), rel=0.05)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_one_sequence_may_be_padded_as_those_of_a_batch_are(kind: Any, first: bool) -> None:
    nn.manual_seed(0)
    layer = kind(3, 4, 2, bidirectional=True, batch_first=first)
    x = np.random.default_rng(0).standard_normal((2, 6, 3)).astype(np.float32)
    wanted, states = layer(x if first else x.swapaxes(0, 1), lengths=np.array([6, 4]))
    states = states if isinstance(states, tuple) else (states,)
    for i, length in enumerate((6, 4)):
        y, last = layer(x[i], lengths=np.int64(length))
        both = wanted.numpy() if first else wanted.numpy().swapaxes(0, 1)
        np.testing.assert_allclose(y.numpy(), both[i], rtol=1e-5, atol=1e-6)
        for own, of_batch in zip(last if isinstance(last, tuple) else (last,), states, strict=True):
            np.testing.assert_allclose(own.numpy(), of_batch.numpy()[:, i], rtol=1e-5, atol=1e-6)
