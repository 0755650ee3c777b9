"""Unfold and Fold are the functions of their names."""

import numpy as np

import lamina as lm
from lamina import nn


def test_there_and_back() -> None:
    x = lm.tensor(np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4))
    apart, joined = nn.Unfold(2, stride=2), nn.Fold((4, 4), 2, stride=2)
    assert apart(x).shape == (1, 8, 4)
    np.testing.assert_array_equal(joined(apart(x)).numpy(), x.numpy())
    assert str(apart) == "Unfold(kernel_size=2, dilation=1, padding=0, stride=2)"
    assert str(joined) == "Fold(output_size=(4, 4), kernel_size=2, dilation=1, padding=0, stride=2)"
