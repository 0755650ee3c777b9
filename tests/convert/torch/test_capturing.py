"""Networks of which torch.export makes no graph, by Dynamo's."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


def network() -> Any:
    """A derivative, state that is written and assigned, results that are inputs, numbers and tensors, nested."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.calls = nn.Linear(3, 3), 0
            self.norm = nn.BatchNorm1d(3)
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x: Any, *, scale: float = 1.0) -> Any:
            self.calls += 1
            slope = torch.func.grad(lambda x: self.linear(x).sin().sum())(x)
            y = self.norm(slope) * scale
            self.mean = 0.5 * self.mean + y.mean(0).detach() + 1
            return {"y": y, "given": (x, None, 3), "mean": self.mean}

    torch.manual_seed(0)
    return Net()


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_results_gradients_and_state_are_those_of_torch(mode: str) -> None:
    import torch

    from lamina.convert.torch import check, from_torch

    net, x = network().train(mode == "train"), torch.randn(4, 3)
    before = {n: b.clone() for n, b in net.named_buffers()}
    converted = from_torch(net, x, share=False, example={"scale": 2.0})
    assert net.calls == 0
    assert all(torch.equal(b, before[n]) for n, b in net.named_buffers())
    found = check(net, converted, x, scale=2.0)
    assert found.output < 1e-5, found
    assert found.gradient < 1e-4, found
    assert max(found.state.values()) < 1e-5, found
    results = converted(x, scale=2.0)
    assert list(results) == ["y", "given", "mean"]
    assert results["given"][1:] == (None, 3)


def test_other_sizes_are_other_graphs() -> None:
    import torch

    from lamina.convert.torch import check, from_torch

    net = network().eval()
    converted = from_torch(net, torch.randn(4, 3))
    for batch in (4, 2, 5, 4):
        assert check(net, converted, torch.randn(batch, 3)).output < 1e-5
    assert len(converted._graphs) == 3


def test_what_no_one_makes_a_graph_of_is_refused_with_all_reasons() -> None:
    from torch import nn

    from lamina.convert.torch import TorchConversionError, from_torch
    from lamina.graph import trace
    from lamina.spec import Spec, float32

    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    with pytest.raises(
        TorchConversionError,
        match=r"(?s)torch.export makes no graph.*\(torch.compile\).*data.*switch that off",
    ):
        trace(from_torch(Net()), Spec((3,), float32))  # for no call, whose values would tell
