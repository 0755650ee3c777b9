"""Layers that move elements: PyTorch's values, by their definitions."""

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops

X = lm.tensor(np.arange(2 * 8 * 2 * 3, dtype=np.float32).reshape(2, 8, 2, 3))


def test_flatten_and_unflatten() -> None:
    flat = nn.Flatten()(X)
    assert flat.shape == (2, 48)
    back = nn.Unflatten(1, (8, -1, 3))
    np.testing.assert_array_equal(back(flat).numpy(), X.numpy())
    assert str(back) == "Unflatten(dim=1, unflattened_size=(8, -1, 3))"
    assert X.unflatten(-3, (2, 4)).shape == (2, 2, 4, 2, 3)
    for sizes in ((5, -1), (2, 3), (-1, -1), ()):
        with pytest.raises(lm.ShapeError, match="unflatten: sizes .* do not multiply to the 8 of axis 1"):
            ops.unflatten(X, 1, sizes)


def test_pixels() -> None:
    up, down = nn.PixelShuffle(2), nn.PixelUnshuffle(2)
    y = up(X).numpy()
    assert y.shape == (2, 2, 4, 6)
    np.testing.assert_array_equal(y[0, 1, :2, :2].reshape(-1), X.numpy()[0, 4:, 0, 0])
    np.testing.assert_array_equal(down(up(X)).numpy(), X.numpy())
    assert (str(up), str(down)) == ("PixelShuffle(upscale_factor=2)", "PixelUnshuffle(downscale_factor=2)")


def test_channels() -> None:
    layer = nn.ChannelShuffle(2)
    np.testing.assert_array_equal(layer(X).numpy(), X.numpy()[:, [0, 4, 1, 5, 2, 6, 3, 7]])
    assert str(layer) == "ChannelShuffle(groups=2)"
    with pytest.raises(lm.ShapeError, match="channel_shuffle: needs .* groups that divide C"):
        ops.channel_shuffle(X, 3)
