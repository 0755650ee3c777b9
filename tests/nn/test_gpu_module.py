"""Modules on a GPU: moved as a whole, computing the same. What only moves also runs on the driver in software."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.runtime import Device

pytestmark = pytest.mark.gpu
X = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)


def network() -> nn.Module:
    lm.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.feature("F039", "F108")
def test_a_module_moves_there_and_back() -> None:
    """Parameters and buffers, the objects themselves: whoever holds one sees it moved."""
    net, gpu = network(), Device("cuda:0")
    before = {name: value.numpy().copy() for name, value in net.state_dict().items()}
    held = next(iter(net.parameters()))
    assert net.to("cuda:0") is net
    assert {value.device for value in net.state_dict().values()} == {gpu}
    assert held is next(iter(net.parameters()))
    assert held.device == gpu
    net.to("cpu")
    assert {value.device for value in net.state_dict().values()} == {Device("cpu")}
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name])


@pytest.mark.feature("F108")
def test_a_network_is_built_moved_run_and_updated() -> None:
    """Forward, gradients and a step on the GPU, against the same on the CPU."""

    def step(device: str) -> tuple[np.ndarray[Any, Any], list[np.ndarray[Any, Any]]]:
        net = network().eval().to(device)
        names = [name for name, _ in net.named_parameters()]
        x = lm.tensor(X, device=device)

        def loss(*values: Any) -> Any:
            return ops.mean(ops.square(nn.functional_call(net, dict(zip(names, values, strict=True)), x)))

        value, grads = lm.value_and_grad(loss, range(len(names)))(*net.parameters())
        optimizer = optim.SGD(0.1)
        moved = [
            optimizer.update(p, g, optimizer.init(p), np.float32(0.1))[0]
            for p, g in zip(net.parameters(), grads, strict=True)
        ]
        assert {str(t.device) for t in (value, *grads, *moved)} == {device}
        return value.numpy(), [m.numpy() for m in moved]

    here, there = step("cpu"), step("cuda:0")
    np.testing.assert_allclose(there[0], here[0], rtol=1e-4)
    for a, b in zip(there[1], here[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
