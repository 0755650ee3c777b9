"""Parameters as one vector."""

import numpy as np
import pytest

import lamina as lm
from lamina import nn
from lamina.nn.utils import parameters_to_vector, vector_to_parameters


def test_there_and_back() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 4, bias=False))
    vector = parameters_to_vector(net.parameters())
    np.testing.assert_array_equal(
        vector.numpy(), np.concatenate([p.numpy().ravel() for p in net.parameters()])
    )
    vector_to_parameters(np.arange(16, dtype=np.float32), net.parameters())
    np.testing.assert_array_equal(net[0].weight.numpy(), [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(net[1].weight.numpy(), np.arange(8, 16).reshape(4, 2))
    np.testing.assert_array_equal(parameters_to_vector(net.parameters()).numpy(), np.arange(16))


def test_what_does_not_fit() -> None:
    net = nn.Linear(3, 2)
    with pytest.raises(lm.ShapeError, match=r"vector_to_parameters: vec must have shape \(8,\), got \(9,\)"):
        vector_to_parameters(np.zeros(9, np.float32), net.parameters())
    with pytest.raises(ValueError, match="parameters_to_vector: no parameters"):
        parameters_to_vector([])
