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
    assert report.unknown == {}
    assert str(report).startswith("Sequential: 4 calls, 0 without a counterpart")


def test_calls_without_a_counterpart_are_one_line_for_each_function_and_reason() -> None:
    import torch

    from lamina.convert.torch.report import ConversionReport, LeftCalls
    from tests.helpers.torch_functions import captured

    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.special.airy_ai((x @ x.mT).detach()).diag().diag()
        return x

    program = captured(f, torch.rand(3, 3))
    report = ConversionReport.of(f, [program])
    (line,) = report.unknown
    assert report.unknown[line] == 3
    assert line.startswith("torch._C._special.special_airy_ai (File")
    assert line.endswith("lamina.ops has no function 'airy_ai'")
    (said,) = LeftCalls().add(program.unknown())
    assert " and 2 more like it: lamina.ops has no function" in said
    left = LeftCalls(program.unknown())
    assert left.add(program.unknown()) == []  # said before
    left.join(LeftCalls(program.unknown()))
    assert list(left.counts().values()) == [9]
    assert left.add_graph(4, "no device") == "a graph of 4 nodes: no device"
