"""Reductions and orders as PyTorch's functions."""

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F101")]


def test_values_and_gradients() -> None:
    from lamina.convert.torch.functions import reduction
    from tests.helpers.written_functions import all_wrong, ops_of

    assert all_wrong(ops_of(reduction)) == []


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [(1,), (0, 2), (0, 1, 2)])
def test_zeros_ones_and_signs(axes: tuple[int, ...], keepdims: bool) -> None:
    """What samples have not, whose gradients are compared with differences."""
    import torch

    from lamina.convert.torch.functions import reduction
    from lamina.ops.primitives import Reduce

    x = np.random.default_rng(0).integers(-2, 3, (3, 4, 2)).astype(np.float64)
    for kind, function in reduction._KINDS.items():
        (wanted,) = Reduce(kind, axes, keepdims).reference(x)  # type: ignore[arg-type]
        np.testing.assert_allclose(function(torch.from_numpy(x), axes, keepdims), wanted, 1e-15)
