"""Elementwise ops as PyTorch's functions."""

from typing import Any

import pytest

from lamina.ops.primitives.marker import Marker

pytestmark = [pytest.mark.torch, pytest.mark.feature("F101")]


def test_values_and_gradients() -> None:
    """Of those with a function of their own, and of those that the name alone finds; markers compute nothing."""
    from lamina.convert.torch.functions import pointwise
    from tests.helpers.written_functions import all_wrong, named, ops_of

    assert len(named()) > 20
    assert all_wrong([op for op in (*ops_of(pointwise), *named()) if not issubclass(op, Marker)]) == []


def test_no_gradient_goes_through_what_is_constant_for_derivatives() -> None:
    import torch

    from lamina.convert.torch.functions import pointwise

    x, step = torch.ones(3, requires_grad=True), Any
    assert not pointwise.stop_gradient(step, x).requires_grad
    assert pointwise.passed_on(step, x) is x
