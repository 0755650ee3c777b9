"""The networks: their keys and shapes are fixed, so that weights of other programs load by name."""

import numpy as np
import pytest

import lamina as lm
from lamina import nn

ALEXNET = {
    "conv.0.weight": (96, 1, 11, 11),
    "conv.0.bias": (96,),
    "conv.3.weight": (256, 96, 5, 5),
    "conv.3.bias": (256,),
    "conv.6.weight": (384, 256, 3, 3),
    "conv.6.bias": (384,),
    "conv.8.weight": (384, 384, 3, 3),
    "conv.8.bias": (384,),
    "conv.10.weight": (256, 384, 3, 3),
    "conv.10.bias": (256,),
    "fc.0.weight": (4096, 6400),
    "fc.0.bias": (4096,),
    "fc.3.weight": (4096, 4096),
    "fc.3.bias": (4096,),
    "fc.6.weight": (10, 4096),
    "fc.6.bias": (10,),
}

IMAGENET = {
    "features.0.weight": (64, 3, 11, 11),
    "features.0.bias": (64,),
    "features.3.weight": (192, 64, 5, 5),
    "features.3.bias": (192,),
    "features.6.weight": (384, 192, 3, 3),
    "features.6.bias": (384,),
    "features.8.weight": (256, 384, 3, 3),
    "features.8.bias": (256,),
    "features.10.weight": (256, 256, 3, 3),
    "features.10.bias": (256,),
    "classifier.1.weight": (4096, 9216),
    "classifier.1.bias": (4096,),
    "classifier.4.weight": (4096, 4096),
    "classifier.4.bias": (4096,),
    "classifier.6.weight": (1000, 4096),
    "classifier.6.bias": (1000,),
}


@pytest.mark.feature("F110")
@pytest.mark.parametrize(
    ("net", "expected", "images"),
    [
        (nn.AlexNet, ALEXNET, (2, 1, 224, 224)),
        (nn.AlexNetImageNet, IMAGENET, (2, 3, 224, 224)),
        (nn.AlexNetImageNet, IMAGENET, (1, 3, 300, 260)),
    ],
)
def test_keys_shapes_and_outputs(
    net: type[nn.Module], expected: dict[str, tuple[int, ...]], images: tuple[int, ...]
) -> None:
    module = net()
    assert {k: v.shape for k, v in module.state_dict().items()} == expected
    graph = lm.trace(module.eval(), lm.Spec(images, lm.float32))
    assert graph.outputs[0].shape == (images[0], expected[list(expected)[-1]][0])


@pytest.mark.torch
@pytest.mark.feature("F110")
def test_alexnet_computes_what_torch_does() -> None:
    torch = pytest.importorskip("torch")
    t = torch.nn
    conv = [t.Conv2d(1, 96, 11, 4), t.ReLU(), t.MaxPool2d(3, 2), t.Conv2d(96, 256, 5, 1, 2), t.ReLU()]
    conv += [t.MaxPool2d(3, 2), t.Conv2d(256, 384, 3, 1, 1), t.ReLU(), t.Conv2d(384, 384, 3, 1, 1), t.ReLU()]
    conv += [t.Conv2d(384, 256, 3, 1, 1), t.ReLU(), t.MaxPool2d(3, 2)]
    fc = [t.Linear(6400, 4096), t.ReLU(), t.Dropout(0.5), t.Linear(4096, 4096), t.ReLU(), t.Dropout(0.5)]
    theirs = t.ModuleDict({"conv": t.Sequential(*conv), "fc": t.Sequential(*fc, t.Linear(4096, 10))}).eval()
    ours = nn.AlexNet().eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 1, 224, 224)
    with torch.no_grad():
        expected = theirs["fc"](theirs["conv"](x).flatten(1)).numpy()
    np.testing.assert_allclose(ours(x).numpy(), expected, rtol=1e-3, atol=1e-5)


def test_small_images_are_refused_by_name() -> None:
    with pytest.raises(lm.ShapeError, match="max_pool: a kernel of 3"):
        nn.AlexNet()(np.zeros((1, 1, 32, 32), np.float32))


def test_lenet() -> None:
    net = nn.LeNet()
    assert sum(p.numel() for p in net.parameters()) == 61706
    assert net(np.zeros((2, 1, 28, 28), np.float32)).shape == (2, 10)


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_initial_values_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import starts_as

    starts_as("alexnet")


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_values_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import agree, pair

    agree(*pair("alexnet", num_classes=5), (2, 3, 63, 70), gradients=False)
