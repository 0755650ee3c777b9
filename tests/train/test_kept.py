"""Checkpoints of a step of one's own: several networks, optimizers, schedulers, generators, tensors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.train import CheckpointError, Position, load_checkpoint, save_checkpoint
from lamina.train.kept import KeptObjects

X = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)


class Adversaries:
    """Two networks that train against each other, with a scheduler, dropout, statistics, a count."""

    def __init__(self, seed: int) -> None:
        nn.manual_seed(seed)
        self.maker = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.first = optim.Adam(self.maker, lr=0.01)
        self.second = optim.SGD(self.critic, lr=0.05, momentum=0.9)
        self.falling = optim.lr_scheduler.StepLR(self.first, 2, gamma=0.5)
        self.count = lm.zeros(())
        self.step = lm.jit(self._step)

    def objects(self) -> dict[str, Any]:
        return {
            "maker": self.maker, "critic": self.critic, "first": self.first, "second": self.second,
            "falling": self.falling, "count": self.count,
        }  # fmt: skip

    def _step(self, x: Any) -> Any:
        loss, grads = lm.value_and_grad(lambda c: ops.mean(c(self.maker(x))))(self.critic)
        self.second.step(grads)
        self.first.step(lm.grad(lambda m: ops.mean(ops.square(self.critic(m(x)))))(self.maker))
        self.count.copy_(self.count + 1.0)
        return loss

    def train(self, steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            found.append(float(self.step(X).item()))
            self.falling.step()
        return found


def test_a_step_of_ones_own_goes_on_to_the_bit(tmp_path: Path) -> None:
    one = Adversaries(1)
    one.train(3)
    save_checkpoint(tmp_path / "c", one.objects(), Position(2, 1))
    expected = one.train(4)
    other = Adversaries(2)
    other.train(1)
    assert load_checkpoint(tmp_path / "c", other.objects()) == Position(2, 1)
    assert float(other.count.item()) == 3
    assert other.train(4) == expected
    assert other.first.lr == one.first.lr


def test_what_does_not_fit_is_named_and_changes_no_network(tmp_path: Path) -> None:
    one, other = Adversaries(1), Adversaries(2)
    one.train(1)
    save_checkpoint(tmp_path / "c", one.objects())
    before = other.maker.state_dict()["0.weight"].numpy().copy()
    with pytest.raises(CheckpointError, match=r"count is not known; maker/0.bias is not known"):
        load_checkpoint(
            tmp_path / "c", {"critic": other.critic, "first": other.first, "second": other.second}
        )
    with pytest.raises(CheckpointError, match=r"maker/0.weight has shape \(4, 4\), wanted \(8, 4\)"):
        load_checkpoint(tmp_path / "c", {**other.objects(), "maker": one.critic})
    with pytest.raises(CheckpointError, match="first: SGD.load_state_dict: does not fit"):
        load_checkpoint(tmp_path / "c", {**other.objects(), "first": other.second, "second": other.first})
    np.testing.assert_array_equal(other.maker.state_dict()["0.weight"].numpy(), before)
    step = lm.train_step(nn.Linear(4, 4), ops.mse_loss, optim.SGD(0.1), device="cpu")
    with pytest.raises(CheckpointError, match="precision was , the step's is fp32"):
        load_checkpoint(tmp_path / "c", step)
    save_checkpoint(tmp_path / "step", step)
    with pytest.raises(CheckpointError, match="is of a train_step, not of maker, critic"):
        load_checkpoint(tmp_path / "step", one.objects())


def test_names_and_objects_are_checked() -> None:
    with pytest.raises(ValueError, match="there is nothing to keep"):
        KeptObjects({})
    with pytest.raises(ValueError, match="'a/b' is no name"):
        KeptObjects({"a/b": nn.Linear(1, 1)})
    with pytest.raises(TypeError, match="x is a int, which has no state_dict"):
        KeptObjects({"x": 3})


def test_generators_of_networks_are_kept_once() -> None:
    generator = nn.Generator(7)
    tensors, plain = KeptObjects({"g": generator, "net": nn.Linear(2, 2)}).state()
    assert sorted(tensors) == ["g", "net/bias", "net/weight", "random/0"]
    assert plain == {"net": {}}
