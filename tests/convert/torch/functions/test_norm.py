"""Norms as PyTorch's functions."""

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F101")]


def test_values_and_gradients() -> None:
    from lamina.convert.torch.functions import norm
    from tests.helpers.written_functions import all_wrong, ops_of

    assert all_wrong(ops_of(norm)) == []


def test_statistics_that_were_computed_have_gradients() -> None:
    from lamina.ops.primitives.norm import BatchNormInfer
    from tests.helpers.written_functions import all_wrong

    assert all_wrong([BatchNormInfer], computed=True) == []
