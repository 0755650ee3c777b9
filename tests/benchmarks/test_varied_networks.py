"""Networks of many kinds, converted: outputs and gradients are PyTorch's."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]

NAMES = [
    "pointnet",
    "edsr",
    "dcgan",
    "nerf",
    "dlrm",
    "patchtst",
    "unet3d",
    "tcn",
    "vqvae",
    "lstm_words",
    "crnn",
]


@pytest.mark.parametrize("name", NAMES)
def test_converted(name: str) -> None:
    import torch

    from benchmarks.torch_backend import Network
    from tests.judges.torch_networks import by_conversion, without_chance

    torch.manual_seed(0)
    network = Network.named(name)
    shape = tuple(min(n, 32) for n in network.shape) if name == "unet3d" else network.shape
    x = torch.randint(0, network.words, (3, *shape)) if network.words else torch.randn(3, *shape)
    output, *gradients = by_conversion(without_chance(network.make().eval()), (x,), {}, True)
    assert output < 2e-5
    assert max(gradients) < 2e-4
