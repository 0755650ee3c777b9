"""Sequences that are reversed within their lengths, and what is refused."""

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.spec import DTypeError, ShapeError


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2), (4, 3, 2, 2)])
def test_each_sequence_is_reversed_within_its_length(shape: tuple[int, ...]) -> None:
    x = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    found = ops.reverse_sequence(x, np.array([4, 2, 0], np.int32)).numpy()
    np.testing.assert_array_equal(found[:, 0], x[::-1, 0])
    np.testing.assert_array_equal(found[:2, 1], x[1::-1, 1])
    assert not found[2:, 1].any()
    assert not found[:, 2].any()


def test_the_gradient_goes_the_way_back() -> None:
    x, lengths = lm.ones((3, 2, 1)), lm.tensor([3, 1])
    weights = np.arange(6, dtype=np.float32).reshape(3, 2, 1)
    slope = lm.jit(lambda x: lm.gradients(ops.sum(ops.reverse_sequence(x, lengths) * weights), [x])[0])(x)
    np.testing.assert_array_equal(slope.numpy(), ops.reverse_sequence(weights, lengths).numpy())


def test_errors() -> None:
    x = np.ones((3, 2), np.float32)
    with pytest.raises(IndexError, match="reverse_sequence: lengths: index 4 at position 0 is outside 0 … 3"):
        ops.reverse_sequence(x, [4, 1])
    with pytest.raises(ShapeError, match=r"reverse_sequence: lengths must be \[N\]"):
        ops.reverse_sequence(x, [1, 1, 1])
    with pytest.raises(DTypeError, match="reverse_sequence: lengths must be integers"):
        ops.reverse_sequence(x, [1.0, 1.0])
