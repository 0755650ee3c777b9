"""Networks are found by name; all of torchvision's classifiers are there, with the same entries of the state."""

import re

import numpy as np
import pytest

import lamina as lm
from lamina import nn
from lamina.nn import models
from lamina.nn.models.registry import Builder, network
from tests.helpers import slow_but_every
from tests.helpers.nn.families import FIXED, SMALL


def test_names() -> None:
    names = models.list_models()
    assert names == sorted(names)
    assert {"AlexNet", "alexnet", "resnet50", "vit_b_16"} < set(names)
    assert all(getattr(models, name) is builder.make for name, builder in models.builders().items())
    with pytest.raises(
        ValueError,
        match="get_model: no network is called 'resnet51'; the nearest: resnet.*; known: AlexNet, ",
    ):
        models.get_model("resnet51")
    assert models.get_model("resnet18", num_classes=3).fc.out_features == 3


def test_commands_names_are_single() -> None:
    commands = [builder.command for builder in models.builders().values()]
    assert len(set(commands)) == len(commands)
    assert {"resnext50-32x4d", "alexnet-imagenet", "googlenet-bn"} < set(commands)


def test_a_builder_gives_what_the_network_takes() -> None:
    builders = models.builders()
    assert builders["resnet18"](1, 5).conv1.weight.shape == (64, 1, 7, 7)
    with nn.init.skipped():
        assert builders["vit_b_32"](3, 5, 64).image_size == 64
        assert not builders["googlenet"](3, 5).aux_logits
    with pytest.raises(ValueError, match=re.escape("vgg11 takes images of 3 channels, the data has 1")):
        builders["vgg11"](1, 5)


def test_a_new_network_is_registered_by_its_decorator(monkeypatch: pytest.MonkeyPatch) -> None:
    held: dict[str, Builder] = {}
    monkeypatch.setattr("lamina.nn.models.registry._builders", held)

    @network("nobody", size=8)
    def my_net(num_classes: int = 1000) -> nn.Module:
        return nn.Linear(3, num_classes)

    builder = held["my_net"]
    assert (builder.name, builder.command, builder.size, builder.task) == (
        "my_net",
        "my-net",
        8,
        "classification",
    )
    assert models.get_model("my_net", num_classes=2).out_features == 2


def test_skipped_weights_are_not_drawn() -> None:
    nn.manual_seed(0)
    with nn.init.skipped():
        models.get_model("squeezenet1_0")
    after = nn.Linear(3, 3).weight.numpy()
    nn.manual_seed(0)
    np.testing.assert_array_equal(after, nn.Linear(3, 3).weight.numpy())


@pytest.mark.feature("B021")
def test_published_files_of_older_forms_load() -> None:
    """Files of DenseNets and ViTs have older names, and some lack the count of batches."""
    dense = models.DenseNet(4, (2,), 6, bn_size=2, num_classes=3)
    old = {
        re.sub(r"(norm|conv)([12])\.", r"\1.\2.", key): value.numpy() + 1
        for key, value in dense.state_dict().items()
        if "num_batches" not in key
    }
    assert "features.denseblock1.denselayer2.conv.1.weight" in old
    assert dense.load_state_dict(old) == ([], [])
    loaded = dense.features.denseblock1.denselayer2.conv1.weight.numpy()
    np.testing.assert_array_equal(loaded, old["features.denseblock1.denselayer2.conv.1.weight"])
    vit = models.VisionTransformer(16, 8, 1, 2, 8, 12, num_classes=3)
    names = {"mlp.0.": "mlp.linear_1.", "mlp.3.": "mlp.linear_2."}
    old = {
        re.sub(r"mlp\.[03]\.", lambda m: names[m[0]], k): v.numpy() + 1 for k, v in vit.state_dict().items()
    }
    assert "encoder.layers.encoder_layer_0.mlp.linear_2.bias" in old
    assert vit.load_state_dict(old) == ([], [])
    with pytest.raises(KeyError, match="missing features.conv0.weight"):
        dense.load_state_dict({})


def torchvisions() -> list[str]:
    """The names of torchvision's classifiers, without importing it: those of our table that it has."""
    own = {"AlexNet", "GoogLeNet", "LeNet", "OverFeat"}
    return [name for name in models.list_models() if name not in own]


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_all_of_torchvisions_classifiers_are_there() -> None:
    from tests.helpers.nn.beside_torchvision import CLASSIFIERS

    assert set(CLASSIFIERS) <= set(torchvisions())


@pytest.mark.torch
@pytest.mark.feature("B021")
@pytest.mark.parametrize("name", slow_but_every(4, torchvisions()))
def test_entries_of_the_state_are_torchvisions(name: str) -> None:
    from tests.helpers.nn.beside_torchvision import our_entries, their_entries

    assert our_entries(name) == their_entries(name)


@pytest.mark.torch
@pytest.mark.feature("B021")
@pytest.mark.parametrize("name", slow_but_every(4, torchvisions()))
def test_settings_of_layers_are_torchvisions(name: str) -> None:
    from tests.helpers.nn.beside_torchvision import our_settings, their_settings

    ours = our_settings(name)
    assert len(ours) > 5
    assert ours == their_settings(name)


def test_each_family_has_a_small_one() -> None:
    made = [b for b in models.builders().values() if b.task == "classification"]
    small = {models.builders()[name].make.__module__ for name in SMALL | FIXED}
    assert small == {b.make.__module__ for b in made}


#: Those that the quick tests train.
QUICK = ("mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_1")


@pytest.mark.feature("B021")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in SMALL]
)
def test_a_step_of_training_compiles_and_learns(name: str) -> None:
    nn.manual_seed(0)
    size = SMALL[name]
    net = models.builders()[name](3, 5, size)
    before = {key: p.numpy().copy() for key, p in net.named_parameters()}
    step = lm.train_step(net, lm.ops.cross_entropy, lm.optim.SGD(lr=1e-3, momentum=0.9), device="cpu")
    x = np.random.default_rng(0).standard_normal((4, 3, size, size)).astype(np.float32)
    losses = [step(x, np.array([0, 1, 2, 3])).item() for _ in range(2)]
    assert np.isfinite(losses).all()
    moved = [key for key, p in net.named_parameters() if (p.numpy() != before[key]).any()]
    assert len(moved) > 0.5 * len(before)
