"""Plans of oneDNN's primitives."""

import numpy as np

import lamina as lm
from lamina import nn
from lamina.backends.cpu import library


def test_a_primitive_meets_operands_at_many_addresses() -> None:
    layer = nn.Linear(8, 8)
    inputs = [lm.tensor(np.full((4, 8), i, np.float32)) for i in range(3 * library._MOST_MEMORIES)]
    for _ in range(2):
        for x in inputs:
            wanted = x.numpy().astype(np.float64) @ layer.weight.numpy().T + layer.bias.numpy()
            np.testing.assert_allclose(layer(x).numpy(), wanted, rtol=1e-4, atol=1e-4)
