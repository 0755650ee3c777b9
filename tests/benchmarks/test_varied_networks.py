"""Networks of many kinds, converted: outputs and gradients are PyTorch's."""

from __future__ import annotations

import pytest

from tests.helpers import slow_but_every

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
#: Samples that are smaller here than where they are timed.
SMALL = {
    "pointnet": (3, 64),
    "edsr": (3, 16, 16),
    "unet3d": (1, 16, 16, 16),
    "tcn": (25, 60),
    "lstm_words": (8,),
    "crnn": (1, 32, 48),
}


@pytest.mark.parametrize("name", slow_but_every(3, NAMES))
def test_converted(name: str) -> None:
    import torch

    from benchmarks.torch_backend import Network
    from tests.judges.torch_networks import by_conversion, without_chance

    torch.manual_seed(0)
    network = Network.named(name)
    shape = SMALL.get(name, network.shape)
    x = torch.randint(0, network.words, (3, *shape)) if network.words else torch.randn(3, *shape)
    output, *gradients = by_conversion(without_chance(network.make().eval()), (x,), {}, True)
    assert output < 2e-5
    assert max(gradients) < 2e-4
