"""checkpoint: the same bits with less memory, computed at once and compiled."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from lamina.graph.ir.capture import EagerTape

RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def block(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.2), nn.Linear(4 * width, width), nn.Tanh()
    )


def deep(checked: bool, count: int = 6, width: int = 32) -> nn.Module:
    lm.manual_seed(7)
    blocks = nn.ModuleList([block(width) for _ in range(count)])

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = blocks

        def forward(self, x: Any) -> Any:
            for each in self.blocks:
                x = x + (lm.checkpoint(each) if checked else each)(x)
            return x

    return Net()


def test_computed_at_once_it_gives_the_same_bits() -> None:
    x = normal(8, 32)
    found = []
    for checked in (False, True):
        net = deep(checked)
        lm.manual_seed(1)
        found.append(lm.value_and_grad(lambda net, x: ops.mean(net(x) ** 2), (0, 1))(net, x))
    (loss, (slopes, to_x)), (loss2, (slopes2, to_x2)) = found
    assert float(loss) == float(loss2)
    np.testing.assert_array_equal(to_x.numpy(), to_x2.numpy())
    for name, g in slopes.items():
        np.testing.assert_array_equal(g.numpy(), slopes2[name].numpy(), err_msg=name)


def test_computed_at_once_nothing_within_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the forward pass only what goes in and comes out is known."""
    held: list[int] = []
    found = EagerTape.commit

    def commit(self: Any) -> None:
        held.append(len(self.forgotten))
        assert all(v.known is None for v in self.forgotten)
        found(self)

    monkeypatch.setattr(EagerTape, "commit", commit)
    _, pull = lm.vjp(lm.checkpoint(lambda x: ops.exp(ops.sin(x)) * 2), normal(5))
    assert held[0] >= 2
    assert pull(np.ones(5, np.float32))[0].shape == (5,)


@pytest.mark.feature("F112")
def test_a_compiled_gradient_takes_less_memory_and_has_the_same_bits() -> None:
    x = normal(256, 32)
    peaks, results = [], []
    for checked in (False, True):
        net = deep(checked, count=8)
        step = lm.jit(lm.value_and_grad(lambda net, x, net_=net: ops.mean(net_(x) ** 2), 1))
        lm.manual_seed(1)
        results.append(step(net, x))
        peaks.append(step.program(net, x).peak_bytes)
    (loss, slope), (loss2, slope2) = results
    assert float(loss) == float(loss2)
    np.testing.assert_array_equal(slope.numpy(), slope2.numpy())
    assert peaks[1] < 0.5 * peaks[0]


@pytest.mark.feature("F111")
def test_training_steps_are_the_same_in_every_bit() -> None:
    x, y = normal(64, 32), normal(64, 32)
    losses, states = [], []
    for checked in (False, True):
        net = deep(checked)
        step = lm.train_step(net, ops.mse_loss, lm.optim.Adam(lr=1e-3), device="cpu")
        lm.manual_seed(2)
        losses.append([float(step(x, y)) for _ in range(5)])
        states.append([p.numpy().copy() for p in net.parameters()])
    assert losses[0] == losses[1]
    for a, b in zip(*states, strict=True):
        np.testing.assert_array_equal(a, b)


def test_running_statistics_are_updated_once() -> None:
    x = normal(16, 3, 6, 6)
    states = []
    for checked in (False, True):
        lm.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        run = lm.checkpoint(net) if checked else net
        grads = lm.grad(lambda net, x, run=run: ops.mean(run(x) ** 2))(net, x)
        states.append([b.numpy().copy() for b in net.buffers()] + [g.numpy() for g in grads.values()])
    for a, b in zip(*states, strict=True):
        np.testing.assert_array_equal(a, b)


def test_second_derivatives() -> None:
    x = RNG.standard_normal(5)
    square = lm.checkpoint(lambda x: ops.sum(ops.sin(x) ** 3))
    product = lm.hvp(square, (x,), (np.ones(5),))[1][0]
    wanted = lm.hvp(lambda x: ops.sum(ops.sin(x) ** 3), (x,), (np.ones(5),))[1][0]
    np.testing.assert_allclose(product.numpy(), wanted.numpy(), 1e-12)
    compiled = lm.jit(lambda x: lm.hvp(square, (x,), (np.ones(5),))[1][0])(x)
    np.testing.assert_allclose(compiled.numpy(), wanted.numpy(), 1e-12)


def test_arguments_results_and_closures() -> None:
    w = lm.tensor(normal(4, 4))

    @lm.checkpoint
    def fn(pair: Any, *, scale: float) -> Any:
        a, index = pair
        return {"y": ops.embedding(index, ops.tanh(a @ w)) * scale, "index": index, "text": "kept"}

    def loss(w_: Any, a: Any) -> Any:
        made = fn((a @ w_, np.array([2, 0])), scale=3.0)
        assert made["text"] == "kept"
        return ops.sum(made["y"])

    plain = lm.grad(
        lambda w_, a: ops.sum(ops.embedding(np.array([2, 0]), ops.tanh((a @ w_) @ w)) * 3.0), (0, 1)
    )
    a = normal(3, 4)
    for found in (lm.grad(loss, (0, 1))(w, a), lm.jit(lm.grad(loss, (0, 1)))(w, a)):
        for g, wanted in zip(found, plain(w, a), strict=True):
            np.testing.assert_allclose(g.numpy(), wanted.numpy(), 1e-6, 1e-7)
    assert fn((lm.tensor(a), np.array([0])), scale=1.0)["y"].shape == (1, 4)


def test_within_each_other_and_within_vmap() -> None:
    inner = lm.checkpoint(lambda x: ops.sin(x) * x)
    outer = lm.checkpoint(lambda x: ops.sum(inner(inner(x))))
    x = normal(4)
    wanted = lm.grad(lambda x: ops.sum(ops.sin(ops.sin(x) * x) * ops.sin(x) * x))(x)
    for fn in (lm.grad(outer), lm.jit(lm.grad(outer))):
        np.testing.assert_allclose(fn(x).numpy(), wanted.numpy(), 1e-6)
    rows = normal(3, 4)
    np.testing.assert_allclose(
        lm.vmap(lm.grad(outer))(rows).numpy(), np.stack([lm.grad(outer)(r).numpy() for r in rows]), 1e-5, 1e-6
    )
    with pytest.raises(TypeError, match="checkpoint: takes a function, got 3"):
        lm.checkpoint(3)  # type: ignore[arg-type]


def test_functions_are_called_as_torchs_checkpoint_calls_them() -> None:
    def block(x: Any, *, by: Any) -> Any:
        return ops.sin(x) * by

    def loss(x: Any, kind: int) -> Any:
        if kind == 0:
            return block(x, by=x).sum()
        if kind == 1:
            return lm.checkpoint(block)(x, by=x).sum()
        return lm.checkpoint(block, x, by=x, use_reentrant=False, preserve_rng_state=True).sum()

    x = normal(5)
    wanted, *others = (lm.grad(lambda x, kind=kind: loss(x, kind))(x) for kind in range(3))
    for found in others:
        np.testing.assert_array_equal(found.numpy(), wanted.numpy())
    assert lm.checkpoint(lambda x: x + 1, lm.ones(2)).tolist() == [2, 2]
    with pytest.raises(ValueError, match="leave preserve_rng_state=True"):
        lm.checkpoint(block, x, by=x, preserve_rng_state=False)
