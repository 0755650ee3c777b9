"""VGG with batch norms: names, counts, and PyTorch's values at a size that is no multiple of anything."""

from typing import Any

import numpy as np
import pytest

from lamina import nn
from lamina.spec import as_dtype


@pytest.mark.feature("F095")
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("vgg13", 133_047_848), ("vgg16", 138_357_544), ("vgg19", 143_667_240), ("vgg11_bn", 132_868_840),
        ("vgg13_bn", 133_053_736), ("vgg16_bn", 138_365_992), ("vgg19_bn", 143_678_248),
    ],
)  # fmt: skip
def test_numbers_of_parameters(name: str, count: int) -> None:
    with nn.init.skipped():
        net = getattr(nn, name)()
    assert sum(p.numel() for p in net.parameters()) == count
    norms = [m for m in net.features if isinstance(m, nn.BatchNorm2d)]
    assert bool(norms) == name.endswith("_bn")
    if name == "vgg16_bn":
        assert net.state_dict()["features.41.running_mean"].shape == (512,)  # torchvision's last norm
        assert net.state_dict()["features.40.weight"].shape == (512, 512, 3, 3)


@pytest.mark.torch
def test_with_norms_as_torch_at_97_by_131() -> None:
    torch = pytest.importorskip("torch")
    tnn = torch.nn
    nn.manual_seed(0)
    net = nn.VGG((8, 0, 12, 0, 16, 16, 0, 16, 0, 16, 0), num_classes=4, dropout=0.0, batch_norm=True)
    blocks: list[Any] = []
    for m in net.features:
        if isinstance(m, nn.Conv2d):
            blocks.append(tnn.Conv2d(m.in_channels, m.out_channels, 3, padding=1))
        elif isinstance(m, nn.BatchNorm2d):
            blocks.append(tnn.BatchNorm2d(m.num_features))
        else:
            blocks.append(tnn.ReLU() if isinstance(m, nn.ReLU) else tnn.MaxPool2d(2, 2))
    features = tnn.Sequential(*blocks)
    state = {k.removeprefix("features."): v for k, v in net.state_dict().items() if k.startswith("features.")}
    features.load_state_dict({k: torch.from_numpy(v.numpy().copy()) for k, v in state.items()})
    x = np.random.default_rng(0).standard_normal((2, 3, 97, 131)).astype(np.float32)
    wanted = tnn.functional.adaptive_avg_pool2d(features(torch.from_numpy(x)), 7).detach().numpy()
    found = net.avgpool(net.features(x))
    assert found.dtype == as_dtype("float32")
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-5)
    assert net(x).shape == (2, 4)


@pytest.mark.feature("B021")
def test_initial_values() -> None:
    """torchvision's: convolutions by He's rule and fan out, linear layers with deviation 0.01, biases zero."""
    nn.manual_seed(0)
    net = nn.VGG((32, 0, 64, 0, 16), num_classes=100)
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            wanted = np.sqrt(2 / (9 * module.out_channels)) if isinstance(module, nn.Conv2d) else 0.01
            weight = module.weight.numpy()
            assert abs(weight.std() / wanted - 1) < 6 / np.sqrt(weight.size)
            assert module.bias is not None
            assert not module.bias.numpy().any()


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_values_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import agree, pair

    agree(*pair("vgg11_bn", num_classes=5), (2, 3, 40, 48), gradients=False)
