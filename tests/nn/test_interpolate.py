"""Upsample and its two short forms."""

from typing import Any

import numpy as np

import lamina as lm
from lamina import nn, ops

X = lm.tensor(np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4))


def test_values_and_text() -> None:
    layer = nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=False)
    np.testing.assert_array_equal(
        layer(X).numpy(), ops.interpolate(X, scale_factor=2.0, mode="bilinear").numpy()
    )
    assert str(layer) == "Upsample(scale_factor=2.0, mode='bilinear')"
    assert str(nn.Upsample((5, 6))) == "Upsample(size=(5, 6), mode='nearest')"
    assert nn.UpsamplingNearest2d((5, 6))(X).shape == (1, 2, 5, 6)
    corners = nn.UpsamplingBilinear2d(scale_factor=3)(X).numpy()[..., ::8, ::11]
    np.testing.assert_array_equal(corners, X.numpy()[..., ::2, ::3])


def test_short_forms_are_the_function_in_their_mode() -> None:
    """Corners are aligned where it is linear, which moves what lies between them."""
    for size, factor in (((5, 7), None), (None, 2.0), (None, (1.5, 3.0))):
        for layer, options in (
            (nn.UpsamplingNearest2d, {"mode": "nearest"}),
            (nn.UpsamplingBilinear2d, {"mode": "bilinear", "align_corners": True}),
        ):
            wanted: Any = ops.interpolate(X, size, factor, **options)
            np.testing.assert_array_equal(layer(size, factor)(X).numpy(), wanted.numpy())


def test_in_a_compiled_graph() -> None:
    layer = nn.Upsample(size=(6, 6), mode="bicubic")
    (found,) = lm.compile(lm.trace(layer, X))(X)
    np.testing.assert_allclose(found.numpy(), layer(X).numpy(), rtol=1e-6)
