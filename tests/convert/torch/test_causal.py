"""Stacks of torch.nn's transformer layers with masks come in whole."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099", "F100")]


def network() -> tuple[Any, Any, Any]:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2
            )

        def forward(self, x: Any, mask: Any) -> Any:
            return self.layers(x * 2, mask)

    torch.manual_seed(0)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    return Net(), torch.randn(3, 5, 8), causal


@pytest.mark.parametrize("causal", [True, False])
def test_converted(causal: bool) -> None:
    import torch

    from lamina.convert.torch import check, from_torch

    net, x, mask = network()
    mask = mask if causal else torch.randn(5, 5)
    found = check(net, from_torch(net, x, mask), x, mask)
    assert found.output < 1e-5, found
    assert found.gradient < 1e-4, found


@pytest.mark.parametrize("training", [True, False])
def test_compiled_as_one_graph(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from lamina.convert.torch.backend import GraphFunction
    from tests.helpers.torch_training import compiled

    made: list[Any] = []
    plain = GraphFunction.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        made.append(self)
        plain(self, *args, **options)

    monkeypatch.setattr(GraphFunction, "__init__", init)
    net, x, mask = network()
    net.train(training)
    run = compiled(net)
    with torch.set_grad_enabled(training):
        for _ in range(2):
            torch.testing.assert_close(run(x, mask), net(x, mask))
    assert len(made) == 1


def test_elsewhere_pytorch_compares_numbers() -> None:
    from torch.nn.modules.transformer import _detect_is_causal_mask

    from lamina.convert.torch.causal import without_numbers

    _, _, mask = network()
    assert _detect_is_causal_mask(mask)
    assert not _detect_is_causal_mask(mask * 0)
    with without_numbers():
        assert not _detect_is_causal_mask(mask)
        assert _detect_is_causal_mask(mask, True)
    assert _detect_is_causal_mask(mask)
