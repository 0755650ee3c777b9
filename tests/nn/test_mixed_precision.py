"""autocast: a step of one's own computes what train_step computes in the same precision."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim

RNG = np.random.default_rng(0)
X = RNG.standard_normal((8, 3, 6, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 8)


def network() -> nn.Sequential:
    nn.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4))


@pytest.mark.parametrize("precision", ["bf16", "tf32", "fp32"])
@pytest.mark.feature("B017")
def test_a_step_of_ones_own_equals_train_steps(precision: str) -> None:
    net, twin = network(), network()
    optimizer = optim.SGD(net, lr=0.05, momentum=0.9)

    @lm.jit
    def step(x: Any, y: Any) -> Any:
        def loss(net: Any) -> Any:
            with nn.autocast(precision):
                outputs = net(x)
            assert outputs.dtype.name == "float32"
            return ops.cross_entropy(outputs, y)

        value, grads = lm.value_and_grad(loss)(net)
        optimizer.step(grads)
        return value, grads["0.weight"]

    other = lm.train_step(
        twin, ops.cross_entropy, optim.SGD(lr=0.05, momentum=0.9), device="cpu", precision=precision
    )
    for _ in range(4):
        value, grad = step(X, Y)
        assert grad.dtype.name == "float32"
        assert value.item() == pytest.approx(other(X, Y).item(), rel=1e-5)
    assert ("bf16[8,8,4,4]" in str(step.program(X, Y).graph)) == (precision == "bf16")
    assert net[0].weight.dtype.name == "float32"
    np.testing.assert_allclose(net[0].weight.numpy(), twin[0].weight.numpy(), rtol=1e-4, atol=1e-6)


def test_blocks_nest_and_are_seen_by_compiled_functions() -> None:
    net = network().eval()
    exact = net(X).numpy()
    with nn.autocast("bf16"):
        rounded = net(X).numpy()
        with nn.autocast("fp32"):
            np.testing.assert_array_equal(net(X).numpy(), exact)
    assert 1e-4 < np.abs(rounded - exact).max() < 0.1
    run = lm.jit(net)
    np.testing.assert_allclose(run(X).numpy(), exact, rtol=1e-4, atol=1e-5)
    with nn.autocast("bf16"):
        np.testing.assert_allclose(run(X).numpy(), rounded, atol=0.02)
        assert np.abs(run(X).numpy() - exact).max() > 1e-4
    np.testing.assert_allclose(run(X).numpy(), exact, rtol=1e-4, atol=1e-5)


def test_integers_and_structures_pass_through() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            self.embedding, self.linear = nn.Embedding(5, 4), nn.Linear(4, 4)

        def forward(self, tokens: Any, more: Any, scale: float = 1.0) -> Any:
            assert tokens.dtype.name == "int64"
            assert more["x"].dtype.name == "bfloat16"
            return {"y": self.linear(self.embedding(tokens)) * scale + more["x"], "tokens": tokens}

    with nn.autocast("bf16"):
        found = Both()(np.array([1, 2]), {"x": np.ones((2, 4), np.float32)}, scale=2.0)
    assert found["y"].dtype.name == "float32"
    assert found["tokens"].tolist() == [1, 2]


@pytest.mark.parametrize(("precision", "message"), [("fp16", "train_step"), ("fp64", r"net.to\('float64'\)")])
def test_precisions_that_need_more_are_refused(precision: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"autocast: takes bf16, tf32 or fp32, got {precision}: {message}"):
        nn.autocast(precision).__enter__()
