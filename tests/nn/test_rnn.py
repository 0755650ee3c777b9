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
