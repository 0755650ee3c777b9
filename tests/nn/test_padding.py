"""Padding layers are numpy.pad."""

from typing import Any

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


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("ZeroPad", "constant"),
        ("ConstantPad", "constant"),
        ("ReflectionPad", "reflect"),
        ("ReplicationPad", "edge"),
        ("CircularPad", "wrap"),
    ],
)
def test_every_layer_of_every_rank(kind: str, mode: Any, rank: int) -> None:
    """Sides of their own, and one number for all; a further side is refused."""
    make, value = getattr(nn, f"{kind}{rank}d"), (-1.5,) if kind == "ConstantPad" else ()
    filled: dict[str, Any] = {"constant_values": value} if value else {}
    x: Any = np.random.default_rng(0).standard_normal((2, 3, 5, 4, 6)[: rank + 2]).astype(np.float32)
    sides = (1, 2, 3, 0, 2, 1)[: 2 * rank]
    around = [(sides[2 * axis], sides[2 * axis + 1]) for axis in reversed(range(rank))]
    layer = make(sides, *value)
    np.testing.assert_array_equal(
        layer(lm.tensor(x)).numpy(), np.pad(x, [(0, 0), (0, 0), *around], mode, **filled)
    )
    shown = f"padding={sides}, value={value[0]}" if value else f"{sides}"
    assert repr(layer) == f"{kind}{rank}d({shown})"
    wanted = np.pad(x, [(0, 0), (0, 0), *[(2, 2)] * rank], mode, **filled)
    np.testing.assert_array_equal(make(2, *value)(lm.tensor(x)).numpy(), wanted)
    with pytest.raises(lm.ShapeError, match=f"{kind}{rank}d: padding takes {2 * rank} numbers, got"):
        make((*sides, 1), *value)


def test_the_number_of_sides_is_checked() -> None:
    with pytest.raises(lm.ShapeError, match="ZeroPad2d: padding takes 4 numbers"):
        nn.ZeroPad2d((1, 2))
