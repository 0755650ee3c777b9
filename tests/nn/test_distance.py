"""Distances as layers call the functions with their arguments."""

import numpy as np

from lamina import nn, ops

A, B = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)


def test_they_are_the_functions() -> None:
    layer = nn.CosineSimilarity(dim=0, eps=0.5)
    np.testing.assert_array_equal(layer(A, B).numpy(), ops.cosine_similarity(A, B, 0, 0.5).numpy())
    distance = nn.PairwiseDistance(1.0, 0.1, True)
    np.testing.assert_array_equal(distance(A, B).numpy(), ops.pairwise_distance(A, B, 1.0, 0.1, True).numpy())
    assert repr(layer) == "CosineSimilarity(dim=0, eps=0.5)"
    assert repr(distance) == "PairwiseDistance(p=1.0, eps=0.1, keepdim=True)"
