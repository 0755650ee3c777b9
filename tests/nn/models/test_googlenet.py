"""GoogLeNet in torchvision's form: names, counts, and against the same network written in PyTorch."""

import numpy as np
import pytest

import lamina as lm
from lamina import nn


@pytest.mark.feature("F095")
def test_torchvisions_form_has_its_names_and_counts() -> None:
    with nn.init.skipped():
        net, bare = nn.googlenet(), nn.googlenet(aux_logits=False)
    assert sum(p.numel() for p in net.parameters()) == 13_004_888
    assert sum(p.numel() for p in bare.parameters()) == 6_624_904
    shapes = {name: v.shape for name, v in net.state_dict().items()}
    assert len(shapes) == 364
    wanted = {
        "conv1.conv.weight": (64, 3, 7, 7), "conv1.bn.running_var": (64,),
        "inception3a.branch3.1.conv.weight": (32, 16, 3, 3),
        "inception4e.branch4.1.bn.num_batches_tracked": (), "aux1.conv.bn.weight": (128,),
        "aux1.fc1.weight": (1024, 2048),
        "aux2.conv.conv.weight": (128, 528, 1, 1), "aux2.fc2.bias": (1000,), "fc.weight": (1000, 1024),
    }  # fmt: skip
    assert {name: shapes[name] for name in wanted} == wanted


def test_training_gives_three_classifiers_and_inference_one() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 64, 64)).astype(np.float32)
    net = nn.googlenet(5, transform_input=True)
    out = net(x)
    assert [v.shape for v in out] == [(2, 5)] * 3
    assert out._fields == ("logits", "aux_logits2", "aux_logits1")
    logits = net.eval()(x).numpy()
    assert logits.shape == (2, 5)
    net.transform_input = False
    mean = np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1)
    deviation = np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1)
    np.testing.assert_allclose(net((x * deviation + mean) * 2 - 1).numpy(), logits, rtol=1e-3, atol=1e-4)


def test_every_parameter_gets_a_gradient_through_three_losses() -> None:
    net = nn.googlenet(3, dropout=0.0, dropout_aux=0.0)
    x = np.random.default_rng(1).standard_normal((2, 3, 64, 64)).astype(np.float32)

    def loss(net: nn.Module) -> object:
        out = net(x)
        labels = np.array([0, 2])
        side = lm.ops.cross_entropy(out.aux_logits1, labels) + lm.ops.cross_entropy(out.aux_logits2, labels)
        return lm.ops.cross_entropy(out.logits, labels) + side * 0.3

    value, grads = lm.value_and_grad(loss)(net)
    assert np.isfinite(value.item())
    found = grads if isinstance(grads, dict) else dict(grads.named_parameters())
    assert set(found) == {name for name, _ in net.named_parameters()}
    assert all(np.abs(g.numpy()).max() > 0 for name, g in found.items() if name.endswith("conv.weight"))


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_initial_values_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import starts_as

    starts_as("googlenet")


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_values_and_gradients_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import agrees

    agrees("googlenet", 64)
