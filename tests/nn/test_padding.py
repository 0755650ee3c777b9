"""Padding layers are numpy.pad."""

import numpy as np
import pytest

import lamina as lm
from lamina import nn

X = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)


@pytest.mark.parametrize(
    ("layer", "options"),
    [
        (nn.ZeroPad2d((1, 2, 3, 0)), {"mode": "constant"}),
        (nn.ConstantPad2d((1, 2, 3, 0), 2.5), {"mode": "constant", "constant_values": 2.5}),
        (nn.ReflectionPad2d((1, 2, 3, 0)), {"mode": "reflect"}),
        (nn.ReplicationPad2d((1, 2, 3, 0)), {"mode": "edge"}),
        (nn.CircularPad2d((1, 2, 3, 0)), {"mode": "wrap"}),
    ],
)
def test_as_numpy(layer: nn.Module, options: dict[str, object]) -> None:
    wanted = np.pad(X, ((0, 0), (0, 0), (3, 0), (1, 2)), **options)  # type: ignore[call-overload]
    np.testing.assert_array_equal(layer(lm.tensor(X)).numpy(), wanted)


def test_the_number_of_sides_is_checked() -> None:
    with pytest.raises(lm.ShapeError, match="ZeroPad2d: padding takes 4 numbers"):
        nn.ZeroPad2d((1, 2))
