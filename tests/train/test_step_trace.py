"""What a training step traces: types, losses, gradients of what the loss depends on."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from tests.helpers.steps import IMAGES, LABELS, RNG, make, small_net


@pytest.mark.feature("B017")
@pytest.mark.parametrize("name", list(lm.spec.PRECISIONS))
def test_activations_are_of_the_precisions_type_and_products_round_to_tf32_in_it_alone(name: str) -> None:
    step = make(small_net(), optim.SGD(0.1), precision=name)
    step(IMAGES, LABELS)
    nodes = step.executable.graph.nodes
    (pooled,) = (n.inputs[0] for n in nodes if n.op.name == "max_pool")
    short = {"fp64": "float64", "bf16": "bfloat16", "fp16": "float16"}.get(name, "float32")
    assert pooled.dtype.name == short
    assert {n.policy.tf32 for n in nodes} == {name == "tf32"}
    assert bool(step.state.scale) == (name == "fp16")


def test_other_losses_and_labels() -> None:
    net = nn.Linear(3, 2)
    step = lm.train_step(net, nn.MSELoss(), optim.SGD(0.1), device="cpu", backend="reference")
    x, target = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)
    losses = [step(x, target).item() for _ in range(5)]
    assert losses[-1] < losses[0]
    assert step.correct is None


def test_a_loss_that_is_no_scalar_is_named() -> None:
    step = lm.train_step(small_net(), lambda y, t: y, optim.SGD(0.1), device="cpu", backend="reference")
    with pytest.raises(ValueError, match=r"loss_fn must give a scalar, it gave shape \(8, 4\)"):
        step(IMAGES, LABELS)


def test_a_frozen_network_costs_no_gradient() -> None:
    def kernels(freeze: bool) -> int:
        net = small_net()
        net[0].requires_grad_(not freeze)
        step = make(net, optim.SGD(0.1), backend="cpu")
        step(IMAGES, LABELS)
        text = str(step.executable.graph)
        assert ("conv_filter_grad" in text) != freeze
        return step.executable.kernels

    assert kernels(True) < kernels(False)


class Heads(nn.Module):
    """Two heads, of which `task` says the one that is used."""

    task = "first"

    def __init__(self) -> None:
        self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        return self.first(x) if self.task == "first" else self.second(x)


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.1}, {"keep_grads": True}, {"precision": "fp16"}])
def test_a_head_that_is_not_used_is_not_updated(options: Any) -> None:
    lm.manual_seed(0)
    net = Heads()
    step = lm.train_step(net, ops.mse_loss, optim.AdamW(lr=0.1, weight_decay=0.5), **options)
    x, y = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)
    for task, other in (("first", net.second), ("second", net.first), ("first", net.second)):
        net.task = task
        kept, used = other.weight.numpy().copy(), getattr(net, task).weight.numpy().copy()
        for _ in range(2):
            step(x, y)
        np.testing.assert_array_equal(other.weight.numpy(), kept)
        assert np.abs(getattr(net, task).weight.numpy() - used).max() > 0


@pytest.mark.parametrize(
    "loss", [lambda o, t: ops.mse_loss(o.detach(), t), lambda o, t: lm.tensor(1.0), lambda o, t: ops.mean(t)]
)
def test_a_loss_that_depends_on_no_parameter_is_an_error(loss: Any) -> None:
    step = lm.train_step(nn.Linear(3, 2), loss, optim.SGD(0.1))
    with pytest.raises(ValueError, match="the loss depends on none of the parameters that are trained"):
        step(np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32))


def test_gradients_of_formulas_that_one_op_computes_are_that_ops() -> None:
    """An RMS norm that is written out trains as the layer does, by its gradient in one op."""

    class Written(nn.Module):
        def __init__(self, *, steps: bool) -> None:
            super().__init__()
            nn.manual_seed(1)
            self.inner, self.outer = nn.Linear(8, 16), nn.Linear(16, 4)
            self.norm, self.steps = nn.RMSNorm(16, eps=1e-6), steps

        def forward(self, x: Any) -> Any:
            x = self.inner(x)
            if not self.steps:
                return self.outer(self.norm(x))
            unit = x * ops.rsqrt(ops.mean(x * x, -1, keepdim=True) + 1e-6)
            return self.outer(self.norm.weight * unit)

    images, losses = RNG.standard_normal((8, 8)).astype(np.float32), []
    for steps in (True, False):
        step = make(Written(steps=steps), optim.SGD(0.1, 0.9))
        losses.append([step(images, LABELS).item() for _ in range(4)])
        found = {node.op.name for node in step.executable.graph.nodes}
        assert {"rms_norm", "rms_norm_grad"} <= found
        assert "rsqrt" not in found
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
