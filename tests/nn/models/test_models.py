"""Networks with torchvision's names: keys, numbers of parameters, what they compute, and that they train."""

from collections.abc import Callable

import numpy as np
import pytest

import lamina as lm
from lamina import nn, optim
from tests.helpers import slow_but_every
from tests.helpers.nn import GOLDEN_FILES
from tests.helpers.nn.families import PARAMETERS
from tests.helpers.nn.networks import NETWORKS, Network, images, weights

GOLDEN = np.load(GOLDEN_FILES / "golden_networks.npz")


@pytest.mark.parametrize("name", slow_but_every(4, PARAMETERS))
def test_numbers_of_parameters(name: str) -> None:
    with nn.init.skipped():  # large layers need no values to be counted
        net = nn.models.get_model(name)
    assert sum(p.numel() for p in net.parameters()) == PARAMETERS[name]


def test_vgg16_has_configuration_d() -> None:
    net = nn.vgg16(num_classes=2)
    convolutions = [m for m in net.features if isinstance(m, nn.Conv2d)]
    assert [m.out_channels for m in convolutions] == [64] * 2 + [128] * 2 + [256] * 3 + [512] * 6
    assert lm.trace(net.eval(), lm.Spec((1, 3, 64, 64), lm.float32)).outputs[0].shape == (1, 2)


@pytest.mark.parametrize(
    ("make", "keys"),
    [
        (
            nn.resnet18,
            {
                "conv1.weight": (64, 3, 7, 7),
                "bn1.weight": (64,),
                "bn1.running_mean": (64,),
                "bn1.num_batches_tracked": (),
                "layer1.0.conv1.weight": (64, 64, 3, 3),
                "layer2.0.downsample.0.weight": (128, 64, 1, 1),
                "layer2.0.downsample.1.running_var": (128,),
                "layer4.1.bn2.bias": (512,),
                "fc.weight": (1000, 512),
            },
        ),
        (
            nn.resnet50,
            {
                "layer1.0.conv3.weight": (256, 64, 1, 1),
                "layer1.0.downsample.0.weight": (256, 64, 1, 1),
                "layer2.0.conv2.weight": (128, 128, 3, 3),
                "layer4.2.bn3.running_var": (2048,),
                "fc.bias": (1000,),
            },
        ),
        (
            nn.mobilenet_v2,
            {
                "features.0.0.weight": (32, 3, 3, 3),
                "features.1.conv.0.0.weight": (32, 1, 3, 3),
                "features.1.conv.1.weight": (16, 32, 1, 1),
                "features.2.conv.1.0.weight": (96, 1, 3, 3),
                "features.17.conv.3.running_mean": (320,),
                "features.18.0.weight": (1280, 320, 1, 1),
                "classifier.1.weight": (1000, 1280),
            },
        ),
        (
            nn.GoogLeNet,
            {
                "conv1.conv.weight": (64, 3, 7, 7),
                "inception3a.branch2.1.conv.weight": (128, 96, 3, 3),
                "inception3a.branch3.1.conv.weight": (32, 16, 5, 5),
                "inception5b.branch4.1.conv.bias": (128,),
                "fc.weight": (1000, 1024),
            },
        ),
    ],
)
def test_keys_are_torchvisions(make: Callable[[], nn.Module], keys: dict[str, tuple[int, ...]]) -> None:
    state = make().state_dict()
    assert {k: state[k].shape for k in keys} == keys
    expected = {"resnet18": 122, "resnet50": 320, "mobilenet_v2": 314, "GoogLeNet": 116}
    assert len(state) == expected[make.__name__]


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.make)
def test_outputs_are_torchs(network: Network) -> None:
    net = getattr(nn, network.make)(*network.arguments).eval()
    state = weights(net.state_dict())
    assert [str(v.shape) for v in state.values()] == list(GOLDEN[f"{network.make}/shapes"])
    net.load_state_dict(state)
    found, expected = net(images(network.shape)).numpy(), GOLDEN[network.make]
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.make)
def test_a_few_steps_lower_the_loss(network: Network) -> None:
    nn.manual_seed(4)
    net = getattr(nn, network.make)(*network.arguments)
    step = lm.train_step(net, lm.ops.cross_entropy, optim.SGD(lr=0.002, momentum=0.9), device="cpu")
    x, labels = images((4, *network.shape[1:])), np.array([0, 1, 2, 3])
    losses = [step(x, labels).item() for _ in range(8)]
    assert np.isfinite(losses).all()
    assert min(losses[2:]) < losses[0]  # dropout makes some of them larger


def test_a_stride_in_the_wrong_place_would_show() -> None:
    """Version 1.5: the first block of a stage halves the image in its 3×3 convolution."""
    block = nn.resnet50(num_classes=2).layer2[0]
    assert (block.conv1.stride, block.conv2.stride, block.conv3.stride) == ((1, 1), (2, 2), (1, 1))


def test_grey_images() -> None:
    assert nn.resnet18(10, in_channels=1).eval()(np.zeros((1, 1, 32, 32), np.float32)).shape == (1, 10)
