"""Recurrent layers as single ops."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True, "batch_first": True}, {"bias": False}]
)
def test_layers(kind: str, options: dict[str, object]) -> None:
    import torch

    from tests.helpers.torch_functions import agree, exported

    net = getattr(torch.nn, kind)(5, 4, **options)
    agree(net, torch.randn(3, 2, 5), ways=(exported,))


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_an_lstm_with_projections() -> None:
    import torch

    from tests.helpers.torch_functions import agree, exported

    agree(torch.nn.LSTM(5, 4, proj_size=3), torch.randn(3, 2, 5), ways=(exported,))


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
def test_cells(kind: str) -> None:
    import torch

    from tests.helpers.torch_functions import agree, exported

    agree(getattr(torch.nn, kind)(5, 4), torch.randn(2, 5), ways=(exported,))
