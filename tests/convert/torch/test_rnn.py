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


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_layers_with_dropout_between_them_in_training(kind: str) -> None:
    """Layer by layer: the values where next to nothing is dropped, and zeros where nearly all is."""
    import torch

    from tests.helpers.torch_functions import close, exported

    torch.manual_seed(0)
    x = torch.randn(3, 2, 5)
    net = getattr(torch.nn, kind)(5, 4, num_layers=3, bidirectional=True, dropout=1e-9).train()
    wanted = torch.utils._pytree.tree_leaves(net(x))
    for found, ref in zip(exported(net, x)(x).outputs, wanted, strict=True):
        close(found, ref.detach())
    net.dropout = 1 - 1e-7
    found = exported(net, x)(x).outputs
    states = 2 if kind == "LSTM" else 1
    assert len(found) == 1 + states
    close(found[1][:2], wanted[1].detach()[:2])  # of the first layer, before anything is dropped
    last = getattr(torch.nn, kind)(8, 4, bidirectional=True)
    for name in last.state_dict():
        getattr(last, name).data = getattr(net, name.replace("_l0", "_l2")).data
    close(found[0], last(torch.zeros(3, 2, 8))[0].detach())
