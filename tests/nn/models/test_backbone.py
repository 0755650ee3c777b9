"""FeatureStages of networks, and batch norms that never change."""

import numpy as np
import pytest

from lamina import nn
from lamina.nn.models.backbone import FeatureStages, resnet_modules

X = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32)


def test_stages_have_the_keys_of_the_whole_network_and_its_features() -> None:
    net = nn.resnet18(3).eval()
    stages = FeatureStages(resnet_modules(net), {"layer1": "fine", "layer3": "coarse"}).eval()
    found = stages(X)
    assert {name: y.shape for name, y in found.items()} == {"fine": (2, 64, 8, 8), "coarse": (2, 256, 2, 2)}
    keys = set(stages.state_dict())
    assert keys < set(net.state_dict())
    assert not [key for key in keys if key.startswith(("layer4", "fc"))]


def test_a_stage_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="there is no module layer7; they are conv1, bn1, relu"):
        FeatureStages(resnet_modules(nn.resnet18(3)), {"layer7": "out"})
    with pytest.raises(ValueError, match="there is no module b; they are a"):
        FeatureStages({"a": nn.ReLU()}, {"b": "b"})


def test_frozen_batch_norms_give_the_same_and_stay() -> None:
    net = nn.resnet18(3)
    for _ in range(2):
        net(X)
    expected = net.eval()(X).numpy()
    frozen = nn.resnet18(3, norm_layer=nn.FrozenBatchNorm2d)
    frozen.load_state_dict({k: v for k, v in net.state_dict().items() if "num_batches" not in k})
    for _ in range(2):
        np.testing.assert_allclose(frozen(X).numpy(), expected, rtol=1e-5, atol=1e-6)
    assert "bn1.weight" not in dict(frozen.named_parameters())
    assert set(frozen.bn1.state_dict()) == {"weight", "bias", "running_mean", "running_var"}
