"""Plans of oneDNN's primitives."""

import numpy as np
import pytest

import lamina as lm
from lamina import nn
from lamina.backends.cpu import library
from lamina.spec import Spec, float32


def test_a_primitive_meets_operands_at_many_addresses() -> None:
    layer = nn.Linear(8, 8)
    inputs = [lm.tensor(np.full((4, 8), i, np.float32)) for i in range(3 * library._MOST_MEMORIES)]
    for _ in range(2):
        for x in inputs:
            wanted = x.numpy().astype(np.float64) @ layer.weight.numpy().T + layer.bias.numpy()
            np.testing.assert_allclose(layer(x).numpy(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 4, 16), (3, 1, 5), (1, 1, 7), (2, 5, 1)])
@pytest.mark.parametrize("axes", [(0, 1), (0, 2), (1, 2)])
def test_axes_of_one_element_may_have_any_stride(shape: tuple[int, ...], axes: tuple[int, int]) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x, wanted = lm.tensor(values).transpose(*axes), np.swapaxes(values, *axes)
    column = np.arange(wanted.shape[1], dtype=np.float32)[:, None]
    np.testing.assert_array_equal((x * 0.5).numpy(), wanted * np.float32(0.5))
    np.testing.assert_array_equal((x + column).numpy(), wanted + column)
    np.testing.assert_array_equal(lm.ops.relu(x - x * 2.0).numpy(), np.maximum(-wanted, 0))


def test_an_order_of_axes_that_has_no_name_is_told_by_strides() -> None:
    spec = Spec((2, 3, 4, 5), float32)
    assert library.open_desc(spec, "acdb").strides == (60, 1, 15, 3)
    assert library.open_desc(spec, "cabd").strides == (15, 5, 30, 1)
    with pytest.raises(ValueError, match="no format tag 'caab'"):
        library.open_desc(spec, "caab")
