"""Norms, and the statistics that they write."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import distributed, nn, ops, optim
from tests.helpers.ranks import run_ranks

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


CASES = [
    "F.batch_norm(x, m, v, w, b, True, 0.1)",
    "F.batch_norm(x, m, v, w, b, False)",
    "F.batch_norm(x, None, None, w, b, True)",
    "F.instance_norm(x, m, v, w, b, True, 0.2)",
    "F.instance_norm(x)",
    "F.layer_norm(x, (6, 6))",
    "F.group_norm(x, 3, w, b)",
    "F.rms_norm(x, (6,))",
    "torch.native_layer_norm(x, (6, 6), None, None, 1e-5)",
    "torch.native_group_norm(x, w, b, 2, 3, 36, 3, 1e-5)",
    "torch.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)",
    "torch.native_batch_norm(x, w, b, m, v, False, 0.1, 1e-5)",
    "F.local_response_norm(x, 3)",
    "F.normalize(x, dim=1)",
]


@pytest.mark.parametrize("text", CASES)
def test_values_are_those_of_torch(text: str) -> None:
    import torch
    import torch.nn.functional as F

    from tests.helpers.torch_functions import agree, exported

    x, m, v, w, b = torch.randn(2, 3, 6, 6), torch.zeros(3), torch.ones(3), torch.rand(3), torch.rand(3)
    agree(eval("lambda x, m, v, w, b: " + text, {"F": F, "torch": torch}), x, m, v, w, b, ways=(exported,))


def test_statistics_of_the_batch_alone_differentiate() -> None:
    import torch
    from torch import nn

    from lamina.convert.torch import check, from_torch

    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, track_running_stats=False))
    x = torch.randn(3, 2, 5, 5)
    for mode in (True, False):
        found = check(net.train(mode), from_torch(net, x, share=False), x)
        assert found.output < 1e-5, found
        assert found.gradient < 1e-5, found


def _renormalized(kind: str) -> Any:
    """Batch renormalization (Ioffe 2017): it reads the running statistics right after they have moved."""
    import torch

    class Renormalized(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = torch.nn.Linear(4, 4)
            self.bn = getattr(torch.nn, kind)(4, affine=False, track_running_stats=True)

        def forward(self, x: Any) -> Any:
            h = self.l(x.mT).mT
            y, std, mean = self.bn(h), h.std((0, 2)).detach(), h.mean((0, 2)).detach()
            r = (std / self.bn.running_var.sqrt()).clamp(0.3, 3)
            d = ((mean - self.bn.running_mean) / self.bn.running_var.sqrt()).clamp(-5, 5)
            return y * r[:, None] + d[:, None]

    torch.manual_seed(0)
    return Renormalized()


@pytest.mark.parametrize("kind", ["BatchNorm1d", "InstanceNorm1d"])
def test_no_gradient_goes_through_running_statistics(kind: str) -> None:
    import torch

    from lamina.convert.torch import check, from_torch

    net, x = _renormalized(kind), torch.randn(6, 4, 5)
    found = check(net, from_torch(net, x, share=False), x)
    assert max(found.output, found.gradient, *found.state.values()) < 1e-5, found
    compiled = torch.compile(copy.deepcopy(net), backend="lamina")
    weights = torch.randn(6, 4, 5)
    for each in (net, compiled):
        (each(x) * weights).sum().backward()
    for own, other in zip(net.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(other.grad, own.grad, rtol=1e-4, atol=1e-5)


def test_statistics_that_are_means_over_all_batches() -> None:
    """momentum=None: the first batch's statistics, then a half of the second's, and so on."""
    import torch
    from torch import nn

    from lamina.convert.torch import check, from_torch

    net = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4, momentum=None))
    converted = from_torch(net, torch.randn(3, 2, 5), share=False)
    for _ in range(3):
        x = torch.randn(3, 2, 5)
        found = check(net, converted, x)
        assert max(found.output, found.gradient, *found.state.values()) < 1e-5, found
        net(x)
        converted(x)
    assert int(converted.state_dict()["1.num_batches_tracked"]) == 3


def train_converted(ways: list[str]) -> list[list[float]]:
    """Losses of a network of PyTorch with batch norms that ranks synchronize, each way of saying so."""
    import torch
    from torch import nn as torch_nn

    from lamina.convert.torch import from_torch

    n, me = distributed.world_size(), distributed.rank()
    part, found = slice(me * 6 // n, (me + 1) * 6 // n), []
    for way in ways:
        torch.manual_seed(0)
        source: torch_nn.Module = torch_nn.Sequential(
            torch_nn.Conv2d(2, 4, 3), torch_nn.BatchNorm2d(4), torch_nn.Flatten(), torch_nn.Linear(36, 3),
            torch_nn.BatchNorm1d(3),
        )  # fmt: skip
        if way == "torch":
            source = torch_nn.SyncBatchNorm.convert_sync_batchnorm(source)
        net: nn.Module = from_torch(source.double(), torch.zeros(6 // n, 2, 5, 5, dtype=torch.float64))
        if way == "lamina":
            assert nn.SyncBatchNorm.convert_sync_batchnorm(net) is net
        step = lm.train_step(
            net, ops.cross_entropy, optim.SGD(0.1), device="cpu", precision="fp64", parallel="data"
        )
        rng, losses = np.random.default_rng(0), []
        for _ in range(3):
            x, y = rng.standard_normal((6, 2, 5, 5)), rng.integers(0, 3, 6)
            losses.append(float(step(x[part], y[part]).item()))
        statistics = [float(ops.sum(x).item()) for k, x in net.state_dict().items() if "running" in k]
        found.append(losses + statistics)
    return found


@pytest.mark.slow
def test_ranks_synchronize_batch_norms() -> None:
    (wanted,) = train_converted([""])
    for rank in run_ranks(train_converted, 2, args=(["torch", "lamina", ""],)):
        by_torch, by_lamina, own = rank
        assert by_torch == pytest.approx(wanted, rel=1e-9)
        assert by_lamina == pytest.approx(wanted, rel=1e-9)
        assert own != pytest.approx(wanted, rel=1e-3)
