"""What became of a PyTorch network."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("B027")]


def test_calls_and_what_they_became() -> None:
    import torch
    from torch import nn

    from lamina.convert.torch import from_torch

    report = from_torch(
        nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Tanh()), torch.randn(4, 3)
    ).report
    assert report.calls["aten.linear.default"] == (1, "lamina.ops.linear")
    assert report.calls["aten.batch_norm.default"] == (1, "convert.torch.norm.batch_norm")
    assert report.unknown == ()
    assert str(report).startswith("Sequential: 4 calls, 0 without a counterpart")


def test_explain_prints_what_has_no_counterpart(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    import lamina as lm

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.svdvals(x).relu()

    report = lm.convert.explain(Net(), torch.randn(3, 3))
    assert len(report.unknown) == 1
    assert "aten.linalg_svdvals.default" in capsys.readouterr().out
