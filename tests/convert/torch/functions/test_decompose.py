"""Eigenvalues and singular values as PyTorch's functions."""

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F101")]


def test_values_and_gradients() -> None:
    from lamina.convert.torch.functions import decompose
    from tests.helpers.written_functions import all_wrong, ops_of

    assert all_wrong(ops_of(decompose)) == []
